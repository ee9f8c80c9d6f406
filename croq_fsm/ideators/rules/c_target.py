"""What the compiler may count on: vectors, registers and caches, from device and flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from croq_fsm.ideators.contract import Context

#: Width of the vectors that every 64-bit target has without being told so, bytes.
BASELINE_VECTOR: Final = 16

#: Flags that let the compiler use all the vectors of this machine.
_TARGET_FLAGS: Final = ("-march=", "-mcpu=", "-mavx")

#: Sizes to go by when the device does not tell, bytes; common lower ends.
_L1D, _L2, _L3 = 32 << 10, 256 << 10, 4 << 20

#: Vector registers: AVX-512 and 64-bit Arm have 32, older x86 vectors have 16.
_MANY_REGISTERS, _FEW_REGISTERS = 32, 16
_AVX512_BYTES: Final = 64


@dataclass(frozen=True)
class Target:
    """Static limits that a C kernel is fitted to.

    Attributes:
        vector_bytes: Width of the vectors that the base's flags admit.
        widest_bytes: Width of the device's vectors, whatever the flags.
        registers: Vector registers of that width.
        l1d: First-level data cache, bytes.
        l2: Second-level cache, bytes.
        l3: Last-level cache, bytes.
    """

    vector_bytes: int
    widest_bytes: int
    registers: int
    l1d: int
    l2: int
    l3: int

    @property
    def lanes(self) -> int:
        """Single-precision numbers in a vector."""
        return self.vector_bytes // 4


def target_of(context: Context) -> Target:
    """Limits for candidates that keep the base's flags."""
    limits = context.device.limits
    widest = limits.get("vector_bytes", BASELINE_VECTOR)
    is_told = any(flag.startswith(_TARGET_FLAGS) for flag in flags_in_effect(context))
    usable = widest if is_told else min(widest, BASELINE_VECTOR)
    return Target(
        vector_bytes=usable,
        widest_bytes=widest,
        registers=min(
            limits.get("vector_registers", _MANY_REGISTERS),
            _registers(usable, context.device.key),
        ),
        l1d=limits.get("l1d_bytes", _L1D),
        l2=limits.get("l2_bytes", _L2),
        l3=limits.get("l3_bytes", _L3),
    )


def flags_in_effect(context: Context) -> tuple[str, ...]:
    """Flags of the configuration, which every build has, and those of the base."""
    always = context.dialect.get("base_flags", "").split()
    return (*always, *context.base.candidate.flags)


def _registers(vector_bytes: int, device_key: str) -> int:
    """Registers of that width that code for it can name, whatever wider code could."""
    is_arm = "aarch64" in device_key or "arm64" in device_key
    return _MANY_REGISTERS if is_arm or vector_bytes >= _AVX512_BYTES else _FEW_REGISTERS
