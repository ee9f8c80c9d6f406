"""Finding ideators by name: the built-in ones, and those that other packages register.

A package registers an :class:`~croq_fsm.ideators.contract.IdeatorFactory` in the entry-point
group ``croq_fsm.ideators``. The built-in names are known without metadata, so that a checkout
works without being installed; a registration never replaces them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, cast

from pydantic import ValidationError

from croq_fsm.errors import UsageError
from croq_fsm.ideators.chain import Breaker, BreakerSettings, ChainIdeator
from croq_fsm.ideators.contract import Equipped, Ideator, IdeatorFactory
from croq_fsm.ideators.replay import RecordingIdeator
from croq_fsm.ideators.services import Services

#: Entry-point group of third-party ideators.
GROUP: Final = "croq_fsm.ideators"

#: Built-in ideators: name → module and attribute.
BUILT_IN: Final = {
    "rules": "croq_fsm.ideators.rules:RulesIdeator",
    "replay": "croq_fsm.ideators.replay:ReplayIdeator",
    "llm": "croq_fsm.ideators.llm:LlmIdeator",
    "agent": "croq_fsm.ideators.agent:AgentIdeator",
}

#: Settings of the circuit breakers stand under this name beside those of the ideators.
_CHAIN: Final = "chain"

#: With this section, whatever is answered is written down.
_RECORD: Final = "record"

_METHODS: Final = ("propose", "repair")


def known() -> list[str]:
    """Names that :func:`load` accepts, sorted."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def load(name: str, settings: dict[str, Any]) -> Ideator:
    """Build an ideator.

    Args:
        name: A known name, or several joined by commas for a chain.
        settings: The ideator's section of the configuration. For a chain: one section per
            name, and ``chain`` for its circuit breakers.

    Raises:
        UsageError: The name is unknown, its package cannot be imported, what it names is no
            ideator, or the settings are bad.
    """
    names = [part.strip() for part in name.split(",") if part.strip()]
    if len(names) == 1:
        return _build(names[0], settings)
    if not names:
        raise UsageError(f"no ideator is named; known: {', '.join(known())}")
    links = [_build(link, settings.get(link, {})) for link in names]
    return ChainIdeator(links, Breaker(_breaker(settings.get(_CHAIN, {}))))


def open_ideator(names: str, sections: dict[str, dict[str, Any]], services: Services) -> Ideator:
    """The ideator of a session: one, or several in a chain, with what the engine lends.

    Args:
        names: Names joined by commas.
        sections: Table ``[ideators]`` of the configuration.
        services: Ledger, runner, deadline and stop of the session.

    Raises:
        UsageError: Like :func:`load`.
    """
    is_chain = "," in names
    ideator = load(names, sections if is_chain else sections.get(names.strip(), {}))
    if _RECORD in sections:
        ideator = RecordingIdeator(ideator, sections[_RECORD])
    if isinstance(ideator, Equipped):
        ideator.equip(services)
    return ideator


def _breaker(settings: dict[str, Any]) -> BreakerSettings:
    try:
        return BreakerSettings.model_validate(settings)
    except ValidationError as exc:
        raise UsageError(f"bad settings for a chain of ideators: {exc}") from exc


def _build(name: str, settings: dict[str, Any]) -> Ideator:
    ideator = _factory(name)(settings)
    lacking = [method for method in _METHODS if not callable(getattr(ideator, method, None))]
    if lacking or not isinstance(getattr(ideator, "name", None), str):
        raise UsageError(f"{name!r} is no ideator: it lacks {', '.join(lacking) or 'a name'}")
    return ideator


def _factory(name: str) -> IdeatorFactory:
    resolve = _resolver(name)
    if resolve is None:
        raise UsageError(f"unknown ideator {name!r}; known: {', '.join(known())}")
    try:
        return cast("IdeatorFactory", resolve())
    except (ImportError, AttributeError) as exc:
        raise UsageError(f"ideator {name!r} cannot be loaded: {exc}") from exc


def _resolver(name: str) -> Callable[[], Any] | None:
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return lambda: getattr(importlib.import_module(module), attribute)
    points: list[EntryPoint] = list(entry_points(group=GROUP, name=name))
    return points[0].load if points else None
