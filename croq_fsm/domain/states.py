"""Names of the state machine: states, outcomes, decisions, classes. Values equal names."""

from __future__ import annotations

from enum import Enum


class _Named(Enum):
    """Enum whose members are stored by name; never compare with plain strings."""

    def __str__(self) -> str:
        return str(self.value)


class State(_Named):
    """Work states and the two final states of a session."""

    INIT = "INIT"
    BASELINE = "BASELINE"
    PROFILE = "PROFILE"
    IDEATE = "IDEATE"
    IMPLEMENT = "IMPLEMENT"
    MEASURE = "MEASURE"
    DECIDE = "DECIDE"
    STORE = "STORE"
    DONE = "DONE"
    FAILED = "FAILED"

    @property
    def is_final(self) -> bool:
        """Whether a session in this state has ended."""
        return self in (State.DONE, State.FAILED)


class Outcome(_Named):
    """What the work of a state came to. Each (state, outcome) has exactly one edge."""

    READY = "ready"
    INVALID = "invalid"
    MEASURED = "measured"
    IMPOSSIBLE = "impossible"
    CLASSIFIED = "classified"
    DEGRADED = "degraded"
    BUSY = "busy"
    UNAVAILABLE = "unavailable"
    PROPOSED = "proposed"
    EXHAUSTED = "exhausted"
    ENDED = "ended"
    BACKEND_DOWN = "backend_down"
    BUILT = "built"
    ATTEMPT_FAILED = "attempt_failed"
    ABANDONED = "abandoned"
    ENVIRONMENT_BROKEN = "environment_broken"
    TIMED = "timed"
    REPAIRABLE = "repairable"
    REJECTED = "rejected"
    CONTENDED = "contended"
    WEDGED = "wedged"
    DECIDED = "decided"
    AMBIGUOUS = "ambiguous"
    STORED = "stored"
    FINISHED = "finished"
    POISONED = "poisoned"


class Status(_Named):
    """Whether somebody works on the session. Not a state of the machine."""

    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"


class Decision(_Named):
    """Verdict on one round."""

    KEEP = "KEEP"
    DISCARD = "DISCARD"
    COMPILE_FAIL = "COMPILE_FAIL"
    VERIFY_FAIL = "VERIFY_FAIL"
    SEGFAULT = "SEGFAULT"
    HANG = "HANG"
    RUN_FAIL = "RUN_FAIL"

    @property
    def is_measured(self) -> bool:
        """Whether the candidate was timed, and so owns an iteration number."""
        return self in (Decision.KEEP, Decision.DISCARD)


class Bottleneck(_Named):
    """What limits a kernel. There is no ``unknown``."""

    MEMORY = "memory_bound"
    COMPUTE = "compute_bound"
    LATENCY = "latency_bound"
    LAUNCH = "launch_bound"
    MIXED = "mixed"


class Category(_Named):
    """Kind of an idea."""

    TILING = "tiling"
    PIPELINE = "pipeline"
    MEMORY = "memory"
    COMPUTE = "compute"
    MISC = "misc"
