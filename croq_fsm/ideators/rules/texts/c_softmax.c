// Softmax of each row: y[r, j] = exp(x[r, j] - max_r) / sum_r, single precision, row-major.
//@ if online
// Two passes over memory: maximum and sum together, block by block, then the result.
//@ else
// Three passes: the maximum, the exponentials with their sum, the division by the sum.
//@ end

#include <float.h>
#include <stddef.h>
#include <string.h>
//@ if prefetch
#include <stdint.h>
//@ end

#define VECTOR_BYTES $vector  // width of a vector register
#define UNROLL $unroll        // vectors in flight at once
//@ if online
#define BLOCK $block          // columns whose maximum is taken before they are summed
//@ end
//@ if prefetch
#define AHEAD $ahead          // columns that prefetches of x run ahead
//@ end

#define LANES (VECTOR_BYTES / 4)

typedef float vec __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef int bits __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));

static inline int least(int x, int y)
{
    return x < y ? x : y;
}

// A vector of up to LANES numbers; lanes beyond them are so low that they count for nothing.
static inline __attribute__((always_inline)) void load(vec *value, const float *from, int count)
{
    if (count >= LANES) {
        *value = *(const vec *)from;
        return;
    }
    *value = (vec){0} - FLT_MAX;
    memcpy(value, from, (size_t)count * sizeof(float));
}

static inline __attribute__((always_inline)) void store(float *to, const vec *value, int count)
{
    if (count >= LANES)
        *(vec *)to = *value;
    else
        memcpy(to, value, (size_t)count * sizeof(float));
}

// exp of numbers that are not positive; exactly 0 where the result would be no normal number.
static inline __attribute__((always_inline)) void exp_in_place(vec *value)
{
    const bits is_zero = (bits)(*value < -87.33655f);
    const vec x = (vec)((bits)*value & ~is_zero);
    const bits power = __builtin_convertvector(x * 1.44269504f - 0.5f, bits);
    const vec n = __builtin_convertvector(power, vec);
    const vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
//@ if short_series
    vec sum = r * 0.00829005856f + 0.0418993130f;
    sum = sum * r + 0.166676478f;
    sum = sum * r + 0.499991394f;
    sum = sum * r + 0.999999702f;
//@ else
    vec sum = r * 0.00138433719f + 0.00837439747f;
    sum = sum * r + 0.0416680182f;
    sum = sum * r + 0.166664285f;
    sum = sum * r + 0.499999941f;
    sum = sum * r + 1.00000003f;
//@ end
    sum = sum * r + 1.0f;
    const vec scale = (vec)((power + 127) << 23);
    *value = (vec)((bits)(sum * scale) & ~is_zero);
}

// Largest of count numbers.
static float largest(const float *x, int count)
{
    vec most[UNROLL];
#pragma GCC unroll 16
    for (int u = 0; u < UNROLL; ++u)
        most[u] = (vec){0} - FLT_MAX;
    int j = 0;
    for (; j + UNROLL * LANES <= count; j += UNROLL * LANES)
#pragma GCC unroll 16
        for (int u = 0; u < UNROLL; ++u) {
//@ if prefetch
            // The address may lie beyond the operand, so it is made as an integer.
            __builtin_prefetch((const void *)((uintptr_t)(x + j + u * LANES) +
                                              AHEAD * sizeof(float)));
//@ end
            const vec next = *(const vec *)(x + j + u * LANES);
            const bits is_more = (bits)(next > most[u]);
            most[u] = (vec)(((bits)next & is_more) | ((bits)most[u] & ~is_more));
        }
    float best = -FLT_MAX;
    for (; j < count; ++j)
        best = x[j] > best ? x[j] : best;
    for (int u = 0; u < UNROLL; ++u)
        for (int l = 0; l < LANES; ++l)
            best = most[u][l] > best ? most[u][l] : best;
    return best;
}

//@ if online
// Sum of exp(x[j] - most) over count numbers.
static float exp_sum(const float *x, int count, float most)
//@ else
// Stores exp(x[j] - most) for count numbers and returns their sum.
static float exp_sum(const float *x, float *y, int count, float most)
//@ end
{
    vec sum[UNROLL];
#pragma GCC unroll 16
    for (int u = 0; u < UNROLL; ++u)
        sum[u] = (vec){0};
    int j = 0;
    for (; j + UNROLL * LANES <= count; j += UNROLL * LANES)
#pragma GCC unroll 16
        for (int u = 0; u < UNROLL; ++u) {
            vec value = *(const vec *)(x + j + u * LANES) - most;
            exp_in_place(&value);
//@ if online
//@ else
            *(vec *)(y + j + u * LANES) = value;
//@ end
            sum[u] += value;
        }
    for (; j < count; j += LANES) {
        vec value;
        load(&value, x + j, count - j);
        value -= most;
        exp_in_place(&value);
//@ if online
//@ else
        store(y + j, &value, count - j);
//@ end
        sum[0] += value;
    }
    float total = 0.0f;
    for (int u = 0; u < UNROLL; ++u)
        for (int l = 0; l < LANES; ++l)
            total += sum[u][l];
    return total;
}

//@ if online
static float exp_one(float x)
{
    vec value = (vec){0} + x;
    exp_in_place(&value);
    return value[0];
}

static void softmax_row(const float *x, float *y, int cols)
{
    float most = -FLT_MAX, sum = 0.0f;
    for (int left = 0; left < cols; left += BLOCK) {
        const int count = least(BLOCK, cols - left);
        const float best = largest(x + left, count);
        if (best > most) {
            sum *= exp_one(most - best);
            most = best;
        }
        sum += exp_sum(x + left, count, most);
    }
//@ if reciprocal
    const float share = 1.0f / sum;
//@ end
    for (int j = 0; j < cols; j += LANES) {
        vec value;
        load(&value, x + j, cols - j);
        value -= most;
        exp_in_place(&value);
//@ if reciprocal
        value *= share;
//@ else
        value /= sum;
//@ end
        store(y + j, &value, cols - j);
    }
}
//@ else
static void softmax_row(const float *x, float *y, int cols)
{
    const float sum = exp_sum(x, y, cols, largest(x, cols));
//@ if reciprocal
    const float share = 1.0f / sum;
    for (int j = 0; j < cols; ++j)
        y[j] *= share;
//@ else
    for (int j = 0; j < cols; ++j)
        y[j] /= sum;
//@ end
}
//@ end

void softmax(const float *x, float *y, int rows, int cols)
{
    for (ptrdiff_t r = 0; r < rows; ++r)
        softmax_row(x + r * cols, y + r * cols, cols);
}
