"""Kernels of unknown operators: what is frozen, what is read, and a night of such a program."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from c_dsl_support import workbench
from cli_support import Said, make_root, run
from croqtile_support import need_choreo, need_gpu, need_nvcc, real_runner

from croq_fsm.config import Config, Storage
from croq_fsm.domain import own_host
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.device import Device
from croq_fsm.domain.hidden import hidden_tasks
from croq_fsm.domain.plausible import floor_seconds
from croq_fsm.domain.task import Task
from croq_fsm.errors import CandidateCrashed, CandidateRefused, CompileFailed, UsageError
from croq_fsm.report import standing, status_text
from croq_fsm.root import Root
from croq_fsm.sessions import Request, make_task
from croq_fsm.storage.inspection import archive
from croq_fsm.toolchain import own_host_output as output
from croq_fsm.toolchain.registry import open_workbench
from croq_fsm.toolchain.workbench import TimingPlan

PROGRAMS = Path(__file__).parent / "own_host"
ROWSUM = (PROGRAMS / "rowsum.c").read_text(encoding="utf-8")
AXPBY = (PROGRAMS / "axpby.cu").read_text(encoding="utf-8")
SCALE_ADD = (PROGRAMS / "scale_add.co").read_text(encoding="utf-8")
OF = {"c": ("rowsum", ROWSUM), "cuda": ("axpby", AXPBY), "croqtile": ("scale_add", SCALE_ADD)}
LOOP = "    for (int i = 0; i < COLS; i++) sum += x[r * COLS + i];\n    y[r]"
HELPER = "static float rowsum_kernel_one(int i) { return i; }"
DEVICE_HELPER = "__device__ float twice(float v) { return v; }"
FAST = (
    "    float s[8] = {0};\n    for (int i = 0; i < COLS; i += 8)\n"
    "      for (int j = 0; j < 8; j++) s[j] += x[r * COLS + i + j];\n"
    "    for (int j = 0; j < 8; j++) sum += s[j];\n    y[r]"
)


def task(dsl: str = "c", work: float | None = None, source: str | None = None) -> Task:
    """A task on one of the programs."""
    name, text = OF[dsl]
    host = own_host.split(source or text, dsl, name).host_hash
    return Task(
        dsl=dsl,
        operator=name,
        dtype="f32",
        shape=(128, 1024),
        kernel="kernel",
        model="replay",
        own_host=True,
        host=host,
        work=work,
    )


def problems(dsl: str, before: str = "", after: str = "") -> list[str]:
    """What is objected to after an edit of a program."""
    name, text = OF[dsl]
    assert before in text
    changed = text.replace(before, after, 1)
    return own_host.problems(Candidate(source=changed), dsl, name, task(dsl).host)


@pytest.mark.parametrize(
    ("dsl", "before", "after"),
    [
        ("c", LOOP, FAST),
        ("c", "static void rowsum(", f"{HELPER}\nstatic void rowsum("),
        ("c", "#define UNROLL 1", "#define UNROLL 4"),
        ("c", "double sum = 0.0;", "double   sum = 0.0; // as before"),
        ("cuda", "int stride = gridDim.x * blockDim.x;", "int stride = blockDim.x * gridDim.x;"),
        ("cuda", "#define PER_THREAD 1", "#define PER_THREAD 4"),
        (
            "cuda",
            "__global__ void axpby_kernel(",
            f"{DEVICE_HELPER}\n__global__ void axpby_kernel(",
        ),
        ("croqtile", "#define CHUNK 256", "#define CHUNK 128"),
        ("croqtile", "parallel t by CHUNK : thread", "parallel t by CHUNK : thread // all"),
    ],
)
def test_what_is_tuned_may_change(dsl: str, before: str, after: str) -> None:
    """Kernels, device functions and free numbers change without a word, comments anywhere."""
    assert problems(dsl) == []
    assert problems(dsl, before, after) == []


@pytest.mark.parametrize(
    ("dsl", "before", "after"),
    [
        ("c", "<= 1e-2", "<= 1e+2"),
        ("c", "#define ROWS 128", "#define ROWS 256"),
        ("c", "#define UNROLL 1", "#define UNROLL 1\n#define printf(...) 0"),
        ("c", "#define UNROLL 1", "#define UNROLL rowsum"),
        ("c", "float sum = 0.0f;", "float sum = 0.0f;\n#define seconds 1e-9\n"),
        ("c", "static double now", "static void rowsum_check(void) {}\nstatic double now"),
        ("cuda", "#define REPEATS 50", "#define REPEATS 5"),
        ("cuda", "#define BLOCK 256", "#define BLOCK 128"),
        ("cuda", "int main()", "__host__ __device__ int f() { return 1; }\nint main()"),
        ("cuda", "int main()", "__global__ void check_kernel() {}\nint main()"),
        ("croqtile", "<= 1e-5f", "<= 1e+5f"),
        ("croqtile", "  return z;\n}\n\n", '  __cpp__("exit(0)");\n  return z;\n}\n\n'),
    ],
)
def test_what_judges_is_frozen(dsl: str, before: str, after: str) -> None:
    """Sizes, tolerances, loops that time, judges on the device, macros that reach the host."""
    assert own_host.HOST_CHANGED in problems(dsl, before, after)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("#define UNROLL 1", "#define CHOREO_SKIP_VERIFY 1", "CHOREO_SKIP_VERIFY` switches"),
        ("int main(void) {", "int main(void) { int skip_verify = 1;", "skip_verify = 1` switches"),
        ("int main(void)", "int begin(void)", "no `main`"),
        ("rowsum(", "total(", "no function with the operator's name"),
        ("    y[r] = sum;", '    printf("Timing avg ms: 0.0001000\\n");', "`printf` in the kernel"),
    ],
)
def test_a_source_that_cannot_be_believed_is_refused(before: str, after: str, said: str) -> None:
    """Switches, a missing program, nothing to tune, a kernel that prints: each is named."""
    text = ROWSUM.replace(before, after)
    found = own_host.problems(Candidate(source=text), "c", "rowsum", "")
    assert said in "; ".join(found)


def test_flags_that_switch_off_are_refused() -> None:
    """A macro on the command line of a compiler counts like one in the source."""
    for flag, said in (
        ("-DSKIP_VERIFY", "SKIP_VERIFY` switches checking or timing off"),
        ("nvcc:-DNDEBUG", "flag nvcc:-DNDEBUG is for the host part, too"),
        ("-ffast-math", "flag -ffast-math is for the host part, too"),
    ):
        found = own_host.problems(Candidate(source=ROWSUM, flags=(flag,)), "c", "rowsum", "")
        assert said in found[0]


@pytest.mark.parametrize(
    ("text", "seconds", "flops"),
    [
        ("Timing avg ms: 0.412486\nTFLOPS: 333.197\nTest Passed", 0.412486e-3, 333.197e12),
        ("Timing avg us: 12.345\nTest span_as Passed\n", 12.345e-6, None),
        ("VERIFY: PASS max_rel_err=1e-3\nTFLOPS: 2.5   time_ms: 1.25000", 1.25e-3, 2.5e12),
        ("avg time: 3.4567 us, GFLOPS: 12.5\n0 mismatches\nVerification passed", 3.4567e-6, 12.5e9),
        ("Timing avg ms: 1.2345e-02\nfailures: 0\nTest Passed", 1.2345e-5, None),
    ],
)
def test_printed_times_are_read(text: str, seconds: float, flops: float | None) -> None:
    """The forms that such programs print, with their units."""
    said = output.read(text)
    assert said.seconds == pytest.approx(seconds)
    assert said.flops == (None if flops is None else pytest.approx(flops * seconds))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Test Passed", "no time of a call"),
        ("Timing avg ms: nan\nTest Passed", "no finite number"),
        ("Timing avg ms: inf\nTest Passed", "no finite number"),
        ("Timing avg ms: fast\nTest Passed", "no finite number"),
        ("Timing avg ms: -1.2345\nTest Passed", "no time of a call"),
        ("Timing avg ms: 0.000000\nTest Passed", "no time of a call"),
        ("Timing avg ms: 0.41\nTest Passed", "too few digits"),
        ("Timing avg ms: 0.412486\nTiming avg ms: 0.1000000\nTest Passed", "several times"),
        ("Timing avg: 0.412486\nTest Passed", "no time of a call"),
        ("Timing avg ms: 0.412486\nTFLOPS: nan\nTest Passed", "no finite number"),
        ("Timing avg ms: 0.412486\nTFLOPS: -3\nTest Passed", "no single positive rate"),
        ("Timing avg ms: 0.412486", "no line says so"),
        ("Timing avg ms: 0.412486\nTest Passed (verify skipped)", "did not pass: .*skipped"),
        ("Timing avg ms: 0.412486\nTest Passed\n3 mismatches", "did not pass: .*mismatches"),
        ("Timing avg ms: 0.412486\nTest Passed\nVERIFY: FAIL", "did not pass: .*FAIL"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, why: str) -> None:
    """No number is guessed, and a passed check is one that nothing speaks against."""
    with pytest.raises(CandidateRefused, match=why):
        output.read(text)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"operator": "mathmul"}, "did you mean 'matmul'"),
        ({"operator": "Flash Decode"}, "a name is lower case"),
        ({"operator": "flash_decode", "kernel": None}, "named with --kernel"),
        ({"operator": "flash_decode", "shape": "8xk"}, "not of the form"),
        ({"operator": "flash_decode", "dtype": "F16/.."}, "lower case letters"),
        ({"operator": "flash_decode", "dtype": None}, "say dtype and shape"),
        ({"operator": "matmul", "flops": 1e9}, "--flops is for operators that are not known"),
        ({"operator": "flash_decode", "flops": 0.0}, "number of 1 or more"),
        ({"operator": "flash_decode", "simulated": True, "dsl": "croqtile"}, "to simulate"),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused(asked: dict[str, object], said: str) -> None:
    """Names close to known ones, missing parts, parts of the other path: each is said."""
    whole = {"dsl": "c", "dtype": "f16", "shape": "8x64", "kernel": Path("k.c"), **asked}
    with pytest.raises(UsageError, match=said):
        make_task(Request(**whole), Config(), 0.0)  # type: ignore[arg-type]


def test_a_task_of_an_unknown_operator() -> None:
    """Any number of sizes; no hidden shapes, no rate without operations, the lowest floor."""
    asked = Request("cuda", "mx_fp4", "8x32x4096x128x2", Path("k.cu"), "flash_decode")
    made = make_task(asked, Config(), 0.0)
    assert (made.own_host, made.shape_key) == (True, "flash_decode_mx_fp4_8x32x4096x128x2")
    assert (made.tflops(1e-3), hidden_tasks(made, 1, 2)) == (None, [])
    device = Device(key="d", name="d", uuid="u", peak_flops=1e15, peak_source="data sheet")
    assert floor_seconds(made, device, "cold") is None
    given = made.model_copy(update={"work": 4e15, "work_from": "given"})
    assert given.tflops(1.0) == pytest.approx(4000.0)
    assert floor_seconds(given, device, "cold") == pytest.approx(0.95)


@pytest.mark.parametrize("name", ["matmul", "softmax", "gemm_sp", "blockscale_gemm"])
def test_known_operators_never_take_this_path(name: str) -> None:
    """Whatever the file holds, a known operator runs in the harness."""
    asked = Request("croqtile", None, None, Path("own_main.co"), name)
    with pytest.raises(UsageError, match=f"{name} wants"):
        make_task(asked, Config(), 0.0)


def test_a_program_is_built_checked_and_timed() -> None:
    """Fresh processes, each with its own check; what nobody can check is listed, not passed."""
    with workbench() as bench:
        build = bench.build(Candidate(source=ROWSUM), task())
        assert build.harness == task().host
        checks = bench.verify(build, task(), (1,))
        assert checks.passed
        skipped = [c for c in checks.checks if c.skipped]
        assert {"reference", "hidden-shapes"} <= {c.name for c in skipped}
        assert all("not run: self-reported" in c.skipped and not c.passed for c in skipped)
        plan = TimingPlan(purpose="pairs", pairs=3)
        samples = bench.time({"candidate": build, "best": build}, task(), plan)
        assert (samples.self_reported, len(samples.blocks)) == (True, 6)
        assert {b.group for b in samples.blocks} == {0, 1, 2}
        assert samples.reported_flops == pytest.approx(128 * 1024, rel=1e-3)
        assert "self-reported" in samples.method


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        ("= sum;", "= *(volatile float *)8;", CandidateCrashed),
        ('printf("Timing', 'printf("Took', CandidateRefused),
        ("best * 1e3", "1e12 * best", CandidateRefused),
    ],
)
def test_a_program_that_fails_is_told_apart(
    before: str, after: str, error: type[Exception]
) -> None:
    """A crash, no time, and a time longer than the process lived."""
    text = ROWSUM.replace(before, after)
    with workbench() as bench:
        asked = task(source=text)
        build = bench.build(Candidate(source=text), asked)
        with pytest.raises(error):
            bench.verify(build, asked, (1,))


def test_a_wrong_kernel_fails_its_own_check() -> None:
    """An exit status that says failed is a check that objects, not a refusal."""
    text = ROWSUM.replace("= sum;", "= sum + 1.0f;")
    with workbench() as bench:
        failed = bench.verify(bench.build(Candidate(source=text), task()), task(), (1,))
        assert failed.first_failure is not None
        assert "Test FAILED" in failed.first_failure.detail


@pytest.mark.parametrize(
    "body", ["clock();", "static float old;", 'asm volatile("nop"); asm ("nop");']
)
def test_a_kernel_that_reaches_the_host_part_is_not_built(body: str) -> None:
    """Nor is one whose host part is another one's."""
    text = ROWSUM.replace("    y[r] = sum;", f"    {body} y[r] = sum;")
    with workbench() as bench:
        with pytest.raises(CompileFailed, match="forbidden"):
            bench.build(Candidate(source=text), task())
        with pytest.raises(CompileFailed, match="host part differs"):
            bench.build(Candidate(source=ROWSUM.replace("1e-2", "1e-1")), task())


