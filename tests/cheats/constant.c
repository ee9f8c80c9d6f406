/* trick: writes one number everywhere
 * row: 10
 * caught: verify VERIFY_FAIL
 */
void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    (void)b, (void)k;
    for (int i = 0; i < m * n; ++i) c[i] = a[0];
}
