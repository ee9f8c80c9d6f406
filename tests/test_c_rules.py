"""Rules on flags, source and object of C kernels: what is allowed, and that evasion is seen."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from c_dsl_support import GOOD, GOOD_MATMUL, matmul

from croq_fsm.toolchain import c_sources
from croq_fsm.toolchain.c_rules import flag_problems, object_problems, source_problems
from croq_fsm.toolchain.elf import ElfObject, NotAnObject

GOOD_FLAGS = [
    *("-O3", "-Ofast", "-march=native", "-march=x86-64-v3", "-mtune=native", "-ffast-math"),
    *("-funroll-loops", "-fno-math-errno", "-fno-trapping-math", "-mprefer-vector-width=512"),
    *("-mavx2", "-mfma", "-fopenmp-simd", "-ffp-contract=fast", "--param=max-unroll-times=8"),
    *("-fvect-cost-model=unlimited", "-fprefetch-loop-arrays", "-std=gnu17", "-falign-loops=32"),
]
BAD_FLAGS = [
    *("-fplugin=x.so", "-fplugin-arg-x", "-I/etc", "-include", "-include/etc/passwd", "-B."),
    *("@file", "-Wl,-z", "-lblas", "-l", "-L.", "-o", "-x", "-E", "-S", "-wrapper", "-specs=x"),
    *("-Xassembler", "-Wa,-a", "-Wp,-D", "-isystem", "-imacros", "-iquote", "-fopenmp", "-pg"),
    *("-flto", "-fprofile-generate", "-fsanitize=address", "-save-temps", "-DX=1", "-O9", ""),
    *(
        "-O3 -fplugin=x",
        "-O3\n-B.",
        "--param=x=y",
        "-march=../x",
        "kernel2.c",
        "-finstrument-functions",
    ),
    *(
        "-fdump-tree-all",
        "-MD",
        "-fcallgraph-info",
        "-static",
        "-shared",
        "-nostdlib",
        "-ffile-prefix-map=a=b",
    ),
]


@pytest.mark.parametrize("flag", GOOD_FLAGS)
def test_speed_flags_are_allowed(flag: str) -> None:
    """Flags that only change how code is optimised pass."""
    assert flag_problems((flag,), 1) == []


@pytest.mark.parametrize("flag", BAD_FLAGS)
def test_other_flags_are_not(flag: str) -> None:
    """Everything else is refused, by the whole word."""
    assert len(flag_problems((flag,), 1)) == 1


def test_openmp_needs_threads() -> None:
    """Threads are the user's decision."""
    assert flag_problems(("-fopenmp",), 2) == []


@pytest.mark.parametrize("operator", ["matmul", "softmax"])
def test_shipped_and_good_kernels_pass(operator: str) -> None:
    """What we ship keeps its own rules."""
    shipped = c_sources.KERNELS / operator / f"{operator}_plain.c"
    assert source_problems(shipped.read_text(), operator, 1) == []
    assert source_problems(GOOD[operator].source, operator, 1) == []


