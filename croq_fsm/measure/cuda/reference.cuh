// The trusted side: a reference in double precision and a comparison of the whole output.
// The reference tile never leaves the registers; nothing of it is in memory to be found.
#pragma once

#include <cstdint>
#include <vector>

#include "arena.cuh"

namespace croq {

// An element is wrong if |out - ref| > relative * |ref| + absolute, in either pair; the second is
// the tolerance that users know from elsewhere. A negative number means that there is none.
struct Bounds {
  double relative, absolute, table_relative, table_absolute;
};

// What one thread block found; summed up on the host in block order, so always the same.
struct Partial {
  double diff2, ref2, max_error;
  unsigned long long wrong, beyond_table, nan, first;
};

constexpr int kTile = 128, kStep = 16, kPer = 8, kThreads = (kTile / kPer) * (kTile / kPer);

template <class T> __host__ __device__ double widen(T x) { return static_cast<double>(static_cast<float>(x)); }

// How an operand of the product is read; element (row, k) of L or R as problem.h defines them.
template <class T> struct Dense {
  const T *data;
  long long rows, k;
  __host__ __device__ double at(long long row, long long column) const { return widen(data[row * k + column]); }
};

// One scale for `height` rows and kScaleBlock columns; the product of both is exact.
template <class T> struct Scaled {
  const T *data;
  long long rows, k;
  const float *scales;
  long long height;
  __host__ __device__ double at(long long row, long long column) const {
    const long long blocks = (k + kScaleBlock - 1) / kScaleBlock;
    const float scale = scales[row / height * blocks + column / kScaleBlock];
    return widen(data[row * k + column]) * static_cast<double>(scale);
  }
};

template <class T> struct Sparse {
  const T *packed;
  long long rows, k;
  const uint8_t *meta;
  __host__ __device__ double at(long long row, long long column) const {
    const unsigned byte = meta[row * (k / 8) + column / 8], place = static_cast<unsigned>(column % 4);
    const unsigned bits = column % 8 < 4 ? byte & 15u : byte >> 4;
    const T *kept = packed + row * (k / 2) + column / 4 * 2;
    double value = 0.0;
    if ((bits & 3u) == place) value += widen(kept[0]);
    if ((bits >> 2 & 3u) == place) value += widen(kept[1]);
    return value;
  }
};

__device__ inline double read_output(const void *out, Elem elem, long long at) {
  if (elem == Elem::f32) return static_cast<const float *>(out)[at];
  if (elem == Elem::bf16) return widen(static_cast<const __nv_bfloat16 *>(out)[at]);
  return widen(static_cast<const __half *>(out)[at]);
}

template <class Source>
__device__ void load_tile(double (&tile)[kStep][kTile + 1], const Source &from, long long row0, long long k0) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kStep; i += kThreads) {
    const long long row = row0 + i / kStep, at = k0 + i % kStep;
    tile[i % kStep][i / kStep] = row < from.rows && at < from.k ? from.at(row, at) : 0.0;
  }
}

__device__ inline void fold(Partial &into, const Partial &other) {
  into.diff2 += other.diff2;
  into.ref2 += other.ref2;
  into.max_error = fmax(into.max_error, other.max_error);
  into.wrong += other.wrong;
  into.beyond_table += other.beyond_table;
  into.nan += other.nan;
  into.first = into.first < other.first ? into.first : other.first;
}

__device__ inline Partial judge_element(double got, double want, Bounds bounds, unsigned long long index) {
  const bool finite = isfinite(got);
  const double error = finite ? fabs(got - want) : fabs(want);  // an absent number counts as zero
  const bool off = !finite || error > bounds.relative * fabs(want) + bounds.absolute;
  const bool beyond = bounds.table_absolute >= 0 && error > bounds.table_relative * fabs(want) + bounds.table_absolute;
  const bool wrong = off || beyond;
  return {error * error, want * want, error, wrong, beyond, !finite, wrong ? index : ~0ull};
}

