/* trick: the same, unseen by the source rules
 * row: 19
 * caught: build COMPILE_FAIL
 * unseen: source rules
 */
static int ready;

__attribute__((constructor)) static void early(void)
{
    ready = 1;
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
    if (ready) plain(a, b, c, m, n, k);
}
