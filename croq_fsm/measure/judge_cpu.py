"""The judge of CPU kernels, a trusted child: ``python -m croq_fsm.measure.judge_cpu …``.

It makes inputs and references, compares outputs, and times the library reference, so that the
daemon never holds a large array and a candidate's process never holds an answer.

Requests (``{"ok": false, "error"}`` when something is wrong):

``{"cmd": "make", "kind", "seed"}`` → ``{"ok", "inputs": path}``
    Makes a case, or finds it on the disk.
``{"cmd": "check", "kind", "seed", "down", "right", "output": path}`` → a ``Comparison``
    Compares an output file of the harness.
``{"cmd": "load", "kind", "seed"}`` → ``{"ok"}``
    Gets ready to time the library, and checks that the library itself is right.
``{"cmd": "time" | "idle", "launches", "seed", "l2"}`` → ``{"ok", "ns": […]}``
    As the harness does it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from croq_fsm.domain.operators import operator
from croq_fsm.domain.shapes import parse_shape
from croq_fsm.domain.source import sha256
from croq_fsm.measure import cases
from croq_fsm.measure.cases import Float32, Float64

_ANSWERS: Final = 3
_DISK_CAP: Final = 4 << 30
_MANIFEST: Final = ".json"


class CaseStore:
    """Cases of one operator and shape on disk, checked by hash when they are read.

    Args:
        folder: Where they lie; the oldest are removed beyond 4 GiB.
        name: Operator.
        shape: Sizes as text.
    """

    def __init__(self, folder: Path, name: str, shape: str) -> None:
        self.operator = operator(name)
        self.shape = parse_shape(shape, self.operator.dims)
        self._folder = folder
        self._prefix = f"{name}_{shape}"

    def inputs_path(self, kind: str, seed: int) -> Path:
        """File with all inputs one behind the other; made when it is not there."""
        base = self._base(kind, seed)
        if not self._is_sound(base):
            self._make(base, kind, seed)
        return base.with_suffix(".in")

    def load(self, kind: str, seed: int) -> tuple[list[Float32], Float64]:
        """Inputs and reference."""
        path = self.inputs_path(kind, seed)
        sizes = self.operator.sizes(self.shape)
        flat = np.fromfile(path, dtype=np.float32)
        inputs, at = [], 0
        for tensor in self.operator.precision("f32").inputs:
            dims = tensor.shape(sizes)
            count = int(np.prod(dims))
            inputs.append(flat[at : at + count].reshape(dims))
            at += count
        return inputs, np.load(path.with_suffix(".npy"))

    def output(self, path: Path) -> Float32:
        """An output that the harness wrote. Raises ValueError when it has another size."""
        dims = self.operator.precision("f32").output.shape(self.operator.sizes(self.shape))
        return np.fromfile(path, dtype=np.float32).reshape(dims)

    def _base(self, kind: str, seed: int) -> Path:
        return self._folder / f"{self._prefix}-{kind}-{seed}.in"

    def _make(self, base: Path, kind: str, seed: int) -> None:
        inputs = cases.make_inputs(self.operator, self.shape, kind, seed)
        expected = cases.reference(self.operator, inputs)
        is_plain = kind == cases.KINDS[self.operator.name][0]
        if is_plain and cases.constant_passes(self.operator, self.shape, inputs, expected):
            raise ValueError(f"a constant output would pass on {self._prefix}: nothing to verify")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._trim()
        own = f".{os.getpid()}"
        with Path(f"{base}{own}").open("wb") as file:
            for array in inputs:
                array.tofile(file)
        with Path(f"{base}{own}.npy").open("wb") as file:
            np.save(file, expected)
        Path(f"{base}{own}").rename(base)
        Path(f"{base}{own}.npy").rename(base.with_suffix(".npy"))
        text = json.dumps(_digests(base))
        base.with_suffix(_MANIFEST).write_text(text, encoding="utf-8")

    def _is_sound(self, base: Path) -> bool:
        try:
            recorded = json.loads(base.with_suffix(_MANIFEST).read_text(encoding="utf-8"))
            return bool(recorded == _digests(base))
        except (OSError, ValueError):
            return False

    def _trim(self) -> None:
        """Remove the oldest files beyond the cap. Whoever has mapped one keeps it."""
        files = [(path.stat(), path) for path in self._folder.iterdir() if path.is_file()]
        total = sum(stat.st_size for stat, _ in files)
        for stat, path in sorted(files, key=lambda item: item[0].st_mtime):
            if total <= _DISK_CAP:
                break
            path.unlink(missing_ok=True)
            total -= stat.st_size


def _digests(base: Path) -> dict[str, str]:
    return {suffix: sha256(base.with_suffix(suffix).read_bytes()) for suffix in (".in", ".npy")}


class Library:
    """Times the library reference the way the harness times a candidate.

    Args:
        store: Operator and shape.
        inputs: Inputs of the case.
        evict: Puts an array out of the caches.
        now: Clock, nanoseconds; the harness explains why a single thread has its own.
    """

    def __init__(
        self,
        store: CaseStore,
        inputs: list[Float32],
        evict: Callable[[Float32], None],
        now: Callable[[], int],
    ) -> None:
        self._now = now
        self._store = store
        self._inputs = inputs
        self._evict = evict
        self._work = [np.empty_like(array) for array in inputs]
        dims = store.operator.precision("f32").output.shape(store.operator.sizes(store.shape))
        self.out: Float32 = np.empty(dims, dtype=np.float32)

    def launches(self, request: dict[str, Any], *, idle: bool) -> list[int]:
        """Times of the launches in nanoseconds."""
        return [
            self._launch(request["seed"], number, cold=request.get("l2") != "hot", idle=idle)
            for number in range(request["launches"])
        ]

    def call(self) -> None:
        """Compute the output from the inputs at hand."""
        cases.library(self._store.operator, self._work, self.out)

    def prepare(self, shift: tuple[int, int], *, cold: bool) -> None:
        """Fresh inputs and a poisoned output."""
        cases.roll_inputs(self._store.operator, self._inputs, shift, self._work)
        self.out.view(np.uint32).fill(cases.POISON)
        for array in (*self._work, self.out) if cold else ():
            self._evict(array)

    def _launch(self, seed: int, number: int, *, cold: bool, idle: bool) -> int:
        rows, cols = self.out.shape
        self.prepare(cases.launch_shift(seed, number, rows, cols), cold=cold)
        began = self._now()
        if not idle:
            self.call()
        return self._now() - began


class Judge:
    """Serves requests.

    Args:
        store: Cases.
        evict: Puts an array out of the caches.
        threads: Threads of the library when it is timed.
    """

    def __init__(
        self, store: CaseStore, evict: Callable[[Float32], None], threads: int = 1
    ) -> None:
        self._store = store
        self._evict = evict
        self._now = time.thread_time_ns if threads == 1 else time.perf_counter_ns
        self._library: Library | None = None

    def serve(self, request: dict[str, Any]) -> dict[str, object]:
        """Answer one request; errors become answers."""
        try:
            return {"ok": True, **self._dispatch(request)}
        except (OSError, ValueError, KeyError, MemoryError) as exc:
            return {"ok": False, "error": f"{type(exc).__name__}: {exc}"}

    def _dispatch(self, request: dict[str, Any]) -> dict[str, object]:
        match request["cmd"]:
            case "make":
                path = self._store.inputs_path(request["kind"], request["seed"])
                return {"inputs": str(path)}
            case "check":
                return self._check(request)
            case "load":
                return self._load(request)
            case "time" | "idle" if self._library is not None:
                is_idle = request["cmd"] == "idle"
                return {"ns": self._library.launches(request, idle=is_idle)}
        raise ValueError(f"cannot serve {request['cmd']!r} now")

    def _check(self, request: dict[str, Any]) -> dict[str, object]:
        inputs, expected = self._store.load(request["kind"], request["seed"])
        output = self._store.output(Path(request["output"]))
        shift = (request.get("down", 0), request.get("right", 0))
        result = cases.compare(
            self._store.operator, self._store.shape, inputs, expected, output, shift=shift
        )
        return result.as_answer()

    def _load(self, request: dict[str, Any]) -> dict[str, object]:
        inputs, expected = self._store.load(request["kind"], request["seed"])
        self._library = Library(self._store, inputs, self._evict, self._now)
        self._library.prepare((0, 0), cold=False)
        self._library.call()
        result = cases.compare(
            self._store.operator, self._store.shape, inputs, expected, self._library.out
        )
        if not result.passed:
            raise ValueError(f"the library's own result is wrong: {result.detail}")
        return {}


def _evictor(library: str) -> Callable[[Float32], None]:
    """Eviction by the harness's own code, from a shared object."""
    function = ctypes.CDLL(library).croq_evict
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    function.restype = None

    def evict(array: Float32) -> None:
        function(array.ctypes.data, array.nbytes)

    return evict


def _no_eviction(_array: Float32) -> None:
    """For a judge that only compares."""


def main() -> int:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(prog="judge_cpu")
    parser.add_argument("operator")
    parser.add_argument("shape")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cold", default="", help="shared object with croq_evict")
    parser.add_argument("--cpus", default="", help="CPUs to stay on, comma-separated")
    parser.add_argument("--threads", type=int, default=1, help="threads of the timed library")
    arguments = parser.parse_args()
    if arguments.cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in arguments.cpus.split(",")})
    evict = _evictor(arguments.cold) if arguments.cold else _no_eviction
    store = CaseStore(arguments.folder, arguments.operator, arguments.shape)
    judge = Judge(store, evict, arguments.threads)
    with os.fdopen(_ANSWERS, "w", encoding="utf-8") as answers:
        for line in sys.stdin:
            answers.write(json.dumps(judge.serve(json.loads(line)), allow_nan=False) + "\n")
            answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
