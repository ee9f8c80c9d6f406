"""A session is measured or simulated, and all of its marks say the same."""

from __future__ import annotations

from typing import Final

from croq_fsm.validation.record import Findings, Record

_CURE: Final = (
    "no figure of this session can be told to be a measurement; set it aside with "
    "'croq-fsm clean --invalid-only'"
)
_MARK: Final = "SIMULATED"


def check(record: Record) -> Findings:
    """Task, configuration, device, its key and what built the kernels agree."""
    session = record.session
    wanted = session.task.simulated
    marks = {"configuration": record.config.simulation.on}
    if session.device.key:
        marks["device"] = session.device.simulated
        marks["key of the device"] = session.device.key.endswith(_MARK)
    for it in record.iterations:
        if it.build is not None:
            marks[f"compilers of {it.name}"] = _MARK in it.build.compilers.values()
    wrong = [name for name, value in marks.items() if value is not wanted]
    if wrong:
        text = (
            f"the task is {'simulated' if wanted else 'measured'}, but not so: {', '.join(wrong)}; "
            "what is measured and what is simulated must never be mixed up"
        )
        yield record.problem("simulated-mixed", f"session {session.id}", text, cure=_CURE)
