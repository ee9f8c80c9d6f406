"""Named fault points: places where a test may make production code fail.

Off, a point costs one look into an empty dictionary. ``CROQ_FAULT`` turns points on, as
``name=kill``, ``name=raise`` or ``name@3=kill`` (the third time), joined by commas.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Final, Literal, cast

_VARIABLE: Final = "CROQ_FAULT"


class InjectedFault(Exception):
    """A fault point was told to raise."""


@dataclass
class _Armed:
    action: Literal["kill", "raise"]
    countdown: int


def _parse(text: str) -> dict[str, _Armed]:
    armed = {}
    for item in filter(None, text.split(",")):
        where, _, action = item.partition("=")
        name, _, count = where.partition("@")
        if action not in ("kill", "raise"):
            raise ValueError(f"{_VARIABLE}: action of {item!r} must be kill or raise")
        armed[name] = _Armed(cast(Literal["kill", "raise"], action), int(count or 1))
    return armed


_armed: dict[str, _Armed] = _parse(os.environ.get(_VARIABLE, ""))


def point(name: str) -> None:
    """Fail here if a test asked for it."""
    if not _armed:
        return
    armed = _armed.get(name)
    if armed is None:
        return
    armed.countdown -= 1
    if armed.countdown > 0:
        return
    if armed.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise InjectedFault(name)


def arm(text: str) -> None:
    """Replace the armed points, for tests in the same process."""
    _armed.clear()
    _armed.update(_parse(text))
