"""One started child: its pipes, its end, and the end of everything below it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from croq_fsm.errors import DeviceWedged, EnvironmentMissing
from croq_fsm.sandbox.policy import Policy
from croq_fsm.sandbox.quota import LARGEST_FILE, Quota
from croq_fsm.toolchain import launcher, survivors
from croq_fsm.toolchain.process import Command, Completed, Ending

#: Longest time for which nothing else is served, seconds.
STEP_S: Final = 0.05
_CHUNK: Final = 1 << 16
_TAIL: Final = 2048
_ANSWER_CAP: Final = 8 << 20
_SWEEP_S: Final = 2.0
_RLIMITS: Final = {
    "cpu_s": "RLIMIT_CPU",
    "file_bytes": "RLIMIT_FSIZE",
    "memory_bytes": "RLIMIT_AS",
    "processes": "RLIMIT_NPROC",
}


class Sink:
    """Keeps the head and a short tail of a stream, counts the rest."""

    def __init__(self, cap: int) -> None:
        self.head = bytearray()
        self.tail = b""
        self.total = 0
        self._cap = cap

    def add(self, data: bytes) -> None:
        """Take a piece of the stream."""
        self.head += data[: max(0, self._cap - self.total)]
        self.tail = (self.tail + data)[-_TAIL:]
        self.total += len(data)

    @property
    def truncated(self) -> bool:
        """Whether something was dropped."""
        return self.total > self._cap

    @property
    def text(self) -> str:
        """The head, decoded with replacement."""
        return self.head.decode("utf-8", "replace")


class Child:
    """A running child. Nothing here blocks longer than it is told to.

    Args:
        command: What to start.
        child_id: Marker value.
        env: Complete environment, without TMPDIR.
        talk: Whether answers are read from the child's descriptor 3 and stdin stays open.
        tick: Called in each wait.
        policy: What an untrusted child may see and do; None gives it no toolchain.
    """

    def __init__(
        self,
        command: Command,
        child_id: str,
        env: dict[str, str],
        *,
        talk: bool,
        tick: Callable[[], None],
        policy: Policy | None = None,
    ) -> None:
        self.command = command
        self.child_id = child_id
        self.stdout = Sink(command.output_cap)
        self.stderr = Sink(command.output_cap)
        self.answers = bytearray()
        self.began = time.monotonic()
        self._status = Sink(_CHUNK)
        self._outbox = bytearray(command.stdin)
        self._keep_stdin = talk
        self._tick = tick
        self._ticked = 0.0
        self._selector = selectors.DefaultSelector()
        self._tmp = command.cwd / f"tmp-{child_id}"
        self._policy = policy or Policy()
        self._quota = Quota(command) if command.untrusted else None
        self._process = self._start(env, talk=talk)

    @property
    def pid(self) -> int:
        """Process, session and group id of the child's launcher."""
        return self._process.pid

    @property
    def seconds(self) -> float:
        """Wall time since the start."""
        return time.monotonic() - self.began

    @property
    def ended(self) -> bool:
        """Whether the child has ended; asks the system."""
        return self._process.poll() is not None

    @property
    def flooded(self) -> bool:
        """Whether it wrote more than it may, to its pipes or to its folder."""
        printed = self.stdout.total + self.stderr.total
        if printed > self.command.flood_cap or len(self.answers) > _ANSWER_CAP:
            return True
        return self._quota is not None and self._quota.exceeded

    @property
    def last_words(self) -> str:
        """End of its output, for messages."""
        return (self.stdout.tail + self.stderr.tail).decode("utf-8", "replace").strip()

    @property
    def start_failure(self) -> str:
        """Why the program could not be executed, or ""; final once the child is buried."""
        error = self._report.get("error")
        return f"cannot start {self.command.label}: {error}" if error else ""

    @property
    def breach(self) -> str:
        """Which bound of the sandbox it broke, or ""; final once the child is buried."""
        if self._quota is not None and self._quota.exceeded:
            return self._quota.text
        return self._report.get("breach", "")

    @property
    def _report(self) -> dict[str, str]:
        """What the launcher had to say; the last word counts."""
        try:
            found = json.loads(self._status.text or "{}")
        except ValueError:
            return {"error": self._status.text}
        return {name: str(value) for name, value in found.items()}

    def feed(self, data: bytes) -> None:
        """Queue bytes for its standard input."""
        stdin = self._process.stdin
        if stdin is None or stdin.closed:
            return
        if not self._outbox:
            self._selector.register(stdin, selectors.EVENT_WRITE, self._write)
        self._outbox += data

    def hang_up(self) -> None:
        """Close its standard input."""
        if self._process.stdin is not None:
            self._close(self._process.stdin)

    def pump(self, seconds: float = STEP_S) -> None:
        """Move data between the pipes, for at most ``seconds``; returns early at any event.

        A chatty child does not make us tick more often than twice in a step.
        """
        if time.monotonic() - self._ticked >= STEP_S / 2:
            self._ticked = time.monotonic()
            self._tick()
        for key, _ in self._selector.select(seconds):
            key.data()

    def drain(self) -> None:
        """Read what is in the pipes now, without waiting for their end."""
        until = time.monotonic() + STEP_S
        while self._selector.select(0) and not self.flooded and time.monotonic() < until:
            self.pump(0)

    def terminate(self, grace_s: float) -> None:
        """Ask the whole group to end, and give it some time to do so."""
        self._signal_group(signal.SIGTERM)
        until = time.monotonic() + grace_s
        while not self.ended and time.monotonic() < until:
            # Flooding pipes are served, too: a child that blocks on one cannot clean up.
            self.pump()

    def bury(self, reap_s: float, ending: Ending | None = None) -> Completed:
        """End the child and every descendant by force, close the pipes, say what came of it.

        Args:
            reap_s: Seconds until what is left counts as unkillable.
            ending: Why it had to be killed; None when it ended by itself.

        Raises:
            DeviceWedged: Something survives SIGKILL.
        """
        try:
            self._kill_tree(reap_s)
        finally:
            self.drain()
            self._dispose()
        return self._completed(ending)

    def _start(self, env: dict[str, str], *, talk: bool) -> subprocess.Popen[bytes]:
        """Start the launcher with our ends of the pipes registered."""
        status_ours, status_theirs = os.pipe()
        answers_ours, answers_theirs = os.pipe() if talk else (None, None)
        theirs = tuple(fd for fd in (status_theirs, answers_theirs) if fd is not None)
        try:
            self._tmp.mkdir(mode=0o700)
            process = subprocess.Popen(
                self._argv(status_theirs, answers_theirs),
                cwd=self.command.cwd,
                env=self._environment(env),
                stdin=subprocess.PIPE if talk or self.command.stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=theirs,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as exc:
            for fd in (status_ours, answers_ours):
                if fd is not None:
                    os.close(fd)
            self._selector.close()
            shutil.rmtree(self._tmp, ignore_errors=True)
            raise EnvironmentMissing(f"cannot start {self.command.argv[0]}: {exc}") from exc
        finally:
            for fd in theirs:
                os.close(fd)
        self._watch(process, status_ours, answers_ours)
        return process

    def _watch(self, process: subprocess.Popen[bytes], status: int, answers: int | None) -> None:
        """Register every event that ``pump`` serves."""
        self._read(os.fdopen(status, "rb", buffering=0), self._status.add)
        if answers is not None:
            self._read(os.fdopen(answers, "rb", buffering=0), self.answers.extend)
        for stream, sink in ((process.stdout, self.stdout), (process.stderr, self.stderr)):
            if stream is not None:
                self._read(stream, sink.add)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            if self._outbox:
                self._selector.register(process.stdin, selectors.EVENT_WRITE, self._write)
        self._process = process
        # Wakes the selector at once when the child ends.
        with contextlib.suppress(OSError):  # kernels before 5.3: then the next step sees it
            handle = os.fdopen(os.pidfd_open(process.pid), "rb", buffering=0)
            self._selector.register(handle, selectors.EVENT_READ, lambda: self._close(handle))

    def _environment(self, env: dict[str, str]) -> dict[str, str]:
        """With the private folder; what is foreign has its home there as well."""
        private = str(self._tmp.absolute())
        return {**env, "TMPDIR": private, **({"HOME": private} if self.command.untrusted else {})}

    def _argv(self, status: int, answers: int | None) -> list[str]:
        settings = {
            "parent": os.getpid(),
            "status": status,
            "answers": answers,
            "limits": _rlimits(self.command),
            "jail": self._policy.jail(self.command, self._tmp),
            "processes": self._policy.processes(self.command),
        }
        helper = [sys.executable, "-I", "-S", launcher.__file__, json.dumps(settings), "--"]
        return [*helper, *self.command.argv]

    def _read(self, stream: IO[bytes], take: Callable[[bytes], None]) -> None:
        os.set_blocking(stream.fileno(), False)

        def ready() -> None:
            data = stream.read(_CHUNK)
            if data:
                take(data)
            elif data is not None:
                self._close(stream)

        self._selector.register(stream, selectors.EVENT_READ, ready)

    def _write(self) -> None:
        stdin = self._process.stdin
        if stdin is None:
            return
        try:
            sent = stdin.write(self._outbox[:_CHUNK]) or 0
        except OSError:
            # Nobody reads; the child's end will be seen by itself.
            self._outbox.clear()
            self._close(stdin)
            return
        del self._outbox[:sent]
        if not self._outbox:
            if self._keep_stdin:
                self._selector.unregister(stdin)
            else:
                self._close(stdin)

    def _close(self, stream: IO[bytes]) -> None:
        if stream.closed:
            return
        with contextlib.suppress(KeyError):
            self._selector.unregister(stream)
        with contextlib.suppress(OSError):
            stream.close()

    def _kill_tree(self, reap_s: float) -> None:
        """Descendants first, while their subreaper keeps them visible; then it; then the rest."""
        until = time.monotonic() + min(_SWEEP_S, reap_s)
        while not self.ended and survivors.kill_below(self.pid) and time.monotonic() < until:
            self.pump(STEP_S / 5)
        self._signal_group(signal.SIGKILL)
        self._reap(reap_s)
        survivors.kill_marked(survivors.CHILD_MARKER, self.child_id, reap_s, self._tick)

    def _signal_group(self, number: signal.Signals) -> None:
        """Signal the group while its leader is not reaped, so that its id is surely ours."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _reap(self, reap_s: float) -> None:
        until = time.monotonic() + reap_s
        while not self.ended:
            if time.monotonic() > until:
                raise DeviceWedged(
                    f"{self.command.label} (pid {self.pid}) could not be reaped within "
                    f"{reap_s:g} s of SIGKILL; the device driver probably holds it"
                )
            self.pump()

    def _dispose(self) -> None:
        """Close everything that is still open and remove the private folder."""
        for key in list(self._selector.get_map().values()):
            if not isinstance(key.fileobj, int):
                key.fileobj.close()  # type: ignore[attr-defined]  # all of them are streams
        self._selector.close()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        shutil.rmtree(self._tmp, ignore_errors=True)

    def _completed(self, ending: Ending | None) -> Completed:
        code = self._process.returncode
        natural = Ending.SIGNALLED if code is not None and code < 0 else Ending.EXITED
        return Completed(
            ending=ending or natural,
            returncode=None if ending else code,
            stdout=self.stdout.text,
            stderr=self.stderr.text,
            seconds=self.seconds,
            truncated=self.stdout.truncated or self.stderr.truncated,
            breach=self.breach,
        )


def _rlimits(command: Command) -> dict[str, int]:
    """Limits by their system name; what is foreign has a largest file in any case."""
    named = {rlimit: getattr(command.limits, name) for name, rlimit in _RLIMITS.items()}
    if command.untrusted and named["RLIMIT_FSIZE"] is None:
        named["RLIMIT_FSIZE"] = LARGEST_FILE
    return {rlimit: value for rlimit, value in named.items() if value is not None}


def check_folder(cwd: Path) -> None:
    """Raise EnvironmentMissing unless a child can work in ``cwd``."""
    if not cwd.is_dir():
        raise EnvironmentMissing(f"working folder {cwd} does not exist")
