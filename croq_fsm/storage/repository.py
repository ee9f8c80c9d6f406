"""Writes. One transaction per method; a transition and all that belongs to it are one.

The caller is the daemon, under the root's lock, on the one writing connection. A database
error always leaves the ``begin()`` block, because SQLite may have rolled back already.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Update, and_, bindparam, insert, update
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from croq_fsm import FSM_VERSION, faults
from croq_fsm.domain.records import (
    Attempt,
    Iteration,
    Round,
    Step,
)
from croq_fsm.domain.session import Session
from croq_fsm.domain.source import sha256
from croq_fsm.domain.states import Decision, State, Status
from croq_fsm.domain.task import Task
from croq_fsm.domain.work import Work
from croq_fsm.errors import StaleSession
from croq_fsm.storage import rows, schema
from croq_fsm.storage.engine import translated
from croq_fsm.storage.reading import OpenIntent, Reader
from croq_fsm.storage.writing import RecordWriter, open_intent


class Repository:
    """All writes of the daemon, and reads on the same connection.

    Attributes:
        path: The database file.
    """

    def __init__(self, engine: Engine, path: Path) -> None:
        self._engine = engine
        self.path = path

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """Queries in one short transaction."""
        with translated(self.path), self._engine.begin() as connection:
            yield Reader(connection)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction for records that belong to no step: children, calls."""
        with self._write() as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with translated(self.path), self._engine.begin() as connection:
            yield connection

    # -- runs and children -------------------------------------------------------------

    def start_run(self, run: dict[str, Any]) -> None:
        """Record a start of the daemon: run_id, pid, boot_id, host, started_at."""
        with self._write() as connection:
            connection.execute(insert(schema.runs).values(**run))

    def end_run(self, run_id: str, at: int, ending: str) -> None:
        """Record the end of the daemon."""
        with self._write() as connection:
            connection.execute(
                update(schema.runs)
                .where(schema.runs.c.run_id == run_id)
                .values(ended_at=at, ending=ending)
            )

    def child_started(self, child: dict[str, Any]) -> None:
        """Record a child before anybody waits for it."""
        with self._write() as connection:
            connection.execute(insert(schema.children).values(**child))

    def child_ended(self, child_id: str, at: int, ending: str) -> None:
        """Record how a child ended."""
        with self._write() as connection:
            connection.execute(
                update(schema.children)
                .where(schema.children.c.child_id == child_id)
                .values(ended_at=at, ending=ending)
            )

    def close_children_of_dead_runs(self, run_id: str, at: int) -> int:
        """Mark children that other runs left open as interrupted; returns how many."""
        table = schema.children
        with self._write() as connection:
            done = connection.execute(
                update(table)
                .where(and_(table.c.run_id != run_id, table.c.ended_at.is_(None)))
                .values(ended_at=at, ending="interrupted: its daemon ended before it")
            )
            connection.execute(
                update(schema.runs)
                .where(and_(schema.runs.c.run_id != run_id, schema.runs.c.ended_at.is_(None)))
                .values(ended_at=at, ending="interrupted: killed or power lost")
            )
            return int(done.rowcount)

    # -- sessions ----------------------------------------------------------------------

    def create_session(
        self, session_id: str, task: Task, work: Work, *, config: str, seed: int, at: int
    ) -> Session:
        """A new session at INIT; ``work`` holds the start kernel as it was when asked for."""
        with self._write() as connection:
            connection.execute(
                insert(schema.sessions).values(
                    id=session_id,
                    created_at=at,
                    updated_at=at,
                    fsm_version=FSM_VERSION,
                    dsl=task.dsl,
                    shape_key=task.shape_key,
                    model=task.model,
                    gpu="",
                    task=task.model_dump_json(),
                    device=rows.dumps({"key": "", "name": "", "uuid": ""}),
                    dialect="{}",
                    config=config,
                    config_hash=sha256(config),
                    seed=seed,
                    state=State.INIT.name,
                    seq=0,
                    status=Status.ACTIVE.name,
                    reason="",
                    work=work.model_dump_json(),
                    begun_seq=-1,
                    begins=0,
                    round=0,
                    next_iteration=0,
                    next_attempt=0,
                    streak=0,
                    macro_run=0,
                    counts="{}",
                    log_sizes="{}",
                )
            )
            return Reader(connection).session(session_id)

    def begin_step(self, session: Session) -> Session:
        """Count that (state, seq) is begun, before its handler runs."""
        with self._write() as connection:
            self._touch(connection, session, begun_seq=session.seq, begins=session.begins + 1)
            return Reader(connection).session(session.id)

    def set_status(self, session: Session, status: Status) -> Session:
        """Pause or reactivate; not a transition of the machine."""
        with self._write() as connection:
            self._touch(connection, session, status=status.name)
            return Reader(connection).session(session.id)

    def forget_begins(self, session: Session, *, to: int = 0) -> Session:
        """Count fewer begins of the step in hand: an interruption was no failed try."""
        with self._write() as connection:
            self._touch(connection, session, begins=to)
            return Reader(connection).session(session.id)

    def revise(self, session: Session, task: Task, reopen_at: State | None, at: int) -> Session:
        """Give a session new limits and, when it had ended, put it back to work.

        A reopening is a transition row of its own (outcome ``reopened``), so that the chain of
        transitions stays whole.
        """
        with self._write() as connection:
            values: dict[str, Any] = {"task": task.model_dump_json(), "status": Status.ACTIVE.name}
            if reopen_at is not None:
                connection.execute(
                    insert(schema.transitions).values(
                        session_id=session.id,
                        seq=session.seq + 1,
                        at=at,
                        run_id="",
                        from_state=session.state.name,
                        outcome="reopened",
                        to_state=reopen_at.name,
                        round=session.work.round,
                        detail="{}",
                    )
                )
                values |= {"state": reopen_at.name, "seq": session.seq + 1, "reason": ""}
            self._touch(connection, session, **values)
            return Reader(connection).session(session.id)

    def commit_step(self, session: Session, step: Step, to: State, run_id: str, at: int) -> Session:
        """Write one transition: new state, its row, records, checkpoint and intents.

        Raises:
            StaleSession: The row has moved on since ``session`` was read; nothing is written.
        """
        faults.point("before_commit")
        with self._write() as connection:
            seq = session.seq + 1
            self._touch(
                connection,
                session,
                state=to.name,
                seq=seq,
                status=Status.ENDED.name if to.is_final else session.status.name,
                reason=step.reason,
                work=step.work.model_dump_json(),
                begins=0,
                updated_at=at,
                **_sums(session, step),
            )
            row = {
                "session_id": session.id,
                "seq": seq,
                "at": at,
                "run_id": run_id,
                "from_state": session.state.name,
                "outcome": step.outcome.name,
                "to_state": to.name,
                "round": step.work.round or session.work.round,
                "detail": rows.dumps(step.detail),
            }
            connection.execute(insert(schema.transitions), row)
            key = {"session_id": session.id, "seq": seq}
            for part, record in enumerate(step.records):
                RecordWriter(connection, session.id, seq, part, at).write(record)
            for part, effect in enumerate(step.effects):
                open_intent(connection, key, part, effect, at)
            faults.point("in_commit")
            committed = Reader(connection).session(session.id)
        faults.point("after_commit")
        return committed

    def close_intent(self, intent: OpenIntent, at: int, result: str) -> None:
        """Mark an effect as done; its payload is dropped, its result kept."""
        table = schema.intents
        with self._write() as connection:
            connection.execute(
                update(table)
                .where(
                    and_(
                        table.c.session_id == intent.session_id,
                        table.c.seq == intent.seq,
                        table.c.part == intent.part,
                    )
                )
                .values(done_at=at, payload=None, result=result)
            )

    def add_message(self, message: dict[str, Any]) -> bool:
        """Record a message from a face, once; False when it was known already."""
        with self._write() as connection:
            done = connection.execute(
                sqlite_insert(schema.messages).values(**message).on_conflict_do_nothing()
            )
            return bool(done.rowcount)

    # -- parts -------------------------------------------------------------------------

    def _touch(self, connection: Connection, session: Session, **values: Any) -> None:
        """Compare-and-set on (id, seq, state): a zombie loses."""
        where = {"at_id": session.id, "at_seq": session.seq, "at_state": session.state.name}
        done = connection.execute(_moved(tuple(values)), {**where, **values})
        if done.rowcount != 1:
            raise StaleSession(
                f"session {session.id} is no longer at {session.state} (step {session.seq}); "
                "another process moved it on"
            )


