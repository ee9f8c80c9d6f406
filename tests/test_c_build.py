"""Building C kernels: every way to fail has its error, and what succeeds is described."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from c_dsl_support import (
    DEADLINES,
    GOOD,
    GOOD_MATMUL,
    MATMUL,
    SOFTMAX,
    TASKS,
    config,
    matmul,
    task,
    workbench,
)

from croq_fsm.config import Config, COptions
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.ideas import Replace
from croq_fsm.errors import (
    CompileFailed,
    CompilerCrashed,
    CompileTimeout,
    EnvironmentMissing,
    UsageError,
)
from croq_fsm.toolchain import c_remarks
from croq_fsm.toolchain.c import CWorkbench


@pytest.fixture(scope="module")
def bench() -> Iterator[CWorkbench]:
    """One workbench for all tests here."""
    with workbench() as opened:
        yield opened


def script(path: Path, body: str) -> Path:
    """A compiler of our own making that hands probes on to the real one."""
    path.write_text(f'#!/bin/sh\ncase " $* " in *" kernel.c "*) {body};; *) exec cc "$@";; esac\n')
    path.chmod(0o755)
    return path


def test_build_tells_what_it_rests_on(bench: CWorkbench) -> None:
    """Hashes, compiler, commands, remarks, resources and log are there, and files can be read."""
    built = bench.build(bench.start_kernel(MATMUL), MATMUL)
    assert len(built.key) == len(built.binary_sha256) == len(built.device_code) == 64
    assert list(built.compilers) in (["gcc"], ["clang"])
    assert " -c kernel.c " in built.commands[0]
    assert built.resources["code_bytes"] > 0
    assert built.remarks
    assert bench.read(built.log).startswith(b"$ ")
    assert bench.read(f"{built.key}/kernel.c").decode() == bench.start_kernel(MATMUL).source
    with pytest.raises(UsageError, match="outside"):
        bench.read("../../etc/passwd")


def test_second_build_comes_from_the_cache(bench: CWorkbench) -> None:
    """The same candidate is not compiled twice; another flag is another build."""
    first = bench.build(GOOD["matmul"], MATMUL)
    again = bench.build(GOOD["matmul"], MATMUL)
    assert again.cached
    assert again.seconds == 0.0
    assert again.model_copy(update={"cached": first.cached, "seconds": first.seconds}) == first
    other = bench.build(matmul(GOOD_MATMUL, flags=("-O1",)), MATMUL)
    assert other.key != first.key


def test_text_without_effect_gives_the_same_code(bench: CWorkbench) -> None:
    """Candidates that differ in text only can be recognised."""
    first = bench.build(GOOD["matmul"], MATMUL)
    other = bench.build(matmul(f"/* faster! */ {GOOD_MATMUL}"), MATMUL)
    assert other.key != first.key
    assert other.device_code == first.device_code


@pytest.mark.parametrize(
    ("candidate", "match"),
    [
        (matmul("int x = ;"), "expected expression"),
        (matmul("undeclared_thing = 1;"), "undeclared_thing"),
        (Candidate(source="int matmul(void) { return 0; }\n"), "void matmul"),
        (
            Candidate(source="// void matmul(\nstatic int x; void matmul(float *a) { *a = x; }\n"),
            "conflicting types",
        ),
        (matmul("c[0] = missing_function(1);", "float missing_function(int);"), "missing_function"),
        (matmul('__builtin_printf("x");'), "`puts`|`printf`|`putchar`"),
        (matmul(GOOD_MATMUL, flags=("-fplugin=x.so",)), "-fplugin"),
        (matmul('#include "/etc/passwd"\n'), "/etc/passwd"),
        (
            Candidate(source=GOOD["matmul"].source, patches=(Replace(search="a", replace="b"),)),
            "patches",
        ),
    ],
)
def test_refused_kernels(bench: CWorkbench, candidate: Candidate, match: str) -> None:
    """Errors of the compiler, of linking and of the rules are the candidate's, and readable."""
    with pytest.raises(CompileFailed, match=match) as caught:
        bench.build(candidate, MATMUL)
    assert not isinstance(caught.value, CompilerCrashed | CompileTimeout)
    assert caught.value.log


