"""ASan and UBSan for C kernels: the candidate built with both, run on a small shape.

The program is ours, with operands on the heap; the kernel brings its own flags. The first finding
ends it. What it prints is not believed but for the worse: it passes only when it ends by itself,
with status 0 and its last word, and without a finding in its output.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from croq_fsm.config import Deadlines
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.hidden import small_task
from croq_fsm.domain.measurement import Check
from croq_fsm.domain.shapes import format_shape
from croq_fsm.domain.task import Task
from croq_fsm.errors import CandidateError, EnvironmentMissing
from croq_fsm.toolchain import sanitizing
from croq_fsm.toolchain.c_compile import CCompile
from croq_fsm.toolchain.process import Command, Completed, Ending, Limits, Runner

#: Name of the check.
NAME: Final = "asan-ubsan"

_SIZES: Final = 128
_CONTENT: Final = 1
_FINDING: Final = re.compile(
    r"^(?:.*?ERROR: AddressSanitizer: (?P<address>[^\n]+)"
    r"|(?P<undefined>.*: runtime error: [^\n]+))",
    re.MULTILINE,
)
_WHERE: Final = re.compile(r"^SUMMARY: AddressSanitizer: (?P<text>[^\n]+)", re.MULTILINE)
_PLACE: Final = re.compile(r"(?:/\S+/)?(?P<file>kernel\.c:\d+(?::\d+)?)")
_DETAIL_CAP: Final = 1_000
_FILE_BYTES: Final = 1 << 20
_ENVIRONMENT: Final = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=86:color=never",
    "UBSAN_OPTIONS": "halt_on_error=1:exitcode=86:color=never:print_stacktrace=0",
}


class CSanitizer:
    """Runs the check.

    Args:
        runner: Starts the program.
        compile_: Builds it.
        deadlines: Of the run.
        threads: Threads that kernels may use.
    """

    def __init__(
        self, runner: Runner, compile_: CCompile, deadlines: Deadlines, threads: int
    ) -> None:
        self._runner = runner
        self._compile = compile_
        self._deadlines = deadlines
        self._threads = threads

    def check(self, candidate: Candidate, task: Task) -> Check:
        """Build, run, and say what was found."""
        try:
            with self._compile.folder() as cwd:
                self._compile.sanitized(candidate, task, cwd)
                return _read(self._run(task, cwd))
        except EnvironmentMissing as exc:
            return sanitizing.not_run(NAME, str(exc)[:_DETAIL_CAP])
        except CandidateError as exc:  # it has been built without them, so this is theirs
            return sanitizing.not_run(NAME, f"no build with sanitizers: {str(exc)[:_DETAIL_CAP]}")

    def _run(self, task: Task, cwd: Path) -> Completed:
        small = small_task(task, _SIZES)
        deadline = self._deadlines.verify_s
        return self._runner.run(
            Command(
                argv=(str(cwd / "sanitize"), format_shape(small.shape), str(_CONTENT)),
                cwd=cwd,
                deadline_s=deadline,
                label="sanitizer",
                env={**_ENVIRONMENT, "OMP_NUM_THREADS": str(self._threads)},
                limits=Limits(cpu_s=int(deadline * self._threads) + 1, file_bytes=_FILE_BYTES),
                untrusted=True,
            )
        )


def _read(completed: Completed) -> Check:
    finding = _FINDING.search(completed.output)
    if finding:
        return sanitizing.faulty(NAME, _detail(completed.output, finding))
    if completed.ending is Ending.DEADLINE:
        return sanitizing.not_run(NAME, f"no end after {completed.seconds:.0f} s")
    if completed.ok and completed.stdout.strip() == "done":
        return sanitizing.clean(NAME, "two launches on the heap without a finding")
    words = completed.output.strip().splitlines()[-1:] or ["nothing"]
    why = f"it ended with status {completed.returncode} and said {words[0][:300]!r}"
    return sanitizing.not_run(NAME, why)


def _detail(output: str, finding: re.Match[str]) -> str:
    """What was found and where, with the candidate's own lines."""
    summary = _WHERE.search(output)
    text = summary["text"] if summary else finding["address"] or finding["undefined"]
    return _PLACE.sub(lambda match: match["file"], text)[:_DETAIL_CAP]
