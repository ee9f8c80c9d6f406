// Timing with device events; the host's work is hidden behind a spinning kernel.
//
// isolated   One launch between two events, cold. With a batch it is a train of that many launches
//            instead, each on operands of its own that nobody has touched since the flush, so that
//            each of them is cold, too: a kernel of some microseconds is not drowned in the cost of
//            the events. No graph is captured: a candidate queues on the legacy default stream,
//            which cannot be, and the train behind a spin hides its host part as well.
// burst      Launches back to back, over so many sets of operands that none survives in the cache.
// sustained  The same after some time at full load.
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
  bool passed() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) {
      cudaGetLastError();  // no error, but remembered as one
      return false;
    }
    check(status, "ask for an event");
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// One block of samples, each a time of one launch, or the mean over a batch of them. An idle block
// does everything but launch: its wall time is what the harness costs, and what a candidate's own
// timer must leave over.
struct TimingRequest {
  int samples, batch;
  bool idle, cold;
  std::string regime;
  uint64_t seed;

  static TimingRequest from(const Request &request, bool idle) {
    return {
        static_cast<int>(std::clamp(request.integer("launches", 10), 1ll, 100000ll)),
        static_cast<int>(std::clamp(request.integer("batch", 1), 1ll, 64ll)),
        idle,
        request.text("l2", "cold") == "cold",
        request.text("regime", "isolated"),
        static_cast<uint64_t>(request.integer("seed", 1)),
    };
  }
  int launches() const { return samples * batch; }
  // The launch whose output is kept for a check afterwards.
  int kept() const { return static_cast<int>(mix(seed ^ 0x5eed) % static_cast<uint64_t>(launches())); }
};

class Timer {
 public:
  using Launch = std::function<void(const Operands &)>;

  Timer(Arena &arena, Launch launch) : arena_(arena), launch_(std::move(launch)) {
    cudaDeviceProp props{};
    int device = 0;
    check(cudaGetDevice(&device), "device");
    check(cudaGetDeviceProperties(&props, device), "device");
    l2_bytes_ = static_cast<size_t>(props.l2CacheSize);
    flush_bytes_ = std::max<size_t>(size_t(256) << 20, 2 * l2_bytes_);
    check(cudaMalloc(&flush_, flush_bytes_), "allocate the flush buffer");
    check(cudaMalloc(&stamps_, 2 * sizeof(unsigned long long) * kMaxStamps), "allocate stamps");
    check(cudaMalloc(&kept_, arena.problem.out_bytes()), "allocate the kept output");
  }

  Answer run(const TimingRequest &timing) {
    prepare(timing);
    std::vector<double> ns;
    if (timing.regime == "isolated") ns = isolated(timing);
    else if (timing.regime == "burst") ns = back_to_back(timing);
    else if (timing.regime == "sustained") ns = sustained(timing);
    else throw std::invalid_argument("unknown timing regime: " + timing.regime);
    Answer answer;
    answer.add("ok", true).add("host_ns", median(host_ns_)).add("late", late_).add("mhz", clocks());
    return timing.idle ? answer : answer.add("ns", ns);
  }

  // The output of the launch that was kept (device memory), and the seed of its inputs.
  const void *kept() const { return kept_; }
  uint64_t kept_seed() const { return kept_seed_; }

 private:
  static constexpr int kSets = 3, kMostSets = 64, kMaxStamps = 4096, kMostSettling = 4096, kRetries = 2;
  static constexpr unsigned long long kSpinNs = 75000, kQueueNs = 20000, kMaxQueueNs = 5000000;
  static constexpr unsigned long long kLeadNs = 12000;  // of the host, for a launch of a train
  static constexpr double kSettleSeconds = 0.35;  // until the power budget of a burst is used up
  static constexpr double kChunkSeconds = 0.01;

  static double median(std::vector<double> values) {
    if (values.empty()) return NAN;
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
  }