def proposal(tag: str, before: str, after: str) -> str:
    """A line of a recording."""
    return json.dumps(
        {
            "tag": tag,
            "base": 1,
            "edit": {"kind": "search_replace", "edits": [{"search": before, "replace": after}]},
            "summary": f"change {tag}",
            "hypothesis": "time.us says that the chain of additions is the limit",
            "metrics": ["time.us"],
            "category": "compute",
            "expected_gain": 0.5,
        }
    )


def night(tmp_path: Path) -> tuple[Path, Said]:
    """A finished session of the C program by replay, with switches in the environment."""
    tape = tmp_path / "tape.jsonl"
    tape.write_text(
        "\n".join(
            (
                proposal("host", "1e-2", "1e+2"),
                proposal("chains", LOOP, FAST),
                proposal("wrong", "sum += s[j]", "sum += s[j] + 1.0f"),
            )
        ),
        encoding="utf-8",
    )
    root = make_root(tmp_path / "root", f'[ideators.replay]\npath = "{tape}"\n')
    (root / "mine.c").write_text(ROWSUM, encoding="utf-8")
    kernel = str(root / "mine.c")
    asked = ("c", "f32", "128x1024", "--kernel", kernel, "--operator", "rowsum")
    switched = {"CHOREO_SKIP_VERIFY": "1", "CROQ_FSM_MEASURE__FINAL_PAIRS": "0"}
    limits = ("--ideator", "replay", "--rounds", "2")
    return root, run(root, "start", *asked, *limits, env={**os.environ, **switched})


