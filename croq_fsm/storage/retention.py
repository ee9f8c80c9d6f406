"""What may go when space is short: binaries and profiler reports, and never of a champion's line.

Sources, logs, numbers and samples always stay. What went is known from the rows and the session's
configuration alone, so that the audit does not miss it and ``rebuild`` does not bring it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from croq_fsm.config import Config
from croq_fsm.domain.records import Round
from croq_fsm.domain.session import Session
from croq_fsm.errors import UsageError
from croq_fsm.storage import files
from croq_fsm.storage.reading import Reader
from croq_fsm.toolchain.build_cache import BuildCache

_LARGE: Final = frozenset({"binary", "report"})


def lineage(best: int | None, rounds: Iterable[Round]) -> frozenset[int]:
    """Iterations of the best kernel and of all that it descends from, the start kernel included."""
    parents = {r.iteration: r.base for r in rounds if r.iteration is not None}
    line = {0, 1}
    here = best
    while here is not None and here not in line:
        line.add(here)
        here = parents.get(here)
    return frozenset(line)


def retired(
    artifacts: Iterable[dict[str, Any]],
    rounds: Sequence[Round],
    best: int | None,
    keep_rounds: int,
) -> frozenset[str]:
    """Paths that need not be there any more.

    Args:
        artifacts: Rows with ``path``, ``kind`` and ``round``, in the order of rounds.
        rounds: All rounds.
        best: Iteration number of the best kernel.
        keep_rounds: Rounds at the end that keep everything; 0 keeps all.
    """
    if not keep_rounds or not rounds:
        return frozenset()
    line = lineage(best, rounds)
    of_line = {r.round for r in rounds if r.iteration in line} | {0}
    oldest = rounds[-1].round - keep_rounds
    names = tuple(f"/ncu_{_number(n)}_" for n in line)
    # Of a kernel that stays, the newest report stays.
    newest = {
        next(name for name in names if name in a["path"]): a["path"]
        for a in artifacts
        if a["kind"] == "report" and any(name in a["path"] for name in names)
    }
    safe = set(newest.values())
    return frozenset(
        a["path"]
        for a in artifacts
        if a["kind"] in _LARGE
        and a["round"] <= oldest
        and a["round"] not in of_line
        and a["path"] not in safe
    )


def _number(iteration: int) -> str:
    return f"iter{iteration:03d}"


def of_session(reader: Reader, session: Session) -> frozenset[str]:
    """Paths of a session that need not be there any more."""
    config = Config.model_validate(reader.config(session.id))
    if not config.storage.keep_rounds:
        return frozenset()
    return retired(
        reader.artifacts(session.id),
        reader.rounds(session.id),
        session.best_iteration,
        config.storage.keep_rounds,
    )


def retire(root: Path, paths: Iterable[str]) -> list[str]:
    """Remove files below the root; returns those that were there."""
    gone = []
    for path in paths:
        try:
            target = files.inside(root, path)
            target.unlink()
        except (OSError, UsageError):
            continue
        gone.append(path)
    return gone


def trim_cache(folder: Path, reader: Reader, most_bytes: int) -> list[str]:
    """Remove the builds that were not used longest until the cache fits; returns their keys.

    The best kernel of each session, all that it descends from, and the work in hand stay.
    """
    cache = BuildCache(folder)
    if cache.nbytes() <= most_bytes:
        return []
    keep: set[str] = set()
    for session in reader.sessions():
        if session.work.build is not None:
            keep.add(session.work.build.key)
        line = lineage(session.best_iteration, reader.rounds(session.id))
        for it in reader.iterations(session.id):
            if it.number in line and it.build is not None:
                keep.add(it.build.key)
    return cache.trim(most_bytes, keep)
