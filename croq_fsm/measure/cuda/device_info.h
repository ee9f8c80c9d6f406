// What this process sees of the device; asked by the parent, which never makes a context itself.
#pragma once

#include <dirent.h>

#include <string>

#include "cuda_check.h"
#include "json.h"

namespace croq {

inline std::string uuid_of(const cudaDeviceProp &props) {
  std::string text = "GPU-";
  char byte[3];
  for (int i = 0; i < 16; ++i) {
    std::snprintf(byte, sizeof byte, "%02x", static_cast<unsigned char>(props.uuid.bytes[i]));
    text += byte;
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

inline Answer device_info() {
  int device = 0, driver = 0, runtime = 0, mhz = 0;
  cudaDeviceProp props{};
  check(cudaGetDevice(&device), "info");
  check(cudaGetDeviceProperties(&props, device), "info");
  check(cudaDriverGetVersion(&driver), "info");
  check(cudaRuntimeGetVersion(&runtime), "info");
  check(cudaDeviceGetAttribute(&mhz, cudaDevAttrClockRate, device), "info");
  Answer answer;
  answer.add("ok", true).add("name", props.name).add("uuid", uuid_of(props));
  answer.add("capability", props.major * 10 + props.minor).add("sms", props.multiProcessorCount);
  answer.add("smem_per_block", props.sharedMemPerBlockOptin).add("smem_per_sm", props.sharedMemPerMultiprocessor);
  answer.add("registers_per_sm", props.regsPerMultiprocessor).add("threads_per_block", props.maxThreadsPerBlock);
  answer.add("l2_bytes", props.l2CacheSize).add("memory_bytes", props.totalGlobalMem);
  answer.add("max_sm_mhz", mhz / 1000).add("driver", driver).add("runtime", runtime);
  return answer;
}

// Threads of this process: a candidate that works behind the timer's back needs one.
inline int thread_count() {
  int count = 0;
  if (DIR *tasks = opendir("/proc/self/task")) {
    while (const dirent *entry = readdir(tasks)) count += entry->d_name[0] != '.';
    closedir(tasks);
  }
  return count;
}

}  // namespace croq
