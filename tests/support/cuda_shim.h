// Runs a CUDA kernel's own text on the host: threads are fibers, the few instructions that a host
// lacks are written out after the PTX manual's layouts. Elements are integers, so that every sum is
// exact and an error of addressing cannot hide in rounding.
//
// CROQ_ELEMENT and CROQ_OUTPUT are the types of operands and output (int16_t unless said), and
// CROQ_OPERATOR is 0 for matmul, 1 for blockscale_gemm, 2 for gemm_sp.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#ifndef CROQ_ELEMENT
#define CROQ_ELEMENT int16_t
#endif
#ifndef CROQ_OUTPUT
#define CROQ_OUTPUT int16_t
#endif
#ifndef CROQ_OPERATOR
#define CROQ_OPERATOR 0
#endif

#define __global__
#define __device__
#define __shared__
#define __align__(n)
#define __forceinline__ inline
#define __launch_bounds__(n)

using __half = int16_t;
using __nv_bfloat16 = int16_t;
using std::min;
using cudaStream_t = void *;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
constexpr int cudaFuncAttributeMaxDynamicSharedMemorySize = 8;
template <class F>
cudaError_t cudaFuncSetAttribute(F, int, int bytes) { return bytes <= 232448 ? cudaSuccess : cudaErrorInvalidValue; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

struct float2 {
  float x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
inline Index threadIdx, blockIdx;
alignas(128) inline unsigned char shared_bytes[232448];

namespace shim {

[[noreturn]] inline void fail(const char *what) {
  std::printf("%s\n", what);
  std::fflush(stdout);
  std::_Exit(3);
}

struct Copy {
  unsigned char *to;
  const unsigned char *from;
  bool inside;
  void run() const {
    for (int i = 0; i < 16; ++i) to[i] = inside ? from[i] : 0;
  }
};

struct Barrier {
  int wanted = 0, arrived = 0;
  unsigned generation = 0;
};

struct Slot {
  const unsigned char *row[32];
  unsigned a[32][4], b[32][2];
};

struct Warp {
  Barrier barrier;
  Slot slots[2];
  int finished = 0;
};

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(64 << 10);
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
  unsigned turn = 0;
  bool done = false;
};

inline std::vector<std::unique_ptr<Fiber>> fibers;
inline std::vector<Warp> warps;
inline Barrier block;
inline ucontext_t scheduler;
inline Fiber *current;
inline const std::function<void()> *body;
inline bool progress, late_copies, backwards;
inline size_t shared_limit;
inline std::vector<std::pair<const unsigned char *, const unsigned char *>> readable;

template <class T> void allow(const std::vector<T> &operand) {
  const auto *from = reinterpret_cast<const unsigned char *>(operand.data());
  readable.push_back({from, from + operand.size() * sizeof(T)});
}

inline void wait(Barrier &barrier) {
  const unsigned mine = barrier.generation;
  if (++barrier.arrived == barrier.wanted) {
    barrier.arrived = 0;
    ++barrier.generation;
    progress = true;
  }
  while (barrier.generation == mine) swapcontext(&current->context, &scheduler);
}

inline void enter() {
  (*body)();
  current->done = progress = true;
  swapcontext(&current->context, &scheduler);
}

inline void resume(int thread) {
  current = fibers[static_cast<size_t>(thread)].get();
  if (current->done) return;
  threadIdx.x = static_cast<unsigned>(thread);
  swapcontext(&scheduler, &current->context);
}

// Each warp runs as far ahead of the others as barriers allow.
inline void run_block(int threads) {
  const int count = threads / 32;
  bool any = true;
  while (any) {
    any = false;
    for (int w = 0; w < count; ++w) {
      const int warp = backwards ? count - 1 - w : w;
      do {
        progress = false;
        for (int lane = 0; lane < 32; ++lane) resume(warp * 32 + lane);
        any = any || progress;
      } while (progress);
    }
  }
  for (const auto &fiber : fibers)
    if (!fiber->done) fail("deadlock");
}

inline void emulate(int grid, int threads, size_t bytes, const std::function<void()> &kernel) {
  body = &kernel;
  shared_limit = bytes;
  for (int b = 0; b < grid; ++b) {
    blockIdx.x = static_cast<unsigned>(b);
    std::memset(shared_bytes, 0x7d, sizeof shared_bytes);
    fibers.clear();
    warps.assign(static_cast<size_t>(threads / 32), Warp{});
    for (Warp &warp : warps) warp.barrier.wanted = 32;
    block = Barrier{threads};
    for (int t = 0; t < threads; ++t) {
      auto fiber = std::make_unique<Fiber>();
      getcontext(&fiber->context);
      fiber->context.uc_stack.ss_sp = fiber->stack.data();
      fiber->context.uc_stack.ss_size = fiber->stack.size();
      fiber->context.uc_link = nullptr;
      makecontext(&fiber->context, enter, 0);
      fibers.push_back(std::move(fiber));
    }
    run_block(threads);
  }
}

inline void must_be_shared(const void *at, size_t bytes) {
  const auto *p = static_cast<const unsigned char *>(at);
  if (p < shared_bytes || p + bytes > shared_bytes + shared_limit) fail("outside of shared memory");
  if ((p - shared_bytes) % 16) fail("unaligned in shared memory");
}

inline Warp &warp() { return warps[threadIdx.x / 32]; }

// A slot is used again two collectives later, when all lanes have passed the barrier in between.
inline Slot &meet(const std::function<void(Slot &)> &give) {
  Slot &slot = warp().slots[current->turn++ % 2];
  give(slot);
  const unsigned mine = threadIdx.x;
  wait(warp().barrier);
  threadIdx.x = mine;
  return slot;
}

// The i-th element of a register.
inline float element(unsigned word, int i) {
  using Signed = std::make_signed_t<CROQ_ELEMENT>;
  return static_cast<float>(static_cast<Signed>(word >> (8 * static_cast<int>(sizeof(Signed)) * i)));
}

}  // namespace shim

inline void __syncthreads() {
  const unsigned mine = threadIdx.x;
  shim::wait(shim::block);
  threadIdx.x = mine;
}

inline void copy_16_bytes(CROQ_ELEMENT *to, const CROQ_ELEMENT *from, bool inside) {
  shim::must_be_shared(to, 16);
  bool known = false;
  const shim::Copy copy{reinterpret_cast<unsigned char *>(to), reinterpret_cast<const unsigned char *>(from), inside};
  for (const auto &range : shim::readable)
    known = known || (copy.from >= range.first && copy.from + 16 <= range.second);
  if (!known && inside) shim::fail("reads outside of an operand");
  if (shim::late_copies) shim::current->open.push_back(copy);
  else copy.run();
}

inline void commit_copies() {
  shim::current->groups.push_back(std::move(shim::current->open));
  shim::current->open.clear();
}

// Late copies arrive no sooner than they must.
template <int kPending>
void await_copies() {
  auto &groups = shim::current->groups;
  while (groups.size() > static_cast<size_t>(kPending)) {
    for (const shim::Copy &copy : groups.front()) copy.run();
    groups.pop_front();
  }
}

// ldmatrix.x4: lane l holds the address of row l % 8 of matrix l / 8, and gets 4 bytes of row
// l / 4 of each.
inline void load_matrices(unsigned (&to)[4], const CROQ_ELEMENT *row) {
  shim::must_be_shared(row, 16);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const shim::Slot &slot =
      shim::meet([&](shim::Slot &s) { s.row[lane] = reinterpret_cast<const unsigned char *>(row); });
  for (int i = 0; i < 4; ++i) {
    unsigned banks = 0;
    for (int r = 0; r < 8; ++r)
      banks |= 1u << (reinterpret_cast<uintptr_t>(slot.row[8 * i + r]) / 16 % 8);
    if (banks != 0xff) shim::fail("bank conflict");
    std::memcpy(&to[i], slot.row[8 * i + lane / 4] + lane % 4 * 4, 4);
  }
}

// mma.m16n8k16 on 16-bit, m16n8k32 on 8-bit elements. With p elements in a register and g = 4 p:
// A[r][k] is in register (r / 8) + 2 (k / g) of lane 4 (r % 8) + k % g / p, B[k][c] in register
// k / g of lane 4 c + k % g / p, D[r][c] in 2 (r / 8) + c % 2 of lane 4 (r % 8) + c / 2.
using Sums = float[4];

inline void multiply(Sums &sum, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  constexpr int p = 4 / static_cast<int>(sizeof(CROQ_ELEMENT)), g = 4 * p;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const shim::Slot &slot = shim::meet([&](shim::Slot &s) {
    std::copy(a, a + 4, s.a[lane]);
    s.b[lane][0] = b0, s.b[lane][1] = b1;
  });
  for (int i = 0; i < 4; ++i) {
    const int r = lane / 4 + 8 * (i / 2), c = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 2 * g; ++k)
      sum[i] += shim::element(slot.a[r % 8 * 4 + k % g / p][r / 8 + k / g * 2], k % p) *
                shim::element(slot.b[c * 4 + k % g / p][k / g], k % p);
  }
}

