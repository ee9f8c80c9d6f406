"""The transition table and its use of the library."""

from __future__ import annotations

import pytest

from croq_fsm.domain.states import Outcome, State
from croq_fsm.machine import TABLE, SessionMachine, TableError, diagram, validate


def _nothing(_source: State, _outcome: Outcome, _target: State) -> None:
    """Commit nothing."""


def test_the_table_is_valid() -> None:
    """Every state can be reached and can end; every outcome is used."""
    validate()
    assert set(TABLE.values()) >= {State.DONE, State.FAILED}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({(State.DONE, Outcome.READY): State.INIT}, "final state"),
        ({(State.STORE, Outcome.STORED): "PROFIL"}, "names no state"),
        ({(State.INIT, Outcome.READY): State.FAILED}, "cannot be reached"),
    ],
)
def test_a_broken_table_is_refused(change: dict[object, object], text: str) -> None:
    """Unknown targets, edges out of final states and lost states are found at start."""
    with pytest.raises(TableError, match=text):
        validate({**TABLE, **change})  # type: ignore[dict-item]


def test_an_unused_outcome_is_refused() -> None:
    """An outcome without an edge would strand a session."""
    table = {k: v for k, v in TABLE.items() if k[1] is not Outcome.AMBIGUOUS}
    with pytest.raises(TableError, match="ambiguous"):
        validate(table)


@pytest.mark.parametrize(("source", "outcome"), list(TABLE))
def test_every_edge_commits_once_and_then_moves(source: State, outcome: Outcome) -> None:
    """The commit sees source, outcome and target before the state in memory changes."""
    seen: list[tuple[State, Outcome, State]] = []
    machine = SessionMachine(source, lambda *edge: seen.append(edge))
    assert machine.fire(outcome) is TABLE[source, outcome]
    assert seen == [(source, outcome, TABLE[source, outcome])]


def test_a_failed_commit_leaves_the_state() -> None:
    """What cannot be committed does not happen."""

    def fail(*_edge: object) -> None:
        raise OSError("disk")

    machine = SessionMachine(State.INIT, fail)
    with pytest.raises(OSError, match="disk"):
        machine.fire(Outcome.READY)
    assert machine.state is State.INIT


def test_an_unknown_edge_is_an_error() -> None:
    """A logic error must not pass as a false condition."""
    with pytest.raises(TableError, match="no edge"):
        SessionMachine(State.INIT, _nothing).fire(Outcome.STORED)


def test_no_transition_from_within_a_commit() -> None:
    """Nested transitions are the library's worst trap; they are refused."""

    def nested(*_edge: object) -> None:
        machine.fire(Outcome.MEASURED)

    machine = SessionMachine(State.INIT, nested)
    with pytest.raises(TableError, match="within"):
        machine.fire(Outcome.READY)
    assert machine.state is State.INIT


def test_the_diagram_shows_every_edge() -> None:
    """The diagram is made from the table."""
    text = diagram()
    edges = [e for e in TABLE if e[1] is not Outcome.POISONED]
    assert all(f"{s} --> {TABLE[s, o]}: {o}" in text for s, o in edges)
