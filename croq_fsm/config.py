"""Configuration: one frozen value, read once from TOML files, environment and command line."""

from __future__ import annotations

import os
import sysconfig
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from croq_fsm.domain.decision import Policy
from croq_fsm.errors import UsageError

_PREFIX: Final = "CROQ_FSM_"
#: Variables with the prefix that are no settings.
_OTHER_VARIABLES: Final = frozenset(
    {"CROQ_FSM_CONFIG_DIR", "CROQ_FSM_ANNOUNCE", "CROQ_FSM_TEST_CACHE"}
)

#: Up to a year: whoever means longer has mistyped it, and sums with it overflow.
Seconds = Annotated[float, Field(gt=0, le=366 * 86_400)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


def _own_place(path: str) -> str:
    """The root itself, or what climbs out of it, holds other people's files."""
    parts = Path(path).parts
    if not parts or parts == ("/",) or ".." in parts:
        raise ValueError(
            f"{path!r} must be a path below the root, or an absolute one, without '..'"
        )
    if ".git" in (part.lower() for part in parts):
        raise ValueError(f"{path!r} lies in git's own folder, which must not be written to")
    return path


OwnPath = Annotated[str, AfterValidator(_own_place)]


class Section(BaseModel):
    """A table of the configuration; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(Section):
    """When a session ends by itself."""

    rounds: Annotated[int, Field(ge=0)] = 0
    hours: Annotated[float, Field(ge=0)] = 0.0
    plateau_rounds: Annotated[int, Field(ge=0)] = 0
    attempts_per_idea: Annotated[int, Field(ge=1, le=5)] = 5
    macro_run: Annotated[int, Field(ge=1, le=2)] = 2
    proposals_per_idea: Annotated[int, Field(ge=1)] = 8
    resumes_per_step: Annotated[int, Field(ge=1)] = 3
    compiler_crashes: Annotated[int, Field(ge=1)] = 10


class Measure(Section):
    """How numbers are taken and when they count."""

    regime: Literal["isolated", "burst", "sustained"] = "isolated"
    l2: Literal["cold", "hot"] = "cold"
    min_effect: Fraction = 0.005
    screen_pairs: Annotated[int, Field(ge=3)] = 5
    pairs: Annotated[int, Field(ge=5)] = 12
    max_pairs: Annotated[int, Field(ge=5)] = 300
    confirm_pairs: Annotated[int, Field(ge=5)] = 18
    pairs_per_process: Annotated[int, Field(ge=2)] = 3
    block_s: Seconds = 0.05
    max_launches: Annotated[int, Field(ge=1)] = 50
    warmup_s: Seconds = 0.05
    verify_seeds: Annotated[int, Field(ge=1)] = 3
    library_error_factor: Annotated[float, Field(ge=1)] = 4.0
    screen_margin: Fraction = 0.05
    hidden_shapes: Annotated[int, Field(ge=0, le=8)] = 2
    sanitizer: Literal["auto", "off", "required"] = "auto"
    noise_every: Annotated[int, Field(ge=0)] = 10
    final_pairs: Annotated[int, Field(ge=0)] = 12
    final_s: Seconds = 180.0
    policy: Literal["statistical", "greedy"] = "statistical"

    def decision_policy(self, noise: float) -> Policy:
        """What DECIDE goes by, with the noise floor of the hour."""
        return Policy(
            min_effect=self.min_effect,
            screen_margin=self.screen_margin,
            noise=noise,
            pairs=self.pairs,
            max_pairs=self.max_pairs,
            confirm_pairs=self.confirm_pairs,
            screen_pairs=self.screen_pairs,
            greedy=self.policy == "greedy",
        )

    @model_validator(mode="after")
    def _consistent(self) -> Measure:
        if self.max_pairs < self.pairs:
            raise ValueError(f"max_pairs ({self.max_pairs}) must not be below pairs ({self.pairs})")
        return self


class Deadlines(Section):
    """Seconds after which a child and its tree are killed."""

    compile_s: Seconds = 180.0
    verify_s: Seconds = 120.0
    block_s: Seconds = 60.0
    profile_s: Seconds = 300.0
    probe_s: Seconds = 30.0
    git_s: Seconds = 60.0
    ideator_s: Seconds = 300.0
    kill_grace_s: Seconds = 5.0
    reap_s: Seconds = 30.0


class Contention(Section):
    """Others on the device."""

    wait_s: Seconds = 600.0
    poll_s: Seconds = 2.0
    kill: Literal["never", "own-user"] = "never"
    lease_dir: str = ""


class Profiling(Section):
    """Profiler use."""

    when_unavailable: Literal["fail", "degrade"] = "fail"
    full_on: Literal["win", "always", "never"] = "win"


class COptions(Section):
    """DSL ``c``."""

    compiler: str = ""
    flags: tuple[str, ...] = ("-O2",)
    threads: Annotated[int, Field(ge=1)] = 1


class CroqtileOptions(Section):
    """DSL ``croqtile``; empty paths are taken from the environment."""

    choreo_home: str = ""
    cute_home: str = ""
    cuda_home: str = ""
    arch: str = "sm_90a"
    compile_jobs: Annotated[int, Field(ge=1)] = 1


class Simulation(Section):
    """A model of a device in place of a device; see docs/simulator.md."""

    on: bool = False
    script: str = ""
    launch_noise: Fraction = 0.004
    block_noise: Fraction = 0.003
    process_noise: Fraction = 0.002
    drift: Fraction = 0.01
    launches: Annotated[int, Field(ge=1)] = 5
    contention: Fraction = 0.02
    compile_fail: Fraction = 0.02
    compiler_abort: Fraction = 0.005
    compiler_hang: Fraction = 0.005
    wrong_result: Fraction = 0.03
    crash: Fraction = 0.01
    hang: Fraction = 0.005


class Storage(Section):
    """Where the state lives and how much of it is kept."""

    state_dir: OwnPath = ".croq_fsm"
    database: OwnPath = "croq.sqlite3"
    min_free_mb: Annotated[int, Field(ge=0)] = 256
    wait_for_space_s: Annotated[float, Field(ge=0)] = 600.0
    ballast_mb: Annotated[int, Field(ge=0)] = 64
    log_mb: Annotated[int, Field(ge=0)] = 64
    cache_mb: Annotated[int, Field(ge=64)] = 4096
    keep_rounds: Annotated[int, Field(ge=0)] = 0
    compaction_summary: OwnPath = ".claude/skills/fsm-engine/state/{dsl}/compaction-summary.md"


class Git(Section):
    """Local commits of KEEPs."""

    commit: bool = True
    author: Annotated[str, Field(pattern=r"^[^<>\n]+ <[^<>\s]+>$")] = (
        "croq_fsm <croq-fsm@localhost>"
    )


class Sandbox(Section):
    """How children with foreign code in them are confined."""

    use: Literal["none", "limits", "no-network", "full"] = "full"
    demand: Literal["none", "limits", "no-network", "full"] = "limits"

    @model_validator(mode="after")
    def _consistent(self) -> Sandbox:
        order = ("none", "limits", "no-network", "full")
        if order.index(self.use) < order.index(self.demand):
            raise ValueError(f"demand ({self.demand}) is above what use ({self.use}) allows")
        return self


class Config(BaseSettings):
    """The whole configuration. ``config/default.toml`` documents every key.

    A variable such as ``CROQ_FSM_MEASURE__PAIRS`` overrides the file.
    """

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=_PREFIX, env_nested_delimiter="__"
    )

    seed: int = 1
    ideator: str = "rules"
    limits: Limits = Limits()
    measure: Measure = Measure()
    deadlines: Deadlines = Deadlines()
    contention: Contention = Contention()
    profiling: Profiling = Profiling()
    c: COptions = COptions()
    croqtile: CroqtileOptions = CroqtileOptions()
    sandbox: Sandbox = Sandbox()
    simulation: Simulation = Simulation()
    storage: Storage = Storage()
    git: Git = Git()
    ideators: dict[str, dict[str, Any]] = {}
    tasks: tuple[dict[str, Any], ...] = ()


def load(path: Path | None, overrides: dict[str, Any] | None = None) -> Config:
    """Defaults, then a TOML file, then the environment, then dotted overrides.

    Raises:
        UsageError: The file is missing, is no TOML, or holds unknown keys or bad values.
    """
    data: dict[str, Any] = _read(path) if path else {}
    _check_variables()
    try:
        _merge(data, EnvSettingsSource(Config)())
    except SettingsError as exc:
        raise UsageError(f"bad configuration in the environment: {exc}") from exc
    for dotted, value in (overrides or {}).items():
        nested = value
        for key in reversed(dotted.split(".")):
            nested = {key: nested}
        _merge(data, nested)
    try:
        return Config.model_validate(data)
    except ValidationError as exc:
        lines = [f"{_named(e['loc'])}: {e['msg']}" for e in exc.errors()]
        where = f" in {path}" if path else ""
        raise UsageError(f"bad configuration{where}: " + "; ".join(lines)) from exc


def _check_variables() -> None:
    """A misspelt variable would change nothing, and nobody would be told.

    Raises:
        UsageError: A variable with our prefix names no setting.
    """
    known = {name.upper() for name in Config.model_fields}
    for name in sorted(os.environ):
        setting = name.upper().removeprefix(_PREFIX)
        if setting != name.upper() and name not in _OTHER_VARIABLES:
            table = setting.partition("__")[0]
            if table not in known:
                raise UsageError(
                    f"variable {name} names no setting; write it like {_PREFIX}MEASURE__PAIRS"
                )


def _named(loc: tuple[int | str, ...]) -> str:
    """A setting by its dotted name, and by its variable where that is what was read."""
    variable = _PREFIX + "__".join(map(str, loc)).upper()
    dotted = ".".join(map(str, loc))
    return f"{dotted} (variable {variable})" if variable in os.environ else dotted


def _merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    """Add ``more`` to ``into``, table by table; its values win."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise UsageError(f"configuration file {path} does not exist") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as exc:
        raise UsageError(f"configuration file {path} cannot be read: {exc}") from exc


def shipped_config() -> Path:
    """Folder of the shipped configuration: beside the packages, or where the wheel puts it."""
    checkout = Path(__file__).resolve().parent.parent / "config"
    installed = Path(sysconfig.get_path("data")) / "share" / "croq_fsm" / "config"
    chosen = os.environ.get("CROQ_FSM_CONFIG_DIR")
    candidates = [Path(chosen)] if chosen else [checkout, installed]
    for folder in candidates:
        if (folder / "default.toml").is_file():
            return folder
    raise UsageError(f"no shipped configuration found; looked in {', '.join(map(str, candidates))}")
