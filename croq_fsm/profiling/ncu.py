"""Profiling one launch with Nsight Compute, and reading what it wrote.

The profiler never locks clocks here and runs apart from any timing: its times are for
orientation only.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from croq_fsm.domain.profile import Metric
from croq_fsm.errors import (
    CandidateCrashed,
    CandidateHung,
    Contended,
    EnvironmentMissing,
)
from croq_fsm.profiling import ncu_metrics, ncu_read
from croq_fsm.sandbox import files
from croq_fsm.toolchain.process import Command, Completed, Ending, Role, Runner

_WARM_LAUNCHES: Final = 2
_PERMISSION: Final = re.compile(r"ERR_NVGPUCTRPERM|permission to access .*counters", re.IGNORECASE)
_TAKEN: Final = re.compile(
    r"another (?:instance|tool|profiler)|already (?:in use|being profiled)"
    r"|LibraryBusy|ResourceUnavailable|(?:create|open|acquire)\w* lock file",
    re.IGNORECASE,
)
_NOTHING: Final = re.compile(r"No kernels were profiled", re.IGNORECASE)
_PROGRAM_FAILED: Final = re.compile(r"The application returned an error code", re.IGNORECASE)
_REPORT: Final = "profile.ncu-rep"
_LARGEST_REPORT: Final = 256 << 20
_JSON_CAP: Final = 32 << 20

PERMISSION_CURE: Final = (
    "the driver lets only administrators read performance counters: load the nvidia module with "
    "NVreg_RestrictProfilingToAdminUsers=0 (and reboot), or run with CAP_SYS_ADMIN"
)


@dataclass(frozen=True)
class Launch:
    """One profiled launch.

    Attributes:
        kernel: Its name, as the profiler gives it.
        metrics: Counters that are worth keeping.
        report: The profiler's own file.
        csv: The same as CSV, or None when it could not be written.
    """

    kernel: str
    metrics: tuple[Metric, ...]
    report: Path
    csv: Path | None


class Ncu:
    """Nsight Compute.

    Args:
        runner: Starts it; it gets its own TMPDIR and its whole group is killed at the deadline.
        program: Path of ``ncu``.
        deadline_s: Seconds for a profile.
    """

    def __init__(self, runner: Runner, program: Path, deadline_s: float) -> None:
        self._runner = runner
        self._program = program
        self._deadline_s = deadline_s

    def version(self, cwd: Path, deadline_s: float) -> str:
        """``2025.3.1.0``, or "" when it does not say."""
        completed = self._run((str(self._program), "--version"), cwd, deadline_s)
        match = re.search(r"Version (\d[\d.]*)", completed.output)
        return match[1] if match else ""

    def profile(
        self, application: tuple[str, ...], kernels: tuple[str, ...], folder: Path, *, full: bool
    ) -> Launch:
        """Profile one launch of one of the named kernels, after some warm ones.

        Args:
            application: Program and arguments; it must launch the kernel at least three times.
            kernels: Names of the candidate's own kernels.
            folder: Private folder; the report is left in it.
            full: Whether to take the full set of counters (some 40 passes) or the small one.

        Raises:
            EnvironmentMissing: No permission, no device, or a profiler that does not work.
            Contended: Somebody else profiles now.
            CandidateCrashed, CandidateHung: The program failed under the profiler.
        """
        counters = ("--set", "full") if full else ("--metrics", ",".join(ncu_metrics.SMALL_SET))
        argv = (
            str(self._program),
            *("--clock-control", "none", "--cache-control", "all"),
            *("--target-processes", "application-only", "--kernel-name", kernel_filter(kernels)),
            *("--launch-skip", str(_WARM_LAUNCHES), "--launch-count", "1", *counters),
            *("--export", str(folder / _REPORT), "--force-overwrite"),
            *application,
        )
        completed = self._run(argv, folder, self._deadline_s, confined=Path(application[0]))
        report = folder / _REPORT
        if not completed.ok or not files.is_plain(folder, _REPORT):
            raise failure(completed)
        return self._read(report, kernels)

    def _read(self, report: Path, kernels: tuple[str, ...]) -> Launch:
        csv = self._write_csv(report)
        launches = self._from_report(report) or self._from_csv(csv)
        own = [launch for launch in launches if _is_own(launch[0], kernels)]
        if not own:
            raise EnvironmentMissing(
                f"the profile holds no launch of {', '.join(kernels)}: "
                f"{[name for name, _ in launches][:5] or 'it is empty'}"
            )
        kernel, metrics = own[0]
        kept = tuple(m for m in metrics if ncu_metrics.is_interesting(m.name))
        return Launch(kernel, kept, report, csv)

    def _write_csv(self, report: Path) -> Path | None:
        argv = (str(self._program), "--import", str(report), "--csv", "--page", "raw")
        completed = self._run((*argv, "--print-units", "base"), report.parent, self._deadline_s)
        if not completed.ok or completed.truncated:
            return None
        name = report.with_suffix(".csv").name
        return files.write_bytes(report.parent, name, completed.stdout.encode())

    def _from_report(self, report: Path) -> list[tuple[str, list[Metric]]]:
        """Read by ``ncu_report`` in a child; nothing when that does not work."""
        extras = self._program.resolve().parent / "extras" / "python"
        argv = (sys.executable, ncu_read.__file__, str(report), str(extras))
        environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        completed = self._run(argv, report.parent, self._deadline_s, env=environment)
        if not completed.ok or completed.truncated:
            return []
        launches = []
        for item in json.loads(completed.stdout):
            metrics = [Metric(name=n, value=v, unit=u) for n, v, u in item["metrics"]]
            launches.append((str(item["kernel"]), metrics))
        return launches

    @staticmethod
    def _from_csv(path: Path | None) -> list[tuple[str, list[Metric]]]:
        if path is None:
            return []
        try:
            return ncu_metrics.read_raw_csv(path.read_text(encoding="utf-8"))
        except (ValueError, IndexError):
            return []

    def _run(
        self,
        argv: tuple[str, ...],
        cwd: Path,
        deadline_s: float,
        *,
        confined: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> Completed:
        return self._runner.run(
            Command(
                argv=argv,
                cwd=cwd,
                deadline_s=deadline_s,
                label="ncu",
                env=env or {},
                output_cap=_JSON_CAP,
                flood_cap=_LARGEST_REPORT,
                untrusted=confined is not None,
                role=Role.PROFILE,
                device=True,
                reads=(confined,) if confined else (),
            )
        )


def kernel_filter(kernels: tuple[str, ...]) -> str:
    """The profiler's filter for exactly these kernels. Raises ValueError for none."""
    if not kernels:
        raise ValueError("no kernel to profile is named")
    return f"regex:^({'|'.join(map(re.escape, kernels))})$"


def failure(completed: Completed) -> Exception:
    """What a profiler run without a report means."""
    text = completed.output
    if _PERMISSION.search(text):
        return EnvironmentMissing(f"performance counters cannot be read: {PERMISSION_CURE}")
    if _TAKEN.search(text):
        return Contended(f"another profiler is at work: {_last_error(text)}")
    if completed.ending is Ending.DEADLINE:
        return CandidateHung(
            f"the kernel did not end under the profiler ({completed.seconds:.0f} s)", log=text
        )
    if _PROGRAM_FAILED.search(text):
        return CandidateCrashed(
            f"the program failed under the profiler: {_last_error(text)}", log=text
        )
    if _NOTHING.search(text):
        return EnvironmentMissing("the profiler saw no launch of the candidate's kernel")
    return EnvironmentMissing(f"the profiler failed: {_last_error(text)}")


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "==ERROR==" in line]
    return (errors or lines or ["no output"])[-1][:300]


def _is_own(kernel: str, names: tuple[str, ...]) -> bool:
    """The profiler gives a bare name, or one with its argument types."""
    return kernel.partition("(")[0].split("::")[-1].split("<")[0].strip() in names
