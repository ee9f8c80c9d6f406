// Timing with device events. What happens between two events is one launch (isolated) or a
// train of launches (burst, sustained); the host's work is hidden behind a spinning kernel.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "arena.cuh"
#include "json.h"

namespace croq {

// Waits on the device and notes how many SM cycles the wait took: the clock, without NVML.
__global__ static void spin_kernel(unsigned long long nanoseconds, unsigned long long *stamp) {
  unsigned long long now, start;
  const long long cycles = clock64();
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
  stamp[0] = static_cast<unsigned long long>(clock64() - cycles);
  stamp[1] = now - start;
}

__global__ static void flush_kernel(uint4 *lines, size_t count, unsigned value) {
  const size_t step = size_t(gridDim.x) * blockDim.x;
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    lines[i] = make_uint4(value, value, value, value);
}

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "create an event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event &) = delete;
  Event &operator=(const Event &) = delete;
  void record() const { check(cudaEventRecord(event_, nullptr), "record an event"); }
  double since(const Event &start) const {  // nanoseconds
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start.event_, event_), "read a timer");
    return double(ms) * 1e6;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// One block of launches. An idle block does everything but launch: its wall time is what the
// harness costs, and what a candidate's own timer must leave over.
struct TimingRequest {
  int launches;
  bool idle, cold;
  std::string regime;
  uint64_t seed;

  static TimingRequest from(const Request &request, bool idle) {
    return {
        static_cast<int>(std::clamp(request.integer("launches", 10), 1ll, 100000ll)),
        idle,
        request.text("l2", "cold") == "cold",
        request.text("regime", "isolated"),
        static_cast<uint64_t>(request.integer("seed", 1)),
    };
  }
  // The launch whose output is kept for a check afterwards.
  int kept() const { return static_cast<int>(mix(seed ^ 0x5eed) % static_cast<uint64_t>(launches)); }
};

class Timer {
 public:
  using Launch = std::function<void(const Operands &)>;

  Timer(Arena &arena, Launch launch) : arena_(arena), launch_(std::move(launch)) {
    cudaDeviceProp props{};
    int device = 0;
    check(cudaGetDevice(&device), "device");
    check(cudaGetDeviceProperties(&props, device), "device");
    flush_bytes_ = std::max<size_t>(size_t(256) << 20, 2 * static_cast<size_t>(props.l2CacheSize));
    check(cudaMalloc(&flush_, flush_bytes_), "allocate the flush buffer");
    check(cudaMalloc(&stamps_, 2 * sizeof(unsigned long long) * kMaxStamps), "allocate stamps");
    check(cudaMalloc(&kept_, arena.problem.out_bytes()), "allocate the kept output");
  }

  Answer run(const TimingRequest &timing) {
    prepare(timing);
    std::vector<double> ns;
    if (timing.regime == "isolated") ns = isolated(timing);
    else if (timing.regime == "burst") ns = train(timing, timing.launches);
    else if (timing.regime == "sustained") ns = sustained(timing);
    else throw std::invalid_argument("unknown timing regime: " + timing.regime);
    Answer answer;
    answer.add("ok", true).add("host_ns", median(host_ns_)).add("mhz", clocks());
    return timing.idle ? answer : answer.add("ns", ns);
  }

  // The output of the launch that was kept (device memory), and the seed of its inputs.
  const void *kept() const { return kept_; }
  uint64_t kept_seed() const { return kept_seed_; }

 private:
  static constexpr int kSets = 3, kMaxStamps = 4096, kSettleLaunches = 30;
  static constexpr unsigned long long kSpinNs = 75000, kQueueNs = 20000, kMaxQueueNs = 5000000;
  static constexpr double kSettleSeconds = 0.35;  // until the power budget of a burst is used up

  static double median(std::vector<double> values) {
    if (values.empty()) return NAN;
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
  }

