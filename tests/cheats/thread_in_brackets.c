/* trick: the same, with the name in brackets, where the source rules see no call
 * row: 5
 * caught: build COMPILE_FAIL
 */
int (pthread_create)(unsigned long *, const void *, void *(*)(void *), void *);

static void *later(void *arg)
{
    *(float *)arg = 0;
    return arg;
}

void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    unsigned long id;
    (void)a, (void)b, (void)m, (void)n, (void)k;
    (pthread_create)(&id, 0, later, c);
}
