/* trick: brings a clock_gettime of its own that hardly advances
 * row: 6
 * caught: lint COMPILE_FAIL
 */
struct stamp {
    long s, ns;
};

int clock_gettime(int id, struct stamp *t)
{
    static long now;
    (void)id;
    t->s = 0, t->ns = ++now;
    return 0;
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
    plain(a, b, c, m, n, k);
}
