// Operands in the forms that the library wants beside ours: it knows no 2:4 metadata, and wants
// scales in another order. They are made with the inputs, never while anything is timed.
#pragma once

#include <cstdint>
#include <memory>

#include "buffer.cuh"
#include "inputs.cuh"
#include "problem.h"

namespace croq {

// Element `column` of a row of a 2:4 compressed matrix of `k` columns; T{} where it was dropped.
template <class T>
__device__ T expand_sparse(const T *packed_row, const uint8_t *meta_row, long long column) {
  const long long group = column / 4;
  const unsigned bits = meta_row[group / 2] >> (group % 2 * 4) & 15u, position = static_cast<unsigned>(column % 4);
  if ((bits & 3u) == position) return packed_row[2 * group];
  if ((bits >> 2) == position) return packed_row[2 * group + 1];
  return T{};
}

template <class T>
__global__ void expand_kernel(T *dense, const T *packed, const uint8_t *meta, long long rows, long long k) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * k; i += step) {
    const long long row = i / k;
    dense[i] = expand_sparse(packed + row * (k / 2), meta + row * (k / 8), i % k);
  }
}

// to[column * pitch + row] = from[row, column], or to[row * pitch + column] unless `transpose`.
__global__ static void reorder_kernel(float *to, const float *from, long long rows, long long columns, long long pitch,
                                      bool transpose) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * columns; i += step) {
    const long long row = i / columns, column = i % columns;
    to[transpose ? column * pitch + row : row * pitch + column] = from[i];
  }
}

class LibraryForms {
 public:
  explicit LibraryForms(const Problem &p) {
    if (p.op == Op::gemm_sp) dense_ = std::make_unique<Buffer>(size_of(p.in) * static_cast<size_t>(p.m) * static_cast<size_t>(p.k));
    if (p.op != Op::blockscale_gemm) return;
    lhs_scales_ = std::make_unique<Buffer>(sizeof(float) * static_cast<size_t>(blocks_of(p.k) * p.m));
    rhs_scales_ = std::make_unique<Buffer>(sizeof(float) * static_cast<size_t>(blocks_of(p.n) * pitch(p)));
  }

  // The first inputs as a candidate gets them: packed and metadata, or lhs and scale_lhs; and
  // scale_rhs, if there is one.
  void make(const Problem &p, const void *first, const void *second, const void *rhs_scales) const {
    if (dense_ && p.in == Elem::e4m3) expand<__nv_fp8_e4m3>(p, first, second);
    if (dense_ && p.in == Elem::f16) expand<__half>(p, first, second);
    if (dense_ && p.in == Elem::bf16) expand<__nv_bfloat16>(p, first, second);
    if (lhs_scales_) {
      check(cudaMemsetAsync(rhs_scales_->data(), 0, rhs_scales_->bytes()), "scales for the library");
      reorder(lhs_scales_->data(), second, p.m, blocks_of(p.k), p.m, true);
      reorder(rhs_scales_->data(), rhs_scales, blocks_of(p.n), blocks_of(p.k), pitch(p), false);
    }
    check(cudaGetLastError(), "operands for the library");
  }

  const void *dense() const { return dense_->data(); }            // lhs [m, k]
  const void *lhs_scales() const { return lhs_scales_->data(); }  // [k / 128][m]
  const void *rhs_scales() const { return rhs_scales_->data(); }  // [n / 128][k / 128, to a multiple of 4]

 private:
  static long long pitch(const Problem &p) { return (blocks_of(p.k) + 3) / 4 * 4; }

  template <class T> void expand(const Problem &p, const void *packed, const void *meta) const {
    expand_kernel<<<kFillBlocks, kFillThreads>>>(static_cast<T *>(dense_->data()), static_cast<const T *>(packed),
                                                 static_cast<const uint8_t *>(meta), p.m, p.k);
  }
  static void reorder(void *to, const void *from, long long rows, long long columns, long long pitch, bool transpose) {
    reorder_kernel<<<kFillBlocks, kFillThreads>>>(static_cast<float *>(to), static_cast<const float *>(from), rows, columns,
                                                  pitch, transpose);
  }

  std::unique_ptr<Buffer> dense_, lhs_scales_, rhs_scales_;
};

}  // namespace croq
