// The trusted program: judges outputs against a reference of its own, and times the library.
// No candidate code is ever in this process.
#include "arena.cuh"
#include "channel.h"
#include "cublas.h"
#include "device_info.h"
#include "files.h"
#include "reference.cuh"
#include "timer.cuh"

namespace {

using namespace croq;

class Judge {
 public:
  explicit Judge(const Problem &problem) : problem_(problem), arena_(problem) {}

  Answer serve(const Request &request) {
    const std::string what = request.text("cmd", "");
    if (what == "info") return device_info();
    if (what == "judge") return judge(request);
    if (what == "library") return library(request);
    if (what == "verify") return verify(request);
    if (what == "idle") return time(request, true);
    if (what == "time") return time(request, false);
    if (what == "kept") return kept(request);
    throw std::invalid_argument("unknown request: " + what);
  }

 private:
  // Make the inputs again, read the whole output, compare each element.
  Answer judge(const Request &request) {
    const Operands &operands = arena_.set(0);
    operands.fill(static_cast<uint64_t>(request.integer("seed", 1)), dist_of(request.text("dist", "normal")));
    const uint64_t inputs = operands.input_sum(arena_.scratch);
    read_output(request.text("out", ""), operands.out.data(), problem_.out_bytes());
    const Bounds bounds{request.real("relative", 0.0), request.real("absolute", 0.0)};
    const Comparison result = problem_.bf16 ? compare<__nv_bfloat16>(problem_, operands, bounds)
                                            : compare<__half>(problem_, operands, bounds);
    const Partial &total = result.total;
    Answer answer;
    answer.add("ok", true).hex("inputs", inputs).add("rel_error", std::sqrt(total.diff2 / total.ref2));
    answer.add("max_error", total.max_error).add("wrong", static_cast<size_t>(total.wrong));
    answer.add("nan", static_cast<size_t>(total.nan)).add("total", problem_.out_bytes() / 2);
    answer.add("first_wrong", total.first == ~0ull ? -1ll : static_cast<long long>(total.first));
    return answer.add("got", result.got).add("want", result.want);
  }

  const Cublas &cublas() {
    if (!cublas_) cublas_ = std::make_unique<Cublas>(std::getenv("CROQ_CUBLAS") ? std::getenv("CROQ_CUBLAS") : "");
    return *cublas_;
  }

  Answer library(const Request &) { return Answer().add("ok", true).add("cublas", cublas().version()); }

  // The library's own output, to be judged like any candidate's.
  Answer verify(const Request &request) {
    const Operands &operands = arena_.set(0);
    operands.fill(static_cast<uint64_t>(request.integer("seed", 1)), dist_of(request.text("dist", "normal")));
    operands.out.poison();
    cublas().matmul(problem_, operands);
    check(cudaDeviceSynchronize(), "the library");
    write_output(request.text("out", ""), operands.out.data(), problem_.out_bytes());
    return Answer().add("ok", true).hex("inputs", operands.input_sum(arena_.scratch));
  }

  Answer time(const Request &request, bool idle) {
    if (!timer_)
      timer_ = std::make_unique<Timer>(arena_, [this](const Operands &o) { cublas().matmul(problem_, o); });
    return timer_->run(TimingRequest::from(request, idle));
  }

  Answer kept(const Request &request) const {
    if (!timer_) throw std::invalid_argument("nothing was timed yet");
    write_output(request.text("out", ""), timer_->kept(), problem_.out_bytes());
    return Answer().add("ok", true).add("seed", static_cast<size_t>(timer_->kept_seed())).add("dist", "normal");
  }

  Problem problem_;
  Arena arena_;
  std::unique_ptr<Cublas> cublas_;
  std::unique_ptr<Timer> timer_;
};

}  // namespace

int main(int argc, char **argv) {
  const croq::Channel channel;
  try {
    Judge judge(croq::Problem::from(argc, argv));
    return channel.run([&](const croq::Request &request) { return judge.serve(request); });
  } catch (const std::exception &error) {
    std::fprintf(stderr, "judge: %s\n", error.what());
    return 1;
  }
}
