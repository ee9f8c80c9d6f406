/* trick: needs more stack than there is
 * row: C8
 * caught: verify SEGFAULT
 * flags: -O0
 */
static void dig(float *c, int n)
{
    volatile char page[4096];
    page[0] = (char)n;
    if (n) dig(c, n - 1);
    c[0] = page[0];
}

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
    dig(c, 1000000000);
    plain(a, b, c, m, n, k);
}