def test_content_of_other_files_never_shows(bench: CWorkbench, tmp_path: Path) -> None:
    """A kernel cannot make the compiler print or embed a foreign file."""
    secret = tmp_path / "secret"
    secret.write_text("s3cret = 1;")
    for text in (f'#include "{secret}"', f'__asm__(".incbin \\"{secret}\\"");'):
        with pytest.raises(CompileFailed) as caught:
            bench.build(Candidate(source=f"{text}\n{GOOD['matmul'].source}"), MATMUL)
        assert "s3cret" not in f"{caught.value} {caught.value.log}"


def test_helpers_may_be_exported_but_replace_nothing(bench: CWorkbench) -> None:
    """Functions with the names of the harness's own calls stay inside the kernel."""
    before = """
    int clock_gettime(int c, void *t) { return c; }
    long write(int f, const void *p, long n) { return 0; }
    int main(void) { return 0; }
    float helper(float x) { return x; }
    """
    body = GOOD_MATMUL.replace("sum +=", "sum += helper(0) +")
    # The names are hidden from the source rules, as a cheat would do it.
    before = before.replace("clock_gettime", "J(clock_, gettime)")
    built = bench.build(matmul(body, f"#define J(a, b) a##b\n{before}"), MATMUL)
    assert any("--keep-global-symbol=matmul" in command for command in built.commands)
    assert bench.verify(built, MATMUL, (1,)).passed


def test_compiler_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """An exponential macro keeps the real compiler busy for ever; the deadline ends it."""
    lines = ["#define X0 1 +"]
    lines += [f"#define X{i + 1} X{i} X{i} X{i} X{i} X{i} X{i} X{i} X{i}" for i in range(12)]
    source = "\n".join([*lines, "static const int big = X12 0;", GOOD["matmul"].source])
    deadlines = DEADLINES.model_copy(update={"compile_s": 1.0})
    settings = Config(deadlines=deadlines)
    with workbench(settings) as bench:
        bench.build(GOOD["matmul"], MATMUL)
        with pytest.raises(CompileFailed) as caught:
            bench.build(Candidate(source=source), MATMUL)
    # Where memory runs out first, the compiler says so.
    assert isinstance(caught.value, CompileTimeout) or "memory" in caught.value.log


@pytest.mark.parametrize(
    "body",
    [
        "kill -SEGV $$",
        "echo 'kernel.c:1:1: internal compiler error: in foo, at bar.cc:1' >&2; exit 4",
        "echo 'cc: fatal error: Killed signal terminated program cc1' >&2; exit 1",
    ],
)
def test_crash_of_the_compiler_is_told_apart(tmp_path: Path, body: str) -> None:
    """A compiler that dies, or says that it broke, is not the same as one that refuses."""
    compiler = script(tmp_path / "mycc", body)
    with workbench(config(compiler=str(compiler))) as bench, pytest.raises(CompilerCrashed):
        bench.build(GOOD["matmul"], MATMUL)


def test_flooding_compiler_is_cut(tmp_path: Path) -> None:
    """Gigabytes of messages end the compile and are not kept."""
    compiler = script(tmp_path / "mycc", "yes error")
    with (
        workbench(config(compiler=str(compiler))) as bench,
        pytest.raises(CompileFailed, match="flooded") as caught,
    ):
        bench.build(GOOD["matmul"], MATMUL)
    assert len(caught.value.log) < 1 << 20


def test_absent_or_broken_compiler_is_the_environment(tmp_path: Path) -> None:
    """Without a compiler nobody's candidate is at fault, and doctor says so without raising."""
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    for name in ("no-such-compiler", str(broken)):
        with workbench(config(compiler=name)) as bench:
            with pytest.raises(EnvironmentMissing):
                bench.build(GOOD["matmul"], MATMUL)
            finding = next(f for f in bench.doctor() if f.name == "C compiler")
            assert (finding.ok, finding.required, bool(finding.cure)) == (False, True, True)


