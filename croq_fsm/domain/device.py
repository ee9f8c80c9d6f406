"""Identity and limits of the device that runs the kernels."""

from __future__ import annotations

from croq_fsm.domain.model import Value


class Device(Value):
    """The device of a session.

    Attributes:
        key: ``<gpu>`` of the file layout, for example ``sm90_NVIDIA_H200``.
        name: Name as the driver or the kernel gives it.
        uuid: Unique identity; the lease is taken on it.
        peak_flops: Measured or documented peak for the task's types, FLOP/s; None if unknown.
        peak_bandwidth: Peak memory bandwidth, bytes/s; None if unknown.
        limits: Static limits by name: ``sms``, ``smem_per_block``, ``registers_per_thread``,
            ``registers_per_sm``, ``threads_per_block``, ``l2_bytes``, ``vector_bytes``,
            ``l1d_bytes``, ``cores`` … A limit that is not known is absent.
        facts: Anything else worth recording (driver, clocks, power cap, ECC).
        simulated: True for a model of a device.
        peak_source: Where the peaks are from, when they are bounds that nothing can exceed:
            ``peak_flops`` then is that of dense 16-bit products. "" for measured ones.
    """

    key: str
    name: str
    uuid: str
    peak_flops: float | None = None
    peak_bandwidth: float | None = None
    limits: dict[str, int] = {}
    facts: dict[str, str] = {}
    simulated: bool = False
    peak_source: str = ""


class Finding(Value):
    """One line of an environment report.

    Attributes:
        name: What was looked at.
        ok: Whether it is usable.
        found: Version or path.
        forbids: What cannot be done without it; empty when ok.
        cure: What to do about it; empty when ok.
        required: Whether the DSL cannot work at all without it.
    """

    name: str
    ok: bool
    found: str = ""
    forbids: str = ""
    cure: str = ""
    required: bool = True
