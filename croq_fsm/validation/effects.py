"""Promised effects: those that are open, and the commits of those that are done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from croq_fsm.domain.states import Decision, Outcome
from croq_fsm.storage.git import TRAILER
from croq_fsm.validation.record import Findings, Record

#: Outcomes that wrote a round.
_STORED: Final = (Outcome.STORED.name, Outcome.FINISHED.name)
_CURE_OPEN: Final = "croq-fsm resume"
_CURE_COMMIT: Final = (
    "the files and the numbers are in the database: 'croq-fsm rebuild' writes them again; "
    "commit them by hand, or fetch the branch that holds the commit"
)


def open_promises(record: Record) -> Findings:
    """Effects that a daemon would perform first thing; a warning, for nothing is lost."""
    for intent in record.intents:
        if not intent.done:
            yield record.problem(
                "open-intent",
                f"intents seq {intent.seq}",
                f"{'files' if intent.kind == 'publish' else 'a commit'} promised by transition "
                f"{intent.seq} were not confirmed, and no daemon runs",
                cure=f"{_CURE_OPEN} {record.session.id}",
            ).as_warning()


def commits(record: Record, trailers: Callable[[str], dict[str, str]]) -> Findings:
    """Each KEEP has its promise of a commit, and each promise that is done its commit.

    Args:
        record: The session.
        trailers: Commits by trailer, for a session's id.
    """
    if not record.config.git.commit or not record.iterations:
        return
    promised = {i.seq: i for i in record.intents if i.kind == "git"}
    done = [seq for seq, intent in promised.items() if intent.done]
    found = trailers(record.session.id) if done else {}
    for round_, seq in _kept(record):
        where = f"rounds {round_}"
        intent = promised.get(seq)
        trailer = f"{record.session.id}/{seq}"
        if intent is None:
            text = f"transition {seq} kept a kernel and promised no commit"
            yield record.problem("keep-without-commit", where, text, cure=_CURE_COMMIT)
        elif intent.done and trailer not in found:
            text = f"no commit carries '{TRAILER}: {trailer}' (it was {intent.result or 'unknown'})"
            yield record.problem("commit-missing", where, text, cure=_CURE_COMMIT)


def _kept(record: Record) -> list[tuple[int, int]]:
    """Round and transition of each KEEP; round 0 is the start kernel."""
    seqs = {t["round"]: t["seq"] for t in record.transitions if t["outcome"] in _STORED}
    baseline = [t["seq"] for t in record.transitions if t["outcome"] == Outcome.MEASURED.name]
    kept = [(r.round, seqs[r.round]) for r in record.rounds
            if r.decision is Decision.KEEP and r.round in seqs]  # fmt: skip
    return [*((0, seq) for seq in baseline[:1]), *kept]
