"""``tool``: the protocol's harness tools, for whoever drives rounds by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from croq_fsm.cli.place import ConfigOption, RootOption, archive_of, place
from croq_fsm.errors import CroqError, UsageError

if TYPE_CHECKING:
    from croq_fsm.cli.place import Place
    from croq_fsm.daemon import Daemon
    from croq_fsm.storage.inspection import Inspector
    from croq_fsm.tools.answers import Answer
    from croq_fsm.tools.machine import Machine
    from croq_fsm.tools.places import Key

#: Names of scripts that are other commands now.
_ALIASES: Final = {
    "checkpoint-write": "checkpoint",
    "validate-tuning-session": "validate",
    "clean-kernel-work-state": "clean",
    "bootstrap-tuning-round": "store-baseline",
    "prepare-baseline-env": "validate-env",
    "cublas-baseline": "store-baseline",
}

DslOption = Annotated[str, typer.Option("--dsl", help="c, croqtile or cuda")]
ShapeKeyOption = Annotated[str, typer.Option("--shape-key", help="<operator>_<dtype>_<MxNxK>")]
ModelOption = Annotated[str, typer.Option("--model", help="Who proposes: a folder of the layout")]
GpuOption = Annotated[str | None, typer.Option("--gpu", help="Compared with the device's own key")]


class ScriptNames(TyperGroup):
    """Takes ``store_round.sh`` for ``store-round``, and older names for newer ones."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, however it is written."""
        plain = cmd_name.removesuffix(".sh").removesuffix(".py").replace("_", "-")
        return super().get_command(ctx, _ALIASES.get(plain, plain))


tools = typer.Typer(
    cls=ScriptNames,
    no_args_is_help=True,
    help="Harness tools for rounds driven by hand; every number is the engine's.",
)
checkpoint = typer.Typer(no_args_is_help=True, help="The plan of the round in hand.")
tools.add_typer(checkpoint, name="checkpoint")


def register(app: typer.Typer) -> None:
    """Add the command."""
    from croq_fsm.cli import clean, validate

    if not any(info.callback is validate.validate for info in tools.registered_commands):
        tools.command("validate")(validate.validate)
        tools.command("clean")(clean.clean)
    app.add_typer(tools, name="tool")


@tools.command("detect-gpu")
def detect_gpu(
    *,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Accepted; nothing is cached")
    ] = False,
    dsl: Annotated[str | None, typer.Option("--dsl", help="Key of this DSL's device")] = None,
    config: ConfigOption = None,
) -> None:
    """Print the device key of the file layout. Exit code 1: there is no device."""
    from croq_fsm.tools import machine

    del no_cache
    with _machine(config) as found:
        key, code = machine.detect_gpu(found, dsl)
    typer.echo(key)
    raise typer.Exit(code)


@tools.command("validate-env")
def validate_env(*, dsl: DslOption = "croqtile", config: ConfigOption = None) -> None:
    """Print what a DSL lacks here. Exit code 1: it cannot work."""
    from croq_fsm.tools import machine

    with _machine(config) as found:
        _print_and_exit(*machine.validate_env(found, dsl))


