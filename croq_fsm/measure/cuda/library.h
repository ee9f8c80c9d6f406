// The library reference for speed and for error: which library call stands for a problem.
#pragma once

#include <memory>
#include <string>

#include "arena.cuh"
#include "cublas.h"
#include "cublas_lt.h"

namespace croq {

class Library {
 public:
  Library(const Problem &problem, const std::string &path) : problem_(problem), cublas_(path) {
    if (problem.in == Elem::e4m3) lt_ = std::make_unique<CublasLt>(problem, path);
  }

  int version() const { return cublas_.version(); }

  // Why the library's output cannot be compared with anything; "" when it can.
  std::string incomparable() const {
    return lt_ && lt_->substituted() ? "the library cannot write f16 here, and writes bf16" : "";
  }

  // The same words as the operators' registry has for iter000, and more where numbers are of no use.
  std::string kind() const {
    if (problem_.op == Op::blockscale_gemm) return lt_->substituted() ? "cublaslt_block128_bf16" : "cublaslt_block128";
    const std::string name = lt_ ? "cublaslt" : "cublas";
    if (problem_.op == Op::gemm_sp) return name + "_dense";
    return lt_ && problem_.acc == Elem::f16 ? name + "_f32acc" : name;
  }

  // One call. For gemm_sp the dense product of the same values.
  void run(const Operands &operands) {
    const bool scaled = problem_.op == Op::blockscale_gemm, sparse = problem_.op == Op::gemm_sp;
    const void *lhs = sparse ? operands.library().dense() : operands.input(0);
    const void *rhs = operands.input(problem_.op == Op::matmul ? 1 : 2);
    void *out = operands.out.data();
    if (!lt_)
      cublas_.matmul(problem_, lhs, rhs, out);
    else
      lt_->matmul(lhs, rhs, out, scaled ? operands.library().lhs_scales() : nullptr,
                  scaled ? operands.library().rhs_scales() : nullptr);
  }

 private:
  Problem problem_;
  Cublas cublas_;
  std::unique_ptr<CublasLt> lt_;
};

}  // namespace croq
