// The trusted side: a reference in double precision and a comparison of the whole output.
// The reference tile never leaves the registers; nothing of it is in memory to be found.
#pragma once

#include <cstdint>
#include <vector>

#include "arena.cuh"

namespace croq {

struct Bounds {
  double relative, absolute;  // an element is wrong if |out - ref| > relative * |ref| + absolute
};

// What one thread block found; summed up on the host in block order, so always the same.
struct Partial {
  double diff2, ref2, max_error;
  unsigned long long wrong, nan, first;
};

constexpr int kTile = 128, kStep = 16, kPer = 8, kThreads = (kTile / kPer) * (kTile / kPer);

template <class T> __device__ double widen(T x) { return static_cast<double>(static_cast<float>(x)); }

template <class T>
__device__ void load_tile(double (&tile)[kStep][kTile + 1], const T *from, long long row0, long long rows, long long k0,
                          long long k) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kStep; i += kThreads) {
    const long long row = row0 + i / kStep, at = k0 + i % kStep;
    tile[i % kStep][i / kStep] = row < rows && at < k ? widen(from[row * k + at]) : 0.0;
  }
}

__device__ inline void fold(Partial &into, const Partial &other) {
  into.diff2 += other.diff2;
  into.ref2 += other.ref2;
  into.max_error = fmax(into.max_error, other.max_error);
  into.wrong += other.wrong;
  into.nan += other.nan;
  into.first = into.first < other.first ? into.first : other.first;
}

__device__ inline Partial judge_element(double got, double want, Bounds bounds, unsigned long long index) {
  const bool finite = isfinite(got);
  const double error = finite ? fabs(got - want) : fabs(want);  // an absent number counts as zero
  const bool wrong = !finite || error > bounds.relative * fabs(want) + bounds.absolute;
  return {error * error, want * want, error, wrong, !finite, wrong ? index : ~0ull};
}

template <class T>
__global__ __launch_bounds__(kThreads) void compare_kernel(const T *lhs, const T *rhs, const T *out, long long m,
                                                           long long n, long long k, Bounds bounds, Partial *partials) {
  __shared__ double a[kStep][kTile + 1], b[kStep][kTile + 1];
  const long long row0 = static_cast<long long>(blockIdx.y) * kTile, col0 = static_cast<long long>(blockIdx.x) * kTile;
  const int ty = static_cast<int>(threadIdx.x) / (kTile / kPer), tx = static_cast<int>(threadIdx.x) % (kTile / kPer);
  double sum[kPer][kPer] = {};
  for (long long k0 = 0; k0 < k; k0 += kStep) {
    load_tile(a, lhs, row0, m, k0, k);
    load_tile(b, rhs, col0, n, k0, k);
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
  Partial mine{0, 0, 0, 0, 0, ~0ull};
#pragma unroll
  for (int i = 0; i < kPer; ++i)
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const long long row = row0 + ty + i * (kTile / kPer), col = col0 + tx + j * (kTile / kPer);
      if (row >= m || col >= n) continue;
      const long long at = row * n + col;
      fold(mine, judge_element(widen(out[at]), sum[i][j], bounds, static_cast<unsigned long long>(at)));
    }
  __shared__ Partial all[kThreads];
  all[threadIdx.x] = mine;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) fold(all[threadIdx.x], all[threadIdx.x + half]);
  }
  if (threadIdx.x == 0) partials[blockIdx.y * gridDim.x + blockIdx.x] = all[0];
}

template <class T>
__global__ void one_element_kernel(const T *lhs, const T *rhs, const T *out, long long n, long long k,
                                   unsigned long long at, double *got_want) {
  double sum = 0;
  const long long row = static_cast<long long>(at) / n, col = static_cast<long long>(at) % n;
  for (long long i = 0; i < k; ++i) sum = fma(widen(lhs[row * k + i]), widen(rhs[col * k + i]), sum);
  got_want[0] = widen(out[at]);
  got_want[1] = sum;
}

struct Comparison {
  Partial total;
  double got, want;  // of the first wrong element, if any
};

template <class T>
Comparison compare(const Problem &p, const Operands &operands, Bounds bounds) {
  const auto *lhs = static_cast<const T *>(operands.lhs.data()), *rhs = static_cast<const T *>(operands.rhs.data()),
             *out = static_cast<const T *>(operands.out.data());
  const dim3 grid(static_cast<unsigned>((p.n + kTile - 1) / kTile), static_cast<unsigned>((p.m + kTile - 1) / kTile));
  const size_t blocks = size_t(grid.x) * grid.y;
  Partial *partials = nullptr;
  check(cudaMalloc(&partials, blocks * sizeof(Partial)), "allocate partial results");
  compare_kernel<T><<<grid, kThreads>>>(lhs, rhs, out, p.m, p.n, p.k, bounds, partials);
  check(cudaGetLastError(), "the reference");
  std::vector<Partial> host(blocks);
  check(cudaMemcpy(host.data(), partials, blocks * sizeof(Partial), cudaMemcpyDeviceToHost), "the reference");
  Comparison result{{0, 0, 0, 0, 0, ~0ull}, NAN, NAN};
  for (const Partial &part : host) {
    result.total.diff2 += part.diff2;
    result.total.ref2 += part.ref2;
    result.total.max_error = std::max(result.total.max_error, part.max_error);
    result.total.wrong += part.wrong;
    result.total.nan += part.nan;
    result.total.first = std::min(result.total.first, part.first);
  }
  if (result.total.first != ~0ull) {
    double pair[2];
    one_element_kernel<T><<<1, 1>>>(lhs, rhs, out, p.n, p.k, result.total.first, reinterpret_cast<double *>(partials));
    check(cudaMemcpy(pair, partials, sizeof pair, cudaMemcpyDeviceToHost), "the first wrong element");
    result.got = pair[0];
    result.want = pair[1];
  }
  check(cudaFree(partials), "free partial results");
  return result;
}

}  // namespace croq
