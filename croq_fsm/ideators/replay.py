"""Recorded proposals, played one per round: for tests, and for reports of what went wrong.

The recording is a file of JSON lines. A line is a proposal as :class:`Proposal` writes it, or
an object with one of

* ``{"proposal": {…}, "repairs": [{…}, …]}`` for a proposal with what ``repair`` answers, in
  order of the attempts;
* ``{"down": "text"}`` for a backend that does not answer in this round.

Blank lines and lines that start with ``#`` are skipped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from croq_fsm.domain.ideas import Proposal
from croq_fsm.domain.model import Value
from croq_fsm.errors import BackendDown, UsageError
from croq_fsm.ideators.contract import Context, Failure


class ReplaySettings(Value):
    """Section ``[ideators.replay]`` of the configuration.

    Attributes:
        path: File of recorded proposals.
        name: ``<model>`` of the file layout, to replay under the name of the recorded ideator.
    """

    path: Path
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9.-]*$")] = "replay"


class Record(Value):
    """One line of a recording.

    Attributes:
        proposal: What ``propose`` answers; None when the backend is down.
        repairs: What ``repair`` answers, by attempt; after them it gives up.
        down: Why the backend does not answer.
    """

    proposal: Proposal | None = None
    repairs: tuple[Proposal, ...] = ()
    down: str = ""


class ReplayIdeator:
    """Plays a recording; a proposal's base becomes whatever the round's base is.

    The line to play is one per call. A new process begins after the rounds that the history
    holds, so a resumed session goes on where the recording was.

    Args:
        settings: See :class:`ReplaySettings`.

    Raises:
        UsageError: The settings are bad, or the file is missing or no recording.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        try:
            self._settings = ReplaySettings.model_validate(settings)
        except ValidationError as exc:
            raise UsageError(f"bad settings for the replay ideator: {exc}") from exc
        self._records = read_recording(self._settings.path)
        self._next: int | None = None

    @property
    def name(self) -> str:
        """``<model>`` of the file layout."""
        return self._settings.name

    def propose(self, context: Context) -> Proposal | None:
        """The next recorded proposal, or None at the end of the recording.

        Raises:
            BackendDown: The recording says so.
        """
        if self._next is None:
            self._next = context.history[-1].round if context.history else 0
        if self._next >= len(self._records):
            return None
        record = self._records[self._next]
        self._next += 1
        if record.proposal is None:
            raise BackendDown(record.down)
        return _rebound(record.proposal, context)

    def repair(self, context: Context, proposal: Proposal, failure: Failure) -> Proposal | None:
        """The recorded repair of this attempt, or None."""
        for record in self._records:
            mine = record.proposal is not None and _rebound(record.proposal, context)
            family = (mine, *(_rebound(repair, context) for repair in record.repairs))
            if proposal in family and failure.attempt <= len(record.repairs):
                return _rebound(record.repairs[failure.attempt - 1], context)
        return None


def _rebound(proposal: Proposal, context: Context) -> Proposal:
    return proposal.model_copy(update={"base": context.base.iteration})


def read_recording(path: Path) -> tuple[Record, ...]:
    """Records of a file.

    Raises:
        UsageError: The file cannot be read, or a line of it is no record; says which.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"recording {path} cannot be read: {exc}") from exc
    return tuple(
        _record(path, number, line)
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.lstrip().startswith("#")
    )


def _record(path: Path, number: int, line: str) -> Record:
    try:
        data = json.loads(line)
        is_bare = isinstance(data, dict) and "tag" in data
        record = Record.model_validate({"proposal": data} if is_bare else data)
    except (ValueError, ValidationError) as exc:
        raise UsageError(f"{path}, line {number}: no recorded proposal: {exc}") from exc
    if (record.proposal is None) == (record.down == ""):
        raise UsageError(f"{path}, line {number}: needs either a proposal or the word down")
    return record
