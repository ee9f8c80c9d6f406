"""Stand-alone helper that confines one child, waits for it, and takes its whole tree down.

Run as ``python -I -S launcher.py SETTINGS -- PROGRAM ARGUMENT…`` with the standard library and
the child's half of ``croq_fsm.sandbox`` only, so that it starts in some 20 ms and cannot be
changed by a working folder. It stays as the parent of the child because only a subreaper sees
every descendant: a grandchild that called ``setsid``, cleared its environment and lost its parent
comes back to us.

Promises:
    * The child dies when we die, and everything below us dies when the starter dies.
    * When the child ends, whatever it left behind is killed before we end.
    * We end as the child ended: same exit status, or killed by the same signal.
    * If the program cannot be executed, ``{"error", "errno"}`` goes to the status descriptor;
      ``{"breach"}`` if its tree had to be killed because it had grown too large.

SETTINGS is JSON: ``parent`` (pid of the starter), ``status`` (descriptor), ``answers``
(descriptor that becomes 3, or null), ``limits`` (name of an rlimit → value), ``jail`` (see
``croq_fsm.sandbox.policy``, or null), ``processes`` (how many may live at a time, or null).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_ANSWERS = 3
_CANNOT_EXECUTE = 127
_TAKEDOWN_S = 5.0
_PAUSE_S = 0.01
_OOM_SCORE = "500"
_COUNT_S = 0.1
_FIRST_FREE = 4


def main(arguments: list[str]) -> int:
    """Start, wait, clean up. Returns the exit status to end with."""
    settings: dict[str, Any] = json.loads(arguments[0])
    command = arguments[2:]
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _guard_against_orphaning(settings["parent"])
    launcher = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, settings, launcher)
    # Its folder below /proc has to stay the very one that the child's jail speaks of.
    with contextlib.suppress(OSError):
        os.open(f"/proc/{child}", os.O_PATH | os.O_CLOEXEC)
    _let_go_of_descriptors(settings)
    status = _wait_for(child) if settings["processes"] is None else _watch(child, settings)
    take_down()
    return _end_like(status)


def _guard_against_orphaning(starter: int) -> None:
    """Ask for a signal when the starter dies, and close the window before the asking."""

    def orphaned(_signum: int, _frame: object) -> None:
        # The kernel also sends it when merely the starting *thread* ends; that is no death.
        if os.getppid() != starter:
            take_down()
            os._exit(1)

    def wait_for_child(_signum: int, _frame: object) -> None:
        """Ignore a polite signal to the group: how the child answers is what counts."""

    signal.signal(signal.SIGUSR1, orphaned)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, wait_for_child)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() != starter:
        os._exit(1)


def _become(command: list[str], settings: dict[str, Any], launcher: int) -> None:
    """Turn the forked copy into the program; never returns."""
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:
            os._exit(1)
        # Python ignores these two, and an ignored signal would stay ignored after exec.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.set_inheritable(settings["status"], False)
        _place_answers(settings["answers"], settings["status"])
        confine(settings)
        os.execvp(command[0], command)  # noqa: S606 - argv only, no shell
    except OSError as exc:
        report = {"error": f"{command[0]}: {exc.strerror}", "errno": exc.errno}
        os.write(settings["status"], json.dumps(report).encode())
    except BaseException as exc:  # noqa: BLE001 - whatever it was must reach the starter
        os.write(settings["status"], json.dumps({"error": repr(exc), "errno": 0}).encode())
    os._exit(_CANNOT_EXECUTE)


def _place_answers(answers: int | None, status: int) -> None:
    """Make the answer pipe descriptor 3, wherever it arrived."""
    if answers is None:
        return
    if status == _ANSWERS:
        raise OSError(0, "the status descriptor must not be 3")
    if answers != _ANSWERS:
        os.dup2(answers, _ANSWERS, inheritable=True)
        os.close(answers)


def confine(settings: dict[str, Any]) -> None:
    """Lay every restriction on the calling process, the weakest first."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123 - pathlib costs start-up time
        score.write(_OOM_SCORE)
    for name, value in settings["limits"].items():
        _limit(getattr(resource, name), value)
    if settings["jail"] is not None:
        _shut_in(settings)


