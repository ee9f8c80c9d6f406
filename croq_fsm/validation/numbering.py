"""Rounds, iterations and attempts are numbered without gaps, and belong to each other."""

from __future__ import annotations

import re
from typing import Final

from croq_fsm.domain import names
from croq_fsm.domain.records import Attempt, Iteration, Round
from croq_fsm.domain.states import Bottleneck, Outcome, State
from croq_fsm.validation.record import Findings, Record

_ATTEMPT: Final = re.compile(r"^attempt[A-Z]{4}_[a-z][a-z0-9_]{1,30}$")
_BASELINES: Final = 2
#: Outcomes of a STORE that wrote a round; a parked one did not.
_STORED: Final = (Outcome.STORED.name, Outcome.FINISHED.name)


def check(record: Record) -> Findings:
    """All numbers and names."""
    yield from _rounds(record)
    yield from _iterations(record)
    yield from _pairing(record)
    yield from _attempts(record)
    yield from _profiles(record)


def _rounds(record: Record) -> Findings:
    found = [r.round for r in record.rounds]
    if found != list(range(1, len(found) + 1)):
        yield record.problem("round-gap", "rounds", f"rounds are {_brief(found)}, not 1, 2, 3 …")
    stored = [
        t["round"]
        for t in record.transitions
        if t["from_state"] == State.STORE.name and t["outcome"] in _STORED
    ]
    if sorted(found) != sorted(stored):
        text = f"rounds {_brief(found)}, but transitions out of STORE for {_brief(stored)}"
        yield record.problem("round-without-store", "rounds", text)


def _iterations(record: Record) -> Findings:
    found = [it.number for it in record.iterations]
    if found != list(range(len(found))):
        text = f"iteration numbers are {_brief(found)}, not 0, 1, 2 …"
        yield record.problem("iteration-gap", "iterations", text)
    of_rounds = [it.round for it in record.iterations]
    if of_rounds != sorted(of_rounds):
        text = "iteration numbers do not grow with the rounds"
        yield record.problem("iteration-order", "iterations", text)
    if record.iterations and of_rounds[:_BASELINES] != [0, 0]:
        text = "iter000 (library) and iter001 (start kernel) are not both of the baseline"
        yield record.problem("baseline-missing", "iterations", text)
    for it in record.iterations:
        yield from _name(record, it)


def _name(record: Record, it: Iteration) -> Findings:
    try:
        right = names.iter_number(it.name) == it.number
    except ValueError:
        right = False
    if not right:
        where = f"iterations {it.number}"
        yield record.problem("iteration-name", where, f"{it.name!r} names another number")


def _pairing(record: Record) -> Findings:
    """Each timed round has its iteration and the other way round; no other round has one."""
    by_round = {it.round: it for it in record.iterations if it.round > 0}
    for done in record.rounds:
        it = by_round.pop(done.round, None)
        text = _mismatch(done, it)
        if text is not None:
            yield record.problem("round-iteration", f"rounds {done.round}", text)
    for it in by_round.values():
        text = f"{it.name} is of round {it.round}, which is not there"
        yield record.problem("round-iteration", f"iterations {it.number}", text)


def _mismatch(done: Round, it: Iteration | None) -> str | None:
    if it is None:
        if done.iteration is not None or done.seconds is not None:
            return "the round was timed, but has no iteration"
        return "a KEEP without an iteration" if done.decision.name == "KEEP" else None
    if not done.decision.is_measured:
        return f"{done.decision} owns iteration number {it.number}; attempts own none"
    mine = (done.iteration, done.kernel, done.seconds, done.decision)
    theirs = (it.number, it.name, it.seconds, it.decision)
    return None if mine == theirs else f"round says {mine}, iteration says {theirs}"


def _attempts(record: Record) -> Findings:
    ordinals = [a.ordinal for a in record.attempts]
    if ordinals != list(range(len(ordinals))):
        text = f"attempt ordinals are {_brief(ordinals)}, not 0, 1, 2 …"
        yield record.problem("attempt-gap", "attempts", text)
    by_round: dict[int, list[Attempt]] = {}
    for attempt in record.attempts:
        by_round.setdefault(attempt.round, []).append(attempt)
        if not _ATTEMPT.match(attempt.name):
            text = f"{attempt.name!r} is no attempt's name"
            yield record.problem("attempt-name", f"attempts {attempt.ordinal}", text)
    for round_, attempts in by_round.items():
        numbers = [a.number for a in attempts]
        limit = record.config.limits.attempts_per_idea
        if numbers != list(range(1, len(numbers) + 1)) or len(numbers) > limit:
            text = f"attempts of the round are numbered {numbers}, at most {limit} are allowed"
            yield record.problem("attempt-number", f"attempts of round {round_}", text)
    for done in record.rounds:
        if done.attempts != len(by_round.get(done.round, [])):
            text = f"{done.attempts} attempts claimed, {len(by_round.get(done.round, []))} stored"
            yield record.problem("attempt-count", f"rounds {done.round}", text)


def _profiles(record: Record) -> Findings:
    """Each round rests on a profile of a measured kernel, and says what that says."""
    latest = {p.round: p for p in record.profiles}
    numbers = {it.number for it in record.iterations}
    binaries = {it.number: it.build.binary_sha256 for it in record.iterations if it.build}
    for done in record.rounds:
        where = f"rounds {done.round}"
        profile = latest.get(done.round)
        if profile is None:
            yield record.problem("round-without-profile", where, "no profile was taken for it")
        elif profile.iteration not in numbers:
            text = f"its profile is of iteration {profile.iteration}, which is not there"
            yield record.problem("round-without-profile", where, text)
        elif profile.binary != binaries.get(profile.iteration):
            text = f"its profile is of another program than iteration {profile.iteration}"
            yield record.problem("foreign-profile", where, text)
        elif Bottleneck[profile.bottleneck] is not done.bottleneck:
            text = f"it says {done.bottleneck}, its profile says {profile.bottleneck}"
            yield record.problem("bottleneck-unsupported", where, text)


def _brief(numbers: list[int]) -> str:
    """A list that fits into a sentence."""
    listed = ", ".join(map(str, numbers[:8]))
    return f"[{listed}{', …' if len(numbers) > 8 else ''}]"  # noqa: PLR2004 - what fits a line
