"""What this machine can do: the general tools, and what each DSL's workbench says."""

from __future__ import annotations

import platform
import re
import shutil
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from croq_fsm.config import Config
from croq_fsm.domain.device import Finding
from croq_fsm.errors import CroqError
from croq_fsm.root import Root, is_locked, read_holder
from croq_fsm.sandbox.levels import Level
from croq_fsm.sandbox.policy import Policy
from croq_fsm.sandbox.probe import probe
from croq_fsm.storage.engine import SAFE_SQLITE, file_system_of, is_network, sqlite_is_safe
from croq_fsm.toolchain.process import Command, NullJournal, Runner
from croq_fsm.toolchain.registry import ON_DEVICES, open_workbench
from croq_fsm.toolchain.runner import LocalRunner

_GIT_LEAST: Final = (2, 25)
_GIT_DURABLE: Final = (2, 36)
_NUMBERS: Final = re.compile(r"\d+")
#: Optional package → what it is for.
_EXTRAS: Final = {
    "ncu-report": ("reading .ncu-rep reports; their CSV is read instead", "gpu"),
    "nvidia-ml-py": ("naming other users of the device; nvidia-smi is asked instead", "gpu"),
    "pydantic-ai-slim": ("the ideator llm", "llm"),
    "fastapi": ("croq-fsm serve", "web"),
}


@dataclass(frozen=True)
class Examination:
    """Findings about the machine and about each DSL.

    Attributes:
        general: What every DSL needs.
        by_dsl: What the workbenches say.
    """

    general: tuple[Finding, ...]
    by_dsl: dict[str, tuple[Finding, ...]]

    @property
    def usable(self) -> list[str]:
        """DSLs for which nothing that is required is missing."""
        if _lacks(self.general):
            return []
        return [dsl for dsl, findings in self.by_dsl.items() if not _lacks(findings)]


def examine(root: Root | None, config: Config, dsls: tuple[str, ...]) -> Examination:
    """Look at everything; never raises for absence.

    Args:
        root: The root, if there is one; its state folder is looked at, and not made.
        config: The configuration.
        dsls: DSLs to look at.
    """
    with _folders(root) as (cache, work):
        policy = Policy.of(config)
        runner = LocalRunner(
            "doctor", NullJournal(), threading.Event(), config.deadlines, policy=policy
        )
        device = bool(ON_DEVICES & set(dsls))
        general = (
            _python(),
            _git(runner, work, config.deadlines.probe_s),
            _sqlite(),
            *_place(root, config),
            _sandbox(runner, config, work, device=device),
            *(_extra(name, *what) for name, what in _EXTRAS.items()),
        )
        by_dsl = {dsl: _workbench(dsl, runner, config, (cache, work)) for dsl in dsls}
    return Examination(general, by_dsl)


@contextmanager
def _folders(root: Root | None) -> Iterator[tuple[Path, Path]]:
    """Cache and work folder: those of the root if they are there, else private ones."""
    if root is not None and root.cache.is_dir() and root.work.is_dir():
        yield root.cache, root.work
        return
    with tempfile.TemporaryDirectory(prefix="croq-doctor-") as folder:
        cache, work = Path(folder, "cache"), Path(folder, "work")
        cache.mkdir()
        work.mkdir()
        yield cache, work


def _workbench(
    dsl: str, runner: Runner, config: Config, folders: tuple[Path, Path]
) -> tuple[Finding, ...]:
    try:
        return tuple(open_workbench(dsl, runner, config, *folders).doctor())
    except (CroqError, ImportError, AttributeError, OSError) as exc:
        return (_missing(dsl, f"everything in DSL {dsl}", f"{type(exc).__name__}: {exc}"),)


def _python() -> Finding:
    """Older ones than we need cannot import this module."""
    return Finding(name="python", ok=True, found=f"{platform.python_version()} {sys.executable}")


