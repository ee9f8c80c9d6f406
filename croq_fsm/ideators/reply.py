"""Reading what a model answered: one proposal, or a reason that its next try can use.

Nothing is guessed. An answer that is not exactly one well-formed proposal about the one kernel
is refused here, before anything is compiled.
"""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, Final, NoReturn

from pydantic import Field, ValidationError

from croq_fsm.domain.ideas import (
    Edit,
    NoEdit,
    Proposal,
    Replace,
    SearchReplace,
    WholeSource,
    apply_edit,
)
from croq_fsm.domain.model import Value
from croq_fsm.domain.names import TAG_PATTERN
from croq_fsm.domain.states import Category
from croq_fsm.errors import BadReply, EditError
from croq_fsm.ideators.contract import Base, Context
from croq_fsm.ideators.pack import kernel_name

#: Longest answer that is read, bytes.
LONGEST: Final = 512 << 10
_FENCE: Final = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[ \t]*$", re.MULTILINE)
_DIFF: Final = re.compile(r"^(?:--- |\+\+\+ |@@ |<{7} |={7}$|>{7} )", re.MULTILINE)
_SHOWN: Final = 200


class ReplyEdit(Value):
    """One exact piece of the kernel and what replaces it."""

    file: str = ""
    search: str
    replace: str


class Reply(Value):
    """The answer that a model is asked for.

    Attributes:
        tag: Short name of the idea, lower case with underscores.
        base: Iteration number of the base that the edit applies to; default: the one shown.
        edits: Exact pieces of the base's source and what replaces each; or …
        source: … the complete new source of the kernel.
        flags: Complete list of extra compiler flags; default: those of the base.
        patches: Exact edits of the generated target source; default: those of the base.
        summary: What changes, in words.
        hypothesis: Why it should help, naming each metric and what its value tells.
        metrics: Names of profile metrics that the hypothesis rests on.
        category: tiling, pipeline, memory, compute or misc.
        expected_gain: Expected relative gain, for example 0.05.
        levers: Names of what is turned.
        research_basis: What outside the given text the idea rests on.
        give_up: Why there is nothing to propose; everything else is ignored then.
    """

    tag: Annotated[str, Field(pattern=TAG_PATTERN.pattern)] = "idea"
    base: int | None = None
    edits: tuple[ReplyEdit, ...] = ()
    source: str = ""
    flags: tuple[str, ...] | None = None
    patches: tuple[ReplyEdit, ...] | None = None
    summary: str = ""
    hypothesis: str = ""
    metrics: tuple[str, ...] = ()
    category: Category = Category.MISC
    expected_gain: float = 0.0
    levers: tuple[str, ...] = ()
    research_basis: str = ""
    give_up: str = ""


def read(text: str, context: Context, of: Proposal | None = None) -> Proposal | None:
    """The proposal that an answer holds; None when it gives up.

    Args:
        text: JSON, bare or in one fence; what else stands around a fence is ignored.
        context: What was asked.
        of: The proposal that is to be repaired; it lends what the answer does not give.

    Raises:
        BadReply: The answer is no proposal, or its edit does not fit; says why and what to do.
    """
    reply = _validated(_lent(_json(_object(text)), of))
    if reply.give_up.strip():
        return None
    bases = {base.iteration: base for base in (context.base, *context.others)}
    base = bases.get(context.base.iteration if reply.base is None else reply.base)
    if base is None:
        known = ", ".join(map(str, bases))
        raise BadReply(f"base {reply.base} is not active; edit one of the bases {known}")
    _check_files(reply, context)
    proposal = _proposal(reply, base)
    check_fits(proposal, base)
    return proposal


