"""A session as the database row has it."""

from __future__ import annotations

from dataclasses import dataclass

from croq_fsm.domain.device import Device
from croq_fsm.domain.states import Decision, State, Status
from croq_fsm.domain.task import Task
from croq_fsm.domain.work import Work


@dataclass(frozen=True)
class Session:
    """One tuning session.

    Attributes:
        id: Unique, sortable by creation time.
        task: What was asked for.
        device: Device of the session; a placeholder before INIT has run.
        dialect: Facts about the compilers.
        seed: Seed of all random choices.
        config_hash: Hash of the effective configuration.
        fsm_version: Meaning of the state machine when the session was made.
        state: Where the machine stands.
        seq: Number of transitions so far.
        status: Whether somebody works on it.
        reason: Why it ended, or "".
        work: Checkpoint.
        begins: How often (state, seq) was begun without a transition.
        round: Finished rounds.
        next_iteration: Next free iteration number.
        next_attempt: Next free attempt ordinal.
        streak: Rounds since the last KEEP.
        macro_run: Consecutive macro-only rounds.
        counts: Rounds by decision.
        log_sizes: Bytes written so far to each append-only view.
        best_iteration: Number of the best kernel, once there is one.
        noise: Relative noise floor, once measured.
        library_seconds: Library time of BASELINE.
        created_at: UTC microseconds.
        updated_at: UTC microseconds of the last transition.
    """

    id: str
    task: Task
    device: Device
    dialect: dict[str, str]
    seed: int
    config_hash: str
    fsm_version: int
    state: State
    seq: int
    status: Status
    reason: str
    work: Work
    begins: int
    round: int
    next_iteration: int
    next_attempt: int
    streak: int
    macro_run: int
    counts: dict[Decision, int]
    log_sizes: dict[str, int]
    best_iteration: int | None
    noise: float | None
    library_seconds: float | None
    created_at: int
    updated_at: int

    def verify_seeds(self, round_number: int, count: int) -> tuple[int, ...]:
        """Seeds that candidates of a round are verified with, the same whenever they are asked for.

        Args:
            round_number: The round; an ideator does not know what follows from it.
            count: How many.
        """
        first = self.seed + 1000 * round_number
        return tuple(first + i for i in range(count))
