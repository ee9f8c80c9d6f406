/* trick: sleeps, so that little processor time passes
 * row: C1
 * caught: build COMPILE_FAIL
 */
unsigned sleep(unsigned);

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
    sleep(1000);
}
