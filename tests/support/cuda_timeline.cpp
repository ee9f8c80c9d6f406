// A CUDA runtime without a device, to run our harness's host part: memory is host memory, kernels
// do nothing but take their time on one simulated in-order queue, and events read that queue's
// clock. The host's time is real, so that what is queued too late shows as it would on a device.
#include <cuda_runtime.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>

namespace {

std::map<const void *, std::string> &kernels() {  // programs register theirs before main
  static std::map<const void *, std::string> names;
  return names;
}
double queue_ns = 0;  // when the device will be done with what was queued
double kernel_us() { return std::atof(std::getenv("KERNEL_US") ? std::getenv("KERNEL_US") : "7"); }
double host_us() { return std::atof(std::getenv("HOST_US") ? std::getenv("HOST_US") : "2"); }

double now_ns() {
  static const auto began = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - began).count();
}
void queue(double ns) { queue_ns = std::max(queue_ns, now_ns()) + ns; }
void wait() {
  while (now_ns() < queue_ns) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

}  // namespace

struct CUevent_st {
  double at = 0;
};

extern "C" {

void **__cudaRegisterFatBinary(void *) { static void *handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
void __cudaRegisterFunction(void **, const char *host, char *, const char *name, int, uint3 *, uint3 *, dim3 *, dim3 *,
                            int *) {
  kernels()[host] = name;
}
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
char __cudaInitModule(void **) { return 1; }
static dim3 saved_grid, saved_block;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t, void *) {
  saved_grid = grid;
  saved_block = block;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *bytes, void *stream) {
  *grid = saved_grid;
  *block = saved_block;
  *bytes = 0;
  *static_cast<void **>(stream) = nullptr;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void *>(host));
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void *host, dim3, dim3, void **arguments, size_t, cudaStream_t) {
  const std::string &name = kernels()[host];
  if (name.find("spin_kernel") == std::string::npos) {
    queue(name.find("flush") != std::string::npos ? 110e3 : 2e3);
    return cudaSuccess;
  }
  const auto ns = *static_cast<unsigned long long *>(arguments[0]);
  auto *stamp = *static_cast<unsigned long long **>(arguments[1]);
  queue(double(ns));
  stamp[0] = ns * 3 / 2;  // 1500 MHz
  stamp[1] = ns;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 g, dim3 b, void **a, size_t n, cudaStream_t s) {
  return cudaLaunchKernel(reinterpret_cast<const void *>(kernel), g, b, a, n, s);
}

cudaError_t cudaMalloc(void **to, size_t bytes) { *to = std::calloc(1, bytes); return cudaSuccess; }
cudaError_t cudaFree(void *at) { std::free(at); return cudaSuccess; }
cudaError_t cudaMemset(void *to, int byte, size_t n) { std::memset(to, byte, n < (1u << 20) ? n : 16); return cudaSuccess; }
cudaError_t cudaMemsetAsync(void *to, int byte, size_t n, cudaStream_t) { queue(2e3); return cudaMemset(to, byte, n); }
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind) {
  wait();
  std::memcpy(to, from, n);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind, cudaStream_t) {
  queue(5e3);
  std::memcpy(to, from, n);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { *event = new CUevent_st; return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) { delete event; return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  queue(800);  // what an event costs
  event->at = queue_ns;
  return cudaSuccess;
}
static cudaError_t last = cudaSuccess;
cudaError_t cudaEventQuery(cudaEvent_t event) { return last = now_ns() >= event->at ? cudaSuccess : cudaErrorNotReady; }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
  *ms = float((b->at - a->at) * 1e-6);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { wait(); return cudaSuccess; }
cudaError_t cudaGetLastError() { const cudaError_t was = last; last = cudaSuccess; return was; }
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *props, int) {
  std::memset(props, 0, sizeof *props);
  props->l2CacheSize = 50 << 20;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp *props, int d) { return cudaGetDeviceProperties(props, d); }
cudaError_t cudaDriverGetVersion(int *v) { *v = 13000; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { *v = 13000; return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr, int) { *v = 1980000; return cudaSuccess; }
cudaError_t cudaCtxResetPersistingL2Cache() { return cudaSuccess; }
cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
const char *cudaGetErrorName(cudaError_t) { return "cudaErrorSimulated"; }
const char *cudaGetErrorString(cudaError_t) { return "simulated"; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *, void **to, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *result) {
  *to = nullptr;
  *result = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

// The candidate: it notes its inputs in the output, so that whose output is kept can be told.
int croq_candidate(const void *const *inputs, void *output, const long long *) {
  const double until = now_ns() + host_us() * 1e3;
  while (now_ns() < until) {
  }
  queue(kernel_us() * 1e3);
  std::memcpy(output, &inputs[0], sizeof inputs[0]);
  return 0;
}

}  // extern "C"
