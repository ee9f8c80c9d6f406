"""The transition table on ``transitions``, and nothing else.

The library is used as a validated table (see C5 to C7 of its measured behaviour): no model
decoration, no automatic transitions, no conditions, and exactly one callback,
``before_state_change``, in which the caller commits. A transition that cannot be committed
therefore does not happen, and one that is committed cannot be refused any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from transitions import EventData, Machine

from croq_fsm.domain.states import Outcome, State

_S, _O = State, Outcome

#: (state, outcome) → next state. Each pair has exactly one edge.
TABLE: Final[dict[tuple[State, Outcome], State]] = {
    (_S.INIT, _O.READY): _S.BASELINE,
    (_S.INIT, _O.INVALID): _S.FAILED,
    (_S.BASELINE, _O.MEASURED): _S.PROFILE,
    (_S.BASELINE, _O.IMPOSSIBLE): _S.FAILED,
    (_S.BASELINE, _O.CONTENDED): _S.BASELINE,
    (_S.BASELINE, _O.WEDGED): _S.FAILED,
    (_S.PROFILE, _O.CLASSIFIED): _S.IDEATE,
    (_S.PROFILE, _O.DEGRADED): _S.IDEATE,
    (_S.PROFILE, _O.BUSY): _S.PROFILE,
    (_S.PROFILE, _O.UNAVAILABLE): _S.FAILED,
    (_S.PROFILE, _O.WEDGED): _S.FAILED,
    (_S.IDEATE, _O.PROPOSED): _S.IMPLEMENT,
    (_S.IDEATE, _O.EXHAUSTED): _S.PROFILE,
    (_S.IDEATE, _O.ENDED): _S.DONE,
    (_S.IDEATE, _O.BACKEND_DOWN): _S.IDEATE,
    (_S.IMPLEMENT, _O.BUILT): _S.MEASURE,
    (_S.IMPLEMENT, _O.ATTEMPT_FAILED): _S.IMPLEMENT,
    (_S.IMPLEMENT, _O.ABANDONED): _S.STORE,
    (_S.IMPLEMENT, _O.ENVIRONMENT_BROKEN): _S.FAILED,
    (_S.MEASURE, _O.TIMED): _S.DECIDE,
    (_S.MEASURE, _O.REPAIRABLE): _S.IMPLEMENT,
    (_S.MEASURE, _O.REJECTED): _S.STORE,
    (_S.MEASURE, _O.CONTENDED): _S.MEASURE,
    (_S.MEASURE, _O.ENVIRONMENT_BROKEN): _S.FAILED,
    (_S.MEASURE, _O.WEDGED): _S.FAILED,
    (_S.DECIDE, _O.DECIDED): _S.STORE,
    (_S.DECIDE, _O.AMBIGUOUS): _S.MEASURE,
    (_S.STORE, _O.STORED): _S.PROFILE,
    (_S.STORE, _O.FINISHED): _S.DONE,
    # A session that keeps bringing the daemon down is parked, wherever it stands.
    **{(state, _O.POISONED): _S.FAILED for state in State if not state.is_final},
}

Commit = Callable[[State, Outcome, State], None]


class TableError(Exception):
    """The transition table is not a machine that can run unattended."""


@dataclass
class _Position:
    """The object that ``transitions`` moves; it holds a state and nothing else."""

    state: Any


class SessionMachine:
    """Moves one session along the table; commits before it moves.

    Attributes:
        state: The state in memory, a cache of the session row.
    """

    def __init__(self, state: State, commit: Commit) -> None:
        self._commit = commit
        self._busy = False
        self._machine = _build(self._before_state_change)
        self._position = _Position(state.name)

    @property
    def state(self) -> State:
        """The state in memory."""
        return State[str(self._position.state)]

    def fire(self, outcome: Outcome) -> State:
        """Commit and move along the edge of ``outcome``.

        Raises:
            TableError: No such edge, or called from within a commit.
            Exception: Whatever the commit raised; the state in memory is then unchanged and
                the caller must reload the session from the database.
        """
        if self._busy:
            raise TableError("a transition was fired from within another one")
        if (self.state, outcome) not in TABLE:
            raise TableError(f"state {self.state} has no edge for outcome {outcome}")
        self._busy = True
        try:
            self._machine.events[outcome.name].trigger(self._position)
        finally:
            self._busy = False
        return self.state

    def _before_state_change(self, event: EventData) -> None:
        transition = event.transition
        if transition is None:  # pragma: no cover - the library sets it before this callback
            raise TableError("the library fired no transition")
        self._commit(
            State[str(transition.source)], Outcome[event.event.name], State[str(transition.dest)]
        )


def validate(table: dict[tuple[State, Outcome], State] = TABLE) -> None:
    """Check at start what would otherwise show at three in the morning.

    Raises:
        TableError: A final state has an edge, a state or an outcome is unused, a state cannot
            be reached from INIT, or cannot reach a final state.
    """
    for (state, outcome), target in table.items():
        if not {state, target} <= set(State) or outcome not in set(Outcome):
            raise TableError(f"edge ({state}, {outcome}) → {target} names no state or outcome")
        if state.is_final:
            raise TableError(f"final state {state} has an edge")
    unused = set(Outcome) - {outcome for _, outcome in table}
    if unused:
        raise TableError(f"outcomes without an edge: {sorted(map(str, unused))}")
    unreachable = set(State) - _reachable(table, State.INIT)
    if unreachable:
        raise TableError(f"states that cannot be reached: {sorted(map(str, unreachable))}")
    for state in State:
        if not any(end.is_final for end in _reachable(table, state)):
            raise TableError(f"state {state} cannot reach a final state")


def _reachable(table: dict[tuple[State, Outcome], State], start: State) -> set[State]:
    seen, todo = {start}, [start]
    while todo:
        here = todo.pop()
        for (source, _), target in table.items():
            if source is here and target not in seen:
                seen.add(target)
                todo.append(target)
    return seen


def _build(before: Callable[[EventData], None]) -> Machine:
    """A pure table: names in, names out, one callback."""
    machine = Machine(
        model=None,
        states=[state.name for state in State],
        initial=None,
        transitions=[
            {"trigger": outcome.name, "source": source.name, "dest": target.name}
            for (source, outcome), target in TABLE.items()
        ],
        auto_transitions=False,
        send_event=True,
        before_state_change=[before],
    )
    _check_library_view(machine)
    return machine


def _check_library_view(machine: Machine) -> None:
    """The library accepts misspelt names silently; make sure that it understood ours."""
    if set(machine.states) != {state.name for state in State}:
        raise TableError(f"the library knows other states: {sorted(machine.states)}")
    edges = {
        (State[str(t.source)], Outcome[name]): State[str(t.dest)]
        for name, event in machine.events.items()
        for group in event.transitions.values()
        for t in group
    }
    if edges != TABLE:
        raise TableError("the library holds other edges than the table")
    hooked = [
        state.name for state in machine.states.values() if state.on_enter or state.on_exit
    ] + [
        name
        for name in ("after_state_change", "finalize_event", "prepare_event")
        if getattr(machine, name)
    ]
    if hooked or machine.on_exception:
        raise TableError(f"callbacks behind the commit are forbidden: {hooked}")


def diagram() -> str:
    """The table as a Mermaid state diagram; the docs hold exactly this text."""
    lines = ["stateDiagram-v2", "    [*] --> INIT"]
    for (source, outcome), target in TABLE.items():
        if outcome is not Outcome.POISONED:
            lines.append(f"    {source} --> {target}: {outcome}")
    lines.append("    note right of FAILED: every work state also leads here when poisoned")
    lines += ["    DONE --> [*]", "    FAILED --> [*]"]
    return "\n".join(lines) + "\n"
