// The harness's own definitions of operands, run on the host: no device is needed.
#include <cstdio>
#include <set>

#include "arena.cuh"
#include "reference.cuh"

namespace {

int failures = 0;

void expect(bool holds, const char *what) {
  if (!holds) std::printf("%s\n", what), ++failures;
}

croq::Problem problem(const char *op, const char *dtype, const char *m, const char *n, const char *k) {
  const char *argv[] = {"x", op, dtype, m, n, k};
  return croq::Problem::from(6, const_cast<char **>(argv));
}

bool refused(const char *op, const char *dtype, const char *k = "64") {
  try {
    problem(op, dtype, "64", "64", k);
  } catch (const std::invalid_argument &) {
    return true;
  }
  return false;
}

void words() {
  using croq::Elem;
  const auto types = [](const char *dtype, Elem in, Elem out, Elem acc) {
    const auto p = problem("matmul", dtype, "64", "64", "64");
    return p.in == in && p.out == out && p.acc == acc;
  };
  expect(types("f16", Elem::f16, Elem::f16, Elem::f32), "f16");
  expect(types("bf16f32", Elem::bf16, Elem::f32, Elem::f32), "bf16f32");
  expect(types("f16f16f16", Elem::f16, Elem::f16, Elem::f16), "f16f16f16");
  expect(types("e4m3bf16", Elem::e4m3, Elem::bf16, Elem::f32), "e4m3bf16");
  for (const char *word : {"", "f8", "f16x", "f16f16f16f16", "e4m3e4m3", "f32"}) expect(refused("matmul", word), word);
  expect(refused("convolution", "f16"), "an unknown operator is refused");
  expect(refused("blockscale_gemm", "f16"), "scales belong to e4m3");
  expect(refused("gemm_sp", "f16", "8"), "groups of metadata must be whole");
}

void layouts() {
  const auto scaled = problem("blockscale_gemm", "e4m3f16", "256", "512", "1024").inputs();
  expect(scaled.size() == 4 && scaled[1].rows == 256 && scaled[1].cols == 8 && scaled[3].rows == 4 && scaled[3].cols == 8,
         "shapes of scales");
  const auto sparse = problem("gemm_sp", "f16", "128", "64", "64");
  const auto inputs = sparse.inputs();
  expect(inputs.size() == 3 && inputs[0].cols == 32 && inputs[1].cols == 8 && inputs[1].bytes() == 1024, "shapes of sparse");
  expect(sparse.lhs_bytes() == 128 * 64 + 1024 && sparse.rhs_bytes() == 64 * 64 * 2, "bytes of both sides");
}

// Metadata that keeps positions a < b of four, and the values that are read through it.
void metadata() {
  std::set<unsigned> seen;
  for (uint64_t h = 0; h < 600; ++h) {
    const unsigned bits = croq::pattern_of(h);
    expect((bits & 3) < (bits >> 2) && bits < 16, "positions ascend");
    seen.insert(bits);
    for (unsigned position = 0; position < 4; ++position) {
      const unsigned with = croq::pattern_with(position, h);
      expect((with & 3) < (with >> 2) && ((with & 3) == position || (with >> 2) == position), "a position is kept");
    }
  }
  expect(seen.size() == 6, "all six pairs occur");
  const float kept[] = {1, 2, 3, 4, 5, 6, 7, 8};
  const uint8_t meta[] = {0b1101'0100, 0b1110'1000};  // columns 0 1 | 5 7 || 8 10 | 14 15
  const croq::Sparse<float> sparse{kept, 1, 16, meta};
  const double want[] = {1, 2, 0, 0, 0, 3, 0, 4, 5, 0, 6, 0, 0, 0, 7, 8};
  for (int column = 0; column < 16; ++column) expect(sparse.at(0, column) == want[column], "a kept element is in its place");
}

void scales() {
  float data[2 * 256];
  for (int i = 0; i < 2 * 256; ++i) data[i] = 1;
  const float rows[] = {1, 2, 3, 4}, blocks[] = {5, 6};
  const croq::Scaled<float> by_row{data, 2, 256, rows, 1}, by_block{data, 2, 256, blocks, croq::kScaleBlock};
  expect(by_row.at(0, 0) == 1 && by_row.at(0, 127) == 1 && by_row.at(0, 128) == 2 && by_row.at(1, 255) == 4, "row scales");
  expect(by_block.at(0, 127) == 5 && by_block.at(1, 128) == 6 && by_block.at(1, 0) == 5, "block scales");
}

}  // namespace

int main() {
  words(), layouts(), metadata(), scales();
  return failures != 0;
}