@lru_cache(maxsize=32)
def _moved(names: tuple[str, ...]) -> Update:
    """The update of those columns of a session where it is expected; made once."""
    table = schema.sessions
    return (
        update(table)
        .where(
            and_(
                table.c.id == bindparam("at_id"),
                table.c.seq == bindparam("at_seq"),
                table.c.state == bindparam("at_state"),
            )
        )
        .values({name: bindparam(name) for name in names})
    )


def _sums(session: Session, step: Step) -> dict[str, Any]:
    """New values of the session's sums after the records of a step."""
    sums: dict[str, Any] = {}
    counts = dict(session.counts)
    for record in step.records:
        match record:
            case Round():
                counts[record.decision] = counts.get(record.decision, 0) + 1
                kept = record.decision is Decision.KEEP
                sums["round"] = record.round
                sums["streak"] = 0 if kept else session.streak + 1
                sums["macro_run"] = session.macro_run + 1 if record.macro_only else 0
            case Iteration():
                sums["next_iteration"] = record.number + 1
                if record.number == 0:
                    sums["library_seconds"] = None if record.self_reported else record.seconds
                elif record.decision is Decision.KEEP:
                    sums["best_iteration"] = record.number
            case Attempt():
                sums["next_attempt"] = record.ordinal + 1
            case _:
                pass
    sums["counts"] = rows.dumps({decision.name: n for decision, n in counts.items()})
    sizes = dict(session.log_sizes)
    for effect in step.effects:
        for log in effect.payload.get("logs", ()):
            sizes[log["path"]] = log["offset"] + len(log["text"].encode())
    sums["log_sizes"] = rows.dumps(sizes)
    return sums
