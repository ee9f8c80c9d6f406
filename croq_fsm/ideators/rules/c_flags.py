"""Compiler flags as moves: one flag more, in place of its rivals, or one flag less."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from croq_fsm.ideators.contract import Context
from croq_fsm.ideators.rules.c_steps import Step
from croq_fsm.ideators.rules.c_target import flags_in_effect, target_of
from croq_fsm.ideators.rules.knowledge import Rule

#: Flags that a kernel's vectors may rest on; never taken away one by one.
_FOUNDATIONS: Final = ("-O", "-march=", "-mcpu=")


def adding(rule: Rule, context: Context) -> Iterator[Step]:
    """The rule's flag, unless it is in effect or the device cannot profit from it."""
    flags = context.base.candidate.flags
    if rule.flag in flags_in_effect(context) or not _suits(rule, context):
        return
    kept = tuple(flag for flag in flags if not flag.startswith(rule.group or (rule.flag,)))
    yield Step(
        tag=f"flag{rule.flag}",
        words={"flag": rule.flag},
        levers=(rule.flag,),
        flags=(*kept, rule.flag),
    )


def _suits(rule: Rule, context: Context) -> bool:
    """Whether compiler and device are ones that the flag is for."""
    compiler = context.dialect.get("compiler", "")
    is_wide = target_of(context).widest_bytes >= rule.min_vector_bytes
    is_known = not (rule.compiler and compiler) or rule.compiler == compiler
    return is_wide and is_known and rule.device in context.device.key


def dropping(context: Context) -> Iterator[Step]:
    """Each flag that the kernel could do without, latest first."""
    flags = context.base.candidate.flags
    for flag in reversed(flags):
        if not flag.startswith(_FOUNDATIONS):
            yield Step(
                tag=f"no{flag}",
                words={"flag": flag},
                levers=(flag,),
                flags=tuple(other for other in flags if other != flag),
            )
