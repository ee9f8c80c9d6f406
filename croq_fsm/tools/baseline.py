"""``store-baseline``: a session whose library reference and start kernel are measured."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from croq_fsm import sessions
from croq_fsm.daemon import Daemon
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import State
from croq_fsm.domain.task import SUFFIXES
from croq_fsm.errors import EnvironmentMissing
from croq_fsm.tools import plans
from croq_fsm.tools.answers import Answer, claims
from croq_fsm.tools.hand import Drive, Hand
from croq_fsm.tools.places import Key, find, request_of


def store_baseline(
    daemon: Daemon, key: Key, kernel: Path | None, claimed: dict[str, object]
) -> Answer:
    """Measure iter000 and iter001, or say what they were: doing it twice changes nothing.

    Raises:
        UsageError: The key names no task that the DSL can run.
        EnvironmentMissing: Library or start kernel cannot be measured; says why.
    """
    with daemon.repository.read() as reader:
        session = find(reader, key)
    if session is None or session.state.is_final:
        session = _made(daemon, key, kernel)
    session = Drive(daemon, Hand(session.task.model)).until(session, _has_baseline)
    if session.state is State.FAILED:
        raise EnvironmentMissing(session.reason)
    answer = Answer(_told(daemon, session), note="[store_baseline] iter000 and iter001 are stored")
    own: dict[str, object] = {**session.task.sizes, "dtype": session.task.dtype}
    answer.warnings = claims({k: v for k, v in claimed.items() if k in own or k == "gpu"}, {
        **own, "gpu": session.device.key,
    })  # fmt: skip
    for name in ("warmup", "iters"):
        if claimed.get(name) is not None:
            answer.warnings.append(f"--{name} is ignored: the configuration says how to measure")
    return answer


def _has_baseline(session: Session) -> bool:
    return session.best_iteration is not None


def _made(daemon: Daemon, key: Key, kernel: Path | None) -> Session:
    """A session that its author drives; the start kernel may lie where iter001 will."""
    drafts = daemon.root.path.glob(
        f"tuning/*/{key.dsl}/srcs/{key.shape_key}/{key.model}/iter001_draft"
        f"{SUFFIXES.get(key.dsl, '')}"
    )
    request = request_of(key, kernel or next(iter(sorted(drafts)), None))
    task = sessions.make_task(request, daemon.config, time.time())
    workbench = daemon.workbench(task.dsl, daemon.config)
    candidate = sessions.start_candidate(request, task, workbench)
    session = sessions.create(daemon.repository, task, candidate, daemon.config)
    plans.keep(daemon.repository, session, plans.HAND, "store-baseline", session.created_at)
    return session


def _told(daemon: Daemon, session: Session) -> dict[str, Any]:
    task = session.task
    with daemon.repository.read() as reader:
        library, start = reader.iteration(session.id, 0), reader.iteration(session.id, 1)
    return {
        "tflops": task.tflops(library.seconds),
        "avg_ms": library.seconds * 1e3,
        "dtype": task.dtype,
        **task.sizes,
        "status": "simulated" if task.simulated else "ok",
        "gpu": session.device.key,
        "dsl": task.dsl,
        "shape_key": task.shape_key,
        "model": task.model,
        "session": session.id,
        "kernel": library.name,
        "start": {"kernel": start.name, "tflops": task.tflops(start.seconds)},
        "noise": session.noise,
        "state": session.state.name,
    }
