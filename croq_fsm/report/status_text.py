"""``status`` as text: one block for a session, a table when there are several."""

from __future__ import annotations

from croq_fsm.domain import escalation
from croq_fsm.domain.records import Iteration
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Status
from croq_fsm.report import finals, lines, summary, words
from croq_fsm.report.standing import Standing

_LABEL_WIDTH = 11
_LONGEST_IDEA = 60


def block(standing: Standing) -> str:
    """How one session stands, a fact a line."""
    session = standing.session
    rows = [
        ("session", f"{session.id}  {session.task.dsl} {session.task.shape_key}"),
        ("ideas", f"by {session.task.model}"),
        ("device", _device(session)),
        ("state", _state(standing)),
        ("best", _best(standing)),
        ("library", _library(standing)),
        ("at the end", finals.short(standing.finals)),
        ("rounds", summary.counts(session)),
        ("stall", _stall(session)),
        ("limits", _limits(standing)),
        ("daemon", _daemon(standing)),
        ("database", str(standing.database)),
    ]
    if session.task.own_host:
        rows.insert(1, ("", "SELF-REPORTED: these numbers are the program's own"))
    if session.task.simulated:
        rows.insert(1, ("", "SIMULATED: these numbers are no measurements"))
    shown = [f"{label:<{_LABEL_WIDTH}}{text}" for label, text in rows if text]
    return "\n".join([*shown, *_children(standing)])


def table(sessions: list[Session], bests: dict[str, Iteration], shown: str) -> str:
    """All sessions, newest first; ``shown`` is marked."""
    rows = [_row(session, bests.get(session.id), mark=session.id == shown) for session in sessions]
    head = f"  {'session':<22}  {'state':<10}  {'status':<7}  {'rounds':>6}  {'ratio':>7}  task"
    return "\n".join([head, *rows])


def _row(session: Session, best: Iteration | None, *, mark: bool) -> str:
    library_s = session.library_seconds
    ratio = library_s / best.seconds if best is not None and library_s is not None else None
    if best is not None and best.library_seconds is not None:
        ratio = best.library_seconds / best.seconds
    return (
        f"{'>' if mark else ' '} {session.id:<22}  {session.state.name:<10}  "
        f"{session.status!s:<7}  {session.round:>6}  {words.times(ratio):>7}  "
        f"{session.task.dsl} {session.task.shape_key} by {session.task.model}"
        f"{' SIMULATED' if session.task.simulated else ''}"
        f"{' [self-reported]' if session.task.own_host else ''}"
    )


def _device(session: Session) -> str:
    if not session.device.key:
        return "not known before INIT has ended"
    return f"{session.device.name} ({session.device.key})"


def _state(standing: Standing) -> str:
    session = standing.session
    if session.state.is_final:
        return f"{session.state.name}: {words.one_line(session.reason)}"
    since = words.duration(standing.now - standing.since / 1e6)
    text = f"{session.state.name} for {since}" if standing.is_worked_on else session.state.name
    if session.status is Status.PAUSED:
        text += ", paused"
    idea = session.work.idea
    if idea is None:
        return text
    what = words.cut(words.one_line(idea.proposal.summary), _LONGEST_IDEA)
    failed = f", {words.count(session.work.attempt, 'failed attempt')}"
    return f"{text}; round {session.work.round}: {what}{failed if session.work.attempt else ''}"


def _best(standing: Standing) -> str:
    best = standing.best
    if best is None:
        return "nothing measured yet"
    marks = " [self-reported]" if best.self_reported else ""
    return (
        f"{best.name}  {_rate(standing, standing.best_tflops)} TFLOPS, "
        f"{words.call_time(best.seconds)} a call, {words.times(standing.ratio)} library{marks}"
    )


def _library(standing: Standing) -> str:
    library = standing.library
    if library is None:
        return ""
    return (
        f"{library.name}  {_rate(standing, standing.library_tflops)} TFLOPS, "
        f"{words.call_time(library.seconds)} a call"
    )


def _rate(standing: Standing, tflops: float | None) -> str:
    return words.rate(tflops, words.decimals(standing.library_tflops))


def _stall(session: Session) -> str:
    if session.state.is_final or not session.streak:
        return ""
    return (
        f"{words.count(session.streak, 'round')} since the last KEEP, level "
        f"{escalation.level(session.streak)}: {escalation.advice(session.streak)}"
    )


def _limits(standing: Standing) -> str:
    session = standing.session
    if session.state.is_final:
        return ""
    left = lines.remaining(session, standing.now)
    return f"ends {lines.limits(session)}{f' ({left})' if left else ''}"


def _daemon(standing: Standing) -> str:
    daemon = standing.daemon
    if daemon.alive:
        what = "works on it" if standing.is_worked_on else "does not work on this session"
        return f"pid {daemon.pid}, {what}"
    if standing.session.state.is_final:
        return "none"
    return "none; 'croq-fsm resume' goes on"


def _children(standing: Standing) -> list[str]:
    return [
        f"{'child':<{_LABEL_WIDTH}}{child.label}, pid {child.pid}, for "
        f"{words.duration(standing.now - child.started_at / 1e6)} "
        f"of at most {words.duration(child.deadline_s)}"
        for child in standing.children
    ]
