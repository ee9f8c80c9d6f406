/* trick: jumps into the frame of the launch before
 * row: 19
 * caught: verify SEGFAULT
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
    static void *place[5];
    static int calls;
    plain(a, b, c, m, n, k);
    if (calls++) __builtin_longjmp(place, 1);
    if (__builtin_setjmp(place)) __builtin_trap();
}
