"""Start kernels: those of a folder, and the best of earlier sessions that are near.

Nothing is believed of either. The first three are built, verified and measured by BASELINE, and
the fastest right one becomes iter001.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.ideas import check_source
from croq_fsm.domain.session import Session
from croq_fsm.domain.task import SUFFIXES, Task
from croq_fsm.domain.work import Start
from croq_fsm.errors import EditError
from croq_fsm.storage.reading import Reader

#: How many are measured.
TOP: Final = 3
#: Names of former tuning outputs.
_OUTPUT: Final = "_aitune_"
_TAGS: Final = (
    "warpspec", "prepack", "swizzle", "persis", "dyn", "sm80", "sm86", "sm90",
    "1p1c", "1p2c", "1p3c", "stmatrix", "regctrl", "blockscale",
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """A kernel that a session could begin with.

    Attributes:
        name: Path or iteration, for people.
        source: ``folder`` or ``session``.
        candidate: Its text, flags and patches.
        tags: What its name promises.
        distance: Of its session's shape, in doublings; 0 for files.
    """

    name: str
    source: str
    candidate: Candidate
    tags: tuple[str, ...] = ()
    distance: float = 0.0

    @property
    def start(self) -> Start:
        """As BASELINE takes it."""
        return Start(name=self.name, candidate=self.candidate)

    def told(self) -> dict[str, Any]:
        """As a tool prints it."""
        return {
            "path": self.name,
            "source": self.source,
            "tags": list(self.tags),
            "distance": self.distance,
        }


def in_folder(folder: Path, dsl: str, dtype: str | None = None) -> list[Found]:
    """Kernels of a folder in the order of their names; a name with another dtype comes last.

    What cannot be read, or hides something, is left out.
    """
    found = []
    for path in sorted(folder.glob(f"*{SUFFIXES[dsl]}")):
        if _OUTPUT in path.name or not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
            check_source(text)
        except (OSError, UnicodeDecodeError, EditError):
            continue
        tags = tuple(tag for tag in _TAGS if tag in path.stem.lower())
        found.append(Found(str(path), "folder", Candidate(source=text), tags))
    return sorted(found, key=lambda f: dtype is not None and dtype not in Path(f.name).stem)


def of_sessions(reader: Reader, task: Task) -> list[Found]:
    """Best kernels of earlier sessions with the same operator and types, the nearest first."""
    near = sorted(
        ((distance(s.task.shape, task.shape), s) for s in reader.sessions() if _fits(s, task)),
        key=lambda pair: (pair[0], pair[1].id),
    )
    found, seen = [], set()
    for far, session in near:
        best = reader.iteration(session.id, session.best_iteration or 1)
        if best.candidate is None or best.self_reported or best.candidate.source in seen:
            continue
        seen.add(best.candidate.source)
        name = f"{session.id}/{best.name}"
        found.append(Found(name, "session", best.candidate, (), far))
    return found


def distance(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """Doublings between two shapes, summed over their sizes."""
    if len(one) != len(other):
        return math.inf
    return sum(abs(math.log2(a / b)) for a, b in zip(one, other, strict=True))


def starts(reader: Reader, task: Task, folder: Path | None) -> list[Found]:
    """What BASELINE shall try, at most three; files go before sessions of other shapes."""
    files = in_folder(folder, task.dsl, task.dtype) if folder else []
    sessions = of_sessions(reader, task)
    same = [f for f in sessions if f.distance == 0]
    other = [f for f in sessions if f.distance > 0]
    ranked = [*same[:1], *files, *other]
    return ranked[:TOP]


def _fits(session: Session, task: Task) -> bool:
    """Verified here, and in the same language for the same computation."""
    known = session.task
    same = (known.dsl, known.operator, known.dtype) == (task.dsl, task.operator, task.dtype)
    return same and known.simulated == task.simulated and session.best_iteration is not None