def _git(runner: Runner, folder: Path, deadline_s: float) -> Finding:
    try:
        done = runner.run(Command(("git", "--version"), folder, deadline_s, "git"))
    except CroqError as exc:
        return _missing("git", "everything: a root is a repository", f"install git ({exc})")
    text = done.stdout.strip().removeprefix("git version ")
    numbers = tuple(int(n) for n in _NUMBERS.findall(text)[:2])
    if not done.ok or numbers < _GIT_LEAST:
        return _missing("git", "commits of what was kept", "use git 2.25 or newer", found=text)
    if numbers < _GIT_DURABLE:
        forbids = "commits that are certain to survive a power cut (core.fsync)"
        cure = "use git 2.36 or newer"
        return _missing("git", forbids, cure, found=text, required=False)
    return Finding(name="git", ok=True, found=text)


def _sqlite() -> Finding:
    found = sqlite3.sqlite_version
    if sqlite_is_safe():
        return Finding(name="sqlite", ok=True, found=found)
    fixed = ", ".join(".".join(map(str, release)) for release in SAFE_SQLITE)
    return _missing(
        "sqlite",
        "a second writing program beside the daemon: the WAL-reset bug could damage the "
        "database (croq_fsm itself has one writer only)",
        f"a Python with SQLite {fixed} or newer",
        found=found,
        required=False,
    )


def _place(root: Root | None, config: Config) -> list[Finding]:
    """Disk, file system and lock of the state folder."""
    if root is None:
        cure = "git init a folder and go there, or name one with --root"
        forbids = "start: it works in a git repository"
        return [_missing("root", forbids, cure, required=False), _disk(Path.cwd(), config)]
    folder = root.state if root.state.is_dir() else root.path
    return [
        Finding(name="root", ok=True, found=str(root.path)),
        _disk(folder, config),
        _file_system(folder),
        _lock(root),
    ]


def _sandbox(runner: LocalRunner, config: Config, work: Path, *, device: bool) -> Finding:
    """The level that children reach here; below the strongest, what is open and what would help."""
    least = Level.named(config.sandbox.demand)
    try:
        report = probe(runner, runner.policy.use, work, config.deadlines.probe_s, device=device)
    except (CroqError, OSError) as exc:
        cure = "run on Linux, outside of other sandboxes"
        return _missing("sandbox", "compiling or running candidates", cure, found=str(exc))
    runner.sandbox = report.level.title
    if report.level is Level.FULL:
        return Finding(name="sandbox", ok=True, found=report.text)
    enough = report.level >= least
    forbids = "work: sandbox.demand is " + least.title
    if enough:
        forbids = "keeping candidates from everything else of this user"
    return _missing("sandbox", forbids, report.cure, found=report.text, required=not enough)


def _disk(folder: Path, config: Config) -> Finding:
    free_mb, least = shutil.disk_usage(folder).free >> 20, config.storage.min_free_mb
    found = f"{free_mb} MiB free"
    if free_mb >= least:
        return Finding(name="disk", ok=True, found=found)
    cure = f"free some space; storage.min_free_mb is {least}"
    return _missing("disk", "working on any session", cure, found=found)


def _file_system(folder: Path) -> Finding:
    kind = file_system_of(folder)
    if not is_network(kind):
        return Finding(name="file system", ok=True, found=kind)
    cure = "set storage.state_dir to a folder on a local disk"
    return _missing("file system", "the database: it would be damaged here", cure, found=kind)


def _lock(root: Root) -> Finding:
    """A held lock is no fault, only worth knowing."""
    if not is_locked(root):
        return Finding(name="lock", ok=True, found="free")
    holder = read_holder(root)
    found = f"held by pid {holder.get('pid', '?')} on {holder.get('host', '?')}"
    return Finding(name="lock", ok=True, found=found)


def _extra(package: str, forbids: str, extra: str) -> Finding:
    try:
        return Finding(name=package, ok=True, found=version(package), required=False)
    except PackageNotFoundError:
        cure = f"pip install 'croq-fsm[{extra}]'"
        return _missing(package, forbids, cure, required=False)


def _missing(
    name: str, forbids: str, cure: str, *, found: str = "", required: bool = True
) -> Finding:
    return Finding(name=name, ok=False, found=found, forbids=forbids, cure=cure, required=required)


def _lacks(findings: tuple[Finding, ...]) -> bool:
    return any(f.required and not f.ok for f in findings)