@tools.command("gpu-contention")
def gpu_contention(
    *,
    kill: Annotated[
        bool, typer.Option("--kill", help="Ends what the configuration allows")
    ] = False,
    kill_ours: Annotated[bool, typer.Option("--kill-ours", help="Accepted; like --kill")] = False,
    except_: Annotated[int | None, typer.Option("--except", help="Spare this process")] = None,
    threshold: Annotated[int, typer.Option(help="Load in percent that counts as idle")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Accepted; it is always JSON")] = False,
    config: ConfigOption = None,
) -> None:
    """Print who else is on the device. Exit code 0: nobody, 1: somebody, 2: no driver."""
    from croq_fsm.tools import machine

    del as_json
    with _machine(config) as found:
        _print_and_exit(
            *machine.contention(found, kill=kill or kill_ours, threshold=threshold, spare=except_)
        )


@tools.command("gpu-check")
def gpu_check(
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is idle")] = False,
    timeout: Annotated[float, typer.Option(help="Longest wait, seconds")] = 120.0,
    threshold: Annotated[int, typer.Option(help="Load in percent that counts as idle")] = 15,
    kill_others: Annotated[
        bool, typer.Option("--kill-others", help="Accepted; nobody is ended")
    ] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Reset the device first")] = False,
    config: ConfigOption = None,
) -> None:
    """Print whether the device is free. Exit code 1: busy, 2: no driver, 3: still busy."""
    from croq_fsm.tools import machine

    with _machine(config) as found:
        values, code = machine.check(
            found, wait=wait, timeout_s=timeout, threshold=threshold, reset=reset
        )
    if kill_others:
        values["warnings"].append("--kill-others is ignored: processes of others are not ended")
    _print_and_exit(values, code)


@tools.command("discover-baseline")
def discover_baseline(
    *,
    dsl: DslOption,
    operator: Annotated[str, typer.Option(help="Operator")],
    dtype: Annotated[str | None, typer.Option(help="Dtype word")] = None,
    kernels: Annotated[Path | None, typer.Option(help="Folder of kernels")] = None,
    gpu: GpuOption = None,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """List start kernels: of a folder, and of earlier sessions."""
    from croq_fsm.tools import finding

    here = place(root, config)
    with _answering(), _looking(here, missing_ok=True) as inspector:
        _done(finding.discover(inspector, here.root.path, (dsl, operator, dtype), kernels, gpu))


@tools.command("store-baseline")
def store_baseline(
    *,
    dsl: DslOption,
    shape_key: ShapeKeyOption,
    model: ModelOption,
    dtype: Annotated[str | None, typer.Option(help="Compared with the key")] = None,
    m: Annotated[int | None, typer.Option("--m", help="Compared with the key")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Compared with the key")] = None,
    k: Annotated[int | None, typer.Option("--k", help="Compared with the key")] = None,
    task_uid: Annotated[str | None, typer.Option(help="Accepted; sessions name themselves")] = None,
    kernel: Annotated[Path | None, typer.Option(help="Start kernel, or its folder")] = None,
    warmup: Annotated[int | None, typer.Option(help="Accepted and ignored")] = None,
    iters: Annotated[int | None, typer.Option(help="Accepted and ignored")] = None,
    gpu: GpuOption = None,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Make a session and measure library reference and start kernel, once."""
    from croq_fsm.tools import baseline

    del task_uid
    said: dict[str, object] = {
        "dtype": dtype, "m": m, "n": n, "k": k, "warmup": warmup, "iters": iters, "gpu": gpu,
    }  # fmt: skip
    with _answering(), _daemon(root, config) as daemon:
        key = _key(dsl, shape_key, model, gpu)
        _done(baseline.store_baseline(daemon, key, kernel, said))


@tools.command("co2cu")
def co2cu(
    *,
    co: Annotated[Path, typer.Option("--co", help="Choreo kernel below tuning/")],
    arch: Annotated[str, typer.Option(help="Compared with the configuration")] = "sm_90a",
    flags: Annotated[str | None, typer.Option(help="Choreo flags, kept for build-iter")] = None,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Translate a Choreo kernel to CUDA, beside it. Exit code 2: it does not translate."""
    from croq_fsm.tools import building

    with _answering(), _daemon(root, config) as daemon:
        _done(building.co2cu(daemon, co, arch, flags))


@tools.command("build-iter")
def build_iter(
    source: Annotated[Path | None, typer.Argument(help="Source")] = None,
    target: Annotated[str | None, typer.Argument(help="Where the binary will be")] = None,
    *,
    cu: Annotated[Path | None, typer.Option("--cu", help="Source")] = None,
    out: Annotated[str | None, typer.Option("--out", help="Where the binary will be")] = None,
    flags: Annotated[str | None, typer.Option(help="Compiler flags of the candidate")] = None,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Build the source as the idea in hand. Exit code 1: refused, or it does not compile."""
    from croq_fsm.tools import building

    given = cu or source
    with _answering():
        if given is None:
            raise UsageError("say which source: --cu FILE")
        with _daemon(root, config) as daemon:
            _done(building.build_iter(daemon, building.Sources(given, out or target, flags)))


@tools.command("next-iter")
def next_iter(
    *,
    dsl: DslOption,
    shape_key: ShapeKeyOption,
    model: ModelOption,
    tag: Annotated[str, typer.Option(help="Short name, 2 to 31 characters")],
    attempt: Annotated[bool, typer.Option("--attempt", help="Name of a failed attempt")] = False,
    gpu: GpuOption = None,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Print the next iteration's name."""
    from croq_fsm.tools import checkpoints

    with _answering(), _looking(place(root, config)) as inspector:
        key = _key(dsl, shape_key, model, gpu)
        _done(checkpoints.next_iter(inspector, key, tag, attempt=attempt))


@tools.command("ncu-profile")
def ncu_profile(
    *,
    out: Annotated[str, typer.Option(help="Prefix of .csv and .ncu-rep, below tuning/")],
    cmd: Annotated[str, typer.Option("--cmd", help="Binary below tuning/")] = "",
    launch_count: Annotated[int | None, typer.Option(help="Accepted; it is one")] = None,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Profile the base of the round, or the candidate in hand."""
    from croq_fsm.tools import profiles

    with _answering(), _daemon(root, config) as daemon:
        _done(profiles.ncu_profile(daemon, out, cmd, launch_count))


@tools.command("profile-extract")
def profile_extract(
    *,
    csv: Annotated[Path, typer.Option("--csv", help="Table that ncu-profile left")],
    iteration: Annotated[str, typer.Option("--iter", help="Compared with the profile's own")] = "",
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Print the class of a profile. Exit code 2: no file, 3: the engine took no such profile."""
    from croq_fsm.tools import profiles

    with _answering(), _looking(place(root, config)) as inspector:
        _done(profiles.profile_extract(inspector, csv, iteration))


@tools.command("measure")
def measure(
    *,
    dsl: DslOption,
    shape_key: ShapeKeyOption,
    model: ModelOption,
    gpu: GpuOption = None,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Verify, time and decide the candidate in hand. Exit code 1: it is wrong; mend it."""
    from croq_fsm.tools import storing

    with _answering(), _daemon(root, config) as daemon:
        _done(storing.measure(daemon, _key(dsl, shape_key, model, gpu)))


@tools.command("store-round")
def store_round(
    *,
    dsl: DslOption,
    shape_key: ShapeKeyOption,
    model: ModelOption,
    iteration: Annotated[str | None, typer.Option("--iter", help="Compared")] = None,
    kernel: Annotated[str | None, typer.Option(help="Compared")] = None,
    tflops: Annotated[float | None, typer.Option(help="Compared, never stored")] = None,
    decision: Annotated[str | None, typer.Option(help="Compared, never stored")] = None,
    bottleneck: Annotated[str | None, typer.Option(help="Compared")] = None,
    idea: Annotated[str | None, typer.Option(help="Compared")] = None,
    round_: Annotated[int | None, typer.Option("--round", help="Compared")] = None,
    category: Annotated[str | None, typer.Option(help="Compared")] = None,
    expected_gain: Annotated[str | None, typer.Option(help="Accepted; the plan has it")] = None,
    gpu: GpuOption = None,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Finish the round in hand and store it with the engine's own figures."""
    from croq_fsm.tools import storing

    said: dict[str, object] = {
        "iter": iteration, "kernel": kernel, "tflops": tflops, "decision": decision,
        "bottleneck": bottleneck, "idea": idea, "round": round_, "category": category,
        "expected_gain": expected_gain,
    }  # fmt: skip
    with _answering(), _daemon(root, config) as daemon:
        _done(storing.store_round(daemon, _key(dsl, shape_key, model, gpu), said))


@tools.command("reinforce")
def reinforce(
    *,
    dsl: DslOption,
    shape_key: ShapeKeyOption,
    model: ModelOption,
    gpu: GpuOption = None,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Print the rules and where the session stands."""
    from croq_fsm.tools import telling

    with _answering(), _looking(place(root, config)) as inspector:
        _done(telling.reinforce(inspector, _key(dsl, shape_key, model, gpu)))


@tools.command("resume-state")
def resume_state(
    *,
    dsl: DslOption,
    shape_key: ShapeKeyOption,
    model: ModelOption,
    gpu: GpuOption = None,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Print where the session can be taken up. Exit code 2: there is none of this very key."""
    from croq_fsm.tools import telling

    with _answering(), _looking(place(root, config)) as inspector:
        key = _key(dsl, shape_key, model, gpu)
        _done(telling.resume_state(inspector, key, telling.plan_of(inspector, key)))


@tools.command("activity-trace")
def activity_trace(
    *,
    dsl: DslOption,
    shape_key: ShapeKeyOption,
    model: ModelOption,
    gpu: GpuOption = None,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Print the latest transitions."""
    from croq_fsm.tools import telling

    with _answering(), _looking(place(root, config)) as inspector:
        _done(telling.activity_trace(inspector, _key(dsl, shape_key, model, gpu)))


@checkpoint.command("write")
def checkpoint_write(
    *,
    dsl: DslOption,
    shape_key: ShapeKeyOption,
    model: ModelOption,
    iteration: Annotated[str, typer.Option("--iter", help="iter<NNN>_<tag>; the tag counts")],
    bottleneck: Annotated[str, typer.Option(help="Compared with the profile")],
    idea: Annotated[str, typer.Option(help="What changes, in words")],
    expected_gain: Annotated[str | None, typer.Option(help='"+5%" or "+20 TFLOPS"')] = None,
    levers: Annotated[str, typer.Option(help="Names, joined by commas")] = "",
    hypothesis: Annotated[str, typer.Option(help="Why, quoting metrics")] = "",
    metrics: Annotated[str, typer.Option(help="Metrics it rests on, joined by commas")] = "",
    category: Annotated[str | None, typer.Option(help="tiling, pipeline, memory, …")] = None,
    research: Annotated[str, typer.Option(help="What was looked up")] = "",
    base: Annotated[int | None, typer.Option(help="Iteration to derive from")] = None,
    gpu: GpuOption = None,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Keep the plan of this round."""
    from croq_fsm.tools import checkpoints

    wanted = checkpoints.Wanted(
        iteration, bottleneck, idea, expected_gain, levers, hypothesis, metrics, category,
        research, base,
    )  # fmt: skip
    with _answering(), _daemon(root, config) as daemon:
        _done(checkpoints.write(daemon, _key(dsl, shape_key, model, gpu), wanted))


@checkpoint.command("read")
def checkpoint_read(
    *,
    dsl: DslOption,
    shape_key: ShapeKeyOption,
    model: ModelOption,
    gpu: GpuOption = None,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Print the plan of this round. Exit code 2: there is none."""
    from croq_fsm.tools import checkpoints, telling

    with _answering(), _looking(place(root, config)) as inspector:
        key = _key(dsl, shape_key, model, gpu)
        _done(checkpoints.read(inspector, key, telling.plan_of(inspector, key)))


@checkpoint.command("verify")
def checkpoint_verify(
    *,
    dsl: DslOption,
    shape_key: ShapeKeyOption,
    model: ModelOption,
    iteration: Annotated[str, typer.Option("--iter", help="What was built")],
    gpu: GpuOption = None,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Compare plan, build and source. Exit code 3: they differ, 2: there is no plan."""
    from croq_fsm.tools import checkpoints, telling

    here = place(root, config)
    with _answering(), _looking(here) as inspector:
        key = _key(dsl, shape_key, model, gpu)
        plan = telling.plan_of(inspector, key)
        _done(checkpoints.verify(inspector, here.root, key, plan, iteration))


def _key(dsl: str, shape_key: str, model: str, gpu: str | None) -> Key:
    from croq_fsm.tools.places import Key

    return Key(dsl, shape_key, model, gpu)


@contextmanager
def _machine(config: Path | None) -> Iterator[Machine]:
    """A machine with a private folder; works without a root."""
    import tempfile

    from croq_fsm import config as configuration
    from croq_fsm.tools.machine import Machine

    with tempfile.TemporaryDirectory(prefix="croq-tool-") as folder:
        yield Machine.of(configuration.load(config), Path(folder))


@contextmanager
def _daemon(root: Path | None, config: Path | None) -> Iterator[Daemon]:
    """The root under its lock, as the daemon would work on it."""
    from croq_fsm.daemon import opened

    here = place(root, config)
    with opened(here.root, here.config) as daemon:
        yield daemon


@contextmanager
def _looking(here: Place, *, missing_ok: bool = False) -> Iterator[Any]:
    """The database, read-only; also beside a living daemon."""
    if missing_ok and not here.root.database.is_file():
        yield None
        return
    with archive_of(here.root) as archive, archive.look() as inspector:
        shown: Inspector = inspector
        yield shown


@contextmanager
def _answering() -> Iterator[None]:
    """An error is one line of JSON too, with the exit code that it means."""
    try:
        yield
    except CroqError as exc:
        _print_and_exit({"status": "error", "message": str(exc), "warnings": []}, exc.exit_code)


def _done(answer: Answer) -> None:
    """Print; the exit code is raised once everything is closed."""
    typer.echo(answer.line())
    if answer.note:
        typer.echo(answer.note, err=True)
    if answer.code:
        raise typer.Exit(answer.code)


def _print_and_exit(values: dict[str, Any], code: int) -> None:
    typer.echo(json.dumps(values, ensure_ascii=False))
    if code:
        raise typer.Exit(code)
