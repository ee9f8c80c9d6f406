"""A child that answers requests, one JSON line each."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from typing import Any

from croq_fsm.config import Deadlines
from croq_fsm.errors import (
    CandidateCrashed,
    CandidateHung,
    CandidateRefused,
    Drained,
    EnvironmentMissing,
)
from croq_fsm.toolchain import survivors
from croq_fsm.toolchain.child import STEP_S, Child
from croq_fsm.toolchain.process import Completed, Ending


class LocalConversation:
    """Implements ``process.Conversation`` over a local child.

    Answers come on the child's descriptor 3. An answer that comes before its request, or after
    another answer, is a forgery and refused.

    Args:
        child: Started with ``talk=True``.
        is_stopping: Whether a stop was asked for.
        deadlines: Grace and reaping times.
        on_end: Told once what came of the child.
    """

    def __init__(
        self,
        child: Child,
        is_stopping: Callable[[], bool],
        deadlines: Deadlines,
        on_end: Callable[[Completed], None],
    ) -> None:
        self._child = child
        self._is_stopping = is_stopping
        self._deadlines = deadlines
        self._on_end = on_end
        self._completed: Completed | None = None
        self._searched = 0

    @property
    def completed(self) -> Completed | None:
        """What came of the child; None while it lives."""
        return self._completed

    def ask(self, request: dict[str, object], deadline_s: float) -> dict[str, object]:
        """See ``process.Conversation.ask``."""
        self._must_be_open()
        self._child.drain()
        if self._child.answers:
            raise self._refused("answered without being asked")
        self._child.feed(json.dumps(request, allow_nan=False).encode() + b"\n")
        return self._parse(self._await_line(time.monotonic() + deadline_s))

    def cpu_seconds(self) -> float | None:
        """See ``process.Conversation.cpu_seconds``."""
        return survivors.cpu_seconds(self._child.pid)

    def close(self) -> None:
        """See ``process.Conversation.close``. Closing stdin is the polite way to ask for it."""
        if self._completed is not None:
            return
        self._child.hang_up()
        until = time.monotonic() + min(1.0, self._deadlines.kill_grace_s)
        while not self._child.ended and time.monotonic() < until and not self._child.flooded:
            self._child.pump()
        self._bury(None if self._child.ended else Ending.DEADLINE)

    def _must_be_open(self) -> None:
        if self._completed is not None:
            raise CandidateCrashed(f"{self._child.command.label} has ended already")

    def _await_line(self, until: float) -> bytes:
        until = min(until, self._child.began + self._child.command.deadline_s)
        while (line := self._take_line()) is None:
            if self._child.flooded:
                raise self._refused("flooded its output")
            if self._child.ended:
                self._child.drain()
                if b"\n" not in self._child.answers[self._searched :]:
                    raise self._crashed()
            elif self._is_stopping():
                self._bury(Ending.DRAINED)
                raise Drained(f"stop requested while {self._child.command.label} was running")
            elif time.monotonic() > until:
                raise self._hung()
            else:
                self._child.pump(STEP_S)
        return line

    def _take_line(self) -> bytes | None:
        answers = self._child.answers
        end = answers.find(b"\n", self._searched)
        if end < 0:
            # A long line is searched once, not again with each piece of it.
            self._searched = len(answers)
            return None
        line = bytes(answers[:end])
        del answers[: end + 1]
        self._searched = 0
        return line

    def _parse(self, line: bytes) -> dict[str, object]:
        try:
            answer: Any = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            raise self._refused(f"gave an answer that is no JSON: {line[:200]!r}") from None
        if not isinstance(answer, dict):
            raise self._refused(f"gave an answer that is no JSON object: {line[:200]!r}")
        return answer

    def _refused(self, what: str) -> CandidateRefused:
        label, log = self._child.command.label, self._bury(Ending.FLOODED).output
        return CandidateRefused(f"{label} {what}", log=log)

    def _hung(self) -> CandidateHung:
        seconds = self._child.seconds
        log = self._bury(Ending.DEADLINE).output
        label = self._child.command.label
        return CandidateHung(
            f"{label} gave no answer in time; killed after {seconds:.1f} s", log=log
        )

    def _crashed(self) -> CandidateCrashed | EnvironmentMissing:
        completed = self._bury(None)
        if self._child.start_failure:
            return EnvironmentMissing(self._child.start_failure)
        text = f"{self._child.command.label} {how(completed)}"
        if self._child.last_words:
            text += f"; last output: {self._child.last_words[-300:]}"
        return CandidateCrashed(text, log=completed.output)

    def _bury(self, ending: Ending | None) -> Completed:
        if self._completed is None:
            if ending is not None:
                # The answer is known to be worthless: no grace for a child that holds us up.
                self._child.terminate(min(STEP_S, self._deadlines.kill_grace_s))
            self._completed = self._child.bury(self._deadlines.reap_s, ending)
            self._on_end(self._completed)
        return self._completed


def how(completed: Completed) -> str:
    """How a child ended, as a part of a sentence: ``was killed by SIGSEGV``."""
    if completed.ending is not Ending.SIGNALLED or completed.returncode is None:
        return f"ended with exit status {completed.returncode}"
    try:
        return f"was killed by {signal.Signals(-completed.returncode).name}"
    except ValueError:
        return f"was killed by signal {-completed.returncode}"


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