def _shut_in(settings: dict[str, Any]) -> None:
    """Close what was inherited by accident, then the jail."""
    first = 3 if settings["answers"] is None else _FIRST_FREE
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib costs start-up time
        descriptor = int(name)
        if descriptor >= first and descriptor != settings["status"]:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    # Ours, and last on the path: nothing of a working folder or of a user is on it.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120 - pathlib costs start-up time
    from croq_fsm.sandbox.confine import confine as shut_in  # noqa: PLC0415 - not without the path

    shut_in(settings["jail"])


def _limit(which: int, value: int) -> None:
    """Lower a limit. CPU time keeps two seconds between the warning and the kill."""
    _, hard = resource.getrlimit(which)
    ceiling = value + 2 if which == resource.RLIMIT_CPU else value
    if hard != resource.RLIM_INFINITY:
        ceiling = min(ceiling, hard)
    resource.setrlimit(which, (min(value, ceiling), ceiling))


def _let_go_of_descriptors(settings: dict[str, Any]) -> None:
    """Close what the child has, so that pipes end with it and not with us."""
    for descriptor in {0, 1, 2, settings["answers"]} - {None}:
        os.close(descriptor)
    if settings["processes"] is None:
        os.close(settings["status"])


def _wait_for(child: int) -> int:
    """Reap until the child itself has ended; orphans come here, too. Returns its wait status."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return status


def _watch(child: int, settings: dict[str, Any]) -> int:
    """The same, and count what lives below us: all of it is killed when it is too much.

    The system's own limit does not hold for root, and for others it counts what else they run.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        pid = -1
        while pid:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                return status
        if _count_below(os.getpid()) > settings["processes"]:
            report = {"breach": f"more than {settings['processes']} processes at a time"}
            os.write(settings["status"], json.dumps(report).encode())
            take_down()
            return signal.SIGKILL
        signal.sigtimedwait({signal.SIGCHLD}, _COUNT_S)


def take_down() -> None:
    """Kill all descendants and reap them; gives up on the unkillable after some seconds."""
    until = time.monotonic() + _TAKEDOWN_S
    while _reap() and time.monotonic() < until:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(_PAUSE_S)


def _reap() -> bool:
    """Collect the dead; False when no child is left, which proves that no descendant is."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _count_below(root: int) -> int:
    """How many processes live below ``root``, at a cost that does not grow with what others run.

    The kernel's list may miss one whose neighbour ends at that moment; it is asked again soon.
    """
    try:
        return len(_listed_below(root))
    except OSError:
        return len(descendants(root))


def _listed_below(root: int) -> set[int]:
    os.stat(f"/proc/{root}/task/{root}/children")  # noqa: PTH116 - kernels without it raise here
    waiting, found = [root], set[int]()
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - pathlib costs start-up time
                with open(f"/proc/{pid}/task/{task}/children", "rb") as file:  # noqa: PTH123 - pathlib costs start-up time
                    below = {int(word) for word in file.read().split()} - found
                found |= below
                waiting += below
    return found


def descendants(root: int) -> list[int]:
    """Pids of all processes below ``root``, by one pass over ``/proc``."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - pathlib costs start-up time
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                children.setdefault(state_and_parent(entry)[1], []).append(int(entry))
    found = list(children.get(root, ()))
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def state_and_parent(entry: str) -> tuple[str, int]:
    """State letter and parent of a process; its name in the line may hold blanks and brackets."""
    with open(f"/proc/{entry}/stat", "rb") as file:  # noqa: PTH123 - pathlib costs start-up time
        fields = file.read().rpartition(b")")[2].split()
    return fields[0].decode(), int(fields[1])


def _end_like(status: int) -> int:
    """Die of the child's signal, or give its exit status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return 128 + number
    return os.WEXITSTATUS(status)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
