"""Where the tools and libraries of DSL ``croqtile`` are. Looks at paths only; starts nothing."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from croq_fsm.config import CroqtileOptions
from croq_fsm.errors import EnvironmentMissing

_CUBLAS: Final = ("libcublas.so.13", "libcublas.so.12", "libcublas.so")


@dataclass(frozen=True)
class Tools:
    """Paths of everything that DSL ``croqtile`` uses; None for what was not found.

    Attributes:
        choreo: The compiler.
        choreo_headers: Folder with ``choreo.h``.
        choreo_version: What the source tree says of its version, or "".
        cute_headers: Folder with ``cute/`` and ``cutlass/``.
        cuda_home: CUDA toolkit.
        nvcc: CUDA compiler.
        nm: Symbol lister of binutils.
        cuobjdump: CUDA object dumper; optional.
        ncu: Nsight Compute; optional, needed for profiles.
        sanitizer: compute-sanitizer; optional.
        nvidia_smi: Driver tool.
        cublas: The library that is timed as the reference.
    """

    choreo: Path | None
    choreo_headers: Path | None
    choreo_version: str
    cute_headers: Path | None
    cuda_home: Path | None
    nvcc: Path | None
    nm: Path | None
    cuobjdump: Path | None
    ncu: Path | None
    sanitizer: Path | None
    nvidia_smi: Path | None
    cublas: Path | None

    def need(self, name: str) -> Path:
        """Path of a tool by attribute name. Raises EnvironmentMissing with the cure."""
        found: Path | None = getattr(self, name)
        if found is None:
            raise EnvironmentMissing(f"{name} was not found; {CURES[name]}")
        return found


#: What to do about a missing tool.
CURES: Final = {
    "choreo": "build the Choreo compiler and set CHOREO_HOME (or croqtile.choreo_home) to its tree",
    "choreo_headers": "set CHOREO_HOME to the compiler's source tree; runtime/choreo.h is in it",
    "cute_headers": "set CUTE_HOME to a CUTLASS 4 tree (its include/ holds cute/ and cutlass/)",
    "cuda_home": "install the CUDA toolkit 12.4 or newer, or set CUDA_HOME",
    "nvcc": "install the CUDA toolkit 12.4 or newer, or set CUDA_HOME",
    "nm": "install binutils",
    "cuobjdump": "install the CUDA toolkit's cuobjdump",
    "ncu": "install Nsight Compute",
    "sanitizer": "install the CUDA toolkit's compute-sanitizer",
    "nvidia_smi": "install the NVIDIA driver",
    "cublas": "install the CUDA toolkit's cuBLAS, or NVIDIA's nvidia-cublas wheel",
}


def find_tools(options: CroqtileOptions) -> Tools:
    """Look in the configuration, then the environment, then the usual places."""
    home = _home(options.choreo_home, "CHOREO_HOME")
    cute = _home(options.cute_home, "CUTE_HOME")
    cuda = _cuda_home(options)
    return Tools(
        choreo=_program("choreo", _under(home, "build/choreo", "choreo", "bin/choreo")),
        choreo_headers=_holding("choreo.h", _under(home, "runtime", "include")),
        choreo_version=_version(home),
        cute_headers=_holding(
            "cute/tensor.hpp",
            [*_under(cute, "include", "."), *_under(home, "extern/cutlass/include")],
        ),
        cuda_home=cuda,
        nvcc=_program("nvcc", _under(cuda, "bin/nvcc")),
        nm=_program("nm", []),
        cuobjdump=_program("cuobjdump", _under(cuda, "bin/cuobjdump")),
        ncu=_program("ncu", [*_under(cuda, "bin/ncu"), *_nsight()]),
        sanitizer=_program("compute-sanitizer", _under(cuda, "bin/compute-sanitizer")),
        nvidia_smi=_program("nvidia-smi", []),
        cublas=_cublas(cuda),
    )


def _home(configured: str, variable: str) -> Path | None:
    value = configured or os.environ.get(variable, "")
    return Path(value).expanduser().absolute() if value else None


def _cuda_home(options: CroqtileOptions) -> Path | None:
    nvcc = shutil.which("nvcc")
    guesses = [_home(options.cuda_home, "CUDA_HOME"), Path("/usr/local/cuda")]
    if nvcc:
        guesses.append(Path(nvcc).resolve().parent.parent)
    return next((path for path in guesses if path and (path / "bin/nvcc").is_file()), None)


def _under(folder: Path | None, *relative: str) -> list[Path]:
    return [folder / part for part in relative] if folder else []


def _program(name: str, guesses: Iterable[Path]) -> Path | None:
    on_path = shutil.which(name)
    candidates = [*guesses, *([Path(on_path)] if on_path else [])]
    return next((p.absolute() for p in candidates if p.is_file() and os.access(p, os.X_OK)), None)


def _holding(name: str, folders: Iterable[Path]) -> Path | None:
    return next((folder for folder in folders if (folder / name).is_file()), None)


def _version(home: Path | None) -> str:
    """``VERSION.txt`` and, from a git checkout, the commit."""
    if home is None:
        return ""
    paths = (home / "VERSION.txt", _head(home))
    texts = [p.read_text(errors="replace").strip() for p in paths if p is not None and p.is_file()]
    return " ".join(text[:40] for text in texts)


def _head(home: Path) -> Path | None:
    """File that holds the commit of a checkout, as long as its branch is not packed."""
    head = home / ".git" / "HEAD"
    if not head.is_file():
        return None
    text = head.read_text(errors="replace").strip()
    return home / ".git" / text.removeprefix("ref: ") if text.startswith("ref: ") else head


def _nsight() -> list[Path]:
    """Nsight Compute installs beside the toolkit, newest last in name order."""
    return sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), reverse=True)


def _cublas(cuda: Path | None) -> Path | None:
    for folder in _library_folders(cuda):
        for name in _CUBLAS:
            if (folder / name).is_file():
                return folder / name
    return None


def _library_folders(cuda: Path | None) -> Iterator[Path]:
    """The toolkit, the loader's path, the system, and the wheels of the Pythons at hand."""
    yield from _under(cuda, "lib64", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
    yield from (Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p)
    yield from (Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu"))
    for site in (*map(Path, sys.path), *_other_sites()):
        yield from sorted((site / "nvidia").glob("*/lib"))


def _other_sites() -> Iterator[Path]:
    """Package folders of the ``python3`` on PATH, which need not be ours."""
    python = shutil.which("python3")
    if python:
        yield from sorted(Path(python).parent.parent.glob("lib/python3*/site-packages"))
