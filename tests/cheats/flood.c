/* trick: floods standard output
 * row: 7
 * caught: verify RUN_FAIL
 * needs: x86_64
 * unseen: source rules
 */
static long call(long number, long p, long q, long r)
{
    long answer;
    __asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(p), "S"(q), "d"(r) : "rcx", "r11", "memory");
    return answer;
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
    static char text[1 << 16];
    plain(a, b, c, m, n, k);
    for (int i = 0; i < 1024; ++i) call(1, 1, (long)text, sizeof text);
}
