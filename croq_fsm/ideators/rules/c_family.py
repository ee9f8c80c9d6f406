"""What all families of C kernels share: configurations, their mark in the text, their edits.

A family is a set of kernels that we can write. A member is a frozen configuration; fields
named in ``MACROS`` are macros of the text, the others decide its structure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, Final, TypeVar

from pydantic import ValidationError

from croq_fsm.domain.ideas import Edit, SetMacros, WholeSource
from croq_fsm.domain.model import Value
from croq_fsm.domain.source import macros, structure_hash
from croq_fsm.domain.states import Category
from croq_fsm.ideators.rules.c_steps import Step

#: A tag that names more fields than this is cut off in the middle.
_MOST_TOLD: Final = 3

_MARK: Final = re.compile(r"^// family: (\{.*\})$", re.MULTILINE)


class Member(Value):
    """Base of the configurations of a family."""

    #: Name of a macro of the text → field that it shows.
    MACROS: ClassVar[dict[str, str]] = {}

    @property
    def structure(self) -> dict[str, object]:
        """The fields that are no macros."""
        return self.model_dump(exclude=set(self.MACROS.values()))


M = TypeVar("M", bound=Member)


def marked(body: str, member: Member) -> str:
    """A text with the mark by which :func:`recognise` finds its configuration."""
    return f"{body}\n// family: {json.dumps(member.structure)}\n"


def recognise(
    source: str, model_of: Callable[[dict[str, object]], type[M]], render: Callable[[M], str]
) -> M | None:
    """The configuration of a source that we wrote, whatever its macros were set to since.

    The mark only says where to look: a source counts as ours when rendering the configuration
    gives the same structure again.
    """
    match = _MARK.search(source)
    if match is None:
        return None
    try:
        fields = dict(json.loads(match[1]))
        model = model_of(fields)
        defined = macros(source)
        numbers = {field: int(defined[m]) for m, field in model.MACROS.items() if m in defined}
        member = model.model_validate(fields | numbers)
    except (ValueError, TypeError, ValidationError):
        return None
    return member if structure_hash(render(member)) == structure_hash(source) else None


def changed_fields(old: Member | None, new: Member) -> dict[str, object]:
    """Fields of ``new`` that differ from ``old``; all of them when ``old`` is of another kind."""
    fields = new.model_dump()
    if old is None or type(old) is not type(new):
        return fields
    return {name: value for name, value in fields.items() if value != getattr(old, name)}


def step(  # noqa: PLR0917 - a transition is exactly these parts
    name: str,
    old: Member | None,
    new: M,
    render: Callable[[M], str],
    words: Mapping[str, object],
    category: Category | None = None,
) -> Step:
    """The step from one member to another: macros alone when nothing else differs."""
    changed = changed_fields(old, new)
    turned = {macro: field for macro, field in new.MACROS.items() if field in changed}
    macros_alone = old is not None and set(turned.values()) == set(changed)
    now = {macro: str(getattr(new, field)) for macro, field in turned.items()}
    was = {macro: str(getattr(old, field, "-")) for macro, field in turned.items()}
    is_kin = type(old) is type(new)
    fields = changed if is_kin else _unusual(new)
    told = {"now": _listed(now), "was": _listed(was), "fields": _listed(fields)}
    return Step(
        tag=_tag(name, changed) if is_kin else name,
        words={**new.model_dump(), **words, **told},
        levers=_levers(now if macros_alone else changed, is_kin=is_kin),
        edit=partial(_edit, new, render, now if macros_alone else {}),
        category=category,
    )


def _levers(turned: Mapping[str, object], *, is_kin: bool) -> tuple[str, ...]:
    """Names of what is turned; a text of another kind turns everything at once."""
    return tuple(turned) if is_kin else ("structure",)


def _unusual(member: Member) -> dict[str, object]:
    """Sizes, and the other fields that are not at their defaults."""
    defaults = {name: info.default for name, info in type(member).model_fields.items()}
    sizes = set(member.MACROS.values())
    return {
        name: value
        for name, value in member.model_dump().items()
        if name in sizes or value != defaults[name]
    }


def _tag(name: str, changed: Mapping[str, object]) -> str:
    """``depth_kc256``, ``pack_b``, ``no_pack_b``: the operator and what it set."""
    if list(changed) == [name]:
        return name if changed[name] is not False else f"no_{name}"
    values = "".join(map(_setting, changed, changed.values()))
    return f"{name}{values}" if len(changed) <= _MOST_TOLD else name


def _setting(field: str, value: object) -> str:
    if isinstance(value, bool):
        return f"_{field}" if value else f"_no_{field}"
    return f"_{field}{value}"


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _edit(new: M, render: Callable[[M], str], turned: dict[str, str]) -> Edit:
    return SetMacros(macros=turned) if turned else WholeSource(source=render(new))
