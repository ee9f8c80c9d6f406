// The problem that both programs are started for: operator, element types, sizes, operands.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace croq {

enum class Op { matmul, blockscale_gemm, gemm_sp };
enum class Elem { e4m3, u8, f16, bf16, f32 };

inline size_t size_of(Elem elem) {
  return elem == Elem::f32 ? 4 : elem == Elem::f16 || elem == Elem::bf16 ? 2 : 1;
}

// What an input holds; says how it is made.
enum class Role { values, scales, packed, metadata };

// One input, row-major. `tensor` numbers the stream of random numbers that it is made from.
struct Matrix {
  Role role;
  Elem elem;
  long long rows, cols;
  int tensor;

  size_t count() const { return static_cast<size_t>(rows) * static_cast<size_t>(cols); }
  size_t bytes() const { return count() * size_of(elem); }
};

constexpr long long kScaleBlock = 128;  // elements that share a scale

inline long long blocks_of(long long size) { return (size + kScaleBlock - 1) / kScaleBlock; }

// All operators compute output[m, n] = L[m, k] . R[n, k]^T, row-major.
//   matmul:          L = lhs, R = rhs.
//   blockscale_gemm: L[i, x] = lhs[i, x] * scale_lhs[i, x / 128],
//                    R[j, x] = rhs[j, x] * scale_rhs[j / 128, x / 128].
//   gemm_sp:         of each four neighbours in a row of L two are kept in lhs_packed[m, k / 2], at
//                    the positions that four bits of lhs_meta[m, k / 8] name: the first in the
//                    low two bits; groups of even number in the low half of a byte.
struct Problem {
  Op op;
  Elem in, out, acc;
  long long m, n, k;
  bool for_library = false;  // the library needs some operands in another form, too

  static Problem from(int argc, char **argv) {
    if (argc < 6) throw std::invalid_argument("usage: PROGRAM OPERATOR DTYPE M N K");
    Problem problem{op_of(argv[1]),     Elem::f16,          Elem::f16,         Elem::f32,
                    std::atoll(argv[3]), std::atoll(argv[4]), std::atoll(argv[5])};
    problem.read_types(argv[2]);
    problem.check_sizes();
    return problem;
  }

  // Inputs in the order in which a candidate is given them.
  std::vector<Matrix> inputs() const {
    const Matrix lhs{Role::values, in, m, k, 0}, rhs{Role::values, in, n, k, 1};
    if (op == Op::blockscale_gemm)
      return {lhs, {Role::scales, Elem::f32, m, blocks_of(k), 2}, rhs, {Role::scales, Elem::f32, blocks_of(n), blocks_of(k), 3}};
    if (op == Op::gemm_sp) return {{Role::packed, in, m, k / 2, 0}, {Role::metadata, Elem::u8, m, k / 8, 2}, rhs};
    return {lhs, rhs};
  }
  // Bytes of all that belongs to L, and to R.
  size_t lhs_bytes() const { return input_bytes(0); }
  size_t rhs_bytes() const { return input_bytes(1); }
  size_t out_count() const { return static_cast<size_t>(m) * static_cast<size_t>(n); }
  size_t out_bytes() const { return out_count() * size_of(out); }

 private:
  // Streams 0 and 2 make L, 1 and 3 make R.
  size_t input_bytes(int side) const {
    size_t bytes = 0;
    for (const Matrix &matrix : inputs()) bytes += matrix.tensor % 2 == side ? matrix.bytes() : 0;
    return bytes;
  }

  static Op op_of(const std::string &name) {
    if (name == "matmul") return Op::matmul;
    if (name == "blockscale_gemm") return Op::blockscale_gemm;
    if (name == "gemm_sp") return Op::gemm_sp;
    throw std::invalid_argument("unknown operator: " + name);
  }

  // <input>[<output>[<accumulate>]]; the output is the input's type, and sums are f32, if unsaid.
  void read_types(const std::string &word) {
    const std::pair<const char *, Elem> words[] = {
        {"e4m3", Elem::e4m3}, {"bf16", Elem::bf16}, {"f16", Elem::f16}, {"f32", Elem::f32}};
    std::string rest = word;
    std::vector<Elem> found;
    while (!rest.empty()) {
      const size_t before = rest.size();
      for (const auto &[name, elem] : words)
        if (rest.size() == before && rest.rfind(name, 0) == 0) {
          found.push_back(elem);
          rest.erase(0, std::string(name).size());
        }
      if (rest.size() == before) throw std::invalid_argument("unknown dtype: " + word);
    }
    if (found.empty() || found.size() > 3) throw std::invalid_argument("unknown dtype: " + word);
    in = found[0];
    out = found.size() > 1 ? found[1] : in;
    acc = found.size() > 2 ? found[2] : Elem::f32;
    if (in == Elem::f32 || out == Elem::e4m3) throw std::invalid_argument("no device operator has dtype " + word);
    if (op == Op::blockscale_gemm && in != Elem::e4m3) throw std::invalid_argument("block scales belong to e4m3");
  }

  void check_sizes() const {
    if (m < 1 || n < 1 || k < 1) throw std::invalid_argument("sizes must be positive");
    if (op == Op::gemm_sp && k % 16 != 0) throw std::invalid_argument("gemm_sp: k must be a multiple of 16");
  }
};

}  // namespace croq
