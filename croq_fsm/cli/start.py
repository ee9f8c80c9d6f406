"""``start``: tune a kernel, or the queue of the configuration, until something ends it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from croq_fsm.cli.place import ConfigOption, Place, RootOption, place
from croq_fsm.errors import UsageError

if TYPE_CHECKING:
    from croq_fsm.cli.requests import Planned
    from croq_fsm.daemon import Daemon
    from croq_fsm.sessions import Request


@dataclass(frozen=True)
class Wanted:
    """The options of ``start`` that say what to tune."""

    dsl: str | None
    dtype: str | None
    shape: str | None
    kernel: Path | None
    operator: str | None
    task: Path | None
    ideator: str | None
    rounds: int | None
    seconds: float | None
    flops: float | None = None

    @property
    def names_a_kernel(self) -> bool:
        """Whether the command line itself describes a task."""
        return any((self.dsl, self.dtype, self.shape, self.kernel, self.operator))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(start)


def start(
    dsl: Annotated[str | None, typer.Argument(help="c, croqtile or cuda")] = None,
    dtype: Annotated[str | None, typer.Argument(help="For example f32, f16, bf16")] = None,
    shape: Annotated[
        str | None, typer.Argument(help="For example 512x512x512; several joined by commas")
    ] = None,
    *,
    kernel: Annotated[
        Path | None, typer.Option(help="Start kernel, or its folder; default: the shipped one")
    ] = None,
    operator: Annotated[
        str | None, typer.Option(help="Default: told from the kernel's name")
    ] = None,
    flops: Annotated[
        float | None, typer.Option(help="Operations of one call, where the operator is not known")
    ] = None,
    task: Annotated[
        Path | None, typer.Option(help="TOML file with one task, or several as \\[\\[tasks]]")
    ] = None,
    ideator: Annotated[
        str | None, typer.Option(help="Source of ideas; several, joined by commas, in a chain")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Stop after this many rounds")] = None,
    for_: Annotated[
        str | None, typer.Option("--for", help="Stop after this time: 90s, 30m, 8h, 1h30m")
    ] = None,
    root: RootOption = None,
    config: ConfigOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Work in the background, without a terminal")
    ] = False,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Rehearse on a model of an SM90; no number is real")
    ] = False,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Progress and log as JSON lines on standard error")
    ] = False,
) -> None:
    """Tune a kernel until a limit, a stop, or the last idea.

    Without arguments the tasks of the configuration are worked on, one after the other.
    Without --rounds and --for nothing ends the session by itself.
    """
    from croq_fsm.cli.durations import parse_duration

    seconds = None if for_ is None else parse_duration(for_)
    wanted = Wanted(dsl, dtype, shape, kernel, operator, task, ideator, rounds, seconds, flops)
    here = _simulated(place(root, config, json_log=log_json), on=simulate)
    planned = _plan(wanted, here)
    if detach:
        from croq_fsm.cli.detach import background

        # Everything that can be wrong with the request has been said by now.
        raise typer.Exit(background(here))
    raise typer.Exit(_work(here, planned, seconds, as_log=log_json))


def queue(here: Place, *, detach: bool, as_log: bool) -> int:
    """Work on the queue of the configuration, for a command that found nothing else to do."""
    wanted = Wanted(None, None, None, None, None, None, None, None, None)
    planned = _plan(wanted, here)
    if detach:
        from croq_fsm.cli.detach import background

        return background(here)
    return _work(here, planned, None, as_log=as_log)


def _simulated(here: Place, *, on: bool) -> Place:
    """The same place with a model for a device, when one was asked for."""
    if not on:
        return here
    from dataclasses import replace

    simulation = here.config.simulation.model_copy(update={"on": True})
    return replace(here, config=here.config.model_copy(update={"simulation": simulation}))


def _plan(wanted: Wanted, here: Place) -> list[Planned]:
    from croq_fsm.cli.requests import plan

    if wanted.rounds is not None and wanted.rounds < 1:
        raise UsageError("--rounds must be at least 1")
    return plan(_requests(wanted, here), here.config, time.time())


def _requests(wanted: Wanted, here: Place) -> list[Request]:
    """One request of the command line, or those of the task file, or the queue."""
    from croq_fsm.cli.requests import from_tables, read_task_file, several
    from croq_fsm.sessions import Request

    if wanted.names_a_kernel:
        if wanted.task is not None:
            raise UsageError("say either --task FILE or DSL, DTYPE, SHAPE and --kernel, not both")
        single = Request(
            wanted.dsl, wanted.dtype, wanted.shape, wanted.kernel, wanted.operator,
            flops=wanted.flops,
        )  # fmt: skip
        return [_limited(one, wanted, here) for one in several(single)]
    if wanted.task is not None:
        found = read_task_file(wanted.task)
    else:
        found = from_tables(here.config.tasks, here.source)
    if not found:
        raise UsageError(
            "nothing to do: say what to tune, for example 'croq-fsm start c f32 512x512x512', "
            f"or write [[tasks]] into {here.source or here.root.path / 'croq_fsm.toml'}"
        )
    return [_limited(request, wanted, here) for request in found]


def _limited(request: Request, wanted: Wanted, here: Place) -> Request:
    """What the command line says goes before what the file says."""
    from dataclasses import replace

    return replace(
        request,
        ideator=wanted.ideator or request.ideator,
        rounds=wanted.rounds or request.rounds,
        simulated=here.config.simulation.on,
    )


def _work(here: Place, planned: list[Planned], seconds: float | None, *, as_log: bool) -> int:
    from croq_fsm.cli.work import Turn, work_on
    from croq_fsm.daemon import opened

    with opened(here.root, here.config) as daemon:
        until = None if seconds is None else daemon.clock.now() + seconds
        turns = [
            Turn(session_id, item.seconds)
            for session_id, item in zip(_sessions(daemon, planned), planned, strict=True)
        ]
        return work_on(daemon, turns, until=until, as_log=as_log)


def _sessions(daemon: Daemon, planned: list[Planned]) -> list[str]:
    """Rows of all sessions, so that a queue survives the death of the daemon.

    All start kernels are read first: a bad one in the queue must not leave half a queue.
    """
    from croq_fsm import sessions
    from croq_fsm.cli import beginning
    from croq_fsm.cli.work import refuse_taken_device

    sessions.check_world(daemon.repository, simulated=daemon.config.simulation.on)
    for dsl in dict.fromkeys(item.task.dsl for item in planned):
        refuse_taken_device(daemon, dsl, daemon.config)
    ready = [beginning.prepared(daemon, item) for item in planned]
    return [beginning.begin(daemon, one) for one in ready]
