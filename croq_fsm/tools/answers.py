"""What a tool answers: one object, an exit code, and what was claimed but is not so."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, Final

#: Relative difference of two figures that were printed with different digits.
_SAME: Final = 1e-3


@dataclass
class Answer:
    """The result of a tool.

    Attributes:
        values: Printed as one line of JSON.
        code: Exit code of the process.
        warnings: Claims of the caller that the engine did not take.
        plain: Printed in place of the JSON, for tools that answer with one word.
        note: A line for people, on standard error.
    """

    values: dict[str, Any] = field(default_factory=dict)
    code: int = 0
    warnings: list[str] = field(default_factory=list)
    plain: str = ""
    note: str = ""

    def line(self) -> str:
        """The one line of standard output."""
        if self.plain:
            return self.plain
        return json.dumps({**self.values, "warnings": self.warnings}, ensure_ascii=False)


def claims(claimed: dict[str, object], own: dict[str, object]) -> list[str]:
    """Warnings for what a caller said and the engine knows otherwise; None was not said.

    A caller's figure, decision or name is never taken, whether it agrees or not.
    """
    return [
        f"--{name.replace('_', '-')} {said} is ignored: the engine has {own.get(name)}"
        for name, said in claimed.items()
        if said is not None and not _same(said, own.get(name))
    ]


def _same(said: object, own: object) -> bool:
    if isinstance(own, float) and isinstance(said, int | float):
        return math.isclose(float(said), own, rel_tol=_SAME)
    return str(said) == str(own)
