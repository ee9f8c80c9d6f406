// output[m, n] = lhs[m, k] . rhs[n, k]^T, row-major e4m3, f16 out, sums in f32. k must be a multiple of 16.
//
// A thread block computes one tile. Its copies run STAGES - 1 steps ahead of the tensor cores.
// Rows in shared memory are 16 bytes longer than their content: TILE_K / 8 + 1 is odd, so the
// eight rows that ldmatrix reads at a time lie in different banks.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define TILE_M 128
#define TILE_N 128
#define TILE_K 64
#define STAGES 2
#define WARPS_M 2
#define WARPS_N 4
#define GROUP_M 8

using Element = unsigned char;  // the bits of an e4m3 number
using Output = __half;

constexpr int kThreads = 32 * WARPS_M * WARPS_N;
constexpr int kWarpM = TILE_M / WARPS_M, kWarpN = TILE_N / WARPS_N;
constexpr int kMmaM = 16, kMmaN = 8, kMmaK = 32 / sizeof(Element);
constexpr int kFragsM = kWarpM / kMmaM, kFragsN = kWarpN / kMmaN;
constexpr int kChunk = 16 / sizeof(Element);
constexpr int kChunks = TILE_K / kChunk;
constexpr int kPitch = TILE_K + kChunk;
constexpr int kStageElements = (TILE_M + TILE_N) * kPitch;
constexpr int kSharedBytes = STAGES * kStageElements * int(sizeof(Element));

static_assert(TILE_M % (WARPS_M * kMmaM) == 0, "TILE_M must be a multiple of 16 * WARPS_M");
static_assert(TILE_N % (WARPS_N * 2 * kMmaN) == 0, "TILE_N must be a multiple of 16 * WARPS_N");
static_assert(TILE_K % kMmaK == 0, "TILE_K must be a multiple of one instruction's k");
static_assert(STAGES >= 2 && kSharedBytes <= 232448, "STAGES: two at least, and they must fit in shared memory");

// [instructions
__device__ __forceinline__ void copy_16_bytes(Element *to, const Element *from, bool inside) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  const int bytes = inside ? 16 : 0;  // the rest is filled with zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kPending>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const Element *row) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

using Sums = float[4];

__device__ __forceinline__ void multiply(Sums &sum, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two neighbours of the upper row (0) or of the lower one (1).
__device__ __forceinline__ float2 pair_of(const Sums &sum, int row) {
  return make_float2(sum[2 * row], sum[2 * row + 1]);
}

__device__ __forceinline__ Output narrow(float x) { return __float2half_rn(x); }

__device__ __forceinline__ void store_pair(Output *to, float x, float y) {
  *reinterpret_cast<__half2 *>(to) = __floats2half2_rn(x, y);
}
// instructions]

// Copies rows [row0, row0 + kRows) and columns [k0, k0 + TILE_K) of a matrix; zeros beyond its end.
template <int kRows>
__device__ __forceinline__ void load_tile(Element *to, const Element *from, int row0, int rows, int k0, int k) {
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, column = i % kChunks * kChunk;
    const bool inside = row0 + row < rows && k0 + column < k;
    const size_t at = inside ? static_cast<size_t>(row0 + row) * static_cast<size_t>(k) + (k0 + column) : 0;
    copy_16_bytes(to + row * kPitch + column, from + at, inside);
  }
}

