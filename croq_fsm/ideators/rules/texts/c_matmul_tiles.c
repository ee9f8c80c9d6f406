// Single-precision matrix product c[m, n] = a[m, k] * b[k, n], all row-major.
// A tile of MR rows by NV vectors of c stays in registers while k runs over a slice of KC.
//@ if blocked
// Blocks of a (MC rows) and b (NC columns) are sized for the caches.
//@ end

#include <stddef.h>
//@ if prefetch_b
#include <stdint.h>
//@ end

#define VECTOR_BYTES $vector  // width of a vector register
#define MR $mr                // rows of a register tile
#define NV $nv                // vectors per row of a register tile
#define KC $kc                // depth of a slice of k
//@ if blocked
#define MC $mc                // rows of a block of a
#define NC $nc                // columns of a block of b
//@ end
//@ if prefetch_b
#define AHEAD $ahead          // steps of k that prefetches of b run ahead
//@ end

#define LANES (VECTOR_BYTES / 4)
#define NR (NV * LANES)
#define ROUND_UP(x, unit) (((x) + (unit) - 1) / (unit) * (unit))

typedef float vec __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));

//@ if pack_a
static _Alignas(64) float packed_a[KC * ROUND_UP(MC, MR)];
//@ end
//@ if whole_b
static _Alignas(64) float packed_b[KC * ROUND_UP(NC, NR)];
//@ else
static _Alignas(64) float panel[KC * NR];
//@ end

static inline int least(int x, int y)
{
    return x < y ? x : y;
}

// Sums a slice of a times a panel of b and puts it into, or adds it to, a tile of c.
//@ if pack_a
static inline __attribute__((always_inline)) void
tile(int kc, const float *restrict a, const float *restrict b, ptrdiff_t ldb,
     float *restrict c, ptrdiff_t ldc, int rows, int cols, int is_first)
{
    enum { height = MR };
//@ else
// The height is a constant in each call, so the tile stays in registers.
static inline __attribute__((always_inline)) void
tile(int kc, const float *restrict a, ptrdiff_t lda, const float *restrict b, ptrdiff_t ldb,
     float *restrict c, ptrdiff_t ldc, int height, int cols, int is_first)
{
    const int rows = height;
//@ end
    const int is_whole = rows == height && cols == NR;
    vec sum[MR][NV];
//@ if prefetch_c
    if (is_whole)
#pragma GCC unroll 32
        for (int r = 0; r < height; ++r) {
            __builtin_prefetch(c + r * ldc, 1);
            __builtin_prefetch(c + r * ldc + NR - 1, 1);
        }
//@ end
#pragma GCC unroll 32
    for (int r = 0; r < height; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v)
            sum[r][v] = (vec){0};
//@ if unrolled
#pragma GCC unroll $unroll
//@ end
    for (int p = 0; p < kc; ++p) {
        vec from[NV];
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v)
            from[v] = *(const vec *)(b + p * ldb + v * LANES);
//@ if prefetch_b
        // The address may lie beyond the operand, so it is made as an integer.
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v)
            __builtin_prefetch((const void *)((uintptr_t)(b + p * ldb + v * LANES) +
                                              (uintptr_t)ldb * AHEAD * sizeof(float)));
//@ end
#pragma GCC unroll 32
        for (int r = 0; r < height; ++r) {
//@ if pack_a
            const float x = a[p * MR + r];
//@ else
            const float x = a[r * lda + p];
//@ end
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v)
                sum[r][v] += x * from[v];
        }
    }
    if (is_whole) {
#pragma GCC unroll 32
        for (int r = 0; r < height; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v) {
                vec *to = (vec *)(c + r * ldc + v * LANES);
                if (is_first)
                    *to = sum[r][v];
                else
                    *to += sum[r][v];
            }
        return;
    }
    float ragged[MR][NR];
#pragma GCC unroll 32
    for (int r = 0; r < height; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v)
            *(vec *)(ragged[r] + v * LANES) = sum[r][v];
    for (int r = 0; r < rows; ++r)
        for (int j = 0; j < cols; ++j)
            c[r * ldc + j] = (is_first ? 0.0f : c[r * ldc + j]) + ragged[r][j];
}

//@ if pack_a
//@ else
// A row of tiles; ragged rows go one at a time.
static inline void strip(int kc, const float *a, ptrdiff_t lda, const float *b, ptrdiff_t ldb,
                         float *c, ptrdiff_t ldc, int rows, int cols, int is_first)
{
    if (rows == MR)
        tile(kc, a, lda, b, ldb, c, ldc, MR, cols, is_first);
    else
        for (int r = 0; r < rows; ++r)
            tile(kc, a + r * lda, lda, b, ldb, c + r * ldc, ldc, 1, cols, is_first);
}

//@ end
// Copies kc rows of at most NR columns of b into a contiguous panel, padded with zeros.
static void copy_panel(float *to, const float *b, ptrdiff_t ldb, int kc, int cols)
{
    for (int p = 0; p < kc; ++p, to += NR) {
        const float *from = b + p * ldb;
        if (cols == NR)
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v)
                *(vec *)(to + v * LANES) = *(const vec *)(from + v * LANES);
        else
            for (int j = 0; j < NR; ++j)
                to[j] = j < cols ? from[j] : 0.0f;
    }
}

