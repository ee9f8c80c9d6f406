"""Proposals of ideators: an edit, a reason, an expectation. Never a number of record."""

from __future__ import annotations

from typing import Annotated, Literal, assert_never

from pydantic import Field, model_validator
from pydantic_core import PydanticSerializationError

from croq_fsm.domain.model import Value
from croq_fsm.domain.names import TAG_PATTERN
from croq_fsm.domain.source import set_macros
from croq_fsm.domain.states import Category
from croq_fsm.errors import EditError

_MAX_SOURCE = 1 << 20
_FORBIDDEN = {"\0": "a NUL byte", "\u202e": "a bidirectional control", "\u2066": "a bidi isolate"}


class SetMacros(Value):
    """Give ``#define`` macros new values; the rest of the source stays byte for byte."""

    kind: Literal["set_macros"] = "set_macros"
    macros: dict[str, str]


class Replace(Value):
    """Replace one exact, unique piece of text."""

    search: str
    replace: str


class SearchReplace(Value):
    """Replace several exact, unique pieces of text, in order."""

    kind: Literal["search_replace"] = "search_replace"
    edits: tuple[Replace, ...]


class WholeSource(Value):
    """A complete new source."""

    kind: Literal["whole_source"] = "whole_source"
    source: str


class NoEdit(Value):
    """The source stays; only flags or patches change."""

    kind: Literal["no_edit"] = "no_edit"


Edit = Annotated[SetMacros | SearchReplace | WholeSource | NoEdit, Field(discriminator="kind")]


class Proposal(Value):
    """One testable idea.

    Attributes:
        tag: Short name for files, ``[a-z][a-z0-9_]{1,30}``.
        base: Iteration number of the active base that the edit applies to.
        edit: Change of the base's source.
        flags: Complete list of extra compiler flags of the candidate.
        patches: Search/replace edits of the generated target source (``.cu``), applied on
            each build after the compiler has written it.
        summary: What changes, in words; never a command line.
        hypothesis: Why it should help, quoting the metrics it rests on.
        metrics: Names of profile metrics that the hypothesis rests on.
        category: Kind of the idea.
        expected_gain: Expected relative gain, for example 0.05. An expectation, not a result.
        levers: Names of what is turned (macros, flags, structures).
        research_basis: What outside the local evidence the idea rests on; demanded at the
            research level of the escalation.
    """

    tag: Annotated[str, Field(pattern=TAG_PATTERN.pattern)]
    base: int
    edit: Edit
    flags: tuple[str, ...] = ()
    patches: tuple[Replace, ...] = ()
    summary: Annotated[str, Field(min_length=3, max_length=2000)]
    hypothesis: Annotated[str, Field(min_length=10, max_length=4000)]
    metrics: tuple[str, ...]
    category: Category
    expected_gain: float
    levers: tuple[str, ...] = ()
    research_basis: Annotated[str, Field(max_length=2000)] = ""

    @model_validator(mode="after")
    def _writable(self) -> Proposal:
        """JSON can carry halves of characters, which no file and no database takes."""
        try:
            self.model_dump_json()
        except (PydanticSerializationError, UnicodeError) as exc:
            raise ValueError("a text holds half a character; use whole Unicode text") from exc
        return self


def apply_edit(edit: Edit, base: str) -> str:
    """New source text for an edit of ``base``.

    Raises:
        EditError: Text not found or not unique, an unknown macro, or an unacceptable result.
    """
    match edit:
        case SetMacros(macros=macros):
            result = set_macros(base, macros)
        case SearchReplace(edits=edits):
            result = apply_replacements(edits, base)
        case WholeSource(source=source):
            result = source
        case NoEdit():
            result = base
        case _:
            assert_never(edit)
    check_source(result)
    return result


def apply_replacements(edits: tuple[Replace, ...], text: str) -> str:
    """Apply exact replacements in order; each must match exactly once."""
    for edit in edits:
        if not edit.search:
            raise EditError("an edit with an empty search text would match everywhere")
        found = text.count(edit.search)
        if found != 1:
            raise EditError(
                f"search text occurs {found} times, must be once: {edit.search[:120]!r}"
            )
        text = text.replace(edit.search, edit.replace)
    return text


def check_source(source: str) -> None:
    """Refuse sources that are empty, huge, or hide something from a reader."""
    if not source.strip():
        raise EditError("the source is empty")
    if len(source.encode()) > _MAX_SOURCE:
        raise EditError("the source exceeds 1 MiB")
    for char, what in _FORBIDDEN.items():
        if char in source:
            raise EditError(f"the source contains {what}")
