"""Shapes that no ideator sees: what is right on one shape only is not right."""

from __future__ import annotations

from typing import Final

from croq_fsm.domain.source import sha256
from croq_fsm.domain.task import Task

#: Divisibility by powers of two up to this one is kept: a tile size may rely on it.
_LARGEST_STEP: Final = 256


def hidden_tasks(task: Task, seed: int, count: int) -> list[Task]:
    """The same task on other shapes, never larger than its own in any dimension.

    Each size keeps its divisibility by powers of two, up to 256 and to half of itself, so that a
    kernel made for aligned shapes is not refused for what nobody asked of it.
    """
    found: list[Task] = []
    multiples = task.precision.multiples
    steps = [multiples.get(name, 1) for name in task.op.dims]
    for turn in range(4 * count):
        shape = tuple(
            _smaller(size, f"hidden {task.shape_key} {seed} {turn} {axis}", steps[axis])
            for axis, size in enumerate(task.shape)
        )
        if shape != task.shape and all(shape != t.shape for t in found):
            found.append(task.model_copy(update={"shape": shape}))
        if len(found) == count:
            break
    return found


def _smaller(size: int, key: str, least: int) -> int:
    step = max(least, min(size & -size, _LARGEST_STEP, max(1, size // 2)))
    return step * (1 + int(sha256(key)[:12], 16) % (size // step))
