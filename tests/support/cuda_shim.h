// Runs a CUDA kernel's own text on the host: threads are fibers, the few instructions that a host
// lacks are written out after the PTX manual's layouts. Elements are 16-bit integers, so that every
// sum is exact and an error of addressing cannot hide in rounding.
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
#include <vector>

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
  int16_t *to;
  const int16_t *from;
  bool inside;
  void run() const {
    for (int i = 0; i < 8; ++i) to[i] = inside ? from[i] : int16_t(0);
  }
};

struct Barrier {
  int wanted = 0, arrived = 0;
  unsigned generation = 0;
};

struct Slot {
  const int16_t *row[32];
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
inline std::vector<std::pair<const int16_t *, const int16_t *>> readable;

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

inline float element(unsigned word, int i) {
  return static_cast<float>(static_cast<int16_t>(word >> (16 * i)));
}

}  // namespace shim

inline void __syncthreads() {
  const unsigned mine = threadIdx.x;
  shim::wait(shim::block);
  threadIdx.x = mine;
}

inline void copy_16_bytes(int16_t *to, const int16_t *from, bool inside) {
  shim::must_be_shared(to, 16);
  bool known = false;
  for (const auto &range : shim::readable) known = known || (from >= range.first && from + 8 <= range.second);
  if (!known && inside) shim::fail("reads outside of an operand");
  const shim::Copy copy{to, from, inside};
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

// ldmatrix.x4: lane l holds the address of row l % 8 of matrix l / 8, and gets two elements of
// row l / 4 of each.
inline void load_matrices(unsigned (&to)[4], const int16_t *row) {
  shim::must_be_shared(row, 16);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const shim::Slot &slot = shim::meet([&](shim::Slot &s) { s.row[lane] = row; });
  for (int i = 0; i < 4; ++i) {
    unsigned banks = 0;
    for (int r = 0; r < 8; ++r)
      banks |= 1u << (reinterpret_cast<uintptr_t>(slot.row[8 * i + r]) / 16 % 8);
    if (banks != 0xff) shim::fail("bank conflict");
    std::memcpy(&to[i], slot.row[8 * i + lane / 4] + lane % 4 * 2, 4);
  }
}

// mma.m16n8k16: A[r][k] is in register (r / 8) + 2 (k / 8) of lane 4 (r % 8) + k % 8 / 2,
// B[k][c] in register k / 8 of lane 4 c + k % 8 / 2, D[r][c] in 2 (r / 8) + c % 2 of 4 (r % 8) + c / 2.
inline void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const shim::Slot &slot = shim::meet([&](shim::Slot &s) {
    std::copy(a, a + 4, s.a[lane]);
    s.b[lane][0] = b0, s.b[lane][1] = b1;
  });
  for (int i = 0; i < 4; ++i) {
    const int r = lane / 4 + 8 * (i / 2), c = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k)
      sum[i] += shim::element(slot.a[r % 8 * 4 + k % 8 / 2][r / 8 + k / 8 * 2], k % 2) *
                shim::element(slot.b[c * 4 + k % 8 / 2][k / 8], k % 2);
  }
}

inline int16_t narrow(float x) { return static_cast<int16_t>(x); }

inline void store_pair(int16_t *to, float x, float y) {
  if (reinterpret_cast<uintptr_t>(to) % 4) shim::fail("unaligned store of a pair");
  to[0] = narrow(x), to[1] = narrow(y);
}

extern "C" int launch_matmul(const void *, const void *, void *, int, int, int, cudaStream_t);

// Arguments: m n k late backwards. Prints what was wrong, or nothing.
int main(int argc, char **argv) {
  if (argc != 6) return 2;
  const int m = std::atoi(argv[1]), n = std::atoi(argv[2]), k = std::atoi(argv[3]);
  shim::late_copies = std::atoi(argv[4]) != 0;
  shim::backwards = std::atoi(argv[5]) != 0;
  constexpr int16_t kPoison = 0x5a5a;
  constexpr size_t kGuard = 64;
  const auto count = [](int rows, int columns) { return static_cast<size_t>(rows) * static_cast<size_t>(columns); };
  std::vector<int16_t> lhs(count(m, k)), rhs(count(n, k)), out(count(m, n) + 2 * kGuard, kPoison);
  unsigned state = 12345;
  for (auto *matrix : {&lhs, &rhs})
    for (int16_t &x : *matrix) x = static_cast<int16_t>(((state = state * 1664525u + 1013904223u) >> 24) % 7) - 3;
  shim::readable = {{lhs.data(), lhs.data() + lhs.size()}, {rhs.data(), rhs.data() + rhs.size()}};
  if (launch_matmul(lhs.data(), rhs.data(), out.data() + kGuard, m, n, k, nullptr) != 0) shim::fail("refused");
  size_t wrong = 0;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      int sum = 0;
      for (int l = 0; l < k; ++l) sum += lhs[count(i, k) + static_cast<size_t>(l)] * rhs[count(j, k) + static_cast<size_t>(l)];
      wrong += out[kGuard + count(i, n) + static_cast<size_t>(j)] != sum;
    }
  for (size_t i = 0; i < kGuard; ++i) wrong += out[i] != kPoison || out[out.size() - 1 - i] != kPoison;
  if (wrong) std::printf("%zu wrong elements\n", wrong);
  return wrong != 0;
}