@pytest.mark.parametrize(
    "text",
    [
        '// system("x"); asm volatile\n/* fork() */',
        "int time, clock = 3; (void)(time = clock);",
        "#include <immintrin.h>\n#include <stdint.h> // types",
        '#pragma GCC optimize ("O3")\n#pragma GCC unroll 8\n#pragma omp simd',
        '_Pragma("GCC ivdep")',
        "static float buf[8] __attribute__((aligned(64)));",
        "static inline __attribute__((always_inline, hot)) int f(void) { return 0; }",
        "typedef float v8 __attribute__((vector_size(32), aligned(4)));",
        "struct { int open; } file; int f(void) { return file.open; }",
        "#define TILE_M 32\n#if TILE_M > 16\n#elif 1\n#else\n#endif\n#undef TILE_M",
        'const char *s = "fork() asm system()";',
    ],
)
def test_harmless_text_passes(text: str) -> None:
    """Comments, literals, names and directives that mean no harm are no problem."""
    assert source_problems(f"{text}\n{GOOD['matmul'].source}", "matmul", 1) == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('void f(void) { system("true"); }', "system"),
        ('void f(void) { execl("a", "b"); }', "execl"),
        ("void f(void) { fork (); }", "fork"),
        ("void f(void) { dlopen(0, 1); }", "dlopen"),
        ("void f(void) { ptrace(0); }", "ptrace"),
        ('void f(void) { open("a", 0); }', "open"),
        ("void f(void) { socket(1, 2, 3); }", "socket"),
        ("void f(void) { mmap(0, 1, 2, 3, 4, 5); }", "mmap"),
        ("void f(void) { clock_gettime(0, 0); }", "clock_gettime"),
        ("void f(void) { pthread_create(0, 0, 0, 0); }", "pthread_create"),
        ("void f(void) { cblas_sgemm(1); }", "cblas_sgemm"),
        ("void f(void) { sgemm_(1); }", "sgemm_"),
        ("void f(void) { omp_set_num_threads(4); }", "OpenMP"),
        ('void f(void) { asm("nop"); }', "asm"),
        ('void f(void) { __asm__ volatile ("syscall"); }', "__asm__"),
        ('void f(void) { sys\\\ntem("x"); }', "system"),
        ("void f(void) { fo\\ \nrk(); }", "fork"),
        ("__attribute__((constructor)) static void f(void) {}", "constructor"),
        ("__attribute__((aligned(8), __constructor__(101))) void f(void);", "constructor"),
        ("[[gnu::constructor]] static void f(void) {}", "constructor"),
        ('int x __attribute__((section(".init_array")));', "section"),
        ('void f(void) __attribute__((ifunc("g")));', "ifunc"),
        ('#include "/etc/passwd"', "/etc/passwd"),
        ("#include <sys/mman.h>", "sys/mman.h"),
        ("#include </etc/passwd>", "/etc/passwd"),
        ("#define H <unistd.h>\n#include H", "#include H"),
        ('%:include "/etc/passwd"', "/etc/passwd"),
        ('# /* x */ include "/etc/passwd"', "/etc/passwd"),
        ("#include_next <math.h>", "#include_next"),
        ("#import <math.h>", "#import"),
        ('#embed "/etc/passwd"', "#embed"),
        ('#line 1 "/etc/passwd"', "#line"),
        ('#if __has_include("/etc/shadow")\n#endif', "__has_include"),
        ("#pragma weak write", "#pragma weak"),
        ("#pragma redefine_extname a b", "#pragma redefine_extname"),
        ('#pragma GCC dependency "/etc/passwd"', "dependency"),
        ('_Pragma("weak write")', "_Pragma"),
    ],
)
def test_forbidden_text_is_named(text: str, word: str) -> None:
    """What a kernel has no business with is refused with the word that is at fault."""
    problems = source_problems(f"{text}\n{GOOD['matmul'].source}", "matmul", 1)
    assert problems
    assert any(word in problem for problem in problems)


def test_missing_function_is_told() -> None:
    """A source without the operator's function says what it lacks."""
    problems = source_problems("void other(void) {}", "matmul", 1)
    assert any("void matmul(" in problem for problem in problems)


def compiled(source: str, tmp_path: Path, *flags: str) -> ElfObject:
    """What the real compiler makes of a source."""
    (tmp_path / "k.c").write_text(source)
    argv = ["cc", "-w", *flags, "-c", str(tmp_path / "k.c"), "-o", str(tmp_path / "k.o")]
    subprocess.run(argv, check=True, cwd=tmp_path)
    return ElfObject((tmp_path / "k.o").read_bytes())


