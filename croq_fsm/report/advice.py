"""What to do next, computed from how the session stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from croq_fsm.domain import escalation
from croq_fsm.domain.states import Decision, State, Status
from croq_fsm.report import words
from croq_fsm.report.facts import Facts
from croq_fsm.report.summary import is_bad_start

_MANY_FAILURES: Final = 0.5
_FEW_ROUNDS: Final = 4
_FAILURES: Final = tuple(d for d in Decision if not d.is_measured)


def of(facts: Facts) -> list[str]:
    """Sentences, the most pressing first."""
    found = [make(facts) for make in _ADVICE]
    return [text for text in found if text]


def _go_on(facts: Facts) -> str:
    session = facts.session
    if is_bad_start(session):
        return "mend the kernel and start again; this session keeps the one that it was given"
    if session.state is State.FAILED:
        return (
            "mend what the reason names ('croq-fsm doctor' looks at the environment), then "
            f"'croq-fsm resume {session.id} --reopen'"
        )
    if session.state is State.DONE:
        return ""
    if facts.standing.is_worked_on:
        return "it goes on by itself; 'croq-fsm stop' ends it after the round in hand"
    paused = " (it is paused)" if session.status is Status.PAUSED else ""
    return f"'croq-fsm resume {session.id}' goes on where it stands{paused}"


def _take(facts: Facts) -> str:
    best, start = facts.best, facts.start
    if best is None or start is None or best.number == start.number:
        return ""
    number = f"iter{best.number:03d}"
    return (
        f"try the best kernel in your program; 'croq-fsm run-iter {facts.session.id} {number}' "
        "verifies and times it again on this machine as it is now"
    )


def _more(facts: Facts) -> str:
    session = facts.session
    if session.state is not State.DONE:
        return ""
    command = f"'croq-fsm resume {session.id} --reopen --rounds 20'"
    if "exhausted" in session.reason or "plateau" in session.reason:
        return (
            "the ideas ran out: give a hint ('croq-fsm hint …'), another start kernel, or "
            f"another ideator in a new session; {command} tries the rest of the old ones"
        )
    last = facts.rounds[-1] if facts.rounds else None
    if last is not None and last.decision is Decision.KEEP:
        return f"the last round was still a gain; {command} goes on"
    return f"{command} goes on with the next ideas"


def _stalled(facts: Facts) -> str:
    streak = facts.session.streak
    if escalation.level(streak) < escalation.RESEARCH:
        return ""
    return (
        f"{streak} rounds brought nothing: {escalation.advice(streak)}; a hint from somebody "
        "who knows the kernel is worth most here"
    )


def _failing(facts: Facts) -> str:
    rounds = len(facts.rounds)
    failed = sum(facts.session.counts.get(d, 0) for d in _FAILURES)
    if rounds < _FEW_ROUNDS or failed / rounds < _MANY_FAILURES:
        return ""
    return (
        f"{failed} of {rounds} rounds ended without a timing; the messages under FAILED "
        "ATTEMPTS say what the compiler or the checks object to"
    )


def _degraded(facts: Facts) -> str:
    if not any(p.profile.degraded for p in facts.profiles):
        return ""
    return "let the profiler read its counters ('croq-fsm doctor' says how); ideas get better"


def _gap(facts: Facts) -> str:
    ratio, best = facts.standing.ratio, facts.best
    taken = facts.profile_of(best.number) if best is not None else None
    if ratio is None or ratio >= 1.0 or taken is None:
        return ""
    return (
        f"the library is still {words.times(1.0 / ratio)} as fast; the best kernel is "
        f"{taken.profile.bottleneck} (confidence {taken.profile.confidence})"
    )


_ADVICE: Final[tuple[Callable[[Facts], str], ...]] = (
    _go_on,
    _take,
    _more,
    _stalled,
    _failing,
    _degraded,
    _gap,
)
