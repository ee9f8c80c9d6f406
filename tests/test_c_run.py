"""Running C kernels: verification, timing and every way in which a candidate can misbehave."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from c_dsl_support import (
    GOOD,
    GOOD_MATMUL,
    MATMUL,
    TASKS,
    WRONG,
    config,
    matmul,
    softmax,
    task,
    workbench,
)

from croq_fsm.config import Deadlines
from croq_fsm.domain.build import Candidate
from croq_fsm.errors import (
    CandidateCrashed,
    CandidateError,
    CandidateHung,
    CandidateRefused,
    CompileFailed,
    EnvironmentMissing,
)
from croq_fsm.measure import stats
from croq_fsm.toolchain.c import CWorkbench
from croq_fsm.toolchain.workbench import Contestant, TimingPlan

PLAN = TimingPlan(purpose="pairs", pairs=5, block_s=0.002, max_launches=8, warmup_s=0.002, seed=3)


@pytest.fixture(scope="module")
def bench() -> Iterator[CWorkbench]:
    """One workbench for all tests here, so that the harness is compiled once."""
    with workbench() as opened:
        yield opened


@pytest.mark.parametrize("operator", ["matmul", "softmax"])
@pytest.mark.parametrize("flags", [(), ("-O3", "-march=native", "-ffast-math")])
def test_start_kernels_pass(bench: CWorkbench, operator: str, flags: tuple[str, ...]) -> None:
    """The kernels that ship are right, with all seeds and kinds of data, optimised or not."""
    chosen = TASKS[operator]
    candidate = bench.start_kernel(chosen).model_copy(update={"flags": flags})
    result = bench.verify(bench.build(candidate, chosen), chosen, (1, 2, 3))
    assert result.passed
    assert len(result.checks) == 4
    rows, cols = chosen.precision.output.shape(chosen.sizes)
    assert {check.total for check in result.checks} == {rows * cols}


@pytest.mark.parametrize("shape", [(1, 2, 1), (1, 3, 7), (5, 1, 3), (33, 17, 65)])
def test_odd_shapes_pass(bench: CWorkbench, shape: tuple[int, ...]) -> None:
    """Shapes that no tile divides are verified as well."""
    chosen = task("matmul", *shape)
    assert bench.verify(bench.build(GOOD["matmul"], chosen), chosen, (1,)).passed


@pytest.mark.parametrize(
    ("operator", "fault"), [(operator, name) for operator in WRONG for name in WRONG[operator]]
)
def test_wrong_kernels_fail(bench: CWorkbench, operator: str, fault: str) -> None:
    """Whatever is computed but the operator fails verification, with a place or a reason."""
    chosen = TASKS[operator]
    result = bench.verify(bench.build(WRONG[operator][fault], chosen), chosen, (1, 2))
    failure = result.first_failure
    assert failure is not None
    assert "wrong" in failure.detail or "different outputs" in failure.detail


def test_unwritten_elements_are_counted(bench: CWorkbench) -> None:
    """A kernel that computes half is told how much it left out."""
    half = WRONG["matmul"]["half of the rows"]
    failure = bench.verify(bench.build(half, MATMUL), MATMUL, (1,)).first_failure
    assert failure is not None
    assert f"{24 * 80} were never written" in failure.detail


MISBEHAVING = [
    ("*(volatile int *)0 = 1;", CandidateCrashed, "SIGSEGV.*outside every operand"),
    ("__builtin_trap();", CandidateCrashed, "SIGILL"),
    ("abort();", CandidateCrashed, "SIGABRT"),
    ("for (volatile int i = 1; i;) {}", CandidateHung, "no answer in time"),
    ("((float *)a)[0] = 1;", CandidateCrashed, "write to the input a"),
    ("c[m * n + 100] = 1;", CandidateRefused, "outside its output c: 401 bytes behind"),
    ("c[-1] = 1;", CandidateRefused, "outside its output c: 1 bytes before its start"),
    ("c[m * n + (1 << 15)] = 1;", CandidateCrashed, "write .* bytes behind the end of c"),
    ("c[0] = a[m * k + 16384];", CandidateCrashed, "read .* bytes behind the end of a"),
    ("c[0] = b[-(1 << 14) - 6000];", CandidateCrashed, "read .* bytes before the start of b"),
    ("dig(c, 1000000000);", CandidateCrashed, "stack of .* KiB is exhausted"),
    ("memset(malloc(1l << 33), 1, 1l << 33);", CandidateCrashed, "SIGSEGV"),
]


@pytest.mark.parametrize(("body", "error", "match"), MISBEHAVING)
def test_misbehaviour_has_its_own_error(
    bench: CWorkbench, body: str, error: type[CandidateError], match: str
) -> None:
    """Crash, hang and stray access end in bounded time, typed, and say what happened where."""
    before = (
        "#include <stdlib.h>\n#include <string.h>\n"
        "static void dig(float *c, int n) { volatile char s[4096]; s[0] = (char)n; "
        "if (n) dig(c, n - 1); c[0] = s[0]; }"
    )
    candidate = matmul(body, before, flags=("-O0",))
    quick = config().model_copy(
        update={"deadlines": Deadlines(verify_s=1.0, kill_grace_s=0.1, reap_s=5.0)}
    )
    bench._bench._config, kept = quick, bench._bench._config
    try:
        with pytest.raises(error, match=match):
            bench.verify(bench.build(candidate, MATMUL), MATMUL, (1,))
    finally:
        bench._bench._config = kept


def test_hidden_assembly_is_found(bench: CWorkbench) -> None:
    """Assembly that the preprocessor makes is refused; headers and literals may have the word."""
    hidden = "#define JOIN(x, y) x##y\n#define HIDDEN JOIN(as, m)"
    joined = matmul(f'HIDDEN volatile("nop"); {GOOD_MATMUL}', hidden)
    assert bench.lint(joined, MATMUL) == []
    with pytest.raises(CompileFailed, match="`asm` is forbidden"):
        bench.build(joined, MATMUL)
    harmless = matmul(
        f'const char *word = "asm"; c[0] = (float)word[m]; {GOOD_MATMUL}',
        "#include <math.h>\n#include <immintrin.h>\n#include <stdlib.h>\n#include <string.h>",
    )
    assert bench.build(harmless, MATMUL).binary


def test_state_between_calls_is_found(bench: CWorkbench) -> None:
    """A kernel that computes once and then copies its first answer is caught."""
    before = "#include <string.h>\nstatic float kept[48 * 80]; static int calls;"
    body = (
        f"if (!calls++) {{ {GOOD_MATMUL} memcpy(kept, c, sizeof kept); }}"
        "else memcpy(c, kept, sizeof kept);"
    )
    result = bench.verify(bench.build(matmul(body, before), MATMUL), MATMUL, (1, 2))
    assert result.first_failure is not None


def test_cheating_while_being_timed_is_found(bench: CWorkbench) -> None:
    """A kernel that works for the first calls and then repeats its answer is refused in time()."""
    before = "#include <string.h>\nstatic float kept[48 * 80]; static int calls;"
    body = (
        f"if (calls++ < 6) {{ {GOOD_MATMUL} memcpy(kept, c, sizeof kept); }}"
        "else memcpy(c, kept, sizeof kept);"
    )
    built = bench.build(matmul(body, before), MATMUL)
    assert bench.verify(built, MATMUL, (1, 2)).passed
    with pytest.raises(CandidateRefused, match="candidate: the output of a timed launch is wrong"):
        bench.time({"candidate": built, "library": "library"}, MATMUL, PLAN)


@pytest.mark.parametrize("operator", ["matmul", "softmax"])
def test_times_of_all_contestants(bench: CWorkbench, operator: str) -> None:
    """Candidate, best and library are interleaved, each launch has a positive time."""
    chosen = TASKS[operator]
    contestants: dict[str, Contestant] = {
        "best": bench.build(bench.start_kernel(chosen), chosen),
        "candidate": bench.build(GOOD[operator], chosen),
        "library": "library",
    }
    samples = bench.time(contestants, chosen, PLAN)
    for name in contestants:
        assert len(samples.of(name)) == PLAN.pairs
        assert stats.block_seconds(samples, name) > 0
    assert samples.regime == "isolated cold"


def test_more_work_takes_longer(bench: CWorkbench) -> None:
    """What is timed is the kernel: doing the work eight times shows as several times the time."""
    chosen = task("matmul", 96, 96, 96)
    eight = matmul(f"for (volatile int r = 0; r < 8; ++r) {{ {GOOD_MATMUL} }}")
    contestants: dict[str, Contestant] = {
        "best": bench.build(eight, chosen),
        "candidate": bench.build(GOOD["matmul"], chosen),
    }
    samples = bench.time(contestants, chosen, PLAN)
    assert stats.estimate(samples, "best", "candidate", 1).ratio > 3


def test_fresh_processes_have_their_own_name(bench: CWorkbench) -> None:
    """Two measurements can be told apart, so that a confirmation is one."""
    built = bench.build(GOOD["matmul"], MATMUL)
    first = bench.time({"a": built, "b": built}, MATMUL, PLAN)
    second = bench.time({"a": built, "b": built}, MATMUL, PLAN)
    assert first.process != second.process
    assert stats.noise_floor(first) > 0


def test_crash_while_timing_names_the_contestant(bench: CWorkbench) -> None:
    """The text says which of the contestants died."""
    before = "static int calls;"
    built = bench.build(matmul(f"if (++calls > 3) c = 0; {GOOD_MATMUL}", before), MATMUL)
    good = bench.build(GOOD["matmul"], MATMUL)
    with pytest.raises(CandidateCrashed, match=r"^candidate: .*SIGSEGV"):
        bench.time({"candidate": built, "best": good}, MATMUL, PLAN)


def test_changed_binary_is_not_run(bench: CWorkbench) -> None:
    """A program that is not the one that was built is refused."""
    candidate = Candidate(source=f"// changed\n{GOOD['matmul'].source}")
    built = bench.build(candidate, MATMUL)
    path = bench._cache / built.binary
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(EnvironmentMissing, match="not what was built"):
        bench.verify(built, MATMUL, (1,))
    assert bench.verify(bench.build(candidate, MATMUL), MATMUL, (1,)).passed
    path.unlink()
    with pytest.raises(EnvironmentMissing, match="build it again"):
        bench.verify(built, MATMUL, (1,))


def test_threads_need_the_configuration() -> None:
    """With two threads OpenMP is linked, the jail lets it work, and results stay right."""
    body = f'_Pragma("omp parallel for")\n{GOOD_MATMUL.strip()}'
    candidate = matmul(body, flags=("-O2", "-fopenmp"))
    with workbench(config(threads=2)) as bench:
        built = bench.build(candidate, MATMUL)
        assert bench.verify(built, MATMUL, (1, 2)).passed
        assert len(bench.time({"a": built}, MATMUL, PLAN).blocks) == PLAN.pairs
    with workbench() as bench:
        assert any("-fopenmp" in problem for problem in bench.lint(candidate, MATMUL))


def test_profile_names_metrics_and_a_class(bench: CWorkbench) -> None:
    """A profile rests on metrics that are there, and its table can be read."""
    built = bench.build(bench.start_kernel(TASKS["softmax"]), TASKS["softmax"])
    profile = bench.profile(built, TASKS["softmax"], full=False)
    assert profile.binary == built.binary_sha256
    assert profile.evidence
    for name in ("time.us", "flops.pct_of_peak", "bandwidth.pct_of_peak", "vector.loops_missed"):
        assert profile.metric(name) is not None, name
    table = bench.read(profile.files["metrics.csv"]).decode()
    assert table.startswith("metric,value,unit\ntime.us,")


def test_softmax_on_large_numbers(bench: CWorkbench) -> None:
    """The kind of data that overflows without the maximum is part of every verification."""
    chosen = TASKS["softmax"]
    built = bench.build(WRONG["softmax"]["maximum not subtracted"], chosen)
    failure = bench.verify(built, chosen, (1, 2)).first_failure
    assert failure is not None
    assert failure.name == "large-seed-1"
    assert softmax("").source


def test_impossible_times_are_refused(bench: CWorkbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time beyond the peaks is refused, but only after the peaks were measured again."""
    built = bench.build(GOOD["matmul"], MATMUL)
    slow = bench.device().model_copy(update={"peak_flops": 1e3})
    bench._device = slow
    bench.time({"a": built}, MATMUL, PLAN)
    assert bench.device().peak_flops != 1e3
    monkeypatch.setattr(bench, "_measured_device", lambda **_: slow)
    bench._device = slow
    with pytest.raises(CandidateRefused, match="a: .* times the machine's peak FLOP/s"):
        bench.time({"a": built}, MATMUL, PLAN)
    del bench._device
