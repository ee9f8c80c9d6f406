"""What no kernel can do: be faster than the device's peaks allow. Pure.

A time below that is no record but an error of the harness, or a kernel that did not do the work
and was not found out. It is never kept, whatever the statistics say.
"""

from __future__ import annotations

from typing import Final, Literal

from croq_fsm.domain.device import Device
from croq_fsm.domain.task import Task

#: Slack of the peaks, which are themselves read off a data sheet or a clock.
SLACK: Final = 0.95
#: FLOP/s of the tensor cores relative to 16-bit inputs, by bytes of the widest input element.
_BY_BYTES: Final = {1: 2.0, 2: 1.0, 4: 0.5}
#: Operators on structured sparse inputs do twice the work that their inputs seem to hold.
_SPARSE: Final = {"gemm_sp": 2.0}


def floor_seconds(task: Task, device: Device, l2: Literal["cold", "hot"]) -> float | None:
    """Least time of a call that is believed, seconds; None where no peak has a named source.

    Args:
        task: Work and traffic.
        device: Peaks; ``peak_source`` says where they are from. What was only measured on a busy
            machine is no bound.
        l2: Inputs of hot launches need not come from the device's memory.
    """
    if not device.peak_source:
        return None
    bounds = []
    if device.peak_flops and task.flops:
        bounds.append(task.flops / (device.peak_flops * _factor(task)))
    if device.peak_bandwidth and task.nbytes and l2 == "cold":
        bounds.append(task.nbytes / device.peak_bandwidth)
    return SLACK * max(bounds) if bounds else None


def _factor(task: Task) -> float:
    if task.own_host:  # its types are nobody's knowledge: the fastest that there are
        return max(_BY_BYTES.values()) * max(_SPARSE.values())
    widest = max(_bytes(tensor.element) for tensor in task.precision.inputs[:2])
    return _BY_BYTES.get(widest, 2.0) * _SPARSE.get(task.operator, 1.0)


def _bytes(element: str) -> int:
    """Bytes of an element by its name; of an unknown one the least, for the lowest floor."""
    known = {"f16": 2, "bf16": 2, "f32": 4, "f64": 4}
    return known.get(element, 1)
