"""The lines that a running session shows: one for each round, and what led to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from croq_fsm.domain import escalation
from croq_fsm.domain.records import Iteration, Round, Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Decision, Outcome, State
from croq_fsm.report import words
from croq_fsm.report.standing import library_ratio, same_window

#: How a line is coloured; names of styles of the terminal library.
STYLES: Final = {Decision.KEEP: "bold green", Decision.DISCARD: ""}
FAILED: Final = "yellow"
QUIET: Final = "dim"

HEADER: Final = (
    f"{'round':>5}  {'verdict':<12}  {'TFLOPS':>8}  {'vs best':>7}  {'99 % interval':<14}"
    f"  {'vs lib':>7}  {'cost':>7}  idea"
)

_WAITING: Final = (Outcome.CONTENDED, Outcome.BUSY)
#: A first back-off is over in seconds; one that lasts deserves a line.
_NOTED_WAIT: Final = 2


@dataclass(frozen=True)
class Line:
    """One line of progress with its style."""

    text: str
    style: str = ""


def opening(session: Session) -> list[Line]:
    """What is asked for, and where it goes on when it has begun already."""
    task = session.task
    lines = [Line(f"session {session.id}: {task.dsl} {task.shape_key} by {task.model}", "bold")]
    if session.seq:
        text = f"  goes on in {session.state.name} after {words.count(session.round, 'round')}"
        lines.append(Line(text, QUIET))
    lines.append(Line(f"  ends {limits(session)}", QUIET))
    if task.simulated:
        lines.append(Line("  SIMULATED: no number below is a measurement", FAILED))
    return [*lines, Line(HEADER, "bold")] if session.best_iteration is not None else lines


def limits(session: Session) -> str:
    """When the session ends by itself."""
    task = session.task
    parts = []
    if task.rounds:
        parts.append(f"after round {task.rounds}")
    if task.deadline is not None:
        parts.append(f"with the round that runs at {words.moment(task.deadline * 1e6)}")
    return " or ".join(parts) or "when you stop it, or when the ideas are exhausted"


def after_step(before: Session, step: Step, after: Session) -> list[Line]:
    """Lines for a committed transition; most transitions have none."""
    if step.outcome is Outcome.MEASURED:
        return _baseline(step, after)
    if before.state is State.STORE:
        return [*_round(step, after), *_escalation(before, after)]
    if step.outcome in _WAITING and after.work.waits == _NOTED_WAIT:
        return [Line(f"       waiting: {words.one_line(str(step.detail.get('why', '')))}", QUIET)]
    if step.outcome is Outcome.BACKEND_DOWN:
        reason = words.one_line(str(step.detail.get("why", "no answer")))
        return [Line(f"       ideator down: {reason}", FAILED)]
    if step.outcome is Outcome.DEGRADED and after.round == 0:
        return [Line("       profile DEGRADED: timing alone, no counters", FAILED)]
    return []


def round_line(record: Round, iteration: Iteration | None, session: Session) -> Line:
    """Number, verdict, rate, ratio to the best then with its interval, cost and idea."""
    estimate = iteration.estimate if iteration else None
    places = words.decimals(_library_rate(session))
    attempts = f" ({words.count(record.attempts, 'failed attempt')})" if record.attempts else ""
    reason = "" if iteration is not None else f" - {words.one_line(record.reason)}"
    idea = words.one_line(record.summary).removesuffix(".")
    text = (
        f"{record.round:>5}  {record.decision.name:<12}  {words.rate(record.tflops, places):>8}"
        f"  {words.times(record.ratio):>7}  {words.interval(estimate):<14}"
        f"  {_against_library(iteration, session):>7}  {words.duration(record.wall_s):>7}"
        f"  {record.kernel}: {idea}{reason}{attempts}"
        f"{_marks(iteration, session)}"
    )
    return Line(text, STYLES.get(record.decision, FAILED))


def state_text(session: Session, best: Iteration | None, since: float, now: float) -> str:
    """The state on one line: round, state, best, ratio to the library, what is left."""
    work = session.work
    idea = f" {work.idea.name}" if work.idea and work.round else ""
    phase = f" {work.phase}" if session.state is State.MEASURE else ""
    parts = [
        f"round {work.round or session.round + 1}{idea}",
        f"{session.state.name}{phase} {words.duration(now - since)}",
    ]
    left = remaining(session, now)
    if left:
        parts.append(left)
    if best is not None:
        rate = words.rate(session.task.tflops(best.seconds), words.decimals(_library_rate(session)))
        ratio = words.times(library_ratio(best, session))
        parts.append(f"best {best.name} {rate} TFLOPS, {ratio} library")
    if session.streak:
        parts.append(f"{words.count(session.streak, 'round')} since the last KEEP")
    mark = "SIMULATED | " if session.task.simulated else ""
    mark += "SELF-REPORTED | " if session.task.own_host else ""
    return mark + " | ".join(parts)


def remaining(session: Session, now: float) -> str:
    """Rounds and time that are left, or ""."""
    parts = []
    if session.task.rounds:
        parts.append(words.count(max(0, session.task.rounds - session.round), "round"))
    if session.task.deadline is not None:
        parts.append(words.duration(session.task.deadline - now))
    return f"{' or '.join(parts)} left" if parts else ""


def _baseline(step: Step, session: Session) -> list[Line]:
    lines = [Line(f"  on {session.device.name} ({session.device.key})", QUIET)]
    for iteration in (r for r in step.records if isinstance(r, Iteration)):
        rate = session.task.tflops(iteration.seconds)
        places = words.decimals(_library_rate(session))
        text = (
            f"  {iteration.name:<24} {words.rate(rate, places):>10} TFLOPS"
            f"  {words.call_time(iteration.seconds):>10}"
        )
        if iteration.number:
            text += f"  {words.times(library_ratio(iteration, session))} library"
        lines.append(Line(text + _marks(iteration, session)))
    if session.noise is not None:
        text = (
            f"  noise floor {100 * session.noise:.2f} %: smaller gains cannot be told from nothing"
        )
        lines.append(Line(text, QUIET))
    return [*lines, Line(HEADER, "bold")]


def _round(step: Step, session: Session) -> list[Line]:
    record = next((r for r in step.records if isinstance(r, Round)), None)
    iteration = next((r for r in step.records if isinstance(r, Iteration)), None)
    return [] if record is None else [round_line(record, iteration, session)]


def _escalation(before: Session, after: Session) -> list[Line]:
    level = escalation.level(after.streak)
    if level <= escalation.level(before.streak) or after.state.is_final:
        return []
    return [
        Line(
            f"       escalation to level {level} after {words.count(after.streak, 'round')} "
            f"without a KEEP: {escalation.advice(after.streak)}",
            QUIET,
        )
    ]


def _library_rate(session: Session) -> float | None:
    return session.task.tflops(session.library_seconds) if session.library_seconds else None


def _against_library(iteration: Iteration | None, session: Session) -> str:
    """Marked with ~ where the library was timed in another window."""
    if iteration is None:
        return words.ABSENT
    ratio = library_ratio(iteration, session)
    mark = "" if same_window(iteration) or ratio is None else "~"
    return mark + words.times(ratio)


def _marks(iteration: Iteration | None, session: Session) -> str:
    marks = ""
    if iteration is not None and iteration.self_reported:
        marks += " [self-reported]"
    return marks + (" [simulated]" if session.task.simulated else "")
