// The program that runs a candidate. It holds no reference and no library: it makes inputs,
// launches, watches over memory, times, and hands the whole output to whoever can judge it.
#include "arena.cuh"
#include "candidate.h"
#include "channel.h"
#include "device_info.h"
#include "files.h"
#include "tensor_map.h"
#include "timer.cuh"

namespace {

using namespace croq;

class Bench {
 public:
  explicit Bench(const Problem &problem) : problem_(problem), arena_(problem) {}

  Answer serve(const Request &request) {
    const std::string what = request.text("cmd", "");
    if (what == "info") return device_info();
    if (what == "verify") return verify(request);
    if (what == "idle") return time(request, true);
    if (what == "time") return time(request, false);
    if (what == "kept") return kept(request);
    if (what == "launch") return launch_only(request);
    throw std::invalid_argument("unknown request: " + what);
  }

 private:
  void launch(const Operands &operands) const {
    const std::vector<const void *> inputs = operands.input_pointers();
    const long long sizes[] = {problem_.m, problem_.n, problem_.k};
    check(static_cast<cudaError_t>(croq_candidate(inputs.data(), operands.out.data(), sizes)), "launch of the candidate");
    check(cudaGetLastError(), "launch of the candidate");
  }

  // One set of inputs, `repeats` launches into a freshly poisoned output, then the whole output
  // goes to the file. Says whether the repeats agree bit for bit, the inputs are untouched and
  // the guard bands are whole.
  Answer verify(const Request &request) {
    const Operands &operands = arena_.set(0);
    operands.fill(static_cast<uint64_t>(request.integer("seed", 1)), dist_of(request.text("dist", "normal")));
    const uint64_t before = operands.input_sum(arena_.scratch);
    const size_t words = problem_.out_bytes() / 2;
    const int threads = thread_count();
    uint64_t first = 0;
    bool repeatable = true;
    for (long long i = 0; i < request.integer("repeats", 1); ++i) {
      operands.out.poison();
      launch(operands);
      check(cudaDeviceSynchronize(), "the candidate");
      const uint64_t sum = checksum(operands.out.data(), words, arena_.scratch);
      if (i == 0) first = sum;
      repeatable = repeatable && sum == first;
    }
    const uint64_t after = operands.input_sum(arena_.scratch);
    write_output(request.text("out", ""), operands.out.data(), problem_.out_bytes());
    Answer answer;
    answer.add("ok", true).hex("inputs", before).add("inputs_intact", before == after);
    answer.add("guard_damage", static_cast<size_t>(operands.guard_damage(arena_.scratch)));
    return answer.add("repeatable", repeatable).add("threads_added", thread_count() - threads);
  }

  Answer time(const Request &request, bool idle) {
    if (!timer_) timer_ = std::make_unique<Timer>(arena_, [this](const Operands &o) { launch(o); });
    return timer_->run(TimingRequest::from(request, idle));
  }

  // The output of the launch that the last timed block kept, and what timed launches wrote outside.
  Answer kept(const Request &request) const {
    if (!timer_) throw std::invalid_argument("nothing was timed yet");
    write_output(request.text("out", ""), timer_->kept(), problem_.out_bytes());
    size_t damage = 0;
    for (const auto &set : arena_.sets) damage += static_cast<size_t>(set->guard_damage(arena_.scratch));
    Answer answer;
    answer.add("ok", true).add("seed", static_cast<size_t>(timer_->kept_seed())).add("dist", "normal");
    return answer.add("guard_damage", damage);
  }

  // For the profiler: nothing but launches on normal inputs.
  Answer launch_only(const Request &request) {
    const Operands &operands = arena_.set(0);
    operands.fill(static_cast<uint64_t>(request.integer("seed", 1)), Dist::normal);
    for (long long i = 0; i < request.integer("launches", 1); ++i) launch(operands);
    check(cudaDeviceSynchronize(), "the candidate");
    return Answer().add("ok", true);
  }

  Problem problem_;
  Arena arena_;
  std::unique_ptr<Timer> timer_;
};

}  // namespace

// With a request as the last argument serve that one alone (the profiler gives no conversation).
int main(int argc, char **argv) {
  const croq::Channel channel;
  try {
    Bench bench(croq::Problem::from(argc, argv));
    if (argc > 6) {
      bench.serve(croq::Request::parse(argv[6]));
      return 0;
    }
    return channel.run([&](const croq::Request &request) { return bench.serve(request); });
  } catch (const std::exception &error) {
    std::fprintf(stderr, "bench: %s\n", error.what());
    return 1;
  }
}
