"""The judge child: cases on disk, comparison of files, and the library reference."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from croq_fsm.measure import cases, judge_cpu
from croq_fsm.measure.fresh import Helper
from croq_fsm.measure.judge_cpu import CaseStore, Judge


@pytest.fixture
def store(tmp_path: Path) -> CaseStore:
    """Cases of a small product."""
    return CaseStore(tmp_path / "cases", "matmul", "16x24x32")


@pytest.fixture
def judge(store: CaseStore, helper: Helper) -> Judge:
    """A judge in this process."""
    return Judge(store, helper)


def test_made_inputs_are_the_operands_in_order(store: CaseStore) -> None:
    """The file holds a, then b, as the harness maps them."""
    path = store.inputs_path("normal", 1)
    a, b = cases.make_inputs(store.operator, store.shape, "normal", 1)
    assert path.read_bytes() == a.tobytes() + b.tobytes()
    inputs, expected = store.load("normal", 1)
    assert np.array_equal(inputs[1], b)
    assert np.allclose(expected, a.astype(float) @ b.astype(float))


@pytest.mark.parametrize("suffix", [".in", ".npy", ".json"])
@pytest.mark.parametrize("damage", [b"", b"damage"])
def test_damaged_case_is_made_again(store: CaseStore, suffix: str, damage: bytes) -> None:
    """A file that is not what was written cannot make a candidate wrong or right."""
    path = store.inputs_path("normal", 1)
    before = path.read_bytes()
    path.with_suffix(suffix).write_bytes(damage)
    assert store.inputs_path("normal", 1).read_bytes() == before
    store.load("normal", 1)


def test_old_cases_make_room(store: CaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder stays bounded; what is asked for is there."""
    first = store.inputs_path("normal", 1)
    os.utime(first, (1, 1))
    monkeypatch.setattr(judge_cpu, "_DISK_CAP", 2 * first.stat().st_size)
    for seed in range(2, 6):
        store.load("normal", seed)
    assert not first.exists()
    assert len(list(first.parent.glob("*.in"))) <= 3


def test_output_is_judged(judge: Judge, store: CaseStore, tmp_path: Path) -> None:
    """A right file passes, a wrong, short or missing one is told."""
    _, expected = store.load("integers", 3)
    path = tmp_path / "out"
    request = {"cmd": "check", "kind": "integers", "seed": 3, "output": str(path)}
    np.roll(expected, (2, 3), axis=(0, 1)).astype(np.float32).tofile(path)
    assert judge.serve(request | {"down": 2, "right": 3})["passed"] is True
    assert judge.serve(request)["passed"] is False
    path.write_bytes(b"1234")
    assert judge.serve(request)["ok"] is False
    path.unlink()
    assert "No such file" in str(judge.serve(request)["error"])


def test_library_is_timed_on_fresh_contents(judge: Judge) -> None:
    """Each launch has a time and inputs of its own, and an idle request launches nothing."""
    assert judge.serve({"cmd": "load", "content": 1}) == {"ok": True}
    request: dict[str, Any] = {"cmd": "time", "launches": 5, "seed": 9, "l2": "cold"}
    times = judge.serve(request)["ns"]
    assert isinstance(times, list)
    assert len(times) == 5
    assert all(time > 0 for time in times)
    library = judge._library
    assert library is not None
    assert not np.any(library.out.view(np.uint32) == cases.POISON)
    before = library.inputs[0].copy()
    judge.serve(request | {"cmd": "idle", "seed": 10})
    assert not np.any(library.inputs[0] == before[0, 0])
    assert np.all(library.out.view(np.uint32) == cases.POISON)


def test_wrong_library_is_not_timed(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that computes something else is no reference."""
    monkeypatch.setattr(cases, "library", lambda _operator, _inputs, out: out.fill(0))
    answer = judge.serve({"cmd": "load", "content": 1})
    assert "library's own result is wrong" in str(answer["error"])


@pytest.mark.parametrize(
    "request_", [{"cmd": "time", "launches": 1, "seed": 1}, {"cmd": "x"}, {"cmd": "make"}, {}]
)
def test_bad_requests_are_answered(judge: Judge, request_: dict[str, Any]) -> None:
    """What cannot be served is refused in words; the judge lives on."""
    assert judge.serve(request_)["ok"] is False


def test_task_that_proves_nothing_is_refused(tmp_path: Path) -> None:
    """Where a constant would pass, no candidate can be verified."""
    store = CaseStore(tmp_path, "softmax", "8x1")
    answer = Judge(store).serve({"cmd": "make", "kind": "normal", "seed": 1})
    assert "a constant output would pass" in str(answer["error"])


def test_judge_as_a_process(tmp_path: Path) -> None:
    """One JSON line for each request, on descriptor 3, until stdin ends."""
    ours, theirs = os.pipe()
    code = f"import os; os.dup2({theirs}, 3); from croq_fsm.measure.judge_cpu import main; main()"
    argv = [sys.executable, "-c", code, "softmax", "8x16", str(tmp_path)]
    lines = [{"cmd": "make", "kind": "large", "seed": 1}, {"cmd": "nonsense"}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    subprocess.run(argv, input=text, text=True, pass_fds=[theirs], check=True)
    os.close(theirs)
    with os.fdopen(ours) as answers:
        first, second = (json.loads(line) for line in answers)
    assert Path(first["inputs"]).stat().st_size == 8 * 16 * 4
    assert second["ok"] is False
