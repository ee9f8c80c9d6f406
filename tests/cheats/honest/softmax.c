/* trick: three passes with the maximum subtracted
 * row: -
 * caught: nothing
 * flags: -O3 -march=native -ffast-math
 */
#include <math.h>

void softmax(const float *x, float *y, int rows, int cols)
{
    for (int i = 0; i < rows; ++i) {
        float most = x[i * cols], sum = 0;
        for (int j = 0; j < cols; ++j) most = fmaxf(most, x[i * cols + j]);
        for (int j = 0; j < cols; ++j) sum += y[i * cols + j] = expf(x[i * cols + j] - most);
        for (int j = 0; j < cols; ++j) y[i * cols + j] /= sum;
    }
}
