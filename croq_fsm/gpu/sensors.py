"""The sensors of a device: clocks, power, temperature, memory in use, by a child of ours.

The daemon never calls NVML itself: after a device fault such a call can hang for ever. A child
does it, reads by itself while a block runs, and disturbs nothing. Where it cannot (no library, a
device that tells nothing), measuring goes on without, and the samples say so.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from croq_fsm.domain.measurement import Reading
from croq_fsm.errors import CandidateError, EnvironmentMissing
from croq_fsm.toolchain.process import Command, Conversation, Runner

_CHILD: Final = Path(__file__).with_name("sensors_child.py")
_EVERY_S: Final = 0.01
_LIFE_FACTOR: Final = 100.0
_FIELDS: Final = ("sm_mhz", "memory_mhz", "temperature_c", "power_w", "memory_mb")


class Sensors:
    """Asks the child; after its first failure it is left alone.

    Args:
        talk: The child; None when it could not be started.
        deadline_s: Seconds for one answer.
        problem: Why there is no child.

    Attributes:
        problem: Why nothing can be read; "" as long as it can.
    """

    def __init__(self, talk: Conversation | None, deadline_s: float, problem: str = "") -> None:
        self._talk = talk
        self._deadline_s = deadline_s
        self.problem = problem

    def look(self) -> Reading | None:
        """One reading now; None when nothing can be read."""
        found = _readings([self._ask({"cmd": "look"}).get("reading")])
        return found[0] if found else None

    def begin(self) -> None:
        """Read from now on."""
        self._ask({"cmd": "begin", "every_s": _EVERY_S})

    def end(self) -> tuple[Reading, ...]:
        """What was read since, in order; empty when nothing can be read."""
        found = self._ask({"cmd": "end"}).get("readings")
        return _readings(found) if isinstance(found, list) else ()

    def close(self) -> None:
        """End the child; always safe to call."""
        if self._talk is not None:
            self._talk.close()
            self._talk = None

    def _ask(self, request: dict[str, object]) -> dict[str, object]:
        """An answer, or nothing once the child has failed."""
        if self._talk is None:
            return {}
        try:
            answer = self._talk.ask(request, self._deadline_s)
        except (CandidateError, EnvironmentMissing) as exc:
            answer = {"error": str(exc)}
        if answer.get("ok") is True:
            return answer
        self.problem = f"the sensors cannot be read: {str(answer.get('error'))[:200]}"
        self.close()
        return {}


@contextlib.contextmanager
def open_sensors(
    runner: Runner, uuid: str, cwd: Path, deadline_s: float, *, library: str = ""
) -> Iterator[Sensors]:
    """Sensors of a device, closed afterwards.

    Args:
        runner: Starts the child.
        uuid: The device.
        cwd: Working folder of the child.
        deadline_s: Seconds for one answer.
        library: Path of NVML; empty lets the dynamic loader search.
    """
    argv = (sys.executable, "-I", "-S", str(_CHILD), uuid, *([library] if library else []))
    command = Command(argv=argv, cwd=cwd, deadline_s=deadline_s * _LIFE_FACTOR, label="sensors")
    try:
        sensors = Sensors(runner.converse(command), deadline_s)
    except EnvironmentMissing as exc:
        sensors = Sensors(None, deadline_s, f"the sensors cannot be read: {exc}")
    try:
        sensors.look()  # a library that is not there is found out now, not in the first block
        yield sensors
    finally:
        sensors.close()


def _readings(found: list[Any]) -> tuple[Reading, ...]:
    """Readings with times since the first; what is no number is absent."""
    rows = [row for row in found if isinstance(row, dict) and _number(row.get("at")) is not None]
    began = _number(rows[0]["at"]) if rows else 0.0
    return tuple(
        Reading(
            at_s=float(row["at"]) - (began or 0.0),
            reasons=reasons if isinstance(reasons := row.get("reasons"), int) else None,
            **{name: _number(row.get(name)) for name in _FIELDS},
        )
        for row in rows
    )


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]
