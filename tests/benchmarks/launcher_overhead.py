"""What starting a child costs, in milliseconds: bare, by the launcher, and confined in each role.

    python tests/benchmarks/launcher_overhead.py [REPEATS]

Medians of wall time from start to burial of ``/bin/true``, all kinds in turn so that neighbours
disturb them alike. Nothing is asserted: the numbers are for people.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from croq_fsm.config import Config
from croq_fsm.sandbox.policy import Policy
from croq_fsm.toolchain.process import Command, NullJournal, Role
from croq_fsm.toolchain.runner import LocalRunner


def main() -> None:
    """Measure and print a table."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    config = Config()
    runner = LocalRunner(
        "bench", NullJournal(), threading.Event(), config.deadlines, policy=Policy.of(config)
    )
    with tempfile.TemporaryDirectory() as name:
        kinds = _kinds(runner, Path(name))
        taken: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(repeats):
            for kind, start in kinds.items():
                began = time.perf_counter()
                start()
                taken[kind].append(time.perf_counter() - began)
    for kind, seconds in taken.items():
        median, best = 1e3 * statistics.median(seconds), 1e3 * min(seconds)
        line = f"{kind:24} median {median:6.1f} ms   best {best:6.1f} ms"
        print(line)  # noqa: T201 - the table is the result


def _kinds(runner: LocalRunner, folder: Path) -> dict[str, Callable[[], object]]:
    def confined(role: Role, *, device: bool) -> Callable[[], object]:
        command = Command(
            ("/bin/true",), folder, 20.0, "x", untrusted=True, role=role, device=device
        )
        return lambda: runner.run(command)

    trusted = Command(("/bin/true",), folder, 20.0, "x")
    return {
        "bare subprocess": lambda: subprocess.run(["/bin/true"], check=True),
        "launcher, trusted": lambda: runner.run(trusted),
        "compile": confined(Role.COMPILE, device=False),
        "run": confined(Role.RUN, device=False),
        "run on a device": confined(Role.RUN, device=True),
        "profile on a device": confined(Role.PROFILE, device=True),
    }


if __name__ == "__main__":
    main()