  // New inputs for this block, poisoned outputs, no persisting lines in L2.
  void prepare(const TimingRequest &timing) {
    used_ = 0;
    late_ = 0;
    host_ns_.clear();
    sets_ = sets_for(timing);
    cudaCtxResetPersistingL2Cache();
    cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 0);
    cudaGetLastError();  // devices without persisting L2 refuse both; nothing is lost
    renewals_ = 0;
    contents_.assign(static_cast<size_t>(sets_), 0);
    for (int i = 0; i < sets_; ++i) {
      renew_inputs(timing, i);
      set(i).out.poison();
    }
    check(cudaDeviceSynchronize(), "prepare a block");
  }

  // Inputs that no launch of this block has seen: there is no answer to remember.
  void renew_inputs(const TimingRequest &timing, int launch) {
    uint64_t &content = contents_[static_cast<size_t>(set_of(launch))];
    content = rotated(timing.seed, renewals_++);
    set(set_of(launch)).fill(content, Dist::normal);
  }

  // A cold train needs a set for each of its launches. Launches back to back are cold when the sets
  // between two uses of one hold three times what fits into the cache. Hot ones share one set.
  int sets_for(const TimingRequest &timing) const {
    if (!timing.cold) return 1;
    if (timing.regime == "isolated") return timing.batch > 1 ? timing.batch : kSets;
    const Problem &problem = arena_.problem;
    const size_t bytes = problem.lhs_bytes() + problem.rhs_bytes() + problem.out_bytes();
    const size_t wanted = 2 + 3 * l2_bytes_ / std::max<size_t>(bytes, 1);
    return std::max(timing.batch, static_cast<int>(std::clamp<size_t>(wanted, kSets, kMostSets)));
  }
  const Operands &set(int i) { return arena_.set(static_cast<size_t>(i)); }
  int set_of(int launch) const { return launch % sets_; }

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
    launch_(set(set_of(i)));
    host_ns_.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - started).count());
  }

  void keep(int launch) {
    const Buffer &out = set(set_of(launch)).out;
    check(cudaMemcpyAsync(kept_, out.data(), out.bytes(), cudaMemcpyDeviceToDevice), "keep an output");
    kept_seed_ = contents_[static_cast<size_t>(set_of(launch))];
  }

  std::vector<double> isolated(const TimingRequest &timing) {
    const size_t samples = static_cast<size_t>(timing.samples);
    std::vector<Event> starts(samples), stops(samples);
    for (int i = 0; i < timing.samples; ++i) {
      const Event &start = starts[static_cast<size_t>(i)], &stop = stops[static_cast<size_t>(i)];
      // The device must not wait for the host: what was queued too late is launched again.
      for (int tries = 0; is_late(timing, i, start, stop) && tries < kRetries; ++tries) {
      }
      const int kept = timing.kept();
      if (kept / timing.batch == i) keep(kept);
    }
    check(cudaDeviceSynchronize(), "timed launches");
    std::vector<double> ns;
    for (size_t i = 0; i < samples; ++i) ns.push_back(stops[i].since(starts[i]) / timing.batch);
    return ns;
  }

  // Queues one sample; whether the device came to it before all of it was queued.
  bool is_late(const TimingRequest &timing, int sample, const Event &start, const Event &stop) {
    const int first = sample * timing.batch;
    for (int j = 0; j < std::min(timing.batch, sets_); ++j) renew_inputs(timing, first + j);
    // A launch that finds its answer already there has nothing to do: take it away.
    if (timing.cold || sample == timing.kept() / timing.batch)
      for (int j = 0; j < std::min(timing.batch, sets_); ++j) set(set_of(first + j)).out.poison();
    if (timing.cold) flush();
    spin(timing.batch > 1 ? kSpinNs + kLeadNs * static_cast<unsigned long long>(timing.batch) : kSpinNs);
    start.record();
    for (int j = 0; j < timing.batch; ++j) launch(timing, first + j);
    stop.record();
    if (timing.idle || !start.passed()) return false;
    ++late_;
    return true;
  }

  // An event between each two samples. Before the launch that is kept its inputs are renewed, and
  // its output holds the answer to the old ones: who finds an answer there must still compute.
  std::vector<double> back_to_back(const TimingRequest &timing) {
    const size_t samples = static_cast<size_t>(timing.samples);
    std::vector<Event> stops(samples);
    const Event first, renewed, copied;
    std::vector<const Event *> starts(samples);
    const int kept = timing.kept() / timing.batch;
    spin(std::min(kSpinNs + kQueueNs * static_cast<unsigned long long>(timing.launches()), kMaxQueueNs));
    first.record();
    const Event *before = &first;
    for (int i = 0; i < timing.samples; ++i) {
      if (i == kept) before = &renew(timing, i * timing.batch, renewed);
      starts[static_cast<size_t>(i)] = before;
      for (int j = 0; j < timing.batch; ++j) launch(timing, i * timing.batch + j);
      before = &stops[static_cast<size_t>(i)];
      before->record();
      if (i != kept) continue;
      keep(i * timing.batch);
      before = &copied;
      before->record();
    }
    check(cudaDeviceSynchronize(), "a train of launches");
    std::vector<double> ns;
    for (size_t i = 0; i < samples; ++i) ns.push_back(stops[i].since(*starts[i]) / timing.batch);
    return ns;
  }

  const Event &renew(const TimingRequest &timing, int launch, const Event &done) {
    renew_inputs(timing, launch);
    if (timing.cold) flush();
    spin(kSpinNs);
    done.record();
    return done;
  }

  // The same after some time at full load, when clocks have come down to what power allows.
  std::vector<double> sustained(const TimingRequest &timing) {
    const auto began = std::chrono::steady_clock::now();
    const auto passed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
    for (int chunk = 16; passed() < kSettleSeconds;) {
      const double before = passed();
      if (timing.idle) usleep(1000);
      for (int i = 0; i < chunk; ++i) launch(timing, i);
      check(cudaDeviceSynchronize(), "settling down");
      // So many at a time that waiting for them hardly shows.
      if (passed() - before < kChunkSeconds) chunk = std::min(2 * chunk, kMostSettling);
    }
    host_ns_.clear();
    return back_to_back(timing);
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
  size_t l2_bytes_ = 0, flush_bytes_ = 0, used_ = 0;
  int sets_ = 1, late_ = 0, renewals_ = 0;
  std::vector<uint64_t> contents_;  // of each set
  unsigned flush_value_ = 0;
  uint64_t kept_seed_ = 0;
  unsigned long long *stamps_ = nullptr;
  std::vector<double> host_ns_;
};

}  // namespace croq
