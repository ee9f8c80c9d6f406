"""What lies beside the rows: sources, timings, profiles, baselines, checkpoints."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

from croq_fsm.importing.rows import Row, iteration_of, number_of

_WELL_NAMED: Final = re.compile(r"^(iter\d{3,}|attempt[A-Z0-9]{4})_[a-z][a-z0-9_]{1,30}\.\w+$")
_RATE: Final = re.compile(r"^\s*TFLOPS:\s*([0-9.eE+-]+)", re.MULTILINE)
_PASSED: Final = ("Test Passed", "Verification passed", "VERIFY: PASS")
_FAILED: Final = ("VERIFY: FAIL", "assert", "CUDA error", "Assertion")
_DIFFERENT: Final = 0.005
_ELF: Final = b"\x7fELF"
_LARGEST: Final = 64 << 20
_TALL: Final = "Metric Name"
_FOREIGN: Final = ("distribution_elementwise", "RNG", "random", "cublas", "cutlass", "nvjet")
_CONTENDED: Final = 0.5


def text_of(path: Path) -> str:
    """Content of a file as text; "" for what is too large or cannot be read."""
    try:
        if path.is_symlink() or path.stat().st_size > _LARGEST:
            return ""
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def json_of(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None."""
    try:
        value = json.loads(text_of(path))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def sources(folder: Path) -> tuple[frozenset[int], Counter[str]]:
    """Iterations that have a source, and what is odd about the names."""
    odd: Counter[str] = Counter()
    numbers: set[int] = set()
    tags: dict[int, set[str]] = {}
    for path in sorted(folder.glob("*")) if folder.is_dir() else []:
        if path.is_dir() or path.is_symlink():
            odd["srcs-link-or-folder"] += 1
            continue
        number = iteration_of(path.stem)
        if number is not None:
            numbers.add(number)
            tags.setdefault(number, set()).add(path.stem)
        if not _WELL_NAMED.match(path.name):
            odd["srcs-badly-named"] += 1
        if _is_binary(path):
            odd["srcs-binary"] += 1
    odd["srcs-number-with-several-tags"] += sum(len(names) > 1 for names in tags.values())
    return frozenset(numbers), +odd


def timings(folder: Path, rows: list[Row]) -> Counter[str]:
    """What the timing files say of verification, and whether the rows agree with them."""
    found: Counter[str] = Counter()
    stored = {r.iteration: r.tflops for r in rows if r.origin == "tsv"}
    for path in sorted(folder.glob("timing_*.txt")) if folder.is_dir() else []:
        text = text_of(path)
        found[f"timing-{_verified(text)}"] += 1
        rates = _RATE.findall(text)
        rate = number_of(rates[-1]) if rates else None
        if rate is None:
            found["timing-without-rate"] += 1
            continue
        said = stored.get(iteration_of(path.stem.removeprefix("timing_")))
        if said and abs(said - rate) > _DIFFERENT * max(said, rate):
            found["timing-unlike-row"] += 1
    return found


def profiles(folder: Path) -> Counter[str]:
    """Forms of the profiler's tables, and whose kernel they show."""
    found: Counter[str] = Counter()
    for path in sorted(folder.glob("ncu_*.csv")) if folder.is_dir() else []:
        text = text_of(path)
        head = text[:4000]
        if not text.strip():
            found["ncu-empty"] += 1
        elif "==PROF==" in head:
            found["ncu-polluted"] += 1
        elif _TALL in head:
            found["ncu-tall"] += 1
        else:
            found["ncu-wide"] += 1
        found["ncu-foreign-kernel"] += any(word in text for word in _FOREIGN)
        found["ncu-badly-named"] += "_round" not in path.stem
    return +found


def baseline(path: Path, shape_key: str, rows: list[Row]) -> Counter[str]:
    """Whether the reference was measured, and for this shape."""
    found: Counter[str] = Counter()
    if not path.exists():
        found["baseline-missing"] += 1
        return found
    value = json_of(path)
    if value is None or "tflops" not in value:
        found["baseline-other-schema"] += 1
        return found
    found["baseline-not-measured"] += value.get("status") != "ok"
    found["baseline-of-another-key"] += value.get("shape_key", shape_key) != shape_key
    rate = number_of(value["tflops"])
    said = next((r.tflops for r in rows if r.iteration == 0 and r.tflops), None)
    if rate and said and abs(rate - said) > _DIFFERENT * max(rate, said):
        found["baseline-unlike-row"] += 1
    return +found


def checkpoint(path: Path, shape_key: str, rows: list[Row]) -> Counter[str]:
    """Plans that were never stored, and of other shapes."""
    found: Counter[str] = Counter()
    value = json_of(path)
    if value is None:
        found["checkpoint-unreadable"] += path.exists()
        return +found
    last = max((r.iteration for r in rows if r.iteration is not None), default=0)
    planned = iteration_of(str(value.get("iter", "")))
    if value.get("status") == "PLANNED":
        found["checkpoint-never-verified"] += 1
        found["checkpoint-stale"] += planned is not None and planned < last
    found["checkpoint-of-another-key"] += value.get("shape_key", shape_key) != shape_key
    found["checkpoint-drifted"] += bool(value.get("drift_score"))
    return +found


def task_config(path: Path, rows: list[Row], folder: Path) -> Counter[str]:
    """Claims of the task's file against the rows, and states that nobody ended."""
    found: Counter[str] = Counter()
    value = json_of(path)
    if value is None:
        return found
    best = max((r.tflops for r in rows if r.decision == "KEEP" and r.tflops), default=None)
    said = number_of(str(value.get("best_tflops", "")))
    if said and best and abs(said - best) > _DIFFERENT * max(said, best):
        found["task-best-unlike-rows"] += 1
    found["task-still-running"] += value.get("status") in ("running", "waiting")
    limit = value.get("max_iterations")
    found["task-beyond-limit"] += isinstance(limit, int) and 0 < limit < len(rows)
    kernel = value.get("best_kernel")
    if isinstance(kernel, str) and kernel and not list(folder.glob(f"{Path(kernel).stem}*")):
        found["task-dead-reference"] += 1
    return +found


def _verified(text: str) -> str:
    if not text.strip():
        return "empty"
    if any(word in text for word in _FAILED):
        return "failed"
    if "verify skipped" in text:
        return "unverified"
    if "sampled" in text:
        return "sampled"
    return "passed" if any(word in text for word in _PASSED) else "unverified"


def _is_binary(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(4) == _ELF
    except OSError:
        return False
