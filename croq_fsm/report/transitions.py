"""Transitions as one line each: when, which step, from where to where, and why."""

from __future__ import annotations

from typing import Any, Final

from croq_fsm.domain.states import Outcome
from croq_fsm.report import words

#: Keys of a transition's detail that explain it, in the order in which they are looked for.
_REASONS: Final = ("stop", "reason", "message", "why", "idea", "evidence")
#: Keys that say what it was about.
_FACTS: Final = (
    "kernel", "decision", "tflops", "base", "bottleneck", "confidence", "name", "kind", "attempt",
    "phase", "pairs", "ruling", "library_tflops", "start_tflops", "noise", "device", "pause_s",
)  # fmt: skip
_STATE_WIDTH: Final = 9


def line(row: dict[str, Any]) -> str:
    """One transition row, with its detail read, as a line."""
    detail: dict[str, Any] = row["detail"]
    facts = " ".join(f"{key}={_value(detail[key])}" for key in _FACTS if detail.get(key))
    about = f"round {row['round']}" if row["round"] else ""
    parts = [
        f"{words.moment(row['at'])}  #{row['seq']:<4}",
        f"{row['from_state']:>{_STATE_WIDTH}} > {row['to_state']:<{_STATE_WIDTH}}",
        f"{_outcome(row['outcome']):<18}",
        f"{about:<9}",
        " ".join(part for part in (facts, _reason(detail)) if part),
    ]
    return " ".join(parts).rstrip()


def _outcome(name: str) -> str:
    return str(Outcome[name]) if name in Outcome.__members__ else name


def _reason(detail: dict[str, Any]) -> str:
    for key in _REASONS:
        value = detail.get(key)
        if value:
            # Of several sentences the first is the strongest; 'report' shows them all.
            return f"- {words.one_line(str(value[0] if isinstance(value, list) else value))}"
    return ""


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else words.one_line(str(value))
