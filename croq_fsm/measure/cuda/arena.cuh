// The sets of operands that launches work on.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "buffer.cuh"
#include "inputs.cuh"
#include "library_forms.cuh"
#include "problem.h"

namespace croq {

// Inputs and output of one launch.
class Operands {
 public:
  explicit Operands(const Problem &problem) : problem_(problem), matrices_(problem.inputs()), out(problem.out_bytes()) {
    for (const Matrix &matrix : matrices_) inputs_.push_back(std::make_unique<Buffer>(matrix.bytes()));
    if (problem.for_library) library_ = std::make_unique<LibraryForms>(problem);
  }

  void fill(uint64_t seed, Dist dist) const {
    for (size_t i = 0; i < matrices_.size(); ++i) {
      if (matrices_[i].role == Role::metadata) continue;  // made with the operand that it belongs to
      if (matrices_[i].role == Role::packed)
        fill_sparse(input(i), input(i + 1), matrices_[i], matrices_[i + 1], seed, dist);
      else
        croq::fill(input(i), matrices_[i], seed, dist);
    }
    if (library_) library_->make(problem_, input(0), input(1), inputs_.size() > 3 ? input(3) : nullptr);
  }
  uint64_t input_sum(unsigned long long *scratch) const {
    uint64_t sum = 0;
    for (size_t i = 0; i < inputs_.size(); ++i)
      sum = (i == 0 ? 0 : mix(sum)) + checksum(input(i), inputs_[i]->bytes() / 2, scratch);
    return sum;
  }
  unsigned long long guard_damage(unsigned long long *scratch) const {
    unsigned long long broken = 0;
    check(cudaMemset(scratch, 0, sizeof *scratch), "guard bands");
    for (const auto &buffer : inputs_) buffer->count_damage(scratch);
    out.count_damage(scratch);
    check(cudaMemcpy(&broken, scratch, sizeof broken, cudaMemcpyDeviceToHost), "guard bands");
    return broken;
  }

  void *input(size_t i) const { return inputs_[i]->data(); }
  std::vector<const void *> input_pointers() const {
    std::vector<const void *> pointers;
    for (const auto &buffer : inputs_) pointers.push_back(buffer->data());
    return pointers;
  }
  // Only with `for_library`.
  const LibraryForms &library() const { return *library_; }

 private:
  Problem problem_;
  std::vector<Matrix> matrices_;
  std::vector<std::unique_ptr<Buffer>> inputs_;
  std::unique_ptr<LibraryForms> library_;

 public:
  Buffer out;
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
