// Inputs, made on the device from integers alone, so that two programs make the same bits.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda_check.h"

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

// Sum of four 16-bit uniforms: bell-shaped, range +-3.46 sigma, scaled to mean 0, variance 1.
// One exact conversion and one rounded product: no two compilers can disagree about the bits.
__device__ inline float normal_of(uint64_t h) {
  const int sum = static_cast<int>((h & 0xffff) + (h >> 16 & 0xffff) + (h >> 32 & 0xffff) + (h >> 48));
  return __fmul_rn(static_cast<float>(sum - 131070), 0x1.bb67aep-16f);
}

template <class T> __device__ T narrow(float x);
template <> __device__ inline __half narrow(float x) { return __float2half_rn(x); }
template <> __device__ inline __nv_bfloat16 narrow(float x) { return __float2bfloat16_rn(x); }

// Dist::index makes operand 0 a one-hot matrix: row r selects column r mod cols, so that each
// output element names the row and the column that it must come from, and is exact.
template <class T>
__global__ void fill_kernel(T *out, uint64_t count, uint64_t cols, uint64_t stream, Dist dist, int tensor) {
  const uint64_t step = uint64_t(gridDim.x) * blockDim.x;
  for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint64_t h = mix(stream + i * 0x9e3779b97f4a7c15ull);
    float value = normal_of(h);
    if (dist == Dist::uniform02) value = static_cast<float>(h >> 49) * 0x1p-14f;
    if (dist == Dist::index && tensor == 0) value = i % cols == (i / cols) % cols ? 1.0f : 0.0f;
    out[i] = narrow<T>(value);
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

// Fill one operand of 16-bit elements; `bf16` chooses between the two 16-bit types.
inline void fill(void *out, uint64_t rows, uint64_t cols, bool bf16, uint64_t seed, int tensor, Dist dist) {
  const uint64_t stream = stream_of(seed, static_cast<uint64_t>(tensor));
  if (bf16)
    fill_kernel<<<kFillBlocks, kFillThreads>>>(static_cast<__nv_bfloat16 *>(out), rows * cols, cols, stream, dist, tensor);
  else
    fill_kernel<<<kFillBlocks, kFillThreads>>>(static_cast<__half *>(out), rows * cols, cols, stream, dist, tensor);
  check(cudaGetLastError(), "fill inputs");
}

// Order-independent checksum of 16-bit elements; `scratch` is one device word.
inline uint64_t checksum(const void *data, uint64_t count, unsigned long long *scratch) {
  check(cudaMemset(scratch, 0, sizeof *scratch), "checksum");
  checksum_kernel<<<kFillBlocks, kFillThreads>>>(static_cast<const uint16_t *>(data), count, scratch);
  check(cudaGetLastError(), "checksum");
  unsigned long long sum = 0;
  check(cudaMemcpy(&sum, scratch, sizeof sum, cudaMemcpyDeviceToHost), "checksum");
  return sum;
}

}  // namespace croq
