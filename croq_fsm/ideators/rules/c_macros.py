"""Macros of a kernel that we did not write: the numbers that its author made adjustable."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Final

from croq_fsm.domain.ideas import SetMacros
from croq_fsm.domain.source import macros
from croq_fsm.ideators.contract import Context
from croq_fsm.ideators.rules.c_steps import Step

#: Tried around the present value, the likeliest first.
_FACTORS: Final = (Fraction(2), Fraction(1, 2), Fraction(4), Fraction(1, 4), Fraction(3, 2))

#: A macro beyond this is no tile size or unroll count.
_LARGEST: Final = 1 << 16


def turning(context: Context) -> Iterator[Step]:
    """Each number of at least 2 times and over a small factor; one macro at a time."""
    numbers = {
        name: int(text)
        for name, text in macros(context.base.candidate.source).items()
        if text.isdecimal() and 1 < int(text) <= _LARGEST
    }
    for factor in _FACTORS:
        for name, value in numbers.items():
            new = value * factor
            if new.denominator == 1 and 1 <= new <= _LARGEST:
                yield Step(
                    tag=f"{name}_{new}",
                    words={"macro": name, "was": value, "now": int(new)},
                    levers=(name,),
                    edit=partial(SetMacros, macros={name: str(new)}),
                )
