"""What a C kernel may be: flags, source, object. Pure functions that return sentences.

The source rules give early, readable answers. They can be evaded by macros; the object rules
cannot, because they look at what the compiler really made. What both miss is stopped by the
harness, which takes every other system call away before the kernel first runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from croq_fsm.domain.source import strip_comments
from croq_fsm.toolchain.elf import ElfObject

#: Flags that change speed and nothing else. Each is matched as a whole.
_FLAGS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"-O[0-3]|-Ofast|-Os",
        r"-std=(c|gnu)(99|11|17|18|2x|23)",
        r"-m(arch|tune|cpu)=[A-Za-z0-9._+-]+",
        r"-m(no-)?(s?sse[0-9.]*|ssse3|avx[0-9a-z]*|fma4?|f16c|bmi2?|vzeroupper|recip)",
        r"-mprefer-vector-width=(none|128|256|512)",
        r"-ffast-math|-fassociative-math|-freciprocal-math|-ffinite-math-only",
        r"-funsafe-math-optimizations|-fexcess-precision=(fast|standard)|-ffp-contract=(fast|off|on)",
        r"-f(unroll|unswitch|peel|split)-(all-)?loops|-fprefetch-loop-arrays|-floop-[a-z-]+",
        r"-ftree-[a-z-]+|-fvect-cost-model=(unlimited|dynamic|cheap|very-cheap)",
        r"-fsimd-cost-model=(unlimited|dynamic|cheap|very-cheap)|-fvectorize|-fslp-vectorize",
        r"-fopenmp-simd|-fomit-frame-pointer|-fstrict-aliasing|-fmodulo-sched(-allow-regmoves)?",
        r"-fschedule-insns2?|-fsched-[a-z0-9-]+|-frename-registers|-fira-[a-z-]+|-fgcse-[a-z]+",
        r"-fipa-pta|-finline-functions|-finline-limit=[0-9]+|-fgraphite-identity|-fweb",
        r"-falign-(loops|functions|jumps|labels)(=[0-9:]+)?",
        r"-fno-[a-z0-9-]+",
        r"--param=[a-z0-9-]+=[0-9]+",
    )
)
_OPENMP: Final = "-fopenmp"

_HEADERS: Final = frozenset(
    {
        *("stddef.h", "stdint.h", "stdbool.h", "stdlib.h", "string.h", "math.h", "float.h"),
        *("limits.h", "stdalign.h", "assert.h", "complex.h", "tgmath.h", "omp.h"),
        *("immintrin.h", "x86intrin.h", "xmmintrin.h", "emmintrin.h", "pmmintrin.h"),
        *("tmmintrin.h", "smmintrin.h", "nmmintrin.h", "avxintrin.h"),
        *("arm_neon.h", "arm_sve.h", "arm_acle.h"),
    }
)
_ALLOWED: Final = ", ".join(sorted(_HEADERS))
_DIRECTIVES: Final = re.compile(
    r"define|undef|include|if|ifdef|ifndef|elif|elifdef|elifndef|else|endif|error|warning|pragma"
)
_PRAGMAS: Final = re.compile(
    r"(GCC\s+(optimize|target|unroll|ivdep|push_options|pop_options|diagnostic)|clang\s+loop|"
    r"omp|STDC|unroll|once|ivdep)\b"
)
_NO_CALLS: Final = {
    "runs or reaches other programs": (
        r"system|exec[lv][pe]*|fexecve|posix_spawnp?|popen|fork|vfork|clone|ptrace|socket|connect|"
        r"dlopen|dlsym|syscall|kill|raise"
    ),
    "touches files or memory maps": (
        r"open|openat|creat|fopen|freopen|mmap|mprotect|munmap|shm_open|remove|unlink|rename"
    ),
    "takes over signals, time or control flow": (
        r"signal|sigaction|setjmp|longjmp|clock_gettime|gettimeofday|time|clock|getenv|setenv"
    ),
    "starts threads": r"pthread_create|thrd_create",
    "calls a library for the operator itself": r"cblas_\w+|[sdcz]gemm_?",
}
_NO_ASSEMBLY: Final = "is inline assembly, whose effects nobody can check"
_ASSEMBLY_WORDS: Final = r"asm|__asm|__asm__"
_ASSEMBLY: Final = re.compile(rf"(?<![\w.])({_ASSEMBLY_WORDS})\b")
_MARKER: Final = re.compile(r"^#(?:line)? \d+ \"(.*)\".*$", re.MULTILINE)
_NO_WORDS: Final = {
    _NO_ASSEMBLY: _ASSEMBLY_WORDS,
    "asks for files": r"__has_include|__has_include_next|__has_embed|__FILE__|__BASE_FILE__",
}
_FORBIDDEN: Final = tuple(
    (re.compile(rf"(?<![\w.])({words})\b{after}"), why)
    for table, after in ((_NO_CALLS, r"\s*\("), (_NO_WORDS, ""))
    for why, words in table.items()
)
_ATTRIBUTES: Final = re.compile(
    r"\b_*(constructor|destructor|section|ifunc|resolver|alias|weakref|weak|init_priority)_*\b"
)
_ATTRIBUTE_LIST: Final = re.compile(
    r"__attribute(?:__)?\s*\(\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)\)|\[\[([^\]]*)\]\]"
)
#: Trigraphs, which -std=c11 turns on: they hide a splice, and with it an #include.
_HIDING: Final = re.compile(r"\?\?[=/'()!<>-]")
_SPLICE: Final = re.compile(r"\\[ \t\f\v]*\r?\n")
_LITERAL: Final = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'")
_DIRECTIVE: Final = re.compile(r"^[ \t]*(?:#|%:|\?\?=)[ \t]*(\w*)[ \t]*(.*)$", re.MULTILINE)
_PRAGMA_CALL: Final = re.compile(r"\b_Pragma\s*\(\s*\"?([^)]*)")

_MATH_NAMES: Final = (
    r"exp|exp2|expm1|log|log2|log10|log1p|pow|sqrt|cbrt|sin|cos|tan|sinh|cosh|tanh|asin|acos|atan|"
    r"atan2|fabs|fmax|fmin|fma|floor|ceil|round|rint|nearbyint|trunc|ldexp|frexp|scalbn|scalbln|"
    r"fmod|remainder|hypot|erf|erfc|lrint|lround|llrint|copysign|fdim|modf|ilogb|logb|nextafter"
)
_LIBRARY: Final = re.compile(
    rf"({_MATH_NAMES})[fl]?|_ZGV\w+_({_MATH_NAMES})f?|__({_MATH_NAMES})f?_finite|"
    r"mem(cpy|move|set|cmp|pcpy)|__mem(cpy|move|set)_chk|"
    r"malloc|calloc|realloc|free|aligned_alloc|posix_memalign|"
    r"abort|__assert_fail|__stack_chk_fail|_GLOBAL_OFFSET_TABLE_|__tls_get_addr|"
    r"__cpu_model|__cpu_indicator_init|__(extend|trunc|fix|float|mul|div|udiv|mod|umod)\w+"
)
_THREADED: Final = re.compile(r"GOMP_\w+|omp_\w+|__kmpc_\w+")
_SECTIONS: Final = re.compile(
    r"\.(text|rodata|data|bss|tdata|tbss|eh_frame|note|comment|lbss|ldata|lrodata|ltext|got)\b.*"
)
_IFUNC: Final = 10
_STATIC_BYTES_MAX: Final = 256 << 20


def flag_problems(flags: tuple[str, ...], threads: int) -> list[str]:
    """Flags of a candidate that are not on the allow-list."""
    problems = []
    for flag in flags:
        if flag == _OPENMP:
            if threads == 1:
                problems.append(f"flag {flag} is only allowed when c.threads is above 1")
        elif not any(pattern.fullmatch(flag) for pattern in _FLAGS):
            problems.append(
                f"flag {flag!r} is not allowed: only flags that change how the kernel's own "
                "code is optimised are"
            )
    return problems


def source_problems(source: str, operator: str, threads: int) -> list[str]:
    """What a source must not contain, or lacks; each a sentence."""
    text = strip_comments(_SPLICE.sub("", source))
    code = _LITERAL.sub('""', text)
    problems = list(_directive_problems(text))
    for pattern, why in _FORBIDDEN:
        if found := pattern.search(code):
            problems.append(f"`{found.group(1)}` is forbidden in a kernel: it {why}")
    problems += _attribute_problems(code)
    if hidden := _HIDING.search(code):
        problems.append(f"`{hidden.group()}` is forbidden: it makes words that no rule can see")
    if threads == 1 and re.search(r"\bomp_(?!simd)\w+\s*\(", code):
        problems.append("OpenMP functions are only allowed when c.threads is above 1")
    if not re.search(rf"\bvoid\s+{operator}\s*\(", code):
        problems.append(f"the source defines no function `void {operator}(…)`")
    return problems


def expanded_problems(text: str, name: str) -> list[str]:
    """Assembly in a preprocessed source, however it was spelt there.

    What an assembler directive does, such as reading a file into the object, cannot be seen in
    the object any more.

    Args:
        text: Output of the preprocessor, with its line markers.
        name: File name of the kernel; what other files bring is the compiler's own.
    """
    pieces = _MARKER.split(text)  # text, file, text, file, text, …
    own = "\n".join(pieces[i + 1] for i in range(1, len(pieces), 2) if pieces[i] == name)
    found = _ASSEMBLY.search(_LITERAL.sub('""', own))
    return [f"`{found.group(1)}` is forbidden in a kernel: it {_NO_ASSEMBLY}"] if found else []


def object_problems(found: ElfObject, operator: str, threads: int) -> list[str]:
    """What a compiled kernel must not be; names the symbol or section."""
    problems = []
    for name in sorted(found.undefined):
        is_threading = threads > 1 and _THREADED.fullmatch(name)
        if not (_LIBRARY.fullmatch(name) or is_threading):
            problems.append(
                f"library calls are forbidden: the kernel needs `{name}`, which is neither "
                "arithmetic nor memory"
            )
    if operator not in found.exported:
        problems.append(f"the object exports no function `{operator}`")
    problems += [
        f"section {section.name} is forbidden: it may run outside the kernel"
        for section in found.sections
        if section.is_loaded and not _SECTIONS.fullmatch(section.name)
    ]
    if any(symbol.kind == _IFUNC for symbol in found.symbols):
        problems.append("ifunc (target_clones) is forbidden: its resolver runs before the harness")
    if found.static_bytes > _STATIC_BYTES_MAX:
        problems.append(f"static buffers of {found.static_bytes >> 20} MiB are too large")
    return problems


def _directive_problems(text: str) -> Iterator[str]:
    for match in _DIRECTIVE.finditer(text):
        name, rest = match.group(1), match.group(2).strip()
        if name == "include":
            header = re.fullmatch(r"<([\w.]+)>", rest)
            if header is None or header.group(1) not in _HEADERS:
                yield f"#include {rest} is forbidden; allowed are {_ALLOWED}"
        elif name == "pragma":
            if not _PRAGMAS.match(rest):
                yield f"#pragma {rest} is forbidden"
        elif name and not _DIRECTIVES.fullmatch(name):
            yield f"#{name} is forbidden"
    for call in _PRAGMA_CALL.finditer(text):
        if not _PRAGMAS.match(call.group(1)):
            yield f"_Pragma({call.group(1)}) is forbidden"


def _attribute_problems(code: str) -> list[str]:
    return [
        f"attribute `{found.group(1)}` is forbidden: it runs or moves code outside the kernel"
        for attributes in _ATTRIBUTE_LIST.finditer(code)
        if (found := _ATTRIBUTES.search(attributes.group(1) or attributes.group(2) or ""))
    ]
