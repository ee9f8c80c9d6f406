"""What ``start`` is asked to do: from the command line, a task file, or the queue."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from croq_fsm.config import Config, Section
from croq_fsm.domain.operators import SUPPORTED
from croq_fsm.domain.task import Task
from croq_fsm.errors import UsageError
from croq_fsm.sessions import Request, make_task
from croq_fsm.toolchain.registry import SUFFIXES


class TaskTable(Section):
    """A task in a TOML file; every key may be left out when it can be told from the others.

    Attributes:
        dsl: Language of the kernel.
        dtype: Dtype word of the operator.
        shape: Sizes joined by ``x``; several shapes as a list, or joined by commas.
        kernel: Start kernel, relative to the file; default: the one that ships.
        operator: Operator; default: told from the kernel's name.
        ideator: Source of ideas, or several joined by commas.
        rounds: Stop after this many rounds.
        hours: Stop after this long.
        gpu_seconds: Stop after so many seconds in the states that use the device.
        tokens: Stop after so many tokens of models and agents.
        flops: Operations of one call of an operator that is not known.
    """

    dsl: str | None = None
    dtype: str | None = None
    shape: str | tuple[str, ...] | None = None
    kernel: str | None = None
    operator: str | None = None
    ideator: str | None = None
    rounds: Annotated[int, Field(ge=1)] | None = None
    hours: Annotated[float, Field(gt=0)] | None = None
    gpu_seconds: Annotated[float, Field(gt=0)] | None = None
    tokens: Annotated[int, Field(ge=1)] | None = None
    flops: Annotated[float, Field(ge=1)] | None = None


@dataclass(frozen=True)
class Planned:
    """A task that was checked as far as that goes without the lock.

    Attributes:
        request: As asked for.
        task: As it will be stored.
        config: Configuration of its session.
        seconds: Its own limit, to be counted from the moment at which its turn comes.
    """

    request: Request
    task: Task
    config: Config
    seconds: float | None


def read_task_file(path: Path) -> list[Request]:
    """Tasks of a TOML file: one at its top level, or several as ``[[tasks]]``.

    Raises:
        UsageError: Missing, no TOML, unknown keys, bad values.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise UsageError(f"task file {path} does not exist") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as exc:
        raise UsageError(f"task file {path} cannot be read: {exc}") from exc
    tables = data["tasks"] if set(data) == {"tasks"} else [data]
    if not isinstance(tables, list):
        raise UsageError(f"task file {path}: write several tasks as [[tasks]] tables")
    return from_tables(tables, path)


def from_tables(tables: Iterable[Any], source: Path | None) -> list[Request]:
    """Requests for task tables; kernels are looked for beside the file that holds the tables.

    Raises:
        UsageError: Unknown keys or bad values, with the number of the task.
    """
    folder = source.resolve().parent if source else Path.cwd()
    return [
        one
        for n, table in enumerate(tables, 1)
        for one in several(_from_table(table, f"task {n} in {source}", folder))
    ]


def several(request: Request) -> list[Request]:
    """A request for each shape of one that names several."""
    shapes = (request.shape or "").split(",")
    return [replace(request, shape=shape.strip() or None) for shape in shapes]


def plan(requests: list[Request], config: Config, now: float) -> list[Planned]:
    """Check everything that can be checked without the lock and without starting a process.

    Raises:
        UsageError: Something is unknown, missing, contradictory or unreadable.
    """
    return [_planned(request, config, now) for request in requests]


def _from_table(table: Any, where: str, folder: Path) -> Request:
    try:
        values = TaskTable.model_validate(table)
    except ValidationError as exc:
        first = exc.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the table"
        raise UsageError(f"{where}: {key}: {first['msg']}") from exc
    fields = values.model_dump()
    kernel = fields.pop("kernel")
    if isinstance(values.shape, tuple):
        fields["shape"] = ",".join(values.shape)
    return Request(**fields, kernel=None if kernel is None else folder / Path(kernel).expanduser())


def _planned(request: Request, config: Config, now: float) -> Planned:
    if request.ideator is not None:
        names = ",".join(name.strip() for name in request.ideator.split(","))
        request = replace(request, ideator=names)
    if request.kernel is not None and not request.kernel.exists():
        raise UsageError(f"kernel {request.kernel} does not exist")
    if request.kernel is not None and not (request.kernel.is_file() or request.kernel.is_dir()):
        raise UsageError(f"kernel {request.kernel} is neither a file nor a folder")
    task = make_task(request, config, now)
    _check_supported(task)
    if request.kernel is not None:
        _check_kernel(request.kernel, task.dsl)
    _check_ideators(task.model, config)
    seconds = None if task.deadline is None else task.deadline - now
    return Planned(request, task, config, seconds)


def _check_supported(task: Task) -> None:
    if task.own_host:  # whether it can run is seen when it is compiled
        return
    pairs = SUPPORTED.get(task.dsl, set())
    if (task.operator, task.dtype) not in pairs:
        known = ", ".join(f"{operator} {dtype}" for operator, dtype in sorted(pairs))
        raise UsageError(
            f"DSL {task.dsl} cannot run {task.operator} in {task.dtype}; it runs: {known}"
        )


def _check_kernel(path: Path, dsl: str) -> None:
    if path.is_file() and SUFFIXES.get(path.suffix) != dsl:
        suffix = next(s for s, name in SUFFIXES.items() if name == dsl)
        raise UsageError(f"kernel {path} is no {dsl} kernel; its name must end in {suffix}")


def _check_ideators(model: str, config: Config) -> None:
    """A name that nobody answers to must not cost a session."""
    from croq_fsm.ideators import load

    for name in model.split(","):
        load.load(name, config.ideators.get(name, {}))
