"""From a wanted configuration to the smallest edit of the base's text."""

from __future__ import annotations

from functools import lru_cache

from croq_fsm.domain.ideas import Edit, NoEdit, Replace, SetMacros, WholeSource
from croq_fsm.domain.source import macros, set_macros, structure_hash
from croq_fsm.errors import EditError
from croq_fsm.ideators.rules import croqtile_patches as patches
from croq_fsm.ideators.rules.croqtile_case import Case
from croq_fsm.ideators.rules.croqtile_config import Gemm, changed
from croq_fsm.ideators.rules.croqtile_render import render


def edit_to(config: Gemm, case: Case) -> tuple[Edit, tuple[Replace, ...]]:
    """Edit and patches that turn the base into ``config``.

    A hand-written base keeps its text as long as macros suffice; otherwise the family's own
    text takes its place, and only patches of a known kind stay.
    """
    base = case.context.base
    edit = _by_macros(config, case) or smallest(base.candidate.source, render(config))
    if isinstance(edit, WholeSource):
        return edit, patches.carried(base.candidate.patches, config)
    return edit, patches.adapted(base.candidate.patches, case.base, config)


def smallest(old: str, new: str) -> Edit:
    """Macros alone when nothing else differs, else the complete text."""
    if new == old:
        return NoEdit()
    if structure_hash(new) == _known_hash(old):
        before, after = macros(old), macros(new)
        turned = {name: value for name, value in after.items() if before.get(name) != value}
        if turned and _set(old, turned) is not None:
            return SetMacros(macros=turned)
    return WholeSource(source=new)


def _by_macros(config: Gemm, case: Case) -> Edit | None:
    """Macro edit of a hand-written base, when its macros hold all that changes."""
    reading = case.reading
    if reading is None or reading.exact or reading.direct:
        return None
    turned = changed(case.base, config)
    if not turned or not set(turned) <= reading.macros.keys():
        return None
    if _structure(config) != _structure(case.base):
        return None
    values = {reading.macros[name]: str(getattr(config, name)) for name in turned}
    if _set(case.context.base.candidate.source, values) is None:
        return None
    return SetMacros(macros=values)


def _structure(config: Gemm) -> tuple[object, ...]:
    """What a text shows by its form, however its macros are set."""
    return config.rows, config.layout, bool(config.ctas), bool(config.group)


@lru_cache(maxsize=4)
def _known_hash(base: str) -> str:
    """Structure of a base, which every proposal of a round is compared with."""
    return structure_hash(base)


def _set(source: str, values: dict[str, str]) -> str | None:
    try:
        return set_macros(source, values)
    except EditError:
        return None
