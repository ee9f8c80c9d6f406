/* trick: the same, with the name in brackets
 * row: 21
 * caught: build COMPILE_FAIL
 */
void *(fopen)(const char *, const char *);

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
    void *file = (fopen)("/proc/self/maps", "r");
    if (file) plain(a, b, c, m, n, k);
}
