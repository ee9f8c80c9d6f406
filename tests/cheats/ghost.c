/* trick: does nothing and hopes for an old result in the output
 * row: 1
 * caught: verify VERIFY_FAIL
 */
void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    (void)a, (void)b, (void)c, (void)m, (void)n, (void)k;
}