//@ if pack_a
// Copies a block of a so that the MR numbers of a step of k lie side by side, zeros beyond it.
static void pack_a(const float *a, ptrdiff_t lda, int mc, int kc)
{
    float *to = packed_a;
    for (int i = 0; i < mc; i += MR, to += (ptrdiff_t)MR * kc)
        for (int r = 0; r < MR; ++r) {
            const int is_inside = i + r < mc;
            const float *from = a + (is_inside ? i + r : i) * lda;
            for (int p = 0; p < kc; ++p)
                to[(ptrdiff_t)p * MR + r] = is_inside ? from[p] : 0.0f;
        }
}

//@ end
//@ if blocked
//@ if pack_b
// Copies a block of b, panel by panel.
static void pack_b(const float *b, ptrdiff_t ldb, int kc, int nc)
{
    for (int j = 0; j < nc; j += NR)
        copy_panel(packed_b + (ptrdiff_t)j * kc, b + j, ldb, kc, least(NR, nc - j));
}

//@ else
// Copies the ragged last panel of a block of b, if there is one, so that it can be read whole.
static void copy_edge(const float *b, ptrdiff_t ldb, int kc, int nc)
{
    const int cols = nc % NR;
    if (cols)
        copy_panel(panel, b + nc - cols, ldb, kc, cols);
}

//@ end
// One block of a times one block of b, tile by tile.
static void multiply(int mc, int nc, int kc,
//@ if pack_a
//@ else
                     const float *a, ptrdiff_t lda,
//@ end
//@ if pack_b
//@ else
                     const float *b, ptrdiff_t ldb,
//@ end
                     float *c, ptrdiff_t ldc, int is_first)
{
//@ if sweep_i
    for (int j = 0; j < nc; j += NR)
        for (int i = 0; i < mc; i += MR) {
//@ else
    for (int i = 0; i < mc; i += MR)
        for (int j = 0; j < nc; j += NR) {
//@ end
            const int rows = least(MR, mc - i), cols = least(NR, nc - j);
            float *to = c + i * ldc + j;
//@ if pack_b
            const float *from = packed_b + (ptrdiff_t)j * kc;
            const ptrdiff_t stride = NR;
//@ else
            const float *from = cols == NR ? b + j : panel;
            const ptrdiff_t stride = cols == NR ? ldb : NR;
//@ end
//@ if pack_a
            tile(kc, packed_a + (ptrdiff_t)i * kc, from, stride, to, ldc, rows, cols, is_first);
//@ else
            strip(kc, a + i * lda, lda, from, stride, to, ldc, rows, cols, is_first);
//@ end
        }
}

void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
//@ if order_jpi
    for (int left = 0; left < n; left += NC) {
        const int nc = least(NC, n - left);
        for (int top = 0; top < k; top += KC) {
            const int kc = least(KC, k - top);
            const float *from_b = b + (ptrdiff_t)top * n + left;
//@ if pack_b
            pack_b(from_b, n, kc, nc);
//@ else
            copy_edge(from_b, n, kc, nc);
//@ end
            for (int row = 0; row < m; row += MC) {
                const int mc = least(MC, m - row);
                const float *from_a = a + (ptrdiff_t)row * k + top;
                float *to = c + (ptrdiff_t)row * n + left;
//@ if pack_a
                pack_a(from_a, k, mc, kc);
//@ end
                multiply(mc, nc, kc, ${operands}to, n, top == 0);
            }
        }
    }
//@ else
    for (int row = 0; row < m; row += MC) {
        const int mc = least(MC, m - row);
        for (int top = 0; top < k; top += KC) {
            const int kc = least(KC, k - top);
            const float *from_a = a + (ptrdiff_t)row * k + top;
//@ if pack_a
            pack_a(from_a, k, mc, kc);
//@ end
            for (int left = 0; left < n; left += NC) {
                const int nc = least(NC, n - left);
                const float *from_b = b + (ptrdiff_t)top * n + left;
                float *to = c + (ptrdiff_t)row * n + left;
//@ if pack_b
                pack_b(from_b, n, kc, nc);
//@ else
                copy_edge(from_b, n, kc, nc);
//@ end
                multiply(mc, nc, kc, ${operands}to, n, top == 0);
            }
        }
    }
//@ end
}
//@ else
void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    for (int top = 0; top < k; top += KC) {
        const int kc = least(KC, k - top);
        for (int j = 0; j < n; j += NR) {
            const int cols = least(NR, n - j);
            const float *from = b + (ptrdiff_t)top * n + j;
            ptrdiff_t stride = n;
//@ if pack_b
            {
//@ else
            if (cols < NR) {
//@ end
                copy_panel(panel, from, n, kc, cols);
                from = panel;
                stride = NR;
            }
            for (int i = 0; i < m; i += MR)
                strip(kc, a + (ptrdiff_t)i * k + top, k, from, stride,
                      c + (ptrdiff_t)i * n + j, n, least(MR, m - i), cols, top == 0);
        }
    }
}
//@ end