inline float2 pair_of(const Sums &sum, int row) { return {sum[2 * row], sum[2 * row + 1]}; }

inline CROQ_OUTPUT narrow(float x) { return static_cast<CROQ_OUTPUT>(x); }

inline void store_pair(CROQ_OUTPUT *to, float x, float y) {
  if (reinterpret_cast<uintptr_t>(to) % (2 * sizeof *to)) shim::fail("unaligned store of a pair");
  to[0] = narrow(x), to[1] = narrow(y);
}

extern "C" int launch_matmul(const void *, const void *, void *, int, int, int, cudaStream_t);
extern "C" int launch_blockscale_gemm(const void *, const void *, const void *, const void *, void *, int, int, int,
                                      cudaStream_t);
extern "C" int launch_gemm_sp(const void *, const void *, const void *, void *, int, int, int, cudaStream_t);

namespace shim {

inline size_t count(int rows, int columns) { return static_cast<size_t>(rows) * static_cast<size_t>(columns); }

inline int random_below(int limit) {
  static unsigned state = 12345;
  return static_cast<int>((state = state * 1664525u + 1013904223u) >> 24) % limit;
}

// L and R as matrices of small integers, and the operands that a kernel gets for them.
struct Case {
  int m, n, k;
  std::vector<int> left, right;
  std::vector<CROQ_ELEMENT> lhs, rhs;
  std::vector<unsigned char> meta;
  std::vector<float> lhs_scales, rhs_scales;