@pytest.mark.parametrize(
    ("operator", "dtype", "shape", "match"),
    [
        ("matmul", "f16", (64, 64, 64), "cannot run matmul f16"),
        ("softmax", "f32", (8, 1), "constant"),
        ("matmul", "f32", (1, 1, 8), "constant"),
        ("matmul", "f32", (1 << 20, 1 << 20, 1 << 20), "GiB"),
    ],
)
def test_impossible_tasks_are_refused(
    bench: CWorkbench, operator: str, dtype: str, shape: tuple[int, ...], match: str
) -> None:
    """Types that C does not have, shapes that prove nothing or do not fit are told in words."""
    chosen = task(operator, *shape).model_copy(update={"dtype": dtype})
    with pytest.raises(UsageError, match=match):
        bench.supports(chosen)


def test_start_kernels_by_name(bench: CWorkbench) -> None:
    """The shipped kernel is found by operator or by name; unknown names list the known."""
    for operator, chosen in TASKS.items():
        assert f"void {operator}(" in bench.start_kernel(chosen).source
        named = chosen.model_copy(update={"kernel": f"builtin:{operator}_plain"})
        assert bench.start_kernel(named) == bench.start_kernel(chosen)
    with pytest.raises(UsageError, match="softmax_plain"):
        bench.start_kernel(SOFTMAX.model_copy(update={"kernel": "builtin:none"}))


def test_dialect_lists_flags_that_are_allowed(bench: CWorkbench) -> None:
    """Every flag that is offered is known to the compiler and passes the rules."""
    dialect = bench.dialect()
    flags = tuple(dialect["flags"].split())
    assert {"-O3", "-march=native", "-ffast-math"} <= set(flags)
    assert bench.lint(matmul(GOOD_MATMUL, flags=flags), MATMUL) == []
    assert dialect["compiler"] in ("gcc", "clang")
    assert COptions().flags == tuple(dialect["base_flags"].split())


def test_commands_can_be_repeated_by_hand(bench: CWorkbench, tmp_path: Path) -> None:
    """The recorded command lines give the same program again."""
    built = bench.build(bench.start_kernel(MATMUL), MATMUL)
    (tmp_path / "kernel.c").write_bytes(bench.read(f"{built.key}/kernel.c"))
    for command in built.commands:
        subprocess.run(command.split(), cwd=tmp_path, check=True)
    assert (tmp_path / "bench").read_bytes() == bench.read(built.binary)
    assert os.access(tmp_path / "bench", os.X_OK)


def test_remarks_of_gcc_and_clang() -> None:
    """Both compilers' notes give the same kind of sentences; outer loops do not count."""
    gcc = (
        "kernel.c:3:16: missed: couldn't vectorize loop\n"
        "kernel.c:3:16: missed: not vectorized: multiple nested loops.\n"
        "kernel.c:7:18: missed: couldn't vectorize loop\n"
        "kernel.c:7:36: missed: statement clobbers memory: _17 = expf (_15);\n"
        "kernel.c:8:18: missed: couldn't vectorize loop\n"
        "kernel.c:8:18: optimized: loop vectorized using 64 byte vectors\n"
        "kernel.c:8:18: optimized: loop vectorized using 32 byte vectors\n"
    )
    loops = c_remarks.read(gcc)
    assert (loops.vectorized, loops.missed) == (1, 1)
    assert loops.remarks == (
        "line 7: not vectorized: clobbers memory: expf (_15)",
        "line 8: loop vectorized using 64 byte vectors",
    )
    clang = (
        "kernel.c:4:5: remark: loop not vectorized: call instruction cannot be vectorized "
        "[-Rpass-analysis=loop-vectorize]\n"
        "kernel.c:4:5: remark: loop not vectorized [-Rpass-missed=loop-vectorize]\n"
        "kernel.c:9:5: remark: vectorized loop (vectorization width: 8) [-Rpass=loop-vectorize]\n"
    )
    loops = c_remarks.read(clang)
    assert (loops.vectorized, loops.missed) == (1, 1)
    assert "call instruction cannot be vectorized" in loops.remarks[0]
