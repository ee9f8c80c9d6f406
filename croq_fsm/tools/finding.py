"""``discover-baseline``: start kernels, with what their names promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from croq_fsm import discovery
from croq_fsm.domain import operators
from croq_fsm.domain.task import SUFFIXES
from croq_fsm.errors import UsageError
from croq_fsm.storage.reading import Reader
from croq_fsm.tools.answers import Answer

#: Where kernels are looked for without a folder; the operator's name is part of the folder's.
_PLACES: Final = ("kernels", ".claude/skills/choreo-kernel-examples")


def discover(
    reader: Reader | None, root: Path, what: tuple[str, str, str | None], folder: Path | None,
    gpu: str | None,
) -> Answer:  # fmt: skip
    """Candidates of the first tier that has any: files, then sessions, then none.

    Raises:
        UsageError: Unknown DSL or operator.
    """
    dsl, operator, dtype = what
    if dsl not in SUFFIXES:
        raise UsageError(f"unknown DSL {dsl!r}; known: {', '.join(sorted(SUFFIXES))}")
    name = operators.operator(operator).name
    folders = [folder] if folder else _folders(root, name)
    files = [f for each in folders for f in discovery.in_folder(each, dsl, dtype)]
    sessions = _sessions(reader, dsl, name, dtype, gpu)
    tier = 1 if files else 2 if sessions else 3
    listed = [f.told() for f in files] or sessions
    values: dict[str, Any] = {
        "tier": tier,
        "candidates": listed,
        "recommendation": listed[0]["path"] if listed else "scratch",
        "total": len(listed),
    }
    if not listed:
        values["guidance"] = "store-baseline without a kernel begins with the one that ships"
    return Answer(values)


def _folders(root: Path, operator: str) -> list[Path]:
    return [
        path
        for place in _PLACES
        for path in sorted((root / place).glob(f"*{operator}*"))
        if path.is_dir()
    ]


def _sessions(
    reader: Reader | None, dsl: str, operator: str, dtype: str | None, gpu: str | None
) -> list[dict[str, Any]]:
    """The best kernel of each earlier session, not its last."""
    if reader is None:
        return []
    found = []
    for session in reader.sessions():
        task = session.task
        wanted = task.dsl == dsl and task.operator == operator and dtype in (None, task.dtype)
        if not wanted or session.best_iteration is None or gpu not in (None, session.device.key):
            continue
        best = reader.iteration(session.id, session.best_iteration)
        found.append({
            "path": f"{session.id}/{best.name}",
            "source": "session",
            "tags": [task.shape_key],
            "tflops": task.tflops(best.seconds),
        })  # fmt: skip
    return found
