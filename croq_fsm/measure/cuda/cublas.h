// The library reference for speed, loaded at run time with prototypes of our own: its headers
// are often absent, and a program that does not time the library must not depend on it.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "arena.cuh"

namespace croq {

class Cublas {
 public:
  // `path` is what the parent found; empty lets the dynamic loader search.
  explicit Cublas(const std::string &path) {
    for (const std::string &name : {path, std::string("libcublas.so.13"), std::string("libcublas.so.12")})
      if (!library_ && !name.empty()) library_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library_) throw std::runtime_error("cublas: library not found");
    load(create_, "cublasCreate_v2");
    load(gemm_, "cublasGemmEx");
    load(version_, "cublasGetVersion_v2");
    expect(create_(&handle_), "cublasCreate");
  }

  int version() const {
    int version = 0;
    expect(version_(handle_, &version), "cublasGetVersion");
    return version;
  }

  // output[m, n] = lhs[m, k] . rhs[n, k]^T row-major is, column-major, rhs^T . lhs.
  void matmul(const Problem &p, const Operands &operands) const {
    const float one = 1.0f, zero = 0.0f;
    const int type = p.bf16 ? kBf16 : kF16;
    expect(gemm_(handle_, kTransposed, kPlain, int(p.n), int(p.m), int(p.k), &one, operands.rhs.data(), type, int(p.k),
                 operands.lhs.data(), type, int(p.k), &zero, operands.out.data(), type, int(p.n), kCompute32F, kDefault),
           "cublasGemmEx");
  }

 private:
  // Values of NVIDIA's public C interface.
  static constexpr int kPlain = 0, kTransposed = 1, kF16 = 2, kBf16 = 14, kCompute32F = 68, kDefault = -1;

  template <class F>
  void load(F *&function, const char *name) {
    function = reinterpret_cast<F *>(dlsym(library_, name));
    if (!function) throw std::runtime_error(std::string("cublas: no symbol ") + name);
  }
  static void expect(int status, const char *where) {
    if (status != 0) throw std::runtime_error(std::string("cublas: status ") + std::to_string(status) + " in " + where);
  }

  void *library_ = nullptr, *handle_ = nullptr;
  int (*create_)(void **) = nullptr;
  int (*version_)(void *, int *) = nullptr;
  int (*gemm_)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *, int, int,
               const void *, void *, int, int, int, int) = nullptr;
};

}  // namespace croq
