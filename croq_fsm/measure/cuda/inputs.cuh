// Inputs, made on the device from integers alone, so that two programs make the same bits.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda_check.h"
#include "problem.h"

namespace croq {

enum class Dist { normal, uniform02, index };

inline Dist dist_of(const std::string &name) {
  if (name == "normal") return Dist::normal;
  if (name == "uniform02") return Dist::uniform02;
  if (name == "index") return Dist::index;
  throw std::invalid_argument("unknown distribution of inputs: " + name);
}

// Finaliser of splitmix64: a bijection whose output bits all depend on all input bits.
__host__ __device__ inline uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

inline uint64_t stream_of(uint64_t seed, uint64_t tensor) {
  return mix(mix(seed + 0x9e3779b97f4a7c15ull) + tensor * 0xd1b54a32d192ed03ull);
}

__host__ __device__ inline uint64_t random_of(uint64_t stream, uint64_t i) { return mix(stream + i * 0x9e3779b97f4a7c15ull); }

// Sum of four 16-bit uniforms: bell-shaped, range +-3.46 sigma, scaled to mean 0, variance 1.
// One exact conversion and one rounded product: no two compilers can disagree about the bits.
__device__ inline float normal_of(uint64_t h) {
  const int sum = static_cast<int>((h & 0xffff) + (h >> 16 & 0xffff) + (h >> 32 & 0xffff) + (h >> 48));
  return __fmul_rn(static_cast<float>(sum - 131070), 0x1.bb67aep-16f);
}

// e4m3 has few bits and a small range: its values are a quarter as large (an exact factor).
template <class T> constexpr float kSigma = 1.0f;
template <> constexpr float kSigma<__nv_fp8_e4m3> = 0.25f;

template <class T> __device__ T narrow(float x);
template <> __device__ inline __half narrow(float x) { return __float2half_rn(x); }
template <> __device__ inline __nv_bfloat16 narrow(float x) { return __float2bfloat16_rn(x); }
template <> __device__ inline __nv_fp8_e4m3 narrow(float x) { return __nv_fp8_e4m3(x); }

template <class T> __device__ T value_of(uint64_t h, Dist dist) {
  const float value = dist == Dist::uniform02 ? static_cast<float>(h >> 49) * 0x1p-14f : normal_of(h);
  return narrow<T>(__fmul_rn(value, kSigma<T>));
}

// Dist::index makes operand 0 a one-hot matrix: row r selects column r mod cols, so that each
// output element names the row and the column that it must come from, and is exact.
template <class T>
__global__ void fill_kernel(T *out, uint64_t count, uint64_t cols, uint64_t stream, Dist dist, int tensor) {
  const uint64_t step = uint64_t(gridDim.x) * blockDim.x;
  for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const bool one_hot = dist == Dist::index && tensor == 0;
    out[i] = one_hot ? narrow<T>(i % cols == (i / cols) % cols ? 1.0f : 0.0f) : value_of<T>(random_of(stream, i), dist);
  }
}

// Scales differ from block to block by far more than rounding, lie in [1/4, 7/4), and are powers
// of two for Dist::index, whose products must be exact.
__global__ static void scales_kernel(float *out, uint64_t count, uint64_t stream, Dist dist) {
  const uint64_t step = uint64_t(gridDim.x) * blockDim.x;
  for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint64_t h = random_of(stream, i) >> 32;
    out[i] = dist == Dist::index ? static_cast<float>(1u << (h % 4)) * 0.25f
                                 : static_cast<float>(16384 + h % 98304) * 0x1p-16f;
  }
}

// The two positions that are kept of a group of four, as four bits of metadata; the six pairs
// with the first below the second.
__host__ __device__ inline unsigned pattern_of(uint64_t h) {
  const unsigned pairs[6] = {0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110};
  return pairs[h % 6];
}

// The pattern that keeps `position` and one other, which `h` chooses.
__host__ __device__ inline unsigned pattern_with(unsigned position, uint64_t h) {
  const unsigned other = (position + 1 + static_cast<unsigned>(h % 3)) % 4;
  return position < other ? position | other << 2 : other | position << 2;
}

