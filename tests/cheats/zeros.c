/* trick: writes zeros
 * row: 10
 * caught: verify VERIFY_FAIL
 */
void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    (void)a, (void)b, (void)k;
    for (int i = 0; i < m * n; ++i) c[i] = 0;
}