// One step of TILE_K on the part of the tile that belongs to this warp.
__device__ __forceinline__ void multiply_stage(Sums (&sums)[kFragsM][kFragsN], const Element *lhs,
                                               const Element *rhs, int lane) {
#pragma unroll
  for (int k = 0; k < TILE_K; k += kMmaK) {
    unsigned a[kFragsM][4], b[kFragsN / 2][4];
#pragma unroll
    for (int i = 0; i < kFragsM; ++i)
      load_matrices(a[i], lhs + (i * kMmaM + lane % 16) * kPitch + k + lane / 16 * kChunk);
#pragma unroll
    for (int j = 0; j < kFragsN / 2; ++j)
      load_matrices(b[j], rhs + (j * 2 * kMmaN + lane / 16 * 8 + lane % 8) * kPitch + k + lane / 8 % 2 * kChunk);
#pragma unroll
    for (int i = 0; i < kFragsM; ++i)
#pragma unroll
      for (int j = 0; j < kFragsN; ++j) multiply(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
  }
}

// Two neighbours of one row; a pair is aligned when rows have an even length.
__device__ __forceinline__ void store(Output *output, int row, int column, int m, int n, float2 pair) {
  if (row >= m || column >= n) return;
  Output *to = output + static_cast<size_t>(row) * static_cast<size_t>(n) + column;
  if (n % 2 == 0) {
    store_pair(to, pair.x, pair.y);
  } else {
    to[0] = narrow(pair.x);
    if (column + 1 < n) to[1] = narrow(pair.y);
  }
}

static __global__ __launch_bounds__(kThreads) void matmul_kernel(const Element *__restrict__ lhs,
                                                                 const Element *__restrict__ rhs,
                                                                 Output *__restrict__ output, int m, int n, int k,
                                                                 int tiles_m, int tiles_n) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  Element *const stages = reinterpret_cast<Element *>(shared_bytes);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_m = warp / WARPS_N * kWarpM, warp_n = warp % WARPS_N * kWarpN;

  // Blocks walk down bands of GROUP_M tiles, so that those at work at a time share their inputs.
  const int block = static_cast<int>(blockIdx.x), band = block / (GROUP_M * tiles_n);
  const int band_m = band * GROUP_M, height = min(GROUP_M, tiles_m - band_m);
  const int within = block - band_m * tiles_n;
  const int row0 = (band_m + within % height) * TILE_M, column0 = within / height * TILE_N;

  const auto load_stage = [&](int step) {
    Element *const stage = stages + step % STAGES * kStageElements;
    load_tile<TILE_M>(stage, lhs, row0, m, step * TILE_K, k);
    load_tile<TILE_N>(stage + TILE_M * kPitch, rhs, column0, n, step * TILE_K, k);
  };

  Sums sums[kFragsM][kFragsN] = {};
  const int steps = (k + TILE_K - 1) / TILE_K;
  for (int step = 0; step < STAGES - 1; ++step) {
    if (step < steps) load_stage(step);
    commit_copies();
  }
  for (int step = 0; step < steps; ++step) {
    await_copies<STAGES - 2>();
    __syncthreads();  // this step has arrived, and all warps are done with the stage that is filled next
    if (step + STAGES - 1 < steps) load_stage(step + STAGES - 1);
    commit_copies();
    const Element *const stage = stages + step % STAGES * kStageElements;
    multiply_stage(sums, stage + warp_m * kPitch, stage + (TILE_M + warp_n) * kPitch, lane);
  }

#pragma unroll
  for (int i = 0; i < kFragsM; ++i)
#pragma unroll
    for (int j = 0; j < kFragsN; ++j) {
      const int row = row0 + warp_m + i * kMmaM + lane / 4, column = column0 + warp_n + j * kMmaN + lane % 4 * 2;
      store(output, row, column, m, n, pair_of(sums[i][j], 0));
      store(output, row + 8, column, m, n, pair_of(sums[i][j], 1));
    }
}

extern "C" int launch_matmul(const void *lhs, const void *rhs, void *output, int m, int n, int k,
                             cudaStream_t stream) {
  static const cudaError_t ready =
      cudaFuncSetAttribute(matmul_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (ready != cudaSuccess) return ready;
  if (k % kChunk != 0) return cudaErrorInvalidValue;
  const int tiles_m = (m + TILE_M - 1) / TILE_M, tiles_n = (n + TILE_N - 1) / TILE_N;
  matmul_kernel<<<tiles_m * tiles_n, kThreads, kSharedBytes, stream>>>(
      static_cast<const Element *>(lhs), static_cast<const Element *>(rhs), static_cast<Output *>(output), m, n, k,
      tiles_m, tiles_n);
  return cudaGetLastError();
}
