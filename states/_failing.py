"""A failed attempt: recorded, repaired while the budget of the idea lasts, else given up."""

from __future__ import annotations

from croq_fsm.domain import guards, names
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.ideas import Proposal, apply_edit
from croq_fsm.domain.records import Attempt, Record, Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Decision, Outcome
from croq_fsm.domain.work import Verdict
from croq_fsm.errors import BackendDown, BadReply, EditError, HarnessChanged
from croq_fsm.ideators import asking
from croq_fsm.ideators.contract import Failure
from croq_fsm.ports import Ports
from states import _bases

_LOG_CAP = 64 << 10


def failed(
    session: Session,
    ports: Ports,
    failure: tuple[Decision, str, str],
    outcomes: tuple[Outcome, Outcome],
    records: tuple[Record, ...] = (),
) -> Step:
    """Record the attempt; (repair, give up) are the two outcomes to choose from."""
    kind, message, log = failure
    work = session.work
    if work.candidate is None or work.idea is None or work.proposal is None:
        raise LookupError("a failed attempt without an idea in hand")
    number = work.attempt + 1
    attempt = Attempt(
        round=work.round,
        number=number,
        ordinal=session.next_attempt,
        name=names.attempt_name(session.next_attempt, work.proposal.tag),
        kind=kind,
        message=message,
        log=log[-_LOG_CAP:],
        candidate=work.candidate,
        normalised=guards.identity(work.candidate),
    )
    repair_outcome, final_outcome = outcomes
    detail = {"attempt": number, "kind": kind.name, "message": message}
    repaired = _repair(session, ports, attempt)
    if repaired is None:
        verdict = Verdict(decision=kind, reason=f"{message} (attempt {number})")
        final = work.model_copy(update={"attempt": number, "verdict": verdict})
        return Step(final_outcome, final, detail, (*records, attempt))
    proposal, candidate = repaired
    again = work.model_copy(
        update={
            "attempt": number,
            "proposal": proposal,
            "candidate": candidate,
            "candidate_hash": guards.identity(candidate),
            "build": None,
            "verified": False,
            "phase": "screen",
            "pairs": ports.config.measure.screen_pairs,
            "samples": (),
        }
    )
    return Step(repair_outcome, again, detail, (*records, attempt))


def _repair(session: Session, ports: Ports, attempt: Attempt) -> tuple[Proposal, Candidate] | None:
    """A genuinely different candidate for the same idea, or None."""
    work = session.work
    limit = ports.config.limits.attempts_per_idea
    if guards.attempts_left(attempt.number, limit) is not None or work.proposal is None:
        return None
    context = _bases.context(session, ports)
    failure = Failure(
        kind=attempt.kind,
        attempt=attempt.number,
        message=attempt.message,
        log=attempt.log,
        candidate=attempt.candidate,
    )
    try:
        proposal = asking.repair(ports.ideators[work.backend], context, work.proposal, failure)
    except (BackendDown, BadReply, HarnessChanged):
        return None
    if proposal is None or proposal.base != work.proposal.base:
        return None
    base = next(b for b in (context.base, *context.others) if b.iteration == proposal.base)
    try:
        source = apply_edit(proposal.edit, base.candidate.source)
    except EditError:
        return None
    candidate = Candidate(source=source, flags=proposal.flags, patches=proposal.patches)
    facts = guards.Facts(
        proposal=proposal,
        candidate=candidate,
        base=base.candidate,
        active_bases=(proposal.base,),
        profile=context.profile,
        macro_run=0,
        macro_limit=ports.config.limits.macro_run,
        is_tried=lambda key: key == attempt.normalised or ports.history.is_tried(key),
        has_fingerprint=lambda _key: False,
        operator=session.task.operator,
        dtype=session.task.dtype,
        own_host=session.task.dsl if session.task.own_host else "",
    )
    return None if guards.refusals(facts) else (proposal, candidate)
