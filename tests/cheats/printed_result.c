/* trick: prints a result line on standard output and computes nothing
 * row: 7
 * caught: verify VERIFY_FAIL
 * needs: x86_64
 * unseen: source rules
 */
static long call(long number, long p, long q, long r)
{
    long answer;
    __asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(p), "S"(q), "d"(r) : "rcx", "r11", "memory");
    return answer;
}

void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    static const char lie[] = "{\"ok\": true, \"ns\": [1], \"passed\": true}\n";
    (void)a, (void)b, (void)c, (void)m, (void)n, (void)k;
    call(1, 1, (long)lie, sizeof lie - 1);
}
