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
    kernel made for aligned shapes is not refused for what nobody asked of it. A kernel in a host
    part of its own has none.
    """
    found: list[Task] = []
    if task.own_host:  # its size is written in a host part that no shape reaches
        return found
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


def small_task(task: Task, most: int) -> Task:
    """The same task on a shape whose sizes are about ``most``, with their divisibility.

    For tools that make a kernel a hundred times slower. A size that is no multiple of anything
    stays so: remainders are where faults are.
    """
    multiples = task.precision.multiples
    shape = []
    for name, size in zip(task.op.dims, task.shape, strict=True):
        step = max(multiples.get(name, 1), min(size & -size, _LARGEST_STEP, max(1, size // 2)))
        count = min(size // step, max(1, most // step))
        shape.append(step * (count - (step % 2 and count > 1 and count % 2 == 0)))
    return task.model_copy(update={"shape": tuple(shape)})


def _smaller(size: int, key: str, least: int) -> int:
    step = max(least, min(size & -size, _LARGEST_STEP, max(1, size // 2)))
    return step * (1 + int(sha256(key)[:12], 16) % (size // step))