@pytest.mark.parametrize(
    ("before", "body", "word"),
    [
        ("#define J(a, b) a##b\nint J(sys, tem)(const char *);", 'J(sys, tem)("x");', "`system`"),
        ("int printf(const char *, ...);", 'printf("%f", a[0]);', "`printf`"),
        ("long write(int, const void *, long);", "write(3, a, 4);", "`write`"),
        ("long syscall(long, ...);", "syscall(57);", "`syscall`"),
        ("void cblas_sgemm(int, ...);", "cblas_sgemm(1);", "`cblas_sgemm`"),
        ("void dgemm_(int);", "dgemm_(1);", "`dgemm_`"),
        ("__attribute__((constructor)) static void f(void) {}", "", ".init_array"),
        ('int x __attribute__((section("evil"))) = 1;', "c[0] = x;", "evil"),
        (
            'static void r(void) {} void *g(void) { return r; } void h(void) IFUNC("g");',
            "h();",
            "ifunc",
        ),
        ("static float big[300 << 20];", "big[n] = c[0]; c[1] = big[m];", "static buffers"),
    ],
)
def test_objects_cannot_hide(before: str, body: str, word: str, tmp_path: Path) -> None:
    """Foreign functions, early code and odd sections show in the object, however they are spelt."""
    macro = "#define IFUNC(x) __attribute__((ifunc(x)))\n"
    found = compiled(matmul(body, macro + before).source, tmp_path)
    problems = object_problems(found, "matmul", 1)
    assert any(word in problem for problem in problems), problems


@pytest.mark.parametrize(
    "flags", [("-O0",), ("-O3", "-march=native", "-ffast-math"), ("-O2", "-fstack-protector-all")]
)
@pytest.mark.parametrize("operator", ["matmul", "softmax"])
def test_honest_objects_pass(operator: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    """Mathematics, vector mathematics and memory functions are no library calls."""
    extra = "#include <stdlib.h>\n#include <string.h>\nstatic void *m(int n) {"
    extra += " void *p = aligned_alloc(64, n); memset(p, 0, n); free(p); return p; }\n"
    source = f"{extra}{GOOD[operator].source}static void *(*use)(int) = m;"
    found = compiled(source, tmp_path, *flags)
    assert object_problems(found, operator, 1) == []


def test_threading_symbols_need_threads(tmp_path: Path) -> None:
    """OpenMP's runtime is allowed exactly when threads are."""
    source = matmul(f'_Pragma("omp parallel for")\n{GOOD_MATMUL.strip()}').source
    found = compiled(source, tmp_path, "-fopenmp")
    assert any("GOMP" in problem for problem in object_problems(found, "matmul", 1))
    assert object_problems(found, "matmul", 2) == []


def test_identity_is_that_of_the_machine_code(tmp_path: Path) -> None:
    """Comments, names and paths do not matter; code, constants and callees do."""

    def identity(text: str, *flags: str, folder: str = "x") -> str:
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        return compiled(text, place, *(flags or ("-O2",))).identity()

    plain = GOOD["softmax"].source
    same = identity(plain)
    assert identity(f"// a comment\n\n{plain}", folder="elsewhere") == same
    assert identity(plain.replace("most", "largest")) == same
    assert identity(plain, "-O2", "-g") == same
    assert identity(plain.replace("expf(", "exp2f(")) != same
    assert identity(plain.replace("sum = 0", "sum = 1e-30f")) != same
    assert identity(plain, "-O1") != same


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 80, b"MZ" * 90])
def test_damaged_objects_are_refused(data: bytes) -> None:
    """Bytes that are no object raise one error."""
    with pytest.raises(NotAnObject):
        ElfObject(data)


@pytest.mark.parametrize("evasion", ["#inc??/\nlude </etc/passwd>\n", 'as??/\nm("");\n'])
def test_trigraphs_hide_nothing(evasion: str) -> None:
    """With -std=c11 they splice lines where no rule looks, so they are refused."""
    found = source_problems(evasion + GOOD_MATMUL, "matmul", 1)
    assert any("no rule can see" in problem for problem in found)