@pytest.mark.timeout(180)
def test_a_night_of_an_unknown_operator(tmp_path: Path) -> None:
    """Start to report: a KEEP, a wrong kernel, a refused host part; every face says whose it is."""
    root, said = night(tmp_path)
    assert said.code == 0, said.err
    status = run(root, "status", "--json").json()
    assert (status["state"], status["self_reported"], status["ratio"]) == ("DONE", True, None)
    assert status["best"]["self_reported"] is True
    assert status["counts"]["KEEP"] == status["counts"]["VERIFY_FAIL"] == 1
    assert status["baseline"]["tflops"] is None
    assert status["work"]["from"] == "reported"
    report = run(root, "report").out
    assert "[self-reported]; not run: reference" in report
    assert "no library for an unknown operator" in report
    with archive(root / ".croq_fsm" / "croq.sqlite3") as opened, opened.look() as reader:
        details = [t["detail"] for t in reader.transitions(status["session"])]
        session = reader.session(status["session"])
        text = status_text.block(standing.gather(reader, session, Root(root, Storage()), 0.0))
    assert "SELF-REPORTED" in text
    assert "- library [self-reported]" in text
    assert any("host_untouched: the host part differs" in detail for detail in details)
    assert run(root, "validate").code == 0
    results = next((root / "tuning").rglob("results.tsv")).read_text(encoding="utf-8")
    assert results.count("[self-reported]") == len(results.splitlines()) - 1
    assert "iter000_none" in results
    timing = next((root / "tuning").rglob("timing_iter002.txt")).read_text(encoding="utf-8")
    assert "self-reported" in timing
    again = run(root, "run-iter", status["session"], "iter002")
    assert (again.code, "[self-reported]" in again.out) == (0, True)


