"""Check that nvcc, CUDA programs and Nsight Compute work inside the sandbox on this machine.

Compiles a tiny program inside the sandbox, runs it as a program with a candidate is run, and
profiles it as candidates are profiled, each at the strongest level. Where one of them fails, it
is tried again with one restriction less at a time, and a table says which one stood in the way.

    python scripts/gpu_sandbox.py

Exit status 0: all three work at the strongest level that the machine reaches. 1: one does not.
2: CUDA does not work here at all.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from croq_fsm.config import Config
from croq_fsm.errors import CroqError
from croq_fsm.sandbox.levels import Level
from croq_fsm.sandbox.policy import Policy
from croq_fsm.sandbox.probe import probe
from croq_fsm.toolchain.croqtile_tools import Tools, find_tools
from croq_fsm.toolchain.process import Command, Completed, Ending, NullJournal, Role
from croq_fsm.toolchain.runner import LocalRunner

_PROGRAM: Final = r"""
#include <cstdio>
__global__ void answer(int *out) { out[threadIdx.x] = 42 + threadIdx.x; }
int main() {
  int host[32] = {0}, *device = nullptr;
  cudaError_t e = cudaMalloc(&device, sizeof host);
  if (e == cudaSuccess) {
    answer<<<1, 32>>>(device);
    e = cudaGetLastError();
  }
  if (e == cudaSuccess) e = cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost);
  std::printf("%s %d\n", cudaGetErrorName(e), host[31]);
  return e == cudaSuccess && host[31] == 73 ? 0 : 1;
}
"""
_DEADLINE_S: Final = 120.0
_REPEATS: Final = 5

Change = Callable[[dict[str, Any]], None]


def _nothing(_jail: dict[str, Any]) -> None:
    """Leave it as it is."""


def _without(key: str, value: object) -> Change:
    return lambda jail: jail.update({key: value})


def _with_files(*more: tuple[str, str]) -> Change:
    def change(jail: dict[str, Any]) -> None:
        if jail["files"] is not None:
            jail["files"] = [*jail["files"], *more]

    return change


#: One restriction less at a time, the suspects first.
_LOOSER: Final[dict[str, Change]] = {
    "no namespaces": _without("separate", False),
    "nothing covered": _without("covers", []),
    "any socket": _without("sockets", "all"),
    "may start processes": _without("fork", True),
    "System V memory": _without("share", True),
    "modes of files": _without("attributes", True),
    "change /proc": _with_files(("/proc", "change")),
    "all of /dev": _with_files(("/dev", "device"), ("/dev/shm", "own")),  # noqa: S108 - a grant
    "read everything": _with_files(("/", "read")),
    "execute everything": _with_files(("/", "exec")),
    "change everything": _with_files(("/", "own"), ("/", "exec"), ("/dev", "device")),
    "no filter of system calls": _without("calls", False),
    "no rules for files": _without("files", None),
}


@dataclass(frozen=True)
class _Loosened(Policy):
    """A policy with one restriction less."""

    change: Change = _nothing

    def jail(self, command: Command, tmp: Path) -> dict[str, Any] | None:
        """The usual jail, changed."""
        made = super().jail(command, tmp)
        if made is not None:
            self.change(made)
        return made


def main() -> int:
    """Run all checks. Returns the exit status."""
    config, tools = Config(), find_tools(Config().croqtile)
    policy = Policy.of(config)
    with tempfile.TemporaryDirectory(prefix="croq-sandbox-") as name:
        work = Path(name)
        report = probe(_runner(policy), policy.use, work, _DEADLINE_S, device=True)
        _say("level", report.text + (f"; {report.cure}" if report.cure else ""))
        program = _compile(tools, policy, work)
        if program is None:
            return 1
        outside = _run(replace(_running(program)(_fresh(work)), untrusted=False), policy)
        _say("run outside", _outcome(outside))
        if not outside.ok:
            return 2
        fine = _try("run", _running(program), policy, work)
        _overhead(program, policy, work)
        if tools.ncu is None:
            _say("profile", "not tried: ncu was not found")
            return 1
        fine &= _try("profile", _profiling(str(tools.ncu), program), policy, work)
    return 0 if fine else 1


def _compile(tools: Tools, policy: Policy, work: Path) -> Path | None:
    folder = work / "build"
    folder.mkdir()
    (folder / "tiny.cu").write_text(_PROGRAM, encoding="utf-8")
    argv = (str(tools.need("nvcc")), "-arch=sm_90a", "tiny.cu", "-o", "tiny")
    command = Command(argv, folder, _DEADLINE_S, "nvcc", untrusted=True, role=Role.COMPILE)
    done = _run(command, policy)
    _say("compile", _outcome(done))
    return folder / "tiny" if done.ok else None


def _running(program: Path) -> Callable[[Path], Command]:
    return lambda folder: Command(
        (str(program),), folder, _DEADLINE_S, "tiny", untrusted=True, device=True
    )


def _profiling(ncu: str, program: Path) -> Callable[[Path], Command]:
    argv = (
        *(ncu, "--clock-control", "none", "--target-processes", "application-only"),
        *("--metrics", "gpu__time_duration.sum,dram__bytes.sum", "--export", "p.ncu-rep"),
        str(program),
    )
    return lambda folder: Command(
        argv,
        folder,
        _DEADLINE_S,
        "ncu",
        untrusted=True,
        role=Role.PROFILE,
        device=True,
        reads=(program,),
    )


def _try(what: str, command: Callable[[Path], Command], policy: Policy, work: Path) -> bool:
    """Try at the strongest level; where that fails, find out what stands in the way."""
    done = _run(command(_fresh(work)), policy)
    _say(what, _outcome(done))
    if done.ok:
        return True
    for level in (Level.NO_NETWORK, Level.LIMITS, Level.NONE):
        done = _run(command(_fresh(work)), Policy(level, policy.tools))
        _say(f"{what} at level {level.title}", _outcome(done))
    for title, change in _LOOSER.items():
        done = _run(command(_fresh(work)), _Loosened(policy.use, policy.tools, change))
        _say(f"{what} with {title}", _outcome(done))
    return False


def _overhead(program: Path, policy: Policy, work: Path) -> None:
    """What the sandbox costs a start, against the same program without it."""
    for level in (Level.NONE, Level.FULL):
        taken = []
        for _ in range(_REPEATS):
            began = time.perf_counter()
            _run(_running(program)(_fresh(work)), Policy(level, policy.tools))
            taken.append(time.perf_counter() - began)
        _say(f"a run at level {level.title}", f"{1e3 * statistics.median(taken):.0f} ms")


def _fresh(work: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=work))


def _runner(policy: Policy) -> LocalRunner:
    config = Config()
    return LocalRunner(
        "gpu-sandbox", NullJournal(), threading.Event(), config.deadlines, policy=policy
    )


def _run(command: Command, policy: Policy) -> Completed:
    """Run it; that it could not even be started is an outcome as well."""
    try:
        return _runner(policy).run(command)
    except CroqError as exc:
        return Completed(Ending.EXITED, None, "", str(exc), 0.0)


def _outcome(done: Completed) -> str:
    lines = [line.strip() for line in done.output.splitlines() if line.strip()]
    last = lines[-1][:150] if lines else "no output"
    status = "ok" if done.ok else f"FAILED ({done.ending.value} {done.returncode})"
    return f"{status}  {last}"


def _say(what: str, text: str) -> None:
    print(f"{what:36} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
