"""The judge of CPU kernels, a trusted child: ``python -m croq_fsm.measure.judge_cpu …``.

It makes inputs and references, compares outputs, and times the library reference, so that the
daemon never holds a large array and a candidate's process never holds an answer.

Requests (``{"ok": false, "error"}`` when something is wrong):

``{"cmd": "make", "kind", "seed"}`` → ``{"ok", "inputs": path}``
    Makes a case, or finds it on the disk.
``{"cmd": "check", "kind", "seed", "down", "right", "output": path}`` → a ``Comparison``
    Compares an output file of the harness.
``{"cmd": "check", "content", "output": path}`` → a ``Comparison``
    The same for the output of a timed launch.
``{"cmd": "prove", "contents": […], "vectors": […], "proofs": path}`` → ``{"ok", "problem"}``
    Looks at the proofs of the launches of a block; the first problem, or "".
``{"cmd": "load", "content"}`` → ``{"ok"}``
    Gets ready to time the library, and checks that the library itself is right.
``{"cmd": "time" | "idle", "launches", "seed", "l2"}`` → ``{"ok", "ns": […]}``
    As the harness does it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from croq_fsm.domain.operators import operator
from croq_fsm.domain.shapes import parse_shape
from croq_fsm.domain.source import sha256
from croq_fsm.measure import cases, fresh
from croq_fsm.measure.cases import Float32, Float64
from croq_fsm.measure.fresh import Helper

_ANSWERS: Final = 3
_DISK_CAP: Final = 4 << 30
_MANIFEST: Final = ".json"
#: Output elements of a block that are computed again where there is no cheaper way.
_AGAIN_MOST: Final = 1 << 24


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
        helper: The harness's own code.
        now: Clock, nanoseconds; the harness explains why a single thread has its own.
    """

    def __init__(
        self,
        store: CaseStore,
        helper: Helper,
        now: Callable[[], int],
    ) -> None:
        self._now = now
        self._store = store
        self._helper = helper
        self.inputs = fresh.blank_inputs(store.operator, store.shape)
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
        cases.library(self._store.operator, self.inputs, self.out)

    def prepare(self, content: int, *, cold: bool) -> None:
        """Fresh inputs and a poisoned output."""
        self._helper.fill(self.inputs, content)
        self.out.view(np.uint32).fill(cases.POISON)
        for array in (*self.inputs, self.out) if cold else ():
            self._helper.evict(array)

    def _launch(self, seed: int, number: int, *, cold: bool, idle: bool) -> int:
        self.prepare(fresh.content(seed, number, 0), cold=cold)
        began = self._now()
        if not idle:
            self.call()
        return self._now() - began


class Judge:
    """Serves requests.

    Args:
        store: Cases.
        helper: The harness's own code; None for a judge that only knows the store's cases.
        threads: Threads of the library when it is timed.
    """

    def __init__(self, store: CaseStore, helper: Helper | None = None, threads: int = 1) -> None:
        self._store = store
        self._found = helper
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
            case "check" if "content" in request:
                return self._check_fresh(request)
            case "check":
                return self._check(request)
            case "prove":
                return {"problem": self._problem(request)}
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

    @property
    def _helper(self) -> Helper:
        if self._found is None:
            raise ValueError("started without the harness's own code")
        return self._found

    def _check_fresh(self, request: dict[str, Any]) -> dict[str, object]:
        output = self._store.output(Path(request["output"]))
        return self._compare_fresh(request["content"], output).as_answer()

    def _compare_fresh(self, content: int, output: Float32) -> cases.Comparison:
        operator, shape = self._store.operator, self._store.shape
        inputs = fresh.blank_inputs(operator, shape)
        self._helper.fill(inputs, content)
        expected = cases.reference(operator, inputs)
        return cases.compare(operator, shape, inputs, expected, output)

    def _problem(self, request: dict[str, Any]) -> str:
        """The first launch of a block whose proof is wrong."""
        contents, vectors = request["contents"], request["vectors"]
        operator, shape = self._store.operator, self._store.shape
        rows, cols = operator.precision("f32").output.shape(operator.sizes(shape))
        proofs = np.fromfile(request["proofs"]).reshape(-1, fresh.proof_length(rows))
        inputs = fresh.blank_inputs(operator, shape)
        chosen = self._chosen(len(contents), rows * cols)
        for number, (content, vector) in enumerate(zip(contents, vectors, strict=True)):
            if number not in chosen and np.isfinite(proofs[number]).all():
                continue
            self._helper.fill(inputs, content)
            right = fresh.expected(self._helper, operator, shape, inputs, vector)
            if problem := right.problem(proofs[number]):
                return f"launch {number + 1} of {len(contents)}: {problem}"
        return ""

    def _chosen(self, launches: int, elements: int) -> set[int]:
        """All launches of a product; as many others, at random, as there is time for."""
        if self._store.operator.name == "matmul":
            return set(range(launches))
        count = max(1, min(launches, _AGAIN_MOST // elements))
        return set(random.SystemRandom().sample(range(launches), count))

    def _load(self, request: dict[str, Any]) -> dict[str, object]:
        content = request["content"]
        self._library = Library(self._store, self._helper, self._now)
        self._library.prepare(content, cold=False)
        self._library.call()
        result = self._compare_fresh(content, self._library.out)
        if not result.passed:
            raise ValueError(f"the library's own result is wrong: {result.detail}")
        return {}


def main() -> int:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(prog="judge_cpu")
    parser.add_argument("operator")
    parser.add_argument("shape")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--helper", type=Path, help="shared object made from helper.c")
    parser.add_argument("--cpus", default="", help="CPUs to stay on, comma-separated")
    parser.add_argument("--threads", type=int, default=1, help="threads of the timed library")
    arguments = parser.parse_args()
    if arguments.cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in arguments.cpus.split(",")})
    helper = Helper(arguments.helper) if arguments.helper else None
    store = CaseStore(arguments.folder, arguments.operator, arguments.shape)
    judge = Judge(store, helper, arguments.threads)
    with os.fdopen(_ANSWERS, "w", encoding="utf-8") as answers:
        for line in sys.stdin:
            answers.write(json.dumps(judge.serve(json.loads(line)), allow_nan=False) + "\n")
            answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
