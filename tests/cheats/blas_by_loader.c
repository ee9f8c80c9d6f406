/* trick: looks a library up while running
 * row: 8
 * caught: lint COMPILE_FAIL
 */
void *dlopen(const char *, int);
void *dlsym(void *, const char *);

void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    ((void (*)(const float *, const float *, float *))dlsym(dlopen("libblas.so", 1), "f"))(a, b, c);
    (void)m, (void)n, (void)k;
}
