"""NVIDIA's compute-sanitizer: memcheck and racecheck of a candidate on a small shape.

A finding counts only if the tool is silent about a control, a kernel that is known to be right
and is built from the same instructions: versions of the tool have been wrong about operands of
WGMMA and about copies by the copy engine. A tool that speaks against the control says nothing
about the candidate.

The report is text, a line each behind ``=========``. It ends with a summary, ``ERROR SUMMARY: N
errors`` or ``RACECHECK SUMMARY: N hazards displayed (E errors, W warnings)``; without one the
tool did not get to its end, whatever it wrote before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from croq_fsm.domain.measurement import Check
from croq_fsm.errors import CandidateError, EnvironmentMissing
from croq_fsm.toolchain import sanitizing
from croq_fsm.toolchain.process import Command, Completed, Ending, Role, Runner

#: The tools that are run, in order.
TOOLS: Final = ("memcheck", "racecheck")

_PREFIX: Final = "========= "
_SUMMARY: Final = {
    "memcheck": re.compile(r"^=+ ERROR SUMMARY: (?P<count>\d+) errors?", re.MULTILINE),
    "racecheck": re.compile(
        r"^=+ RACECHECK SUMMARY: \d+ hazards? displayed \((?P<count>\d+) errors?, "
        r"\d+ warnings?\)",
        re.MULTILINE,
    ),
}
#: First lines of findings; what follows them is where and by whom.
_FINDING: Final = re.compile(
    r"^=+ (?P<text>(?:Invalid |Misaligned |Out-of-range |Stack overflow|Error: (?:Race|Potential)"
    r"|Program hit |Fatal |Uninitialized |Barrier error|Divergent |Warp assert|Illegal )[^\n]*)",
    re.MULTILINE,
)
#: The tool's own troubles: nothing is known about the candidate then.
_TROUBLE: Final = re.compile(
    r"^=+ (?P<text>(?:Internal Sanitizer Error|Error: (?!Race|Potential)|Warning: .*"
    r"(?:not supported|unsupported|cannot be checked)|Device not supported|Unable to )[^\n]*)",
    re.MULTILINE | re.IGNORECASE,
)
_FOUND: Final = 86
_PRINT_LIMIT: Final = 20
_REPORT_CAP: Final = 1 << 20
_DETAIL_CAP: Final = 1_000
_LINES_OF_A_FINDING: Final = 4
_OPTIONS: Final = {
    "memcheck": ("--report-api-errors", "no"),
    "racecheck": ("--racecheck-report", "analysis"),
}


@dataclass(frozen=True)
class Report:
    """What a run of the tool came to.

    Attributes:
        count: Findings; None when the tool did not get to its end.
        finding: The first of them, in a few lines.
        trouble: Why the tool says nothing, or "".
    """

    count: int | None
    finding: str = ""
    trouble: str = ""


def read(tool: str, completed: Completed) -> Report:
    """Read a report; what the application prints cannot make one that is better than it is."""
    text = completed.stdout + "\n" + completed.stderr
    if completed.ending is Ending.DEADLINE:
        return Report(None, trouble=f"no end after {completed.seconds:.0f} s")
    counts = [int(match["count"]) for match in _SUMMARY[tool].finditer(text)]
    finding = _first(text)
    if finding and not any(counts):
        counts = [*counts, 1]  # a finding without its summary: the tool died of it
    if not counts:
        return Report(None, trouble=_trouble(text, completed))
    count = max(counts)
    if not count and completed.returncode != 0:
        return Report(None, trouble=_trouble(text, completed))
    return Report(count, finding)


class ComputeSanitizer:
    """Runs the tool.

    Args:
        runner: Starts it.
        program: Path of ``compute-sanitizer``.
        deadline_s: Seconds for each tool.
    """

    def __init__(self, runner: Runner, program: Path, deadline_s: float) -> None:
        self._runner = runner
        self._program = program
        self._deadline_s = deadline_s
        self._controls: dict[tuple[str, tuple[str, ...]], Report] = {}

    def version(self, cwd: Path, deadline_s: float) -> str:
        """``2025.3.1.0``, or "" when it does not say."""
        argv = (str(self._program), "--version")
        completed = self._runner.run(Command(argv, cwd, deadline_s, "compute-sanitizer"))
        match = re.search(r"[Vv]ersion (\d[\d.]*)", completed.output)
        return match[1] if match else ""

    def checks(
        self, application: tuple[str, ...], control: Callable[[], tuple[str, ...]], folder: Path
    ) -> tuple[Check, ...]:
        """One check for each tool; see ``check``."""
        return tuple(self.check(tool, application, control, folder) for tool in TOOLS)

    def check(
        self,
        tool: str,
        application: tuple[str, ...],
        control: Callable[[], tuple[str, ...]],
        folder: Path,
    ) -> Check:
        """The check that a tool's run of a candidate comes to.

        Args:
            tool: ``memcheck`` or ``racecheck``.
            application: Program and arguments with the candidate; it launches once and ends.
            control: The same with a kernel that is known to be right; asked for when needed.
            folder: Private folder.
        """
        report = self._report(tool, application, folder)
        if report.count is None:
            return sanitizing.not_run(tool, report.trouble)
        if not report.count:
            return sanitizing.clean(tool, "ran to its end and found nothing")
        known = self._control(tool, control, folder)
        if known.count is None:
            why = f"it ran to no end on a kernel that is known to be right ({known.trouble})"
            return sanitizing.not_run(tool, why)
        if known.count:
            why = f"it objects to a kernel that is known to be right as well: {known.finding}"
            return sanitizing.not_run(tool, why[:_DETAIL_CAP])
        return sanitizing.faulty(tool, f"{report.count} findings, first {report.finding}")

    def _control(self, tool: str, control: Callable[[], tuple[str, ...]], folder: Path) -> Report:
        """The report on the control; made once. Its failure to build is not the candidate's."""
        try:
            application = control()
        except CandidateError as exc:
            return Report(None, trouble=str(exc))
        key = (tool, application)
        if key not in self._controls:
            self._controls[key] = self._report(tool, application, folder)
        return self._controls[key]

    def _report(self, tool: str, application: tuple[str, ...], folder: Path) -> Report:
        try:
            return read(tool, self._run(tool, application, folder))
        except EnvironmentMissing as exc:
            return Report(None, trouble=str(exc))

    def _run(self, tool: str, application: tuple[str, ...], folder: Path) -> Completed:
        argv = (
            str(self._program),
            *("--tool", tool, "--error-exitcode", str(_FOUND)),
            *("--print-limit", str(_PRINT_LIMIT), "--target-processes", "application-only"),
            *_OPTIONS[tool],
            *application,
        )
        return self._runner.run(
            Command(
                argv=argv,
                cwd=folder,
                deadline_s=self._deadline_s,
                label=tool,
                output_cap=_REPORT_CAP,
                untrusted=True,
                role=Role.PROFILE,
                device=True,
                reads=(self._program, Path(application[0])),
            )
        )


def launch_once(program: Path, problem: tuple[str, ...]) -> tuple[str, ...]:
    """Command line of a benchmark program that launches its kernel once and ends."""
    return (str(program), *problem, json.dumps({"cmd": "launch", "launches": 1}))


def _first(text: str) -> str:
    """The first finding, with the lines that say where, as one sentence."""
    match = _FINDING.search(text)
    if match is None:
        return ""
    lines = text[match.start() :].splitlines()[:_LINES_OF_A_FINDING]
    parts = [line.lstrip("=").strip() for line in lines if line.startswith(_PREFIX.strip())]
    kept = [part for part in parts if part and not part.startswith(("Saved host", "Host Frame"))]
    return "; ".join(kept)[:_DETAIL_CAP]


def _trouble(text: str, completed: Completed) -> str:
    match = _TROUBLE.search(text)
    if match:
        return match["text"].strip()[:_DETAIL_CAP]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = f": {lines[-1][:300]}" if lines else ""
    return f"it ended with status {completed.returncode} and no summary{last}"