// One thread makes two groups: a byte of metadata and four kept elements. Dist::index selects
// column r mod k in row r as above; everything else that is kept is zero.
template <class T>
__global__ void fill_sparse_kernel(T *packed, uint8_t *meta, uint64_t bytes, uint64_t k, uint64_t values, uint64_t patterns,
                                   Dist dist) {
  const uint64_t step = uint64_t(gridDim.x) * blockDim.x;
  for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < bytes; i += step) {
    const uint64_t row = i / (k / 8), first = i % (k / 8) * 8, chosen = row % k;
    unsigned byte = 0;
    for (unsigned g = 0; g < 2; ++g) {
      const uint64_t h = random_of(patterns, 2 * i + g), column = first + 4 * g;
      const bool hot = dist == Dist::index && chosen / 4 == column / 4;
      const unsigned position = static_cast<unsigned>(chosen % 4);
      const unsigned pattern = hot ? pattern_with(position, h) : pattern_of(h);
      byte |= pattern << (4 * g);
      for (unsigned s = 0; s < 2; ++s) {
        const uint64_t at = 4 * i + 2 * g + s;
        const bool one = hot && (pattern >> (2 * s) & 3) == position;
        packed[at] = dist == Dist::index ? narrow<T>(one ? 1.0f : 0.0f) : value_of<T>(random_of(values, at), dist);
      }
    }
    meta[i] = static_cast<uint8_t>(byte);
  }
}

__global__ static void checksum_kernel(const uint16_t *data, uint64_t count, unsigned long long *out) {
  const uint64_t step = uint64_t(gridDim.x) * blockDim.x;
  unsigned long long sum = 0;
  for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    sum += mix(i * 0x9e3779b97f4a7c15ull ^ (uint64_t(data[i]) << 48));
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_down_sync(~0u, sum, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(out, sum);
}

constexpr int kFillBlocks = 1024, kFillThreads = 256;

template <class T> void fill_values(void *out, const Matrix &matrix, uint64_t seed, Dist dist) {
  fill_kernel<<<kFillBlocks, kFillThreads>>>(static_cast<T *>(out), matrix.count(), static_cast<uint64_t>(matrix.cols),
                                             stream_of(seed, static_cast<uint64_t>(matrix.tensor)), dist, matrix.tensor);
}

// Fill one operand of values or scales.
inline void fill(void *out, const Matrix &matrix, uint64_t seed, Dist dist) {
  if (matrix.role == Role::scales)
    scales_kernel<<<kFillBlocks, kFillThreads>>>(static_cast<float *>(out), matrix.count(),
                                                 stream_of(seed, static_cast<uint64_t>(matrix.tensor)), dist);
  else if (matrix.elem == Elem::bf16)
    fill_values<__nv_bfloat16>(out, matrix, seed, dist);
  else if (matrix.elem == Elem::f16)
    fill_values<__half>(out, matrix, seed, dist);
  else
    fill_values<__nv_fp8_e4m3>(out, matrix, seed, dist);
  check(cudaGetLastError(), "fill inputs");
}

template <class T>
void fill_sparse_values(void *packed, void *meta, const Matrix &kept, const Matrix &bits, uint64_t seed, Dist dist) {
  fill_sparse_kernel<<<kFillBlocks, kFillThreads>>>(
      static_cast<T *>(packed), static_cast<uint8_t *>(meta), bits.count(), static_cast<uint64_t>(2 * kept.cols),
      stream_of(seed, static_cast<uint64_t>(kept.tensor)), stream_of(seed, static_cast<uint64_t>(bits.tensor)), dist);
}

// Fill a compressed operand and its metadata together.
inline void fill_sparse(void *packed, void *meta, const Matrix &kept, const Matrix &bits, uint64_t seed, Dist dist) {
  if (kept.elem == Elem::bf16)
    fill_sparse_values<__nv_bfloat16>(packed, meta, kept, bits, seed, dist);
  else if (kept.elem == Elem::f16)
    fill_sparse_values<__half>(packed, meta, kept, bits, seed, dist);
  else
    fill_sparse_values<__nv_fp8_e4m3>(packed, meta, kept, bits, seed, dist);
  check(cudaGetLastError(), "fill inputs");
}

// Order-independent checksum of 16-bit words; `scratch` is one device word.
inline uint64_t checksum(const void *data, uint64_t count, unsigned long long *scratch) {
  check(cudaMemset(scratch, 0, sizeof *scratch), "checksum");
  checksum_kernel<<<kFillBlocks, kFillThreads>>>(static_cast<const uint16_t *>(data), count, scratch);
  check(cudaGetLastError(), "checksum");
  unsigned long long sum = 0;
  check(cudaMemcpy(&sum, scratch, sizeof sum, cudaMemcpyDeviceToHost), "checksum");
  return sum;
}

}  // namespace croq
