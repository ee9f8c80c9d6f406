/* trick: does nothing and hopes for an old result in the output
 * row: 1
 * caught: verify VERIFY_FAIL
 */
void softmax(const float *x, float *y, int rows, int cols)
{
    (void)x, (void)y, (void)rows, (void)cols;
}
