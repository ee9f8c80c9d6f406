"""Making tasks from what the user gives, and sessions from tasks."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from croq_fsm.config import Config
from croq_fsm.domain import operators, own_host
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.ideas import check_source
from croq_fsm.domain.session import Session
from croq_fsm.domain.shapes import parse_shape
from croq_fsm.domain.task import Task
from croq_fsm.domain.work import Start, Work
from croq_fsm.errors import EditError, UsageError
from croq_fsm.storage.repository import Repository
from croq_fsm.toolchain.registry import SUFFIXES, check_dsl, check_simulated
from croq_fsm.toolchain.workbench import Workbench


@dataclass(frozen=True)
class Request:
    """What the user asked for; None where nothing was said."""

    dsl: str | None = None
    dtype: str | None = None
    shape: str | None = None
    kernel: Path | None = None
    operator: str | None = None
    ideator: str | None = None
    rounds: int | None = None
    hours: float | None = None
    simulated: bool = False
    gpu_seconds: float | None = None
    tokens: int | None = None
    flops: float | None = None


def make_task(request: Request, config: Config, now: float) -> Task:
    """A complete task, or an error that says what is missing and what is known.

    Raises:
        UsageError: Something is unknown, missing or contradictory.
    """
    dsl = _dsl(request)
    if request.simulated:
        check_simulated(dsl)
    name = _operator(request)
    if name not in operators.OPERATORS:
        return _own_host_task(request, config, now, (dsl, name))
    if request.flops is not None:
        raise UsageError(f"--flops is for operators that are not known; {name} is")
    op = operators.operator(name)
    if request.shape is None or request.dtype is None:
        dims = "x".join(dim.upper() for dim in op.dims)
        pairs = operators.SUPPORTED.get(dsl, set())
        dtypes = sorted(dtype for known, dtype in pairs if known == name) or sorted(op.precisions)
        raise UsageError(
            f"say dtype and shape, for example 'croq-fsm start {dsl} {dtypes[0]} "
            f"{'x'.join(['512'] * len(op.dims))}'; {name} wants {dims}, "
            f"dtypes: {', '.join(dtypes)}"
        )
    dtype = op.dtype(request.dtype)
    shape = parse_shape(request.shape, op.dims)
    op.check_shape(shape, dtype)
    return _task(
        request,
        config,
        now,
        dsl=dsl,
        operator=name,
        dtype=dtype,
        shape=shape,
        kernel=str(request.kernel) if request.kernel else f"builtin:{name}",
    )


def _own_host_task(request: Request, config: Config, now: float, what: tuple[str, str]) -> Task:
    """A task of an operator that is not in the registry; its kernel brings its own program."""
    dsl, name = what
    if request.kernel is None:
        raise UsageError(
            f"unknown operator {name!r}; known: {', '.join(sorted(operators.OPERATORS))}. A kernel "
            "of another one has to be named with --kernel, and to hold a main that checks and "
            "times it"
        )
    if request.simulated:
        raise UsageError(f"operator {name!r} is not known, so there is no model of it to simulate")
    if request.shape is None or request.dtype is None:
        raise UsageError(
            f"say dtype and shape of {name}, as its program has them, for example "
            f"'croq-fsm start {dsl} f16 8x4096x128'; they name its files"
        )
    if request.flops is not None and not 1.0 <= request.flops < float("inf"):
        raise UsageError("--flops: the operations of one call, a number of 1 or more")
    return _task(
        request,
        config,
        now,
        dsl=dsl,
        operator=name,
        dtype=own_host.check_dtype(request.dtype),
        shape=parse_shape(request.shape, own_host.dims(request.shape.count("x") + 1)),
        kernel=str(request.kernel),
        own_host=True,
        work=request.flops,
        work_from="" if request.flops is None else "given",
    )


def _task(request: Request, config: Config, now: float, **what: Any) -> Task:
    """The task with the limits that were asked for."""
    hours = request.hours if request.hours is not None else config.limits.hours or None
    if request.rounds is not None and request.rounds < 1:
        raise UsageError("--rounds must be at least 1")
    return Task(
        **what,
        model=request.ideator or config.ideator,
        rounds=request.rounds,
        deadline=None if hours is None else now + 3600.0 * hours,
        hours=hours,
        gpu_seconds=request.gpu_seconds,
        tokens=request.tokens,
        simulated=request.simulated,
    )


def start_candidate(request: Request, task: Task, workbench: Workbench) -> Candidate:
    """The start kernel as it is now; later edits of the file do not reach the session.

    Raises:
        UsageError: The file is missing, unreadable, or of another DSL.
    """
    workbench.supports(task)
    path = request.kernel
    if path is None:
        return workbench.start_kernel(task)
    if path.is_dir():
        path = _only_kernel(path, workbench.suffix)
    if path.suffix != workbench.suffix:
        raise UsageError(f"kernel {path} is no {task.dsl} kernel (wanted *{workbench.suffix})")
    try:
        source = path.read_text(encoding="utf-8")
        check_source(source)
    except UnicodeDecodeError as exc:
        raise UsageError(f"kernel {path} is no text in UTF-8, so no source of a kernel") from exc
    except OSError as exc:
        raise UsageError(f"kernel {path} cannot be read: {exc}") from exc
    except EditError as exc:
        raise UsageError(f"kernel {path} is refused: {exc}") from exc
    candidate = Candidate(source=source)
    if task.own_host and (problems := workbench.lint(candidate, task)):
        raise UsageError(f"kernel {path} is refused: {'; '.join(problems)}")
    return candidate


def check_world(repository: Repository, *, simulated: bool) -> None:
    """A root is measured or simulated as a whole, so that no figure can be taken for another's.

    Raises:
        UsageError: It is the other.
    """
    with repository.read() as reader:
        other = next((s for s in reader.sessions() if s.task.simulated is not simulated), None)
    if other is None:
        return
    if simulated:
        raise UsageError(
            f"this root holds measured sessions ({other.id}); rehearse in a root of its own: "
            "make a folder, run 'git init' there, and name it with --root"
        )
    raise UsageError(
        f"this root holds simulated sessions ({other.id}); measure in a root of its own: make a "
        "folder, run 'git init' there, and name it with --root"
    )


def create(
    repository: Repository,
    task: Task,
    candidate: Candidate,
    config: Config,
    starts: tuple[Start, ...] = (),
) -> Session:
    """A new session at INIT.

    Raises:
        UsageError: Other sessions of the root are measured where this one is simulated, or vice
            versa.
    """
    check_world(repository, simulated=task.simulated)
    if task.own_host:
        parts = own_host.split(candidate.source, task.dsl, task.operator)
        task = task.model_copy(update={"host": parts.host_hash})
    now = time.time()
    return repository.create_session(
        _new_id(now),
        task,
        Work(candidate=candidate, starts=starts),
        config=config.model_dump_json(),
        seed=config.seed,
        at=int(now * 1e6),
    )


def _new_id(now: float) -> str:
    """Sortable by time, unique, short enough to type."""
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{secrets.token_hex(3)}"


def _dsl(request: Request) -> str:
    if request.dsl is not None:
        return check_dsl(request.dsl)
    if request.kernel is not None and request.kernel.suffix in SUFFIXES:
        return SUFFIXES[request.kernel.suffix]
    raise UsageError("say a DSL, for example 'croq-fsm start c f32 512x512x512'")


def _operator(request: Request) -> str:
    if request.operator is not None:
        if request.operator in operators.OPERATORS:
            return request.operator
        return own_host.check_name(request.operator)
    if request.kernel is None:
        return "matmul"
    path = request.kernel.resolve()
    for part in (path.stem, path.parent.name):
        found = operators.operator_of(part)
        if found:
            return found
    known = ", ".join(sorted(operators.OPERATORS))
    raise UsageError(
        f"the operator of {request.kernel} cannot be told from its name; say --operator "
        f"(known: {known})"
    )


def _only_kernel(folder: Path, suffix: str) -> Path:
    """The one clean kernel of a folder; former tuning outputs (``_aitune_``) do not count."""
    found = sorted(p for p in folder.glob(f"*{suffix}") if "_aitune_" not in p.name)
    if len(found) != 1:
        listed = ", ".join(p.name for p in found) or "none"
        raise UsageError(f"{folder} holds {len(found)} kernels ({listed}); name one file")
    return found[0]