template <class L, class R>
__global__ __launch_bounds__(kThreads) void compare_kernel(L lhs, R rhs, const void *out, Elem out_type, Bounds bounds,
                                                           Partial *partials) {
  const long long m = lhs.rows, n = rhs.rows, k = lhs.k;
  __shared__ double a[kStep][kTile + 1], b[kStep][kTile + 1];
  const long long row0 = static_cast<long long>(blockIdx.y) * kTile, col0 = static_cast<long long>(blockIdx.x) * kTile;
  const int ty = static_cast<int>(threadIdx.x) / (kTile / kPer), tx = static_cast<int>(threadIdx.x) % (kTile / kPer);
  double sum[kPer][kPer] = {};
  for (long long k0 = 0; k0 < k; k0 += kStep) {
    load_tile(a, lhs, row0, k0);
    load_tile(b, rhs, col0, k0);
    __syncthreads();
    for (int s = 0; s < kStep; ++s) {
      double x[kPer], y[kPer];
#pragma unroll
      for (int i = 0; i < kPer; ++i) x[i] = a[s][ty + i * (kTile / kPer)], y[i] = b[s][tx + i * (kTile / kPer)];
#pragma unroll
      for (int i = 0; i < kPer; ++i)
#pragma unroll
        for (int j = 0; j < kPer; ++j) sum[i][j] = fma(x[i], y[j], sum[i][j]);
    }
    __syncthreads();
  }
  Partial mine{0, 0, 0, 0, 0, 0, ~0ull};
#pragma unroll
  for (int i = 0; i < kPer; ++i)
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const long long row = row0 + ty + i * (kTile / kPer), col = col0 + tx + j * (kTile / kPer);
      if (row >= m || col >= n) continue;
      const long long at = row * n + col;
      fold(mine, judge_element(read_output(out, out_type, at), sum[i][j], bounds, static_cast<unsigned long long>(at)));
    }
  __shared__ Partial all[kThreads];
  all[threadIdx.x] = mine;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) fold(all[threadIdx.x], all[threadIdx.x + half]);
  }
  if (threadIdx.x == 0) partials[blockIdx.y * gridDim.x + blockIdx.x] = all[0];
}

template <class L, class R>
__global__ void one_element_kernel(L lhs, R rhs, const void *out, Elem out_type, unsigned long long at, double *got_want) {
  double sum = 0;
  const long long row = static_cast<long long>(at) / rhs.rows, col = static_cast<long long>(at) % rhs.rows;
  for (long long i = 0; i < lhs.k; ++i) sum = fma(lhs.at(row, i), rhs.at(col, i), sum);
  got_want[0] = read_output(out, out_type, static_cast<long long>(at));
  got_want[1] = sum;
}

struct Comparison {
  Partial total;
  double got, want;  // of the first wrong element, if any
};

template <class L, class R>
Comparison compare_sources(L lhs, R rhs, const void *out, Elem out_type, Bounds bounds) {
  const dim3 grid(static_cast<unsigned>((rhs.rows + kTile - 1) / kTile), static_cast<unsigned>((lhs.rows + kTile - 1) / kTile));
  const size_t blocks = size_t(grid.x) * grid.y;
  Partial *partials = nullptr;
  check(cudaMalloc(&partials, blocks * sizeof(Partial)), "allocate partial results");
  compare_kernel<<<grid, kThreads>>>(lhs, rhs, out, out_type, bounds, partials);
  check(cudaGetLastError(), "the reference");
  std::vector<Partial> host(blocks);
  check(cudaMemcpy(host.data(), partials, blocks * sizeof(Partial), cudaMemcpyDeviceToHost), "the reference");
  Comparison result{{0, 0, 0, 0, 0, 0, ~0ull}, NAN, NAN};
  for (const Partial &part : host) {
    result.total.diff2 += part.diff2;
    result.total.ref2 += part.ref2;
    result.total.max_error = std::max(result.total.max_error, part.max_error);
    result.total.wrong += part.wrong;
    result.total.beyond_table += part.beyond_table;
    result.total.nan += part.nan;
    result.total.first = std::min(result.total.first, part.first);
  }
  if (result.total.first != ~0ull) {
    double pair[2];
    one_element_kernel<<<1, 1>>>(lhs, rhs, out, out_type, result.total.first, reinterpret_cast<double *>(partials));
    check(cudaMemcpy(pair, partials, sizeof pair, cudaMemcpyDeviceToHost), "the first wrong element");
    result.got = pair[0];
    result.want = pair[1];
  }
  check(cudaFree(partials), "free partial results");
  return result;
}

template <class T>
Comparison compare_typed(const Problem &p, const Operands &operands, Bounds bounds) {
  const auto input = [&](size_t i) { return static_cast<const T *>(operands.input(i)); };
  const auto scales = [&](size_t i) { return static_cast<const float *>(operands.input(i)); };
  const void *out = operands.out.data();
  if constexpr (sizeof(T) == 1) {
    if (p.op == Op::blockscale_gemm)
      return compare_sources(Scaled<T>{input(0), p.m, p.k, scales(1), 1}, Scaled<T>{input(2), p.n, p.k, scales(3), kScaleBlock},
                             out, p.out, bounds);
  }
  if (p.op == Op::gemm_sp)
    return compare_sources(Sparse<T>{input(0), p.m, p.k, static_cast<const uint8_t *>(operands.input(1))},
                           Dense<T>{input(2), p.n, p.k}, out, p.out, bounds);
  if (p.op != Op::matmul) throw std::invalid_argument("no reference for this operator and type");
  return compare_sources(Dense<T>{input(0), p.m, p.k}, Dense<T>{input(1), p.n, p.k}, out, p.out, bounds);
}

inline Comparison compare(const Problem &p, const Operands &operands, Bounds bounds) {
  if (p.in == Elem::e4m3) return compare_typed<__nv_fp8_e4m3>(p, operands, bounds);
  if (p.in == Elem::bf16) return compare_typed<__nv_bfloat16>(p, operands, bounds);
  return compare_typed<__half>(p, operands, bounds);
}

}  // namespace croq