  // New inputs for this block, poisoned outputs, no persisting lines in L2.
  void prepare(const TimingRequest &timing) {
    used_ = 0;
    host_ns_.clear();
    cudaCtxResetPersistingL2Cache();
    cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 0);
    cudaGetLastError();  // devices without persisting L2 refuse both; nothing is lost
    for (int i = 0; i < kSets; ++i) {
      set(i).fill(rotated(timing.seed, i), Dist::normal);
      set(i).out.poison();
    }
    check(cudaDeviceSynchronize(), "prepare a block");
  }

  // Cold launches rotate over several sets of operands; hot ones find theirs in the cache.
  const Operands &set(int i) { return arena_.set(static_cast<size_t>(i)); }
  static int set_of(const TimingRequest &timing, int launch) { return timing.cold ? launch % kSets : 0; }

  void flush() {
    flush_kernel<<<2048, 256>>>(static_cast<uint4 *>(flush_), flush_bytes_ / sizeof(uint4), ++flush_value_);
    check(cudaGetLastError(), "flush L2");
  }

  void spin(unsigned long long ns) {
    spin_kernel<<<1, 1>>>(ns, stamps_ + 2 * (used_++ % kMaxStamps));
    check(cudaGetLastError(), "spin");
  }

  void launch(const TimingRequest &timing, int i) {
    if (timing.idle) return;
    const auto started = std::chrono::steady_clock::now();
    launch_(set(set_of(timing, i)));
    host_ns_.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - started).count());
  }

  void keep(const TimingRequest &timing, int launch) {
    const int i = set_of(timing, launch);
    const Buffer &out = set(i).out;
    check(cudaMemcpyAsync(kept_, out.data(), out.bytes(), cudaMemcpyDeviceToDevice), "keep an output");
    kept_seed_ = rotated(timing.seed, i);
  }

  std::vector<double> isolated(const TimingRequest &timing) {
    std::vector<Event> starts(static_cast<size_t>(timing.launches)), stops(starts.size());
    for (int i = 0; i < timing.launches; ++i) {
      // A launch that finds its answer already there has nothing to do: take it away.
      if (timing.cold || i == timing.kept()) set(set_of(timing, i)).out.poison();
      if (timing.cold) flush();
      spin(kSpinNs);
      starts[static_cast<size_t>(i)].record();
      launch(timing, i);
      stops[static_cast<size_t>(i)].record();
      if (i == timing.kept()) keep(timing, i);
    }
    check(cudaDeviceSynchronize(), "timed launches");
    std::vector<double> ns;
    for (size_t i = 0; i < starts.size(); ++i) ns.push_back(stops[i].since(starts[i]));
    return ns;
  }

  // Launches back to back, an event between each two of them.
  std::vector<double> train(const TimingRequest &timing, int launches) {
    std::vector<Event> events(static_cast<size_t>(launches) + 1);
    spin(std::min(kSpinNs + kQueueNs * static_cast<unsigned long long>(launches), kMaxQueueNs));
    events[0].record();
    for (int i = 0; i < launches; ++i) {
      launch(timing, i);
      events[static_cast<size_t>(i) + 1].record();
    }
    keep(timing, launches - 1);
    check(cudaDeviceSynchronize(), "a train of launches");
    std::vector<double> ns;
    for (size_t i = 1; i < events.size(); ++i) ns.push_back(events[i].since(events[i - 1]));
    return ns;
  }

  // The same after some time at full load, when clocks have come down to what power allows.
  std::vector<double> sustained(const TimingRequest &timing) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(kSettleSeconds);
    while (std::chrono::steady_clock::now() < until) {
      if (timing.idle) usleep(1000);
      for (int i = 0; i < kSettleLaunches; ++i) launch(timing, i);
      check(cudaDeviceSynchronize(), "settling down");
    }
    return train(timing, timing.launches);
  }

  // SM clock in MHz in the first and in the last half of the block, from the spins.
  std::vector<double> clocks() {
    const size_t count = std::min<size_t>(used_, kMaxStamps);
    std::vector<unsigned long long> stamps(2 * count);
    check(cudaMemcpy(stamps.data(), stamps_, stamps.size() * sizeof(stamps[0]), cudaMemcpyDeviceToHost), "read stamps");
    std::vector<double> halves[2];
    for (size_t i = 0; i < count; ++i)
      halves[2 * i >= count].push_back(1e3 * double(stamps[2 * i]) / double(stamps[2 * i + 1]));
    return {median(halves[0]), median(halves[1])};
  }

  Arena &arena_;
  Launch launch_;
  void *flush_ = nullptr, *kept_ = nullptr;
  size_t flush_bytes_ = 0, used_ = 0;
  unsigned flush_value_ = 0;
  uint64_t kept_seed_ = 0;
  unsigned long long *stamps_ = nullptr;
  std::vector<double> host_ns_;
};

}  // namespace croq
