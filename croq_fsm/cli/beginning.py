"""Sessions for what ``start`` was asked: a new one, or one that was driven by hand so far."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from croq_fsm import discovery, sessions

if TYPE_CHECKING:
    from croq_fsm.cli.requests import Planned
    from croq_fsm.daemon import Daemon
    from croq_fsm.domain.build import Candidate
    from croq_fsm.domain.session import Session
    from croq_fsm.domain.work import Start


@dataclass(frozen=True)
class Prepared:
    """A task whose start kernels were read, or whose session is there.

    Attributes:
        item: The task.
        candidate: The kernel to begin with, unless another one turns out to be faster.
        starts: Kernels that BASELINE measures against each other.
        session: A session driven by hand that goes on.
    """

    item: Planned
    candidate: Candidate | None = None
    starts: tuple[Start, ...] = ()
    session: Session | None = None


def prepared(daemon: Daemon, item: Planned) -> Prepared:
    """Read what the task begins with; nothing is stored yet.

    Raises:
        UsageError: The kernel is missing, unreadable or of another DSL.
    """
    driven = _driven_by_hand(daemon, item)
    if driven is not None:
        return Prepared(item, session=driven)
    request, task = item.request, item.task
    workbench = daemon.workbench(task.dsl, item.config)
    folder = request.kernel if request.kernel and request.kernel.is_dir() else None
    if (request.kernel is not None and folder is None) or task.simulated:
        return Prepared(item, sessions.start_candidate(request, task, workbench))
    workbench.supports(task)
    found = _starts(daemon, item, folder)
    if not found:
        return Prepared(item, workbench.start_kernel(task))
    return Prepared(item, found[0].candidate, found)


def begin(daemon: Daemon, ready: Prepared) -> str:
    """The row of the session; its name."""
    task = ready.item.task
    if ready.session is not None:
        rounds = None if task.rounds is None else ready.session.round + task.rounds
        limits = {
            "ideator": task.model,
            "rounds": rounds,
            "deadline": task.deadline,
            "hours": task.hours,
            "gpu_seconds": task.gpu_seconds,
            "tokens": task.tokens,
        }
        revised = ready.session.task.model_copy(update=limits)
        now = int(daemon.clock.now() * 1e6)
        return daemon.repository.revise(ready.session, revised, None, now).id
    if ready.candidate is None:
        raise LookupError("a task without a kernel was prepared")
    return sessions.create(
        daemon.repository, task, ready.candidate, ready.item.config, ready.starts
    ).id


def _starts(daemon: Daemon, item: Planned, folder: Path | None) -> tuple[Start, ...]:
    with daemon.repository.read() as reader:
        found = discovery.starts(reader, item.task, folder)
    return tuple(one.start for one in found)


def _driven_by_hand(daemon: Daemon, item: Planned) -> Session | None:
    """The newest unfinished session of this very shape that tools made, when no kernel is named."""
    from croq_fsm.tools.plans import HAND

    if item.request.kernel is not None:
        return None
    with daemon.repository.read() as reader:
        for session in reader.sessions():
            same = (session.task.dsl, session.task.shape_key, session.task.simulated) == (
                item.task.dsl,
                item.task.shape_key,
                item.task.simulated,
            )
            if same and not session.state.is_final and reader.last_message(session.id, HAND):
                return session
    return None
