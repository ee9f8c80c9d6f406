// cuBLAS, loaded at run time with prototypes of our own: its headers are often absent, and a
// program that does not time the library must not depend on it.
#pragma once

#include <cuda_fp16.h>
#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "problem.h"

namespace croq {

// The library is absent, too old, or refuses a problem.
struct LibraryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void expect_library(int status, const char *where) {
  if (status != 0) throw LibraryError(std::string("cublas: status ") + std::to_string(status) + " in " + where);
}

template <class F> void load_library(void *library, F *&function, const char *name) {
  function = reinterpret_cast<F *>(dlsym(library, name));
  if (!function) throw LibraryError(std::string("cublas: no symbol ") + name);
}

// Values of NVIDIA's public C interface: cudaDataType_t and cublasComputeType_t.
inline int library_type(Elem elem) {
  switch (elem) {
    case Elem::f16: return 2;
    case Elem::bf16: return 14;
    case Elem::e4m3: return 28;
    default: return 0;  // f32
  }
}
constexpr int kCompute16F = 64, kCompute32F = 68, kPlain = 0, kTransposed = 1;

class Cublas {
 public:
  // `path` is what the parent found; empty lets the dynamic loader search.
  explicit Cublas(const std::string &path) {
    for (const std::string &name : {path, std::string("libcublas.so.13"), std::string("libcublas.so.12")})
      if (!library_ && !name.empty()) library_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library_) throw LibraryError("cublas: library not found");
    load_library(library_, create_, "cublasCreate_v2");
    load_library(library_, gemm_, "cublasGemmEx");
    load_library(library_, version_, "cublasGetVersion_v2");
    expect_library(create_(&handle_), "cublasCreate");
  }

  int version() const {
    int version = 0;
    expect_library(version_(handle_, &version), "cublasGetVersion");
    return version;
  }

  // output[m, n] = lhs[m, k] . rhs[n, k]^T row-major is, column-major, rhs^T . lhs.
  void matmul(const Problem &p, const void *lhs, const void *rhs, void *out) const {
    const bool half_sums = p.acc == Elem::f16;
    const float one = 1.0f, zero = 0.0f;
    const __half half_one = __float2half(1.0f), half_zero = __float2half(0.0f);
    const void *alpha = half_sums ? static_cast<const void *>(&half_one) : &one;
    const void *beta = half_sums ? static_cast<const void *>(&half_zero) : &zero;
    const int in = library_type(p.in), m = int(p.m), n = int(p.n), k = int(p.k);
    expect_library(gemm_(handle_, kTransposed, kPlain, n, m, k, alpha, rhs, in, k, lhs, in, k, beta, out,
                         library_type(p.out), n, half_sums ? kCompute16F : kCompute32F, kDefault),
                   "cublasGemmEx");
  }

 private:
  static constexpr int kDefault = -1;

  void *library_ = nullptr, *handle_ = nullptr;
  int (*create_)(void **) = nullptr;
  int (*version_)(void *, int *) = nullptr;
  int (*gemm_)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *, int, int,
               const void *, void *, int, int, int, int) = nullptr;
};

}  // namespace croq
