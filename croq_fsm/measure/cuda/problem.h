// The problem that both programs are started for: operator, element type and sizes.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace croq {

// matmul: output[m, n] = lhs[m, k] . rhs[n, k]^T, row-major, 16-bit elements.
struct Problem {
  bool bf16;
  long long m, n, k;

  static Problem from(int argc, char **argv) {
    if (argc < 6 || std::string(argv[1]) != "matmul")
      throw std::invalid_argument("usage: PROGRAM matmul f16|bf16 M N K");
    const std::string type = argv[2];
    if (type != "f16" && type != "bf16") throw std::invalid_argument("element type must be f16 or bf16");
    Problem problem{type == "bf16", std::atoll(argv[3]), std::atoll(argv[4]), std::atoll(argv[5])};
    if (problem.m < 1 || problem.n < 1 || problem.k < 1) throw std::invalid_argument("sizes must be positive");
    return problem;
  }

  size_t lhs_bytes() const { return 2 * static_cast<size_t>(m) * static_cast<size_t>(k); }
  size_t rhs_bytes() const { return 2 * static_cast<size_t>(n) * static_cast<size_t>(k); }
  size_t out_bytes() const { return 2 * static_cast<size_t>(m) * static_cast<size_t>(n); }
};

}  // namespace croq
