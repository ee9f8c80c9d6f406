"""A base as the operators see it: what it is, on what, and what the profile says of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from croq_fsm.ideators.contract import Context
from croq_fsm.ideators.rules import croqtile_patches as patches
from croq_fsm.ideators.rules.croqtile_config import (
    ELEMENT,
    Gemm,
    Shape,
    changed,
    entry_registers,
)
from croq_fsm.ideators.rules.croqtile_limits import Machine
from croq_fsm.ideators.rules.croqtile_model import Prediction, gain, predict
from croq_fsm.ideators.rules.croqtile_read import Reading, read
from croq_fsm.ideators.rules.croqtile_search import ranked

_TENSOR: Final = "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed"

#: Share of saved cycles that is saved time: a busier chip runs at a lower clock.
_POWER: Final = 0.65

#: What remains to be won above the tensor cores' own time, whatever the model says.
_SLACK: Final = 0.01

_ORDERS: Final = {"m": "M fastest", "n": "N fastest", "gm": "bands of M", "gn": "bands of N"}


@dataclass(frozen=True)
class Case:
    """The situation of one round.

    Attributes:
        context: What the policy knows.
        shape: Sizes of the problem.
        machine: Limits of the device.
        reading: What the base's source says; None when it is no GEMM of the family's form.
        element: Element type of the task.
    """

    context: Context
    shape: Shape
    machine: Machine
    reading: Reading | None
    element: str

    @classmethod
    def of(cls, context: Context) -> Case:
        """Read the base of a context."""
        return cls(
            context=context,
            shape=Shape.of(context.task.sizes),
            machine=Machine.of(context.device.limits),
            reading=read(context.base.candidate.source),
            element=context.task.precision.output.element,
        )

    @property
    def is_known(self) -> bool:
        """Whether the base's text could be read."""
        return self.reading is not None

    @cached_property
    def base(self) -> Gemm:
        """The family's member nearest to the base; the calculated one for an unknown text.

        A uniform index that a patch brings counts as the kernel's own.
        """
        if self.reading is None:
            return self.best
        config = self.reading.config
        if config.consumers > 1 and patches.has_uniform(self.context.base.candidate.patches):
            config = replace(config, uniform=True)
        return config

    @cached_property
    def best(self) -> Gemm:
        """The member that the model ranks first among those in plain language."""
        members = ranked(self.shape, self.machine, self.element, plain=True)
        return members[0] if members else Gemm(element=self.element)

    def predict(self, config: Gemm) -> Prediction:
        """What the model says of a member on this shape."""
        return predict(config, self.shape, self.machine)

    def expected(self, config: Gemm) -> float:
        """Relative gain over the base that the model expects, in time rather than cycles.

        What the tensor cores leave idle bounds it, where the profile says so.
        """
        won = _POWER * gain(self.predict(self.base), self.predict(config))
        busy = self.context.profile.metric(_TENSOR)
        if busy and self.predict(config).rounds > 1:
            won = min(won, 100.0 / max(busy, 1.0) - 1 + _SLACK)
        return won

    def words(self, new: Gemm) -> dict[str, object]:
        """What the sentences of a rule may name."""
        old, then, now = self.base, self.predict(self.base), self.predict(new)
        turned = changed(old, new) if self.is_known else ("tile_m", "tile_n", "stages", "ctas")
        return {
            "now": _listed(new, turned),
            "was": _listed(old, turned) if self.is_known else "not known",
            "tile": f"{new.tile_m}x{new.tile_n}x{new.tile_k}",
            "stages": new.stages,
            "turns": new.turns,
            "schedule": "persistent" if new.ctas else "one tile per block",
            "prologues": "once" if new.ctas else "for each tile",
            "sms": self.machine.sms,
            "tiles": now.tiles,
            "old_tiles": then.tiles,
            "rounds": now.rounds,
            "efficiency": f"{then.efficiency:.1%}",
            "new_efficiency": f"{now.efficiency:.1%}",
            "ways": old.conflict_ways,
            "new_ways": new.conflict_ways,
            "row_bytes": new.tile_n * ELEMENT,
            "l2": f"{now.l2:.0f}",
            "epilogue": f"{then.epilogue:.1%}",
            "staging": new.staging_bytes,
            "old_staging": old.staging_bytes,
            "old_order": _ORDERS[old.order],
            "new_order": _ORDERS[new.order],
            "old_dram": _megabytes(then.dram),
            "dram": _megabytes(now.dram),
            "sums": new.accumulator_registers,
            "entry": entry_registers(new.threads),
            "cycles": f"{now.cycles:,.0f}",
            "old_cycles": f"{then.cycles:,.0f}",
        }


def _listed(config: Gemm, names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {_told(getattr(config, name))}" for name in names) or "as it is"


def _told(value: object) -> str:
    if isinstance(value, tuple):
        return "/".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.0f} MB"