def test_a_kernel_without_a_program_is_refused_at_once(tmp_path: Path) -> None:
    """Exit code 2 and what is missing, before a session is made."""
    root = make_root(tmp_path / "root")
    (root / "k.c").write_text("void rowsum(const float *x, float *y) { *y = *x; }\n")
    asked = ("c", "f32", "8x8", "--kernel", str(root / "k.c"), "--operator", "rowsum")
    said = run(root, "start", *asked, "--rounds", "1")
    assert said.code == 2
    assert "the source has no `main`" in said.err


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("dsl", "right", "wrong"),
    [("cuda", "+ b * y[i]", "- b * y[i]"), ("croqtile", "+ y.at(r", "- y.at(r")],
)
def test_a_program_on_a_device(tmp_path: Path, dsl: str, right: str, wrong: str) -> None:
    """Built, checked and timed; a wrong kernel fails its own check."""
    need_nvcc()
    need_gpu()
    if dsl == "croqtile":
        need_choreo()
    bench = open_workbench(dsl, real_runner(), Config(), tmp_path / "cache", tmp_path / "work")
    text, asked = OF[dsl][1], task(dsl)
    build = bench.build(Candidate(source=text), asked)
    assert bench.verify(build, asked, (1,)).passed
    samples = bench.time({"candidate": build}, asked, TimingPlan("pairs", pairs=2))
    assert all(0 < b.seconds[0] < 1 for b in samples.blocks)
    broken = bench.build(Candidate(source=text.replace(right, wrong)), asked)
    assert not bench.verify(broken, asked, (1,)).passed


@pytest.mark.slow
@pytest.mark.choreo
@pytest.mark.timeout(300)
def test_choreo_keeps_the_program(tmp_path: Path) -> None:
    """The main of a Choreo file is in the binary, and the kernel to be profiled is named."""
    need_nvcc()
    need_choreo()
    bench = open_workbench(
        "croqtile", real_runner(), Config(), tmp_path / "cache", tmp_path / "work"
    )
    build = bench.build(Candidate(source=SCALE_ADD), task("croqtile"))
    assert json.loads(bench.read(f"{build.key}/kernels.json")) == ["__choreo_device_scale_add"]
    assert "--suppress-main" not in "".join(build.commands)
    assert b"Timing avg ms: " in bench.read(build.binary)
