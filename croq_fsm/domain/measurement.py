"""Raw samples and verifications, with the provenance that makes them publishable."""

from __future__ import annotations

from typing import Literal

from croq_fsm.domain.model import Value


class Reading(Value):
    """What the sensors of a device said at one moment; None for what cannot be read.

    Attributes:
        at_s: Seconds since the request for the block was sent.
        sm_mhz: Clock of the multiprocessors.
        memory_mhz: Clock of the memory.
        temperature_c: Temperature of the chip, degrees Celsius.
        power_w: Power, watts.
        reasons: Why the driver holds the clocks where they are, as its bits.
        memory_mb: Device memory in use, MiB.
    """

    at_s: float
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    reasons: int | None = None
    memory_mb: float | None = None


class Block(Value):
    """Consecutive launches of one contestant in one process.

    Attributes:
        contestant: ``candidate``, ``best``, ``library`` (or ``a``/``b`` in an A/A test; ``start``
            in a final measurement, where ``candidate`` is the best).
        pair: Ordinal of the interleaved pair that the block belongs to.
        seconds: Time of each launch, seconds, in order; warm-up already dropped.
        host_seconds: Wall time that the parent saw for the whole block.
        clocks: SM clock before and after, MHz, where it can be read.
        group: Ordinal of the set of fresh processes that the block was taken in.
        readings: Sensors before, in the middle of and after the block, where they can be read.
    """

    contestant: str
    pair: int
    seconds: tuple[float, ...]
    host_seconds: float
    clocks: tuple[float, ...] = ()
    group: int = 0
    readings: tuple[Reading, ...] = ()


class Samples(Value):
    """Blocks of one interleaved measurement.

    Attributes:
        purpose: What it was taken for.
        regime: ``isolated``, ``burst`` or ``sustained``; with L2 ``cold`` or ``hot``.
        blocks: In the order in which they ran.
        dropped: Why blocks were thrown away and repeated (contention, clocks), if any were.
        process: Distinguishes fresh processes; a confirmation has another one.
        method: How launches were timed, the same for all contestants; "" where there is one way.
        windows: Measurements that were merged into these.
        telemetry: Why the sensors of the device could not be read; "" when they were, or where
            there are none.
        sandbox: Level of the sandbox that candidates ran in; "" where nobody looked.
        self_reported: Whether the times are what programs with host parts of their own printed.
        reported_flops: Floating-point operations of one call that follow from what such a program
            printed beside its time; None where it printed none.
    """

    purpose: Literal["baseline", "noise", "screen", "pairs", "confirm", "final"]
    regime: str
    blocks: tuple[Block, ...]
    dropped: tuple[str, ...] = ()
    process: str = ""
    method: str = ""
    telemetry: str = ""
    windows: int = 1
    sandbox: str = ""
    self_reported: bool = False
    reported_flops: float | None = None

    def of(self, contestant: str) -> tuple[Block, ...]:
        """Blocks of one contestant, in order."""
        return tuple(b for b in self.blocks if b.contestant == contestant)


def merge(parts: list[Samples]) -> Samples:
    """Samples of several measurements as one, with distinct numbers of pairs and of groups.

    Raises:
        LookupError: There are none.
    """
    if not parts:
        raise LookupError("no samples to merge")
    blocks: list[Block] = []
    pair = group = 0
    for part in parts:
        blocks += [_shifted(b, pair, group) for b in part.blocks]
        pair += 1 + max((b.pair for b in part.blocks), default=-1)
        group += 1 + max((b.group for b in part.blocks), default=-1)
    return parts[-1].model_copy(
        update={
            "blocks": tuple(blocks),
            "dropped": tuple(text for part in parts for text in part.dropped),
            "method": " / ".join(dict.fromkeys(p.method for p in parts if p.method)),
            "windows": sum(part.windows for part in parts),
            "telemetry": next((p.telemetry for p in parts if p.telemetry), ""),
        }
    )


def _shifted(block: Block, pair: int, group: int) -> Block:
    """The block with later numbers of pair and group; thousands of them, so no idle copies."""
    if not pair and not group:
        return block
    return block.model_copy(update={"pair": pair + block.pair, "group": group + block.group})


class Check(Value):
    """One verification run of the whole output under one input set.

    Attributes:
        name: ``smoke``, ``normal-seed-1``, ``index-coded`` …
        rung: Rung of the ladder that it belongs to.
        passed: Whether it passed.
        rel_error: Relative Frobenius error; None when no output was produced.
        max_error: Largest absolute error.
        wrong: Elements outside the element-wise bound.
        total: Elements compared (always the whole output).
        detail: Sentence for people, for example where the first wrong element is.
        skipped: Why it was not run, or "". Such a check has not passed, and is no objection.
    """

    name: str
    rung: str
    passed: bool
    rel_error: float | None = None
    max_error: float | None = None
    wrong: int | None = None
    total: int | None = None
    detail: str = ""
    skipped: str = ""

    @property
    def objects(self) -> bool:
        """Whether it was run and found something."""
        return not self.passed and not self.skipped


class Verification(Value):
    """All checks of a candidate; it passed only if there are checks and none objects."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """True when no check objects."""
        return bool(self.checks) and not any(check.objects for check in self.checks)

    @property
    def first_failure(self) -> Check | None:
        """The first check that objects, or None."""
        return next((check for check in self.checks if check.objects), None)


def demanded(checks: tuple[Check, ...], *, required: bool) -> Verification | None:
    """Checks that may have been skipped, as a verification; None when there are none.

    Args:
        checks: What was tried.
        required: Whether a check that was skipped is an objection.
    """
    if required:
        checks = tuple(
            c.model_copy(update={"skipped": "", "detail": f"{c.skipped}; it is required"})
            if c.skipped
            else c
            for c in checks
        )
    return Verification(checks=checks) if checks else None


class Estimate(Value):
    """A ratio with its interval.

    Attributes:
        ratio: Median over pairs of best time / candidate time; above 1 means faster.
        low: Lower end of the 99 % bootstrap interval.
        high: Upper end.
        pairs: Number of pairs.
    """

    ratio: float
    low: float
    high: float
    pairs: int
