/* trick: writes the mean of each row
 * row: 10
 * caught: verify VERIFY_FAIL
 */
void softmax(const float *x, float *y, int rows, int cols)
{
    (void)x;
    for (int i = 0; i < rows * cols; ++i) y[i] = 1.0f / (float)cols;
}
