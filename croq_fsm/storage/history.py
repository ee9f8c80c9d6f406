"""The history port of one session, on the daemon's repository."""

from __future__ import annotations

from collections.abc import Iterable

from croq_fsm.domain.profile import Profile
from croq_fsm.domain.records import Attempt, Iteration, Round
from croq_fsm.storage.reading import StoredMeasurement
from croq_fsm.storage.repository import Repository


class SessionHistory:
    """Binds the reader's queries to one session; each call is one short transaction."""

    def __init__(self, repository: Repository, session_id: str) -> None:
        self._repository = repository
        self._id = session_id

    def iteration(self, number: int) -> Iteration:
        """A measured kernel."""
        with self._repository.read() as reader:
            return reader.iteration(self._id, number)

    def fastest_other(self, structure: dict[str, str]) -> Iteration | None:
        """The fastest measured kernel whose structure differs."""
        with self._repository.read() as reader:
            return reader.fastest_other(self._id, structure)

    def recent_rounds(self, limit: int) -> list[Round]:
        """Latest rounds, oldest first."""
        with self._repository.read() as reader:
            return reader.recent_rounds(self._id, limit)

    def is_tried(self, normalised: str) -> bool:
        """Whether a candidate was tried."""
        with self._repository.read() as reader:
            return reader.is_tried(self._id, normalised)

    def has_fingerprint(self, fingerprint: str) -> bool:
        """Whether a combination was taken."""
        with self._repository.read() as reader:
            return reader.has_fingerprint(self._id, fingerprint)

    def profile(self, binary: str, *, full: bool) -> tuple[Profile, str] | None:
        """Stored profile of a binary, and its CSV."""
        with self._repository.read() as reader:
            return reader.profile(self._id, binary, full=full)

    def last_profile(self, round_: int) -> tuple[Profile, str, int] | None:
        """Profile of a round, its CSV, and its iteration."""
        with self._repository.read() as reader:
            return reader.last_profile(self._id, round_)

    def measurements(self, seqs: Iterable[int]) -> list[StoredMeasurement]:
        """Measurements written by the given transitions."""
        with self._repository.read() as reader:
            return reader.measurements(self._id, seqs)

    def measurements_of_round(self, round_: int) -> list[StoredMeasurement]:
        """Measurements of a round."""
        with self._repository.read() as reader:
            return reader.measurements_of_round(self._id, round_)

    def attempts_of_round(self, round_: int) -> list[tuple[Attempt, int]]:
        """Failed attempts of a round, with times."""
        with self._repository.read() as reader:
            return reader.attempts_of_round(self._id, round_)

    def build_texts(self, key: str) -> tuple[str, str]:
        """Build log and generated source of a build."""
        with self._repository.read() as reader:
            return reader.build_texts(self._id, key)

    def artifact_paths(self, since_round: int) -> list[str]:
        """Paths of text artifacts of that round and later ones."""
        with self._repository.read() as reader:
            return reader.artifact_paths(self._id, since_round)

    def round_began_at(self, round_: int) -> int | None:
        """UTC µs of a round's first transition."""
        with self._repository.read() as reader:
            return reader.round_began_at(self._id, round_)

    def hints(self, limit: int) -> list[str]:
        """Latest hints of the user."""
        with self._repository.read() as reader:
            return reader.hints(self._id, limit)

    def device_seconds(self) -> float:
        """Seconds spent in the states that use the device."""
        with self._repository.read() as reader:
            return reader.device_seconds(self._id)

    def tokens(self) -> int:
        """Tokens that the session's ideators have used."""
        with self._repository.read() as reader:
            return reader.tokens(self._id)
