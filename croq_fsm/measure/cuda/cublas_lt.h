// cuBLASLt, for what cublasGemmEx cannot do: 8-bit operands, and one scale for each block of 128.
#pragma once

#include <cstdint>
#include <string>

#include "cublas.h"
#include "cuda_check.h"

namespace croq {

class CublasLt {
 public:
  // Sums are kept in the tensor cores as long as those kernels do that run here ("fast
  // accumulation"), unless blocks have scales. `path` is libcublas, beside which it lies.
  CublasLt(const Problem &p, const std::string &path) : problem_(p), scaled_(p.op == Op::blockscale_gemm) {
    open(path);
    expect_library(create_(&handle_), "cublasLtCreate");
    if (scaled_ && version_() < kBlockScales)
      throw LibraryError("cublas: scales of blocks need cuBLAS 12.9; this is " + std::to_string(version_()));
    check(cudaMalloc(&workspace_, kWorkspace), "allocate the library's workspace");
    describe();
    if (scaled_) set_scales(workspace_, workspace_);  // an algorithm is chosen for scales, whatever they are
    chosen_ = choose();
    if (!chosen_ && scaled_ && problem_.out == Elem::f16) {
      describe_output(Elem::bf16);
      chosen_ = substituted_ = choose();
    }
    if (!chosen_) throw LibraryError("cublasLt: no algorithm for this problem");
  }

  // The library cannot write the output's type, and writes another one of the same size. That takes
  // as long, but the numbers are of no use.
  bool substituted() const { return substituted_; }

  // Scales in the library's order; null for none.
  void matmul(const void *lhs, const void *rhs, void *out, const void *lhs_scales, const void *rhs_scales) {
    if (scaled_) set_scales(lhs_scales, rhs_scales);
    const float one = 1.0f, zero = 0.0f;
    expect_library(run_(handle_, operation_, &one, rhs, a_, lhs, b_, &zero, out, c_, out, c_, choice_.algorithm, workspace_,
                        kWorkspace, nullptr),
                   "cublasLtMatmul");
  }

 private:
  // Attributes and values of NVIDIA's public C interface.
  static constexpr int kTransA = 3, kTransB = 4, kScaleA = 17, kScaleB = 18, kFastAccumulation = 25, kModeA = 31, kModeB = 32;
  static constexpr int kRow128 = 4, kBlock128 = 5, kMaxWorkspace = 1;
  static constexpr size_t kWorkspace = 32 << 20, kBlockScales = 120900;

  struct Choice {
    uint64_t algorithm[8];
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
  };

  void open(const std::string &path) {
    std::string beside = path;
    const size_t at = beside.rfind("libcublas.so");
    if (at != std::string::npos) beside.replace(at, 12, "libcublasLt.so");
    for (const std::string &name : {beside, std::string("libcublasLt.so.13"), std::string("libcublasLt.so.12")})
      if (!library_ && !name.empty()) library_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library_) throw LibraryError("cublasLt: library not found");
    load_library(library_, create_, "cublasLtCreate");
    load_library(library_, version_, "cublasLtGetVersion");
    load_library(library_, describe_, "cublasLtMatmulDescCreate");
    load_library(library_, set_, "cublasLtMatmulDescSetAttribute");
    load_library(library_, layout_, "cublasLtMatrixLayoutCreate");
    load_library(library_, preference_, "cublasLtMatmulPreferenceCreate");
    load_library(library_, prefer_, "cublasLtMatmulPreferenceSetAttribute");
    load_library(library_, choose_, "cublasLtMatmulAlgoGetHeuristic");
    load_library(library_, run_, "cublasLtMatmul");
  }

  // Column-major: out[n, m] = rhs[k, n]^T . lhs[k, m].
  void describe() {
    const auto m = static_cast<uint64_t>(problem_.m), n = static_cast<uint64_t>(problem_.n), k = static_cast<uint64_t>(problem_.k);
    expect_library(describe_(&operation_, kCompute32F, library_type(Elem::f32)), "cublasLtMatmulDescCreate");
    set(kTransA, int32_t{kTransposed});
    set(kTransB, int32_t{kPlain});
    if (scaled_) {
      set(kModeA, int32_t{kBlock128});
      set(kModeB, int32_t{kRow128});
    } else {
      set(kFastAccumulation, int8_t{1});
    }
    const int in = library_type(problem_.in);
    expect_library(layout_(&a_, in, k, n, static_cast<int64_t>(k)), "cublasLtMatrixLayoutCreate");
    expect_library(layout_(&b_, in, k, m, static_cast<int64_t>(k)), "cublasLtMatrixLayoutCreate");
    describe_output(problem_.out);
  }

  void describe_output(Elem elem) {
    const auto m = static_cast<uint64_t>(problem_.m), n = static_cast<uint64_t>(problem_.n);
    expect_library(layout_(&c_, library_type(elem), n, m, static_cast<int64_t>(n)), "cublasLtMatrixLayoutCreate");
  }

  void set_scales(const void *lhs_scales, const void *rhs_scales) {
    set(kScaleA, rhs_scales);
    set(kScaleB, lhs_scales);
  }

  // Whether there is an algorithm for what is described.
  bool choose() {
    void *preference = nullptr;
    const size_t workspace = kWorkspace;
    int found = 0;
    expect_library(preference_(&preference), "cublasLtMatmulPreferenceCreate");
    expect_library(prefer_(preference, kMaxWorkspace, &workspace, sizeof workspace), "cublasLtMatmulPreferenceSetAttribute");
    const int status = choose_(handle_, operation_, a_, b_, c_, c_, preference, 1, &choice_, &found);
    return status == 0 && found > 0 && choice_.status == 0;
  }

  template <class T> void set(int attribute, T value) {
    expect_library(set_(operation_, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  }

  Problem problem_;
  bool scaled_, chosen_ = false, substituted_ = false;
  Choice choice_{};
  void *library_ = nullptr, *handle_ = nullptr, *operation_ = nullptr, *a_ = nullptr, *b_ = nullptr, *c_ = nullptr;
  void *workspace_ = nullptr;
  int (*create_)(void **) = nullptr;
  size_t (*version_)() = nullptr;
  int (*describe_)(void **, int, int) = nullptr;
  int (*set_)(void *, int, const void *, size_t) = nullptr;
  int (*layout_)(void **, int, uint64_t, uint64_t, int64_t) = nullptr;
  int (*preference_)(void **) = nullptr;
  int (*prefer_)(void *, int, const void *, size_t) = nullptr;
  int (*choose_)(void *, void *, void *, void *, void *, void *, void *, int, Choice *, int *) = nullptr;
  int (*run_)(void *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *, void *,
              void *, void *, const void *, void *, size_t, cudaStream_t) = nullptr;
};

}  // namespace croq
