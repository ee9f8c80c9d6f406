// Device buffers between guard bands, and the set of operands that one launch works on.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "inputs.cuh"
#include "problem.h"

namespace croq {

constexpr size_t kGuard = 64 << 10;  // bytes before and after each operand
constexpr int kGuardByte = 0xA5;
constexpr int kPoisonByte = 0xFF;  // 0xFFFF is a NaN in f16 and in bf16

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

// Inputs and output of one launch.
class Operands {
 public:
  explicit Operands(const Problem &problem)
      : problem_(problem), lhs(problem.lhs_bytes()), rhs(problem.rhs_bytes()), out(problem.out_bytes()) {}

  void fill(uint64_t seed, Dist dist) const {
    const auto m = static_cast<uint64_t>(problem_.m), n = static_cast<uint64_t>(problem_.n),
               k = static_cast<uint64_t>(problem_.k);
    croq::fill(lhs.data(), m, k, problem_.bf16, seed, 0, dist);
    croq::fill(rhs.data(), n, k, problem_.bf16, seed, 1, dist);
  }
  uint64_t input_sum(unsigned long long *scratch) const {
    return mix(checksum(lhs.data(), lhs.bytes() / 2, scratch)) + checksum(rhs.data(), rhs.bytes() / 2, scratch);
  }
  unsigned long long guard_damage(unsigned long long *scratch) const {
    unsigned long long broken = 0;
    check(cudaMemset(scratch, 0, sizeof *scratch), "guard bands");
    for (const Buffer *buffer : {&lhs, &rhs, &out}) buffer->count_damage(scratch);
    check(cudaMemcpy(&broken, scratch, sizeof broken, cudaMemcpyDeviceToHost), "guard bands");
    return broken;
  }

 private:
  Problem problem_;

 public:
  Buffer lhs, rhs, out;
};

// Seed of the i-th of several sets of inputs that a timed block rotates over.
inline uint64_t rotated(uint64_t seed, int i) { return seed + 1000003ull * static_cast<uint64_t>(i); }

// Sets of operands that timed launches rotate over, and scratch memory.
struct Arena {
  explicit Arena(const Problem &problem) : problem(problem) {
    check(cudaMalloc(&scratch, sizeof *scratch), "allocate scratch");
  }
  const Operands &set(size_t i) {
    while (sets.size() <= i) sets.push_back(std::make_unique<Operands>(problem));
    return *sets[i];
  }

  Problem problem;
  std::vector<std::unique_ptr<Operands>> sets;
  unsigned long long *scratch = nullptr;
};

}  // namespace croq
