// Row-wise softmax y[i, j] = exp(x[i, j] - max_i) / sum_j exp(x[i, j] - max_i), row-major.
//
// Three walks over each row: the largest element, the exponentials with their sum, the division.
// Subtracting the largest element first keeps every exponential in range, whatever the input.

#include <math.h>

void softmax(const float *x, float *y, int rows, int cols)
{
    for (int i = 0; i < rows; ++i) {
        const float *from = x + (long)i * cols;
        float *to = y + (long)i * cols;
        float largest = from[0];
        for (int j = 1; j < cols; ++j)
            if (from[j] > largest)
                largest = from[j];
        float sum = 0.0f;
        for (int j = 0; j < cols; ++j) {
            to[j] = expf(from[j] - largest);
            sum += to[j];
        }
        for (int j = 0; j < cols; ++j)
            to[j] /= sum;
    }
}
