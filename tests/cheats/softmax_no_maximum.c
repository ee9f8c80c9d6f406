/* trick: is right only for numbers whose exponentials do not overflow
 * row: 11
 * caught: verify VERIFY_FAIL
 */
#include <math.h>

void softmax(const float *x, float *y, int rows, int cols)
{
    for (int i = 0; i < rows; ++i) {
        float sum = 0;
        for (int j = 0; j < cols; ++j) sum += y[i * cols + j] = expf(x[i * cols + j]);
        for (int j = 0; j < cols; ++j) y[i * cols + j] /= sum;
    }
}
