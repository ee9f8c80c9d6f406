"""Whether the device still answers, asked after each failure that may have been its own.

A kernel that faults or hangs takes its own process down; now and then it takes the device with
it, and then every later candidate would be blamed. So a tiny program of ours is launched on it
after each such failure. If that does not come back within its deadline, again and again, the
device counts as wedged: nothing more is scheduled on it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

from croq_fsm.errors import (
    CandidateCrashed,
    CandidateHung,
    DeviceWedged,
    EnvironmentMissing,
)

#: Pauses between probes, seconds: a driver that resets the device needs some.
PAUSES_S: Final = (1.0, 4.0, 10.0)


class Health:
    """Guards work on a device.

    Args:
        probe: A tiny launch with a deadline; EnvironmentMissing when it fails.
        pause: Waits so many seconds.

    Attributes:
        probes: How often the device was asked.
    """

    def __init__(
        self, probe: Callable[[], None], pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._probe = probe
        self._pause = pause
        self.probes = 0

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Ask the device after a crash or a hang; the failure goes on when it answers.

        Raises:
            DeviceWedged: It does not answer any more; the failure is its cause.
        """
        try:
            yield
        except (CandidateCrashed, CandidateHung) as exc:
            self.must_answer(f"{type(exc).__name__}: {exc}")
            raise

    def must_answer(self, after: str) -> None:
        """Ask until it answers, a bounded number of times.

        Args:
            after: What happened before, for the message.

        Raises:
            DeviceWedged: It does not answer.
        """
        why = ""
        for pause in (*PAUSES_S, None):
            self.probes += 1
            try:
                self._probe()
            except EnvironmentMissing as exc:
                why = str(exc)
            else:
                return
            if pause is not None:
                self._pause(pause)
        raise DeviceWedged(
            f"the device does not answer a tiny launch any more ({why}); it happened after: "
            f"{after[:300]}. Look for Xid lines in 'dmesg'; a reset or reboot may be needed, then "
            "run 'croq-fsm resume --reopen'"
        )
