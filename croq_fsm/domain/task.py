"""What the user asked for: one kernel, one shape, one budget."""

from __future__ import annotations

from typing import Final, Literal

from croq_fsm.domain import names, operators, own_host
from croq_fsm.domain.model import Value
from croq_fsm.domain.operators import Operator, Precision
from croq_fsm.domain.shapes import format_shape

#: DSL → file suffix of its sources.
SUFFIXES: Final = {"c": ".c", "cuda": ".cu", "croqtile": ".co"}


class Task(Value):
    """One tuning task.

    Attributes:
        dsl: ``c``, ``cuda`` or ``croqtile``.
        operator: Name in the operator registry.
        dtype: Dtype word of that operator.
        shape: Sizes in the operator's order.
        kernel: Path of the start kernel as the user gave it, or ``builtin:<name>``.
        model: ``<model>`` of the file layout: names the ideator.
        rounds: Stop after this many rounds; None means no such limit.
        deadline: Stop after this UTC time (seconds since the epoch); None means none.
        simulated: Whether the device is a model; such numbers are never measurements.
        ideator: Who proposes, where that is another one than ``model`` names; "" where it is not.
        hours: The task's own share of time, counted from the moment at which its turn comes.
        gpu_seconds: Stop after so many seconds in the states that use the device.
        tokens: Stop after so many tokens of models and agents.
        own_host: Whether the operator is not in the registry, and the kernel runs in a host part
            of its own; such numbers are self-reported.
        host: Hash of that host part, as it was in the start kernel; "" otherwise.
        work: Floating-point operations of one call of such an operator; None when unknown.
        work_from: Who says so: ``given`` by the user, or ``reported`` by the program.
    """

    dsl: str
    operator: str
    dtype: str
    shape: tuple[int, ...]
    kernel: str
    model: str
    rounds: int | None = None
    deadline: float | None = None
    simulated: bool = False
    ideator: str = ""
    hours: float | None = None
    gpu_seconds: float | None = None
    tokens: int | None = None
    own_host: bool = False
    host: str = ""
    work: float | None = None
    work_from: Literal["", "given", "reported"] = ""

    @property
    def proposer(self) -> str:
        """Names of the ideators that are asked."""
        return self.ideator or self.model

    @property
    def op(self) -> Operator:
        """The operator's registry entry; of an unknown one what is known of it."""
        if self.own_host:
            work = int(self.work or 0)
            return own_host.operator(self.operator, self.dtype, len(self.shape), work)
        return operators.operator(self.operator)

    @property
    def precision(self) -> Precision:
        """Meaning of the dtype word."""
        return self.op.precision(self.dtype)

    @property
    def sizes(self) -> dict[str, int]:
        """Named sizes, for example ``{"m": 512, "n": 512, "k": 512}``."""
        return self.op.sizes(self.shape)

    @property
    def shape_key(self) -> str:
        """``<operator>_<dtype>_<MxNxK>``."""
        return f"{self.operator}_{self.dtype}_{format_shape(self.shape)}"

    @property
    def key(self) -> str:
        """``<shape_key>/<model>``."""
        return f"{self.shape_key}/{names.slug(self.model)}"

    @property
    def flops(self) -> int:
        """Floating-point operations of one call; 0 where nobody knows."""
        return self.op.flop_count(self.shape)

    @property
    def nbytes(self) -> int:
        """Compulsory traffic of one call, bytes; 0 where nobody knows."""
        return self.op.nbytes(self.shape, self.dtype)

    def tflops(self, seconds: float) -> float | None:
        """Operations over time, in 10^12 per second; None where the operations are unknown."""
        return self.flops / seconds / 1e12 if self.flops else None

    def gbps(self, seconds: float) -> float:
        """Compulsory traffic over time, in 10^9 bytes per second."""
        return self.nbytes / seconds / 1e9