def _object(text: str) -> str:
    """The one JSON object of an answer, as text."""
    size = len(text.encode("utf-8", "replace"))
    if size > LONGEST:
        raise BadReply(f"the reply has {size} bytes, at most {LONGEST} are read; send edits only")
    if not text.strip():
        raise BadReply("the reply is empty; answer with one JSON object")
    if text.lstrip().startswith("{"):
        return text.strip()
    marks = list(_FENCE.finditer(text))
    if len(marks) % 2:
        raise BadReply("a code fence is not closed; the reply was cut off or is malformed")
    blocks = [
        text[a.end() : b.start()].strip() for a, b in zip(marks[::2], marks[1::2], strict=True)
    ]
    objects = [block for block in blocks if block.startswith("{")]
    if len(objects) > 1:
        raise BadReply(f"the reply holds {len(objects)} proposals; give exactly one")
    if objects:
        return objects[0]
    if _DIFF.search(text):
        raise BadReply("the reply is a diff; give search/replace edits in the JSON object instead")
    if blocks:
        raise BadReply("the code block is no JSON object; put the kernel into its field source")
    raise BadReply("the reply holds no JSON object, only prose; answer with one JSON object")


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number, object_pairs_hook=_unique)
    except (json.JSONDecodeError, RecursionError) as exc:
        raise BadReply(f"the JSON object cannot be read: {str(exc)[:_SHOWN]}") from exc


def _lent(data: Any, of: Proposal | None) -> Any:
    """A repair is about the same idea: only its edit need be given anew."""
    if of is None or not isinstance(data, dict):
        return data
    same = of.model_dump(
        include={
            *("tag", "base", "summary", "hypothesis", "metrics", "category"),
            *("expected_gain", "levers", "research_basis", "flags"),
        }
    )
    return same | data


def _no_number(word: str) -> NoReturn:
    raise BadReply(f"{word} is no number; expected_gain is a fraction such as 0.05")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A key that comes twice has two meanings."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise BadReply(f"the key {key[:_SHOWN]!r} comes twice; give each once")
        found[key] = value
    return found


def _validated(data: Any) -> Reply:
    gain = data.get("expected_gain") if isinstance(data, dict) else None
    if isinstance(gain, float) and not math.isfinite(gain):
        raise BadReply("expected_gain is no number; it is a fraction such as 0.05")
    try:
        return Reply.model_validate(data)
    except ValidationError as exc:
        raise BadReply("; ".join(map(_told, exc.errors()[:4]))) from exc


def _told(error: Any) -> str:
    where = ".".join(str(part)[:60] for part in error["loc"]) or "the reply"
    if error["type"] == "extra_forbidden":
        return f"field {where} is unknown; results, paths and decisions are the engine's alone"
    return f"field {where}: {error['msg'][:_SHOWN]}"


def _check_files(reply: Reply, context: Context) -> None:
    name = kernel_name(context)
    files = {edit.file for edit in reply.edits if edit.file}
    strange = sorted(files - {name})
    if len(files) > 1:
        raise BadReply(f"the edits concern {len(files)} files; only {name} can be edited")
    if strange:
        raise BadReply(f"the edits concern {strange[0][:_SHOWN]!r}; only {name} can be edited")


def _proposal(reply: Reply, base: Base) -> Proposal:
    patches = (
        base.candidate.patches
        if reply.patches is None
        else tuple(Replace(search=p.search, replace=p.replace) for p in reply.patches)
    )
    try:
        return Proposal(
            tag=reply.tag,
            base=base.iteration,
            edit=_edit(reply),
            flags=base.candidate.flags if reply.flags is None else reply.flags,
            patches=patches,
            summary=reply.summary,
            hypothesis=reply.hypothesis,
            metrics=reply.metrics,
            category=reply.category,
            expected_gain=reply.expected_gain,
            levers=reply.levers,
            research_basis=reply.research_basis,
        )
    except ValidationError as exc:
        raise BadReply("; ".join(map(_told, exc.errors()[:4]))) from exc


def _edit(reply: Reply) -> Edit:
    if reply.edits and reply.source:
        raise BadReply("both edits and source are given; give one of them")
    if reply.source:
        return WholeSource(source=reply.source)
    if reply.edits:
        pieces = tuple(Replace(search=e.search, replace=e.replace) for e in reply.edits)
        return SearchReplace(edits=pieces)
    return NoEdit()


def check_fits(proposal: Proposal, base: Base) -> None:
    """The edit applies to the base, and what comes out is a source that can be read."""
    source = base.candidate.source
    try:
        result = apply_edit(proposal.edit, source)
    except EditError as exc:
        advice = f"; quote iter{base.iteration:03d} as it is shown, older kernels differ"
        raise BadReply(f"{exc}{advice if 'search text' in str(exc) else ''}") from exc
    if "\r" in result and "\r" not in source:
        raise BadReply("the new text has CR LF line ends, the kernel has LF; use LF")
