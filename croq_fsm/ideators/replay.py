"""Recorded proposals, played one per round: for tests, and for reports of what went wrong.

The recording is a file of JSON lines. A line is a proposal as :class:`Proposal` writes it, or
an object with one of

* ``{"proposal": {…}, "repairs": [{…}, …]}`` for a proposal with what ``repair`` answers, in
  order of the attempts;
* ``{"down": "text"}`` for a backend that does not answer in this round;
* ``{"bad": "text"}`` for an answer that was no proposal;
* ``{"repair": {…}}`` for a repair of the proposal above it.

:class:`RecordingIdeator` writes such lines around any ideator, with the round of each, so that
a resumed session goes on at the right one.

Blank lines and lines that start with ``#`` are skipped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from croq_fsm.domain.ideas import Proposal
from croq_fsm.domain.model import Value
from croq_fsm.errors import BackendDown, BadReply, UsageError
from croq_fsm.ideators import asking
from croq_fsm.ideators.contract import Context, Equipped, Failure, Ideator
from croq_fsm.ideators.services import Services


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
        bad: Why what it answered is no proposal.
        round: Round in which it was recorded, or None.
    """

    proposal: Proposal | None = None
    repairs: tuple[Proposal, ...] = ()
    down: str = ""
    bad: str = ""
    round: int | None = None


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
            BackendDown, BadReply: The recording says so.
        """
        if self._next is None:
            self._next = self._first_of(context)
        if self._next >= len(self._records):
            return None
        record = self._records[self._next]
        self._next += 1
        if record.bad:
            raise BadReply(record.bad)
        if record.proposal is None:
            raise BackendDown(record.down)
        return _rebound(record.proposal, context)

    def _first_of(self, context: Context) -> int:
        """Where to go on: at the round in hand, or after as many lines as there were rounds."""
        done = context.history[-1].round if context.history else 0
        if all(record.round is None for record in self._records):
            return done
        later = (i for i, r in enumerate(self._records) if r.round is not None and r.round > done)
        return next(later, len(self._records))

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
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            _add(records, path, number, line)
    return tuple(records)


def _add(records: list[Record], path: Path, number: int, line: str) -> None:
    """A record of its own, or a repair of the last one."""
    if line.lstrip().startswith('{"repair"') and records and records[-1].proposal is not None:
        mended = _record(path, number, line.replace('"repair"', '"proposal"', 1)).proposal
        last = records[-1]
        repairs = (*last.repairs, *((mended,) if mended else ()))
        records[-1] = last.model_copy(update={"repairs": repairs})
        return
    records.append(_record(path, number, line))


def _record(path: Path, number: int, line: str) -> Record:
    try:
        data = json.loads(line)
        is_bare = isinstance(data, dict) and "tag" in data
        record = Record.model_validate({"proposal": data} if is_bare else data)
    except (ValueError, ValidationError) as exc:
        raise UsageError(f"{path}, line {number}: no recorded proposal: {exc}") from exc
    if (record.proposal is not None) + (record.down != "") + (record.bad != "") != 1:
        raise UsageError(f"{path}, line {number}: needs either a proposal or the word down")
    return record


class RecordSettings(Value):
    """Section ``[ideators.record]`` of the configuration.

    Attributes:
        path: File that lines are added to; :class:`ReplayIdeator` plays it.
    """

    path: Path


class RecordingIdeator:
    """Writes down what another ideator answers; changes nothing of it.

    Args:
        ideator: The one that is asked.
        settings: See :class:`RecordSettings`.

    Raises:
        UsageError: The settings are bad, or the file cannot be written.
    """

    def __init__(self, ideator: Ideator, settings: dict[str, Any]) -> None:
        try:
            self._path = RecordSettings.model_validate(settings).path
            with self._path.open("a", encoding="utf-8"):
                pass
        except (ValidationError, OSError) as exc:
            raise UsageError(f"bad settings in [ideators.record]: {exc}") from exc
        self._ideator = ideator

    @property
    def name(self) -> str:
        """Name of the one that is asked."""
        return self._ideator.name

    def equip(self, services: Services) -> None:
        """Hand on what the engine lends."""
        if isinstance(self._ideator, Equipped):
            self._ideator.equip(services)

    def author_of(self, proposal: Proposal) -> str:
        """What the one that is asked says."""
        return asking.author_of(self._ideator, proposal)

    def propose(self, context: Context) -> Proposal | None:
        """Its answer, written down; raises what it raises."""
        try:
            proposal = asking.propose(self._ideator, context)
        except BackendDown as exc:
            self._write({"down": str(exc) or "down", "round": context.round})
            raise
        except BadReply as exc:
            self._write({"bad": str(exc) or "bad", "round": context.round})
            raise
        if proposal is not None:
            self._write({"proposal": _plain(proposal), "round": context.round})
        return proposal

    def repair(self, context: Context, proposal: Proposal, failure: Failure) -> Proposal | None:
        """Its repair, written down; raises what it raises."""
        mended = asking.repair(self._ideator, context, proposal, failure)
        if mended is not None:
            self._write({"repair": _plain(mended)})
        return mended

    def _write(self, line: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


def _plain(proposal: Proposal) -> dict[str, Any]:
    return proposal.model_dump(mode="json")
