"""The plan of a round driven by hand: what ``checkpoint write`` was told, kept in the database."""

from __future__ import annotations

import difflib
import json
import re
import uuid
from typing import Annotated, Final

from pydantic import Field, ValidationError

from croq_fsm.domain.ideas import NoEdit, Proposal, Replace, WholeSource
from croq_fsm.domain.model import Value
from croq_fsm.domain.names import TAG_PATTERN
from croq_fsm.domain.profile import Profile
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Category
from croq_fsm.errors import UsageError
from croq_fsm.storage.repository import Repository

#: Kinds of messages that the tools keep for a session.
PLAN: Final = "plan"
HAND: Final = "hand"
FLAGS: Final = "flags"
_NUMBER: Final = re.compile(r"[-+]?\d+(?:\.\d+)?")
_NAMED_ITER: Final = re.compile(r"^iter(\d+)_([a-z][a-z0-9_]{1,30})$")
_LARGEST: Final = 1.0
_MOST_HUNKS: Final = 200


class Plan(Value):
    """What an author means to try.

    Attributes:
        round: Round that it is for.
        tag: Short name for files.
        base: Iteration that it derives from.
        idea: What changes, in words.
        hypothesis: Why it should help.
        metrics: Metrics that the hypothesis rests on.
        category: Kind of the idea.
        expected_gain: Relative, for example 0.05.
        levers: Names of what is turned.
        research_basis: What outside the local evidence it rests on.
    """

    round: int
    tag: Annotated[str, Field(pattern=TAG_PATTERN.pattern)]
    base: int
    idea: str
    hypothesis: str
    metrics: tuple[str, ...]
    category: Category
    expected_gain: float
    levers: tuple[str, ...]
    research_basis: str = ""

    def proposal(
        self, source: str, flags: tuple[str, ...], patches: tuple[Replace, ...], base: str
    ) -> Proposal:
        """The plan with the source that was written for it.

        Raises:
            UsageError: A part of it is no part of a proposal; says which.
        """
        try:
            return Proposal(
                tag=self.tag,
                base=self.base,
                edit=NoEdit() if source == base else WholeSource(source=source),
                flags=flags,
                patches=patches,
                summary=self.idea,
                hypothesis=self.hypothesis,
                metrics=self.metrics,
                category=self.category,
                expected_gain=self.expected_gain,
                levers=self.levers,
                research_basis=self.research_basis,
            )
        except ValidationError as exc:
            first = exc.errors()[0]
            raise UsageError(f"the plan is no idea: {first['loc'][0]}: {first['msg']}") from exc


def tag_of(name: str) -> tuple[int, str]:
    """Number and tag of ``iter004_tag``. UsageError for anything else."""
    found = _NAMED_ITER.match(name)
    if found is None:
        raise UsageError(f"--iter {name!r} must be iter<NNN>_<tag>, the tag 2 to 31 characters")
    return int(found[1]), found[2]


def grounded(
    idea: str, hypothesis: str, metrics: tuple[str, ...], profile: Profile
) -> tuple[str, tuple[str, ...], list[str]]:
    """Hypothesis and metrics, completed from the profile where the author named none.

    Returns:
        Hypothesis, metrics, and warnings about what was added.
    """
    why, warnings = hypothesis or idea, []
    if not hypothesis:
        warnings.append("no --hypothesis was given; the idea stands in its place")
    names = metrics or tuple(m.name for m in profile.metrics if m.name in why)
    if not names:
        first = profile.metrics[0]
        names = (first.name,)
        why = f"{why} (no metric was named; the profile says {first.name} = {first.value:g})"
        warnings.append(f"no metric was named; {first.name} of the profile was taken")
    return why, names, warnings


def gain_of(text: str | None, best_tflops: float | None) -> tuple[float, list[str]]:
    """A relative gain from "+5%", "+20 TFLOPS" or "0.05"; 0 where nothing can be told."""
    found = _NUMBER.search(text or "")
    if text is None or found is None:
        return 0.0, [] if text is None else [f"--expected-gain {text!r} names no number"]
    value = float(found[0])
    if "%" in text:
        value /= 100
    elif "tflops" in text.lower() and best_tflops:
        value /= best_tflops
    if not -_LARGEST < value <= _LARGEST:
        return 0.0, [f"--expected-gain {text!r} is no gain of a single change"]
    return value, []


def keep(repository: Repository, session: Session, kind: str, text: str, at: int) -> None:
    """Store a message of a tool for a session."""
    repository.add_message(
        {
            "id": uuid.uuid4().hex,
            "session_id": session.id,
            "kind": kind,
            "text": text,
            "created_at": at,
            "taken_at": at,
        }
    )


def open_plan(repository: Repository, session: Session) -> Plan | None:
    """The plan of the round in hand, or None."""
    with repository.read() as reader:
        text = reader.last_message(session.id, PLAN)
    plan = None if text is None else Plan.model_validate_json(text)
    return plan if plan is not None and plan.round == session.work.round else None


def kept_flags(repository: Repository, session: Session, source_sha256: str) -> tuple[str, ...]:
    """Flags with which a source was last translated."""
    with repository.read() as reader:
        text = reader.last_message(session.id, FLAGS)
    found = {} if text is None else json.loads(text)
    return tuple(found["flags"]) if found.get("source") == source_sha256 else ()


def patches_between(generated: str, edited: str) -> tuple[Replace, ...]:
    """Edits that turn a generated source into a hand-edited one; each matches exactly once.

    Raises:
        UsageError: There are too many of them to be a patch.
    """
    if generated == edited:
        return ()
    old, new = generated.splitlines(keepends=True), edited.splitlines(keepends=True)
    codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    hunks = [code for code in codes if code[0] != "equal"]
    if len(hunks) > _MOST_HUNKS:
        raise UsageError(f"the source differs in {len(hunks)} places; edit the kernel itself")
    patches, text = [], generated
    for _, i1, i2, j1, j2 in hunks:
        patch = _unique(old, new, (i1, i2, j1, j2), text)
        text = text.replace(patch.search, patch.replace)
        patches.append(patch)
    return tuple(patches) if text == edited else (Replace(search=generated, replace=edited),)


def _unique(old: list[str], new: list[str], hunk: tuple[int, int, int, int], text: str) -> Replace:
    """The hunk with as many lines after it as make it unique; those are as they were."""
    i1, i2, j1, j2 = hunk
    before, after = 0, 0
    while True:
        lead = old[i1 - before : i1]
        tail = old[i2 : i2 + after]
        search = "".join([*lead, *old[i1:i2], *tail])
        if search and text.count(search) == 1:
            return Replace(search=search, replace="".join([*lead, *new[j1:j2], *tail]))
        if i2 + after >= len(old) and before >= i1:
            return Replace(search="".join(old), replace="".join(new))
        before, after = min(i1, before + 1), after + 1
