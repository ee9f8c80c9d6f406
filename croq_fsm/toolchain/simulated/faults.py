"""What goes wrong in a simulated night: by probability, by script, or by the clock.

Every decision is a pure function of the seed, of the candidate or of the simulated time, never of
how often something was asked: a night that was stopped and resumed meets the same faults.

A script is a TOML file of ``[[fault]]`` tables::

    [[fault]]
    kind = "wrong_result"       # see Kind
    matching = "TILE_N 200"     # candidates whose source holds this regular expression, or
    probability = 0.1           # so many candidates, or
    from_s = 3600               # everything in a window of simulated seconds
    until_s = 7200

    [[fault]]
    kind = "kill"               # at a named fault point, see croq_fsm/faults.py; once
    point = "after_commit"
    count = 3
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from croq_fsm import faults as points
from croq_fsm.config import Section, Simulation
from croq_fsm.errors import UsageError
from croq_fsm.toolchain.simulated.clock import SimulatedClock

Kind = Literal[
    "compile_fail",
    "compiler_abort",
    "compiler_hang",
    "wrong_result",
    "crash",
    "hang",
    "contention",
    "profiler_denied",
    "slow",
    "disk_full",
    "ideator_down",
    "ideator_garbage",
    "kill",
]

#: Faults of candidates whose probability the configuration names.
_CONFIGURED: Final = (
    "compile_fail",
    "compiler_abort",
    "compiler_hang",
    "wrong_result",
    "crash",
    "hang",
)
#: Others come to the device in slots of this many seconds, and stay for a part of one.
_SLOT_S: Final = 600.0
_STAY_S: Final = 150.0


class Fault(Section):
    """One entry of a script.

    Attributes:
        kind: What goes wrong.
        probability: Share of candidates, or of asks of an ideator.
        matching: Regular expression on the candidate's source.
        from_s: Begin of the window, simulated seconds since the session began.
        until_s: End of the window.
        point: Fault point of a kill.
        count: How often the point is passed before the kill.
    """

    kind: Kind
    probability: Annotated[float, Field(ge=0, le=1)] = 0.0
    matching: str = ""
    from_s: Annotated[float, Field(ge=0)] | None = None
    until_s: Annotated[float, Field(gt=0)] | None = None
    point: str = ""
    count: Annotated[int, Field(ge=1)] = 1

    @field_validator("matching")
    @classmethod
    def _compiles(cls, text: str) -> str:
        try:
            re.compile(text)
        except re.error as exc:
            raise ValueError(f"{text!r} is no regular expression: {exc}") from exc
        return text

    @model_validator(mode="after")
    def _says_when(self) -> Fault:
        if (self.kind == "kill") != bool(self.point):
            raise ValueError("a kill, and nothing else, names a fault point")
        if not (self.probability or self.matching or self.from_s is not None or self.point):
            raise ValueError(f"{self.kind}: say probability, matching, from_s or point")
        return self

    def is_now(self, elapsed: float) -> bool:
        """Whether the window is open; a fault without one is never 'now'."""
        if self.from_s is None:
            return False
        return self.from_s <= elapsed < (self.until_s or float("inf"))


class Script(Section):
    """A script of faults."""

    fault: tuple[Fault, ...] = ()


def read_script(path: Path) -> Script:
    """Read a script.

    Raises:
        UsageError: Missing, no TOML, or not a script.
    """
    try:
        return Script.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as exc:
        raise UsageError(f"fault script {path} does not exist") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as exc:
        raise UsageError(f"fault script {path} cannot be read: {exc}") from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"fault script {path}: {where}: {first['msg']}") from exc


def chance(seed: int, *what: object) -> float:
    """A number in [0, 1) that is always the same for the same words."""
    digest = hashlib.sha256("|".join(map(str, (seed, *what))).encode()).digest()
    return int.from_bytes(digest[:7], "big") / (1 << 56)


@dataclass
class Faults:
    """All faults of one simulated night.

    Attributes:
        settings: Probabilities.
        script: The script.
        seed: Of the night.
        clock: Simulated time.
        markers: Folder in which faults that happen once leave a trace.
        spared: What no probability strikes: the start kernel, without which there is no night.
    """

    settings: Simulation
    script: Script
    seed: int
    clock: SimulatedClock
    markers: Path
    spared: str = ""
    _armed: bool = field(default=False, init=False)

    def hits(self, kind: Kind, identity: str, source: str = "") -> bool:
        """Whether a fault strikes a candidate, or an ask of an ideator."""
        share = getattr(self.settings, kind) if kind in _CONFIGURED else 0.0
        if identity != self.spared and chance(self.seed, kind, identity) < share:
            return True
        return any(self._strikes(i, f, identity, source) for i, f in self._of(kind))

    def _strikes(self, ordinal: int, fault: Fault, identity: str, source: str) -> bool:
        if fault.is_now(self.clock.elapsed):
            return True
        if fault.matching:
            return re.search(fault.matching, source) is not None
        return chance(self.seed, "script", ordinal, identity) < fault.probability

    def now(self, kind: Kind) -> bool:
        """Whether a fault of the environment lasts now."""
        return any(fault.is_now(self.clock.elapsed) for _, fault in self._of(kind))

    @property
    def contended(self) -> bool:
        """Whether somebody else uses the device now."""
        if self.now("contention"):
            return True
        slot, within = divmod(self.clock.elapsed, _SLOT_S)
        came = chance(self.seed, "contention", int(slot)) * _SLOT_S / _STAY_S
        return within < _STAY_S and came < self.settings.contention

    @property
    def slowdown(self) -> float:
        """Factor on all times now."""
        return 1.25 if self.now("slow") else 1.0

    def once(self, kind: Kind) -> bool:
        """Whether a fault lasts now that has not happened yet; it has, from now on."""
        for ordinal, fault in self._of(kind):
            marker = self.markers / f"{kind}-{ordinal}"
            if fault.is_now(self.clock.elapsed) and not marker.exists():
                self._mark(marker)
                return True
        return False

    def spare_first(self, of: str, identity: str) -> None:
        """The first candidate of a task is the start kernel; remembered for later starts."""
        marker = self.markers / f"start-{of}"
        if not marker.exists():
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.write_text(identity, encoding="ascii")
        self.spared = marker.read_text(encoding="ascii")

    def arm_kills(self) -> None:
        """Turn the script's kills on, each once in the life of the root."""
        if self._armed:
            return
        self._armed = True
        wanted = []
        for ordinal, fault in self._of("kill"):
            marker = self.markers / f"kill-{ordinal}"
            if not marker.exists():
                # Before the kill, for afterwards nobody is left to write it down.
                self._mark(marker)
                wanted.append(f"{fault.point}@{fault.count}=kill")
                break
        if wanted:
            points.arm(",".join(wanted))

    def _mark(self, marker: Path) -> None:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()

    def _of(self, kind: Kind) -> list[tuple[int, Fault]]:
        return [(i, f) for i, f in enumerate(self.script.fault) if f.kind == kind]
