"""Our own C sources: where they are, and the hash that stands for all of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from croq_fsm.domain.source import sha256

FOLDER: Final = Path(__file__).resolve().parent.parent / "measure" / "c"
KERNELS: Final = Path(__file__).resolve().parent.parent / "kernels" / "c"

BENCH: Final = FOLDER / "bench.c"
KERNEL_HEADER: Final = FOLDER / "kernel.h"
HELPER: Final = FOLDER / "helper.c"
SANITIZE: Final = FOLDER / "sanitize.c"
PEAKS: Final = FOLDER / "peaks.c"


@cache
def harness_hash() -> str:
    """SHA-256 over names and contents of everything that a benchmark program is made of."""
    files = sorted([*FOLDER.glob("*.h"), BENCH, HELPER])
    return sha256("\0".join(f"{file.name}\0{sha256(file.read_bytes())}" for file in files))


def operator_macro(operator: str) -> str:
    """Flag that tells our sources the operator."""
    return f"-DCROQ_{operator.upper()}"
