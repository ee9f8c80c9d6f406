"""Showing a session while it runs: a live terminal, plain lines, or log events."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from croq_fsm.domain.records import Iteration, Round, Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Decision
from croq_fsm.report import lines, words

_REFRESHES_PER_S = 2.0

_log = structlog.get_logger(__name__)


class Progress(Protocol):
    """Shown what happens to a session."""

    def begins(self, session: Session, best: Iteration | None) -> None:
        """Work on a session begins."""

    def observe(self, before: Session, step: Step, after: Session) -> None:
        """A transition was committed."""

    def ends(self, session: Session, summary: list[str]) -> None:
        """Work on the session is over for now."""

    def say(self, text: str) -> None:
        """Tell the user something."""


class LogProgress:
    """For a daemon without a terminal: one log event for each round."""

    def begins(self, session: Session, best: Iteration | None) -> None:
        """Log which session is worked on."""
        _log.info(
            "session begins",
            session=session.id,
            task=session.task.model_dump(mode="json"),
            state=session.state.name,
            best=best.name if best else None,
            ends=lines.limits(session),
        )

    def observe(self, before: Session, step: Step, after: Session) -> None:
        """Log a finished round; the engine logs the transitions."""
        del before
        record = next((r for r in step.records if isinstance(r, Round)), None)
        if record is None:
            return
        _log.info(
            "round",
            session=after.id,
            round=record.round,
            kernel=record.kernel,
            decision=record.decision.name,
            tflops=record.tflops,
            ratio=record.ratio,
            seconds=record.wall_s,
            summary=record.summary,
            reason=record.reason,
            simulated=after.task.simulated,
        )

    def ends(self, session: Session, summary: list[str]) -> None:
        """Log where the session stands now."""
        del summary
        _log.info(
            "session rests",
            session=session.id,
            state=session.state.name,
            status=str(session.status),
            reason=session.reason,
            best=session.best_iteration,
            rounds=session.round,
        )

    def say(self, text: str) -> None:
        """Log it."""
        _log.info("note", text=text)


class PlainProgress:
    """Lines on standard output, whole, for a pipe or a file."""

    def begins(self, session: Session, best: Iteration | None) -> None:
        """Print what is asked for."""
        del best
        self._show(lines.opening(session))

    def observe(self, before: Session, step: Step, after: Session) -> None:
        """Print the lines of a transition, if it has any."""
        self._show(lines.after_step(before, step, after))

    def ends(self, session: Session, summary: list[str]) -> None:
        """Print the summary."""
        del session
        self._show([lines.Line(text) for text in summary])

    def say(self, text: str) -> None:
        """Print it."""
        self._show([lines.Line(text)])

    def _show(self, found: list[lines.Line]) -> None:
        for line in found:
            print(line.text, flush=True)  # noqa: T201 - this is the command's output


@dataclass
class LiveProgress:
    """Lines cut to the width of a terminal, above one that follows the state.

    Attributes:
        console: The terminal.
    """

    console: Console
    _session: Session | None = None
    _best: Iteration | None = None
    _since: float = field(default_factory=time.time)

    def begins(self, session: Session, best: Iteration | None) -> None:
        """Print what is asked for."""
        self._session, self._best, self._since = session, best, time.time()
        self._show(lines.opening(session))

    def observe(self, before: Session, step: Step, after: Session) -> None:
        """Print the lines of a transition and follow the state."""
        kept = [r for r in step.records if isinstance(r, Iteration) and r.decision is Decision.KEEP]
        self._best = next((r for r in reversed(kept) if r.number > 0), self._best)
        self._session, self._since = after, time.time()
        self._show(lines.after_step(before, step, after))

    def ends(self, session: Session, summary: list[str]) -> None:
        """Print the summary; the state line is over."""
        del session
        self._session = None
        for text in summary:
            self.say(text)

    def say(self, text: str) -> None:
        """Print it, wrapped."""
        self.console.print(Text(text), soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The line that follows the state; nothing after the end."""
        if self._session is None or self._session.state.is_final:
            return
        text = lines.state_text(self._session, self._best, self._since, time.time())
        yield Text(words.cut(f" {text}", options.max_width), style="reverse")

    def _show(self, found: list[lines.Line]) -> None:
        for line in found:
            text = words.cut(line.text, self.console.width)
            self.console.print(Text(text, style=line.style, no_wrap=True, end=""))


@contextmanager
def shown(*, as_log: bool) -> Iterator[Progress]:
    """The right way to show progress here, for the time of the work."""
    if as_log:
        yield LogProgress()
        return
    console = Console(highlight=False)
    if not (sys.stdout.isatty() and console.is_terminal):
        yield PlainProgress()
        return
    live = LiveProgress(console)
    with Live(live, console=console, refresh_per_second=_REFRESHES_PER_S, transient=True):
        yield live
