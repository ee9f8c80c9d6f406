"""How a session stands: the facts that ``status`` shows, gathered in one look."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from croq_fsm.domain import escalation
from croq_fsm.domain.records import Iteration
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Decision, Status
from croq_fsm.report import finals
from croq_fsm.report.finals import NOTHING, Finals
from croq_fsm.root import Root, is_locked, read_holder
from croq_fsm.storage.inspection import Inspector, RunningChild


@dataclass(frozen=True)
class DaemonView:
    """The daemon of a root, living or last.

    Attributes:
        pid: Its process; None when there never was one.
        run_id: Identity of its start.
        alive: Whether it holds the root's lock now.
    """

    pid: int | None
    run_id: str | None
    alive: bool


@dataclass(frozen=True)
class Standing:
    """A session and what belongs to it at one moment.

    Attributes:
        session: The session.
        best: Its best kernel, once there is one.
        library: iter000, once it is measured.
        since: UTC microseconds of the latest transition, or of its creation.
        daemon: The daemon of the root.
        is_worked_on: Whether that daemon works on this very session.
        children: Running children of the daemon, when it works on this session.
        database: Path of the database.
        now: UTC seconds at which this was gathered.
        finals: The figures of record, when the session came to an end with this best kernel.
    """

    session: Session
    best: Iteration | None
    library: Iteration | None
    since: int
    daemon: DaemonView
    is_worked_on: bool
    children: tuple[RunningChild, ...]
    database: Path
    now: float
    finals: Finals = NOTHING

    @property
    def ratio(self) -> float | None:
        """Library time over best time; above 1 means faster than the library."""
        return None if self.best is None else library_ratio(self.best, self.session)

    @property
    def best_tflops(self) -> float | None:
        """Rate of the best kernel."""
        return None if self.best is None else self.session.task.tflops(self.best.seconds)

    @property
    def library_tflops(self) -> float | None:
        """Rate of the library in BASELINE."""
        return None if self.library is None else self.session.task.tflops(self.library.seconds)


def library_ratio(iteration: Iteration, session: Session) -> float | None:
    """Library time over the kernel's time.

    From the same measurement where the library took part in it, else with BASELINE's.
    """
    library_s = iteration.library_seconds or session.library_seconds
    return None if library_s is None else library_s / iteration.seconds


def same_window(iteration: Iteration) -> bool:
    """Whether the library was timed together with this kernel."""
    return iteration.library_seconds is not None


def daemon_view(root: Root, inspector: Inspector) -> DaemonView:
    """The daemon that holds the lock, else the last one that the database knows."""
    alive = is_locked(root)
    last = read_holder(root) if alive else {}
    if "run_id" not in last:
        last = inspector.last_run() or {}
    return DaemonView(last.get("pid"), last.get("run_id"), alive)


def gather(inspector: Inspector, session: Session, root: Root, now: float) -> Standing:
    """All facts of a session's standing, from one transaction."""
    daemon = daemon_view(root, inspector)
    worked_on = daemon.alive and session.status is Status.ACTIVE and _is_latest(inspector, session)
    children = (
        tuple(inspector.running_children(daemon.run_id)) if worked_on and daemon.run_id else ()
    )
    number, library = session.best_iteration, session.library_seconds
    best = None if number is None else inspector.iteration(session.id, number)
    latest = inspector.transitions(session.id, limit=1)
    return Standing(
        session=session,
        best=best,
        library=None if library is None else inspector.iteration(session.id, 0),
        since=latest[0]["at"] if latest else session.created_at,
        daemon=daemon,
        is_worked_on=worked_on,
        children=children,
        database=root.database,
        now=now,
        finals=finals.read(inspector, session, best),
    )


def current(sessions: list[Session], *, alive: bool) -> Session | None:
    """The session that a command without a name means: the one last worked on.

    While a daemon lives it can only be an active one. A session that was made after the last
    transition of all others, and has not begun, comes first.

    Args:
        sessions: All sessions.
        alive: Whether a daemon holds the lock.
    """
    active = [s for s in sessions if s.status is Status.ACTIVE]
    pool = active if alive and active else sessions
    begun = [s for s in pool if s.seq > 0]
    waiting = [s for s in pool if s.seq == 0]
    last = max(begun, key=lambda s: (s.updated_at, s.id), default=None)
    fresh = [s for s in waiting if last is None or s.created_at > last.updated_at]
    return min(fresh, key=lambda s: (s.created_at, s.id), default=last)


def _is_latest(inspector: Inspector, session: Session) -> bool:
    latest = current(inspector.sessions(), alive=True)
    return latest is not None and latest.id == session.id


def as_json(standing: Standing) -> dict[str, Any]:
    """The standing as ``status --json`` prints it; a fixed contract, fields are only added."""
    session, task = standing.session, standing.session.task
    daemon = standing.daemon
    return {
        "session": session.id,
        "state": session.state.name,
        "status": str(session.status),
        "state_since": _iso(standing.since / 1e6),
        "reason": session.reason,
        "round": session.round,
        "dsl": task.dsl,
        "operator": task.operator,
        "dtype": task.dtype,
        "shape_key": task.shape_key,
        "model": task.model,
        "gpu": session.device.key or None,
        "simulated": task.simulated,
        "self_reported": task.own_host,
        "work": {"flops": task.work, "from": task.work_from} if task.own_host else None,
        "best": _iteration(standing.best, standing.best_tflops),
        "baseline": _iteration(standing.library, standing.library_tflops),
        "ratio": standing.ratio,
        "final": finals.as_json(standing.finals, task),
        "noise": session.noise,
        "counts": {d.name: session.counts.get(d, 0) for d in Decision},
        "streak": session.streak,
        "escalation": {
            "level": escalation.level(session.streak),
            "advice": escalation.advice(session.streak),
        },
        "in_hand": _in_hand(session),
        "limits": {
            "rounds": task.rounds,
            "deadline": None if task.deadline is None else _iso(task.deadline),
        },
        "db": str(standing.database),
        "daemon": {
            "pid": daemon.pid,
            "run_id": daemon.run_id,
            "alive": daemon.alive,
            "works_on_this": standing.is_worked_on,
        },
        "children": [
            {
                "label": child.label,
                "pid": child.pid,
                "seconds": max(0.0, standing.now - child.started_at / 1e6),
                "deadline_s": child.deadline_s,
            }
            for child in standing.children
        ],
    }


def _iteration(iteration: Iteration | None, tflops: float | None) -> dict[str, Any]:
    """A measured kernel; the keys are there before the values are."""
    return {
        "iter": iteration.number if iteration else None,
        "kernel": iteration.name if iteration else None,
        "tflops": tflops,
        "seconds": iteration.seconds if iteration else None,
        "self_reported": iteration.self_reported if iteration else False,
    }


def _in_hand(session: Session) -> dict[str, Any] | None:
    """The round in hand; None between rounds and after the end."""
    work = session.work
    if session.state.is_final or not work.round:
        return None
    return {
        "round": work.round,
        "base": work.base,
        "kernel": work.idea.name if work.idea else None,
        "idea": work.idea.proposal.summary if work.idea else None,
        "failed_attempts": work.attempt,
        "phase": work.phase,
        "pairs": work.pairs,
        "waits": work.waits,
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
