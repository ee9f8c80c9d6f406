// Device memory between guard bands.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda_check.h"

namespace croq {

constexpr size_t kGuard = 64 << 10;  // bytes before and after each operand
constexpr int kGuardByte = 0xA5;
constexpr int kPoisonByte = 0xFF;  // a NaN in f16, bf16 and f32

__global__ static void guard_kernel(const uint8_t *band, unsigned long long *broken) {
  const size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < kGuard && band[i] != kGuardByte) atomicAdd(broken, 1ull);
}

class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes), tail_((bytes + 255) / 256 * 256) {
    check(cudaMalloc(&base_, kGuard + tail_ + kGuard), "allocate an operand");
    check(cudaMemset(base_, kGuardByte, kGuard + tail_ + kGuard), "set guard bands");
  }
  ~Buffer() { cudaFree(base_); }
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;

  void *data() const { return base_ + kGuard; }
  size_t bytes() const { return bytes_; }
  void poison() const { check(cudaMemsetAsync(data(), kPoisonByte, bytes_), "poison an output"); }

  // Adds the number of damaged guard bytes on both sides to *broken.
  void count_damage(unsigned long long *broken) const {
    const int blocks = static_cast<int>(kGuard / 256);
    guard_kernel<<<blocks, 256>>>(base_, broken);
    guard_kernel<<<blocks, 256>>>(base_ + kGuard + tail_, broken);
    check(cudaGetLastError(), "look at guard bands");
  }

 private:
  size_t bytes_, tail_;
  uint8_t *base_ = nullptr;
};

}  // namespace croq
