"""Trials in the cache format of Kernel Tuner (schema 1.0.0), for its tools and visualisations.

Times are milliseconds there. Its parameters are the macros of our candidates; what macros do not
tell apart (structure, flags, patches) is told apart by a parameter ``variant``.
"""

from __future__ import annotations

import json
from typing import Any, Final

from croq_fsm.exporting.trials import Trial
from croq_fsm.report.facts import Facts

_VARIANT: Final = "variant"
#: What its caches say of configurations without a time.
_FAILURES: Final = {
    "COMPILE_FAIL": "CompilationFailedConfig",
    "VERIFY_FAIL": "RuntimeFailedConfig",
    "SEGFAULT": "RuntimeFailedConfig",
    "HANG": "RuntimeFailedConfig",
    "RUN_FAIL": "RuntimeFailedConfig",
}


def cache(facts: Facts, trials: list[Trial]) -> str:
    """The cache file of a session."""
    session = facts.standing.session
    names = sorted({name for trial in trials for name in trial.macros})
    keys = [*names, _VARIANT]
    entries = [_parameters(trial, names) for trial in trials]
    value = {
        "schema_version": "1.0.0",
        "device_name": session.device.name,
        "kernel_name": session.task.operator,
        "problem_size": list(session.task.shape),
        "tune_params_keys": keys,
        "tune_params": {key: _values(entries, key) for key in keys},
        "objective": "time",
        "cache": {
            ",".join(str(entry[key]) for key in keys): {**entry, **_result(trial)}
            for trial, entry in zip(trials, entries, strict=True)
        },
    }
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _parameters(trial: Trial, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {name: _plain(trial.macros.get(name, "")) for name in names}
    return {**found, _VARIANT: trial.kernel}


def _plain(text: str) -> int | str:
    """A whole number where it is one; commas would part keys."""
    return int(text) if text.isdigit() else text.replace(",", ";")


def _values(entries: list[dict[str, Any]], key: str) -> list[Any]:
    return sorted({entry[key] for entry in entries}, key=lambda v: (isinstance(v, str), v))


def _result(trial: Trial) -> dict[str, Any]:
    timed = trial.seconds is not None
    return {
        "time": trial.seconds * 1e3
        if trial.seconds is not None
        else _FAILURES.get(trial.decision, "RuntimeFailedConfig"),
        "times": [seconds * 1e3 for seconds in trial.times],
        "compile_time": (trial.compile_s or 0.0) * 1e3,
        "verification_time": 0,
        "benchmark_time": sum(trial.times) * 1e3,
        "strategy_time": 0,
        "framework_time": 0,
        "timestamp": trial.stored_at,
        **({"TFLOP/s": trial.tflops} if timed else {}),
    }
