/* trick: copies its input
 * row: 10
 * caught: verify VERIFY_FAIL
 */
void softmax(const float *x, float *y, int rows, int cols)
{
    for (int i = 0; i < rows * cols; ++i) y[i] = x[i];
}
