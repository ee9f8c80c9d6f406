"""Read a profiler report and print it as JSON. A program of its own, run as a child.

``ncu_report`` parses a binary format in native code: a damaged file must not bring the daemon
down, nor keep it waiting. Usage: ``python ncu_read.py REPORT [FOLDER_WITH_NCU_REPORT …]``.

Output: ``[{"kernel": name, "metrics": [[name, value, unit], …]}, …]``, one item per launch.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from typing import Any

_USAGE = 2


def launches(report: Any) -> list[dict[str, Any]]:
    """All profiled launches of a loaded report."""
    found = []
    for i in range(report.num_ranges()):
        each = report.range_by_idx(i)
        for j in range(each.num_actions()):
            action = each.action_by_idx(j)
            found.append({"kernel": action.name(), "metrics": _metrics(action)})
    return found


def _metrics(action: Any) -> list[tuple[str, float, str]]:
    """Counters with a number; one without is absent."""
    counters = []
    for name in action.metric_names():
        counter = action.metric_by_name(name)
        value = counter.value()
        if isinstance(value, int | float) and math.isfinite(value):
            counters.append((name, float(value), counter.unit() or ""))
    return counters


def main(arguments: list[str]) -> int:
    """Print the launches of the report named first."""
    if not arguments:
        return _USAGE
    sys.path.extend(arguments[1:])
    ncu_report = importlib.import_module("ncu_report")
    json.dump(launches(ncu_report.load_report(arguments[0])), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
