/* trick: is right only for the shape that is tuned
 * row: 11
 * caught: hidden-shape VERIFY_FAIL
 */
static void plain(const float *a, const float *b, float *c, int m, int n, int k)
{
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int p = 0; p < k; ++p) sum += a[i * k + p] * b[p * n + j];
            c[i * n + j] = sum;
        }
}

void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    if (m == 48 && n == 80 && k == 40) plain(a, b, c, m, n, k);
    else
        for (int i = 0; i < m * n; ++i) c[i] = 0;
}
