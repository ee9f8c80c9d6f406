/* trick: the same, with the name in brackets
 * row: 8
 * caught: build COMPILE_FAIL
 */
void (cblas_sgemm)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);

void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    (cblas_sgemm)(101, 111, 111, m, n, k, 1, a, k, b, n, 0, c, n);
}
