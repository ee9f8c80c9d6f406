"""A session's end in a few lines, with the commands that come next."""

from __future__ import annotations

import shlex
from pathlib import Path

from croq_fsm.domain.records import Iteration
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Decision, State, Status
from croq_fsm.report import words
from croq_fsm.report.standing import library_ratio


def of(session: Session, start: Iteration | None, best: Iteration | None, root: Path) -> list[str]:
    """The lines.

    Args:
        session: As it is now.
        start: iter001, once it is measured.
        best: The best kernel, once there is one.
        root: Top folder of the repository.
    """
    lines = ["", f"session {session.id}: {_ending(session)}"]
    if start is not None and best is not None:
        lines += [f"  best    {_best(session, best)}", f"  start   {_start(session, start, best)}"]
        lines.append(f"  rounds  {counts(session)}")
    return [*lines, *(f"  next    {text}" for text in _next(session, root))]


def counts(session: Session) -> str:
    """``12: 3 KEEP, 8 DISCARD, 1 HANG``."""
    found = [f"{n} {d.name}" for d in Decision if (n := session.counts.get(d, 0))]
    return f"{session.round}: {', '.join(found)}" if found else str(session.round)


def _ending(session: Session) -> str:
    if session.state.is_final:
        return f"{session.state.name}, {words.one_line(session.reason)}"
    if session.status is Status.PAUSED:
        return f"paused in {session.state.name}"
    return f"interrupted in {session.state.name}; nothing is lost"


def _best(session: Session, best: Iteration) -> str:
    mark = " SIMULATED" if session.task.simulated else ""
    mark += " [self-reported]" if session.task.own_host else ""
    return (
        f"{best.name}: {_rate(session, best)} TFLOPS{mark} ({words.call_time(best.seconds)}), "
        f"{words.times(library_ratio(best, session))} library"
    )


def _start(session: Session, start: Iteration, best: Iteration) -> str:
    text = f"{start.name}: {_rate(session, start)} TFLOPS ({words.call_time(start.seconds)})"
    if best.number == start.number:
        return f"{text}; nothing faster was found"
    return f"{text}; it takes {words.times(start.seconds / best.seconds)} the time of the best"


def _rate(session: Session, iteration: Iteration) -> str:
    library_s = session.library_seconds
    places = words.decimals(session.task.tflops(library_s) if library_s else None)
    return words.rate(session.task.tflops(iteration.seconds), places)


def is_bad_start(session: Session) -> bool:
    """Whether the session failed by its start kernel, which no resume can change."""
    return session.state is State.FAILED and session.reason.startswith("the start kernel ")


def _next(session: Session, root: Path) -> list[str]:
    at = "" if root == Path.cwd() else f" --root {shlex.quote(str(root))}"
    report = f"croq-fsm report {session.id}{at}"
    if is_bad_start(session):
        return ["mend the kernel and start again; this session keeps the one that it was given"]
    if session.state is State.FAILED:
        return [f"croq-fsm doctor{at}", f"croq-fsm resume {session.id} --reopen{at}"]
    if session.state is State.DONE:
        return [report, f"croq-fsm resume {session.id} --reopen --rounds 10{at}"]
    return [f"croq-fsm resume {session.id}{at}", report]
