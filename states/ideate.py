"""IDEATE: exactly one novel idea, admitted by every guard, with its checkpoint written.

The idea checkpoint on disk is an effect after the transition; the one that counts is the row.
"""

from __future__ import annotations

from typing import Any

from croq_fsm.domain import guards, names
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.ideas import Proposal, apply_edit
from croq_fsm.domain.records import Effect, IdeaTaken, Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Outcome
from croq_fsm.domain.work import Idea
from croq_fsm.errors import BackendDown, BadReply, EditError, HarnessChanged
from croq_fsm.ideators import asking
from croq_fsm.ideators.contract import Context, Ideator
from croq_fsm.ports import Ports
from croq_fsm.storage import views
from states import _bases, _final, _publishing, _waiting

#: Escalations of one round before the session ends for want of ideas.
_MAX_EXHAUSTED = 2


def run(session: Session, ports: Ports) -> Step:
    """Ask for proposals until one passes all guards, a bounded number of times."""
    ideator = ports.ideators[session.work.backend]
    refused: list[str] = []
    for _ in range(ports.config.limits.proposals_per_idea):
        context = _bases.context(session, ports, tuple(refused))
        try:
            proposal = asking.propose(ideator, context)
        except BackendDown as exc:
            return _backend_down(session, ports, str(exc))
        except HarnessChanged as exc:
            detail: dict[str, Any] = {"why": str(exc), "refused": refused}
            return Step(Outcome.ENDED, session.work, detail, reason=str(exc))
        except BadReply as exc:
            refused.append(f"reply: {exc}")
            continue
        if proposal is None:
            return _exhausted(session, ports, refused, f"{ideator.name} has no idea left")
        try:
            candidate = _candidate(context, proposal)
        except EditError as exc:
            refused.append(f"edit: {exc}")
            continue
        reasons = ports.admit(_facts(session, ports, context, proposal, candidate))
        if not reasons:
            return _proposed(session, ports, ideator, context, (proposal, candidate, refused))
        refused.extend(reasons)
    return _exhausted(
        session, ports, refused, f"{ideator.name} proposed only what the guards refuse"
    )


def _candidate(context: Context, proposal: Proposal) -> Candidate:
    bases = (context.base, *context.others)
    base = next((b for b in bases if b.iteration == proposal.base), None)
    if base is None:
        active = ", ".join(f"iter{b.iteration:03d}" for b in bases)
        raise EditError(f"base iter{proposal.base:03d} is not active; derive from {active}")
    return Candidate(
        source=apply_edit(proposal.edit, base.candidate.source),
        flags=proposal.flags,
        patches=proposal.patches,
    )


def _facts(
    session: Session, ports: Ports, context: Context, proposal: Proposal, candidate: Candidate
) -> guards.Facts:
    bases = (context.base, *context.others)
    base = next(b for b in bases if b.iteration == proposal.base)
    return guards.Facts(
        proposal=proposal,
        candidate=candidate,
        base=base.candidate,
        active_bases=tuple(b.iteration for b in bases),
        profile=context.profile,
        macro_run=session.macro_run,
        macro_limit=ports.config.limits.macro_run,
        is_tried=ports.history.is_tried,
        has_fingerprint=ports.history.has_fingerprint,
        operator=session.task.operator,
        dtype=session.task.dtype,
        escalation=context.escalation,
        own_host=session.task.dsl if session.task.own_host else "",
    )


def _proposed(
    session: Session,
    ports: Ports,
    ideator: Ideator,
    context: Context,
    accepted: tuple[Proposal, Candidate, list[str]],
) -> Step:
    proposal, candidate, refused = accepted
    base = next(b for b in (context.base, *context.others) if b.iteration == proposal.base)
    idea = Idea(
        proposal=proposal,
        name=names.iter_name(session.next_iteration, proposal.tag),
        fingerprint=guards.fingerprint(candidate, base.candidate),
        macro_only=guards.is_macro_only(candidate, base.candidate),
        ideator=asking.author_of(ideator, proposal),
        bottleneck=context.profile.bottleneck,
        planned_at=int(ports.clock.now() * 1e6),
    )
    normalised = guards.identity(candidate)
    work = session.work.model_copy(
        update={
            "base": proposal.base,
            "idea": idea,
            "proposal": proposal,
            "candidate": candidate,
            "candidate_hash": normalised,
            "attempt": 0,
            "waits": 0,
            "not_before": None,
            "phase": "screen",
            "pairs": ports.config.measure.screen_pairs,
        }
    )
    return Step(
        outcome=Outcome.PROPOSED,
        work=work,
        detail={"idea": proposal.summary, "name": idea.name, "refused": refused},
        records=(IdeaTaken(session.work.round, idea, normalised, tuple(refused)),),
        effects=(_checkpoint(session, ports, idea),),
    )


def _checkpoint(session: Session, ports: Ports, idea: Idea) -> Effect:
    text = views.idea_file(session.task, idea, "PLANNED", idea.planned_at)
    return _publishing.publish(session, [], {}, {ports.layout.current_idea: text})


def _exhausted(session: Session, ports: Ports, refused: list[str], why: str) -> Step:
    detail: dict[str, Any] = {"why": why, "refused": refused}
    if session.work.exhausted >= _MAX_EXHAUSTED:
        return _ended(session, ports, detail, f"ideas exhausted: {why}")
    work = session.work.model_copy(update={"exhausted": session.work.exhausted + 1})
    return Step(Outcome.EXHAUSTED, work, detail)


def _ended(session: Session, ports: Ports, detail: dict[str, Any], reason: str) -> Step:
    """An orderly end outside of STORE has its last measurement, too."""
    final = _final.take(session, ports, ports.history.iteration(session.best_iteration or 1))
    told = {**detail, **final.detail}
    return Step(Outcome.ENDED, session.work, told, tuple(final.records), reason=reason)


def _backend_down(session: Session, ports: Ports, why: str) -> Step:
    following = session.work.backend + 1
    if following < len(ports.ideators):
        work = session.work.model_copy(update={"backend": following})
        return Step(Outcome.BACKEND_DOWN, work, {"why": why, "next": following})
    step = _waiting.back_off(
        session, ports, f"no ideator answers: {why}", Outcome.BACKEND_DOWN, Outcome.ENDED
    )
    if step.outcome is Outcome.ENDED:
        return _ended(session, ports, step.detail, step.reason)
    return Step(
        step.outcome,
        step.work.model_copy(update={"backend": 0}),
        step.detail,
        reason=step.reason,
    )
