"""A candidate's object file: what it may refer to, what it may define, and what code it holds."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from croq_fsm.domain.source import sha256

#: What a host wrapper needs. Everything else (files, threads, streams, libraries) is refused.
_MAY_USE: Final = re.compile(
    r"""^(?:
    _GLOBAL_OFFSET_TABLE_ | __dso_handle | _Unwind_Resume | __gxx_personality_v0
  | __stack_chk_fail | __cxa_\w+ | atexit | abort | exit | __assert_fail
  | __cuda(?:GetKernel|LaunchKernel(?:_ptsz)?|PushCallConfiguration|PopCallConfiguration)
  | __cuda(?:Register|Unregister|InitModule)\w*
  | cuda(?:FuncSetAttribute|FuncGetAttributes|GetDevice|GetDeviceCount|DeviceGetAttribute)
  | cuda(?:GetDeviceProperties(?:_v2)?|DriverGetVersion|RuntimeGetVersion)
  | cuda(?:GetErrorString|GetErrorName|GetLastError|PeekAtLastError|DeviceSynchronize)
  | cuda(?:LaunchKernel(?:ExC)?|LaunchCooperativeKernel|OccupancyMaxActive\w+)
  | cuda(?:Malloc|Free|Memset|MemsetAsync|GetSymbolAddress)
  | cuTensorMapEncodeTiled
  | stderr | stdout | f?printf | __f?printf_chk | v?snprintf | __v?snprintf_chk | puts | putchar
  | fwrite | fputs | fputc | strlen | mem(?:cpy|set|move|cmp|chr)
  | floorf? | ceilf? | sqrtf? | powf? | log2?f? | expf? | lroundf?
  | _Zn[wa]m\w* | _Zd[la]Pv\w*
  | _Z(?:N?K?S[tosi]|NKS[tosi]|TISt|TVSt|TVN10__cxxabiv1|GVNSt)\w*
  )$""",
    re.VERBOSE,
)
_MUST_NOT_USE: Final = re.compile(
    r"^_ZNK?St6thread|filebuf|[io]?fstream|10filesystem|18condition_variable|13__future_base"
)
_LIBRARY: Final = re.compile(r"cublas|cudnn|cusparse|cutlass\w*gemm|curand|nvrtc", re.IGNORECASE)
#: Local and weak template code of the headers is of no interest; strong definitions are.
_STRONG: Final = frozenset("TDBRSGC")
_HARNESS: Final = re.compile(r"^_Z\w*4croq(?!ui)")
_STANDARD: Final = re.compile(r"^_Z(?:N?K?S[tosi]|NKS[tosi]|n[wa]|d[la])")
_STUB: Final = re.compile(r"__device_stub__Z(?P<name>\w+)")
#: What stands before a name in a mangled one: nesting, internal linkage, its length.
_LENGTH: Final = re.compile(r"[NL]*(\d+)")
ENTRY: Final = "croq_candidate"


@dataclass(frozen=True)
class Symbols:
    """Symbols of an object file.

    Attributes:
        undefined: Names that it wants from elsewhere.
        defined: Strongly defined global names.
        kernels: Names of its device kernels.
    """

    undefined: frozenset[str]
    defined: frozenset[str]
    kernels: tuple[str, ...]


def read_symbols(nm_output: str) -> Symbols:
    """Read ``nm -P``: name, type, value, size."""
    undefined, defined, kernels = set(), set(), set()
    for line in nm_output.splitlines():
        name, kind, *_ = (*line.split(), "", "")
        if kind == "U":
            undefined.add(name)
        elif kind in _STRONG:
            defined.add(name)
        stub = _STUB.search(name)
        if stub:
            kernels.add(_innermost(stub["name"]))
    return Symbols(frozenset(undefined), frozenset(defined), tuple(sorted(kernels)))


def symbol_problems(symbols: Symbols, entry: str = ENTRY) -> list[str]:
    """Why an object may not be linked with the harness; empty when it may.

    Args:
        symbols: What the object wants and defines.
        entry: The function that it must define.
    """
    problems = []
    for name in sorted(symbols.undefined):
        if _LIBRARY.search(name):
            problems.append(f"calls a library: {name}")
        elif not _MAY_USE.match(name) or _MUST_NOT_USE.search(name):
            problems.append(f"uses {name}, which a kernel's host wrapper has no need of")
    problems.extend(
        f"defines {name}, which belongs to the harness or the system"
        for name in sorted(symbols.defined)
        if _is_foreign(name, entry)
    )
    if entry not in symbols.defined:
        problems.append(f"does not define {entry}")
    if not symbols.kernels:
        problems.append("holds no device kernel")
    return problems


def device_code(cubin: bytes, host_text: str) -> str:
    """Identity of what runs: the machine code without names, and the host text that launches it.

    Args:
        cubin: The CUDA ELF that ptxas wrote.
        host_text: Generated text without comments and positions.
    """
    codes = sorted(sha256(content) for content in _code_sections(cubin))
    return sha256("\n".join([*codes, sha256(host_text)]))


def _innermost(mangled: str) -> str:
    """The function's own name of a mangled one, without namespaces and template arguments."""
    nested = mangled.startswith("N")
    name, at = "", 0
    while match := _LENGTH.match(mangled, at):
        at = match.end() + int(match[1])
        name = mangled[match.end() : at]
        if not nested:
            break
    return name


def _is_foreign(name: str, entry: str) -> bool:
    if not name.startswith("_Z"):
        return name != entry
    return bool(_HARNESS.match(name) or _STANDARD.match(name))


def _code_sections(elf: bytes) -> Iterator[bytes]:
    """Contents of the ``.text.*`` sections of a 64-bit little-endian ELF file.

    Raises:
        ValueError: It is no such file.
    """
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * entry_size) for i in range(count)]
    names_at = headers[names_index][4]
    for name, _kind, _flags, _address, offset, size in headers:
        start = names_at + name
        if elf[start : start + 6] == b".text.":
            yield elf[offset : offset + size]
