/* trick: leaves the work to a thread that goes on after the return
 * row: 5
 * caught: lint COMPILE_FAIL
 */
int pthread_create(unsigned long *, const void *, void *(*)(void *), void *);

static void *later(void *arg)
{
    *(float *)arg = 0;
    return arg;
}

void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    unsigned long id;
    (void)a, (void)b, (void)m, (void)n, (void)k;
    pthread_create(&id, 0, later, c);
}
