"""What the handlers of the states may touch: ports, and nothing behind them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from croq_fsm.config import Config
from croq_fsm.domain import guards
from croq_fsm.domain.profile import Profile
from croq_fsm.domain.records import Attempt, Iteration, Round
from croq_fsm.ideators.contract import Ideator
from croq_fsm.storage.layout import Layout
from croq_fsm.storage.reading import StoredMeasurement
from croq_fsm.toolchain.workbench import Workbench


class Clock(Protocol):
    """Time as a port, so that nights can be replayed."""

    def now(self) -> float:
        """UTC seconds since the epoch."""

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """Let time pass, or less when the daemon is asked to drain; whether it is."""


class History(Protocol):
    """Reads of one session's history; each is one short transaction."""

    def iteration(self, number: int) -> Iteration:
        """A measured kernel."""

    def fastest_other(self, structure: dict[str, str]) -> Iteration | None:
        """The fastest measured kernel whose structure differs."""

    def recent_rounds(self, limit: int) -> list[Round]:
        """Latest rounds, oldest first."""

    def is_tried(self, normalised: str) -> bool:
        """Whether a candidate was tried."""

    def has_fingerprint(self, fingerprint: str) -> bool:
        """Whether a combination was taken."""

    def profile(self, binary: str, *, full: bool) -> tuple[Profile, str] | None:
        """Stored profile of a binary, and its CSV."""

    def last_profile(self, round_: int) -> tuple[Profile, str, int] | None:
        """Profile of a round, its CSV, and its iteration."""

    def measurements(self, seqs: Iterable[int]) -> list[StoredMeasurement]:
        """Measurements written by the given transitions."""

    def measurements_of_round(self, round_: int) -> list[StoredMeasurement]:
        """Measurements of a round."""

    def attempts_of_round(self, round_: int) -> list[tuple[Attempt, int]]:
        """Failed attempts of a round, with times."""

    def build_texts(self, key: str) -> tuple[str, str]:
        """Build log and generated source of a build."""

    def artifact_paths(self, since_round: int) -> list[str]:
        """Paths of text artifacts of that round and later ones."""

    def round_began_at(self, round_: int) -> int | None:
        """UTC µs of a round's first transition."""

    def hints(self, limit: int) -> list[str]:
        """Latest hints of the user."""

    def device_seconds(self) -> float:
        """Seconds spent in the states that use the device."""

    def tokens(self) -> int:
        """Tokens that the session's ideators have used."""


class Control(Protocol):
    """Wishes of the user that reach a session between rounds."""

    def stop_reason(self) -> str | None:
        """Why the session shall end after this round, or None."""


@dataclass(frozen=True)
class Ports:
    """All ports of one session.

    Attributes:
        workbench: The DSL on its device.
        ideators: In the order in which they are asked when one is down.
        history: Reads of the session.
        control: Wishes of the user.
        clock: Time.
        config: The effective configuration of the session.
        layout: File layout; made anew once the device is known.
        admit: What every idea has to pass: all guards. Trials of what one guard is worth hand in
            fewer; there is no setting for it.
    """

    workbench: Workbench
    ideators: tuple[Ideator, ...]
    history: History
    control: Control
    clock: Clock
    config: Config
    layout: Layout
    admit: Callable[[guards.Facts], list[str]] = guards.refusals
