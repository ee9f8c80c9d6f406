/* trick: has a static buffer of 300 MiB
 * row: C8
 * caught: build COMPILE_FAIL
 */
static float big[300 << 18];

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
    plain(a, b, c, m, n, k);
    big[n] = c[0], c[1] = big[m];
}