  Case(int m_, int n_, int k_) : m(m_), n(n_), k(k_), left(count(m, k)), right(count(n, k)) {
    for (auto *matrix : {&left, &right})
      for (int &x : *matrix) x = random_below(7) - 3;
    if (CROQ_OPERATOR == 2) compress();
    else lhs.assign(left.begin(), left.end());
    rhs.assign(right.begin(), right.end());
    if (CROQ_OPERATOR == 1) scale();
    allow(lhs), allow(rhs);
  }

  // Drops two of each four elements of L.
  void compress() {
    const int pairs[6][2] = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}};
    meta.assign(count(m, k / 8), 0);
    for (size_t group = 0; group < left.size() / 4; ++group) {
      const int *kept = pairs[random_below(6)];
      int *four = left.data() + 4 * group;
      for (int i = 0; i < 4; ++i) {
        if (i == kept[0] || i == kept[1]) lhs.push_back(static_cast<CROQ_ELEMENT>(four[i]));
        else four[i] = 0;
      }
      meta[group / 2] = static_cast<unsigned char>(meta[group / 2] | (kept[0] | kept[1] << 2) << (group % 2 * 4));
    }
  }

  void scale() {
    const int blocks = (k + 127) / 128;
    for (size_t i = 0; i < count(m, blocks); ++i) lhs_scales.push_back(static_cast<float>(1 + random_below(3)));
    for (size_t i = 0; i < count((n + 127) / 128, blocks); ++i) rhs_scales.push_back(static_cast<float>(1 + random_below(3)));
    for (int x = 0; x < k; ++x) {
      for (int i = 0; i < m; ++i)
        left[count(i, k) + static_cast<size_t>(x)] *= int(lhs_scales[count(i, blocks) + static_cast<size_t>(x / 128)]);
      for (int j = 0; j < n; ++j)
        right[count(j, k) + static_cast<size_t>(x)] *= int(rhs_scales[count(j / 128, blocks) + static_cast<size_t>(x / 128)]);
    }
  }

  int launch(void *out) const {
#if CROQ_OPERATOR == 1
    return launch_blockscale_gemm(lhs.data(), lhs_scales.data(), rhs.data(), rhs_scales.data(), out, m, n, k, nullptr);
#elif CROQ_OPERATOR == 2
    return launch_gemm_sp(lhs.data(), meta.data(), rhs.data(), out, m, n, k, nullptr);
#else
    return launch_matmul(lhs.data(), rhs.data(), out, m, n, k, nullptr);
#endif
  }

  int want(int i, int j) const {
    int sum = 0;
    for (int x = 0; x < k; ++x) sum += left[count(i, k) + static_cast<size_t>(x)] * right[count(j, k) + static_cast<size_t>(x)];
    return sum;
  }
};

}  // namespace shim

// Arguments: m n k late backwards. Prints what was wrong, or nothing.
int main(int argc, char **argv) {
  if (argc != 6) return 2;
  const shim::Case given(std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]));
  shim::late_copies = std::atoi(argv[4]) != 0;
  shim::backwards = std::atoi(argv[5]) != 0;
  constexpr CROQ_OUTPUT kPoison = 0x5a5a;
  constexpr size_t kGuard = 64;
  std::vector<CROQ_OUTPUT> out(shim::count(given.m, given.n) + 2 * kGuard, kPoison);
  if (given.launch(out.data() + kGuard) != 0) shim::fail("refused");
  size_t wrong = 0;
  for (int i = 0; i < given.m; ++i)
    for (int j = 0; j < given.n; ++j)
      wrong += out[kGuard + shim::count(i, given.n) + static_cast<size_t>(j)] != static_cast<CROQ_OUTPUT>(given.want(i, j));
  for (size_t i = 0; i < kGuard; ++i) wrong += out[i] != kPoison || out[out.size() - 1 - i] != kPoison;
  if (wrong) std::printf("%zu wrong elements\n", wrong);
  return wrong != 0;
}
