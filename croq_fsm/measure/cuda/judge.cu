// The trusted program: judges outputs against a reference of its own, and times the library.
// No candidate code is ever in this process.
#include "arena.cuh"
#include "channel.h"
#include "library.h"
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
    if (what == "library") return library_info();
    if (what == "library_error") return library_error(request);
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
    const Bounds bounds{request.real("relative", 0.0), request.real("absolute", 0.0), request.real("table_relative", 0.0),
                        request.real("table_absolute", -1.0)};
    const Comparison result = compare(problem_, operands, bounds);
    const Partial &total = result.total;
    Answer answer;
    answer.add("ok", true).hex("inputs", inputs).add("rel_error", std::sqrt(total.diff2 / total.ref2));
    answer.add("max_error", total.max_error).add("wrong", static_cast<size_t>(total.wrong));
    answer.add("nan", static_cast<size_t>(total.nan)).add("total", problem_.out_count());
    answer.add("beyond_table", static_cast<size_t>(total.beyond_table));
    answer.add("first_wrong", total.first == ~0ull ? -1ll : static_cast<long long>(total.first));
    return answer.add("got", result.got).add("want", result.want);
  }

  // The library; the first use of it makes the operands anew, with the forms that it wants.
  Library &library() {
    if (!library_) {
      library_ = std::make_unique<Library>(problem_, std::getenv("CROQ_CUBLAS") ? std::getenv("CROQ_CUBLAS") : "");
      arena_.sets.clear();
      arena_.problem.for_library = true;
    }
    return *library_;
  }

  Answer library_info() { return Answer().add("ok", true).add("cublas", library().version()).add("kind", library().kind()); }

  // One call of the library on inputs of a seed, into a poisoned output.
  const Operands &run_library(const Request &request) {
    Library &used = library();
    const Operands &operands = arena_.set(0);
    operands.fill(static_cast<uint64_t>(request.integer("seed", 1)), dist_of(request.text("dist", "normal")));
    operands.out.poison();
    used.run(operands);
    check(cudaDeviceSynchronize(), "the library");
    return operands;
  }

  // The library's own output, to be judged like any candidate's.
  Answer verify(const Request &request) {
    const Operands &operands = run_library(request);
    write_output(request.text("out", ""), operands.out.data(), problem_.out_bytes());
    return Answer().add("ok", true).hex("inputs", operands.input_sum(arena_.scratch));
  }

  // How far the library itself is from the reference; `absent` says why that cannot be told.
  Answer library_error(const Request &request) {
    try {
      if (const std::string why = library().incomparable(); !why.empty()) throw LibraryError(why);
      const Operands &operands = run_library(request);
      const Partial total = compare(problem_, operands, Bounds{0.0, 0.0, 0.0, -1.0}).total;
      if (total.nan) return Answer().add("ok", true).add("absent", "the library left elements unwritten");
      return Answer().add("ok", true).add("rel_error", std::sqrt(total.diff2 / total.ref2)).add("max_error", total.max_error);
    } catch (const LibraryError &error) {
      return Answer().add("ok", true).add("absent", error.what());
    }
  }

  Answer time(const Request &request, bool idle) {
    if (!timer_) {
      Library &used = library();
      timer_ = std::make_unique<Timer>(arena_, [&used](const Operands &o) { used.run(o); });
    }
    return timer_->run(TimingRequest::from(request, idle));
  }

  Answer kept(const Request &request) const {
    if (!timer_) throw std::invalid_argument("nothing was timed yet");
    write_output(request.text("out", ""), timer_->kept(), problem_.out_bytes());
    return Answer().add("ok", true).add("seed", static_cast<size_t>(timer_->kept_seed())).add("dist", "normal");
  }

  Problem problem_;
  Arena arena_;
  std::unique_ptr<Library> library_;
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
