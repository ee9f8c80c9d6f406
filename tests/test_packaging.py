"""What is built is complete, and works far away from the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent
_LOOK = """
import json, pathlib, sys
import croq_fsm, states
from croq_fsm.config import load, shipped_config
from croq_fsm.ideators.rules import knowledge
folder = shipped_config()
load(folder / "default.toml")
print(json.dumps([croq_fsm.__file__, states.__file__, str(folder), len(states.HANDLERS)]))
"""


def _run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run without the variables that would show the checkout to a child."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and "CROQ" not in k}
    return subprocess.run(
        [str(a) for a in arguments], check=False, cwd=cwd, env=env, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what belongs to it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(TOP / name, source)
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("croq_fsm", "states", "config"):
        shutil.copytree(TOP / name, source / name, ignore=skip)
    if _run(sys.executable, "-m", "pip", "--version", cwd=folder).returncode:
        pytest.skip("this Python has no pip")
    done = _run(
        sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source, cwd=folder
    )
    if "No matching distribution found for setuptools" in done.stderr:
        pytest.skip("no package index can be reached to build with")
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_is_complete(wheel: Path) -> None:
    """All modules, kernels, harness sources, migrations and configuration are in it."""
    with zipfile.ZipFile(wheel) as archive:
        held = {name.split(".data/data/")[-1] for name in archive.namelist()}
    code = {
        path.relative_to(TOP).as_posix()
        for package in ("croq_fsm", "states")
        for path in (TOP / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    shipped = {
        f"share/croq_fsm/{path.relative_to(TOP).as_posix()}"
        for path in (TOP / "config").rglob("*.*")
        if path.is_file()
    }
    assert len(shipped) > 3
    assert code | shipped <= held
    assert not {name for name in held if name.startswith(("tests/", "scripts/"))}


def _bare(python: Path) -> Path:
    """A venv folder's interpreter without packages."""
    assert _run(sys.executable, "-m", "venv", "--without-pip", python, cwd=TOP).returncode == 0
    return python / "bin" / "python"


def _installed(python: Path, folder: Path, *arguments: str | Path) -> None:
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", *arguments)
    done = _run(*pip, cwd=folder)
    if "Could not find a version" in done.stderr:
        pytest.skip("no package index can be reached to install from")
    assert done.returncode == 0, done.stderr


def _works(python: Path, folder: Path) -> None:
    """Import both packages, find the configuration, run a command; all of it from the venv."""
    done = _run(python, "-c", _LOOK, cwd=folder)
    assert done.returncode == 0, done.stderr
    package, states, config, handlers = json.loads(done.stdout)
    home = python.parent.parent
    assert all(Path(p).is_relative_to(home) for p in (package, states, config))
    assert handlers == 8
    done = _run(python.parent / "croq-fsm", "doctor", "--json", cwd=folder)
    assert done.returncode in (0, 2), done.stderr
    found = json.loads(done.stdout)
    assert {"c", "croqtile"} <= set(found["dsls"])
    assert done.returncode == (0 if found["usable"] else 2)


def test_an_installed_wheel_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """From a venv of its own: states, configuration and doctor are all there."""
    python = _bare(tmp_path / "venv")
    _installed(python, tmp_path, "--no-deps", "--no-index", wheel)
    # The dependencies of this interpreter, behind the venv's own packages.
    (folder,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    (folder / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _works(python, tmp_path)


@pytest.mark.slow
def test_the_locked_dependencies_suffice(wheel: Path, tmp_path: Path) -> None:
    """In a fresh venv with nothing but the wheel and the locked versions, the same holds."""
    python = _bare(tmp_path / "venv")
    _installed(python, tmp_path, "--constraint", TOP / "requirements.lock", wheel)
    _works(python, tmp_path)


def test_the_lock_covers_the_dependencies() -> None:
    """Every direct dependency has one exact version in the lock, and nothing but that."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["dev"], *extras["llm"]]
    names = {_canonical(text) for text in wanted} - {project["name"]}
    lines = (TOP / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(line.count("==") == 1 and " " not in line for line in pins)
    assert names <= {_canonical(line) for line in pins}


def _canonical(requirement: str) -> str:
    for sign in "<>=[;! ":
        requirement = requirement.partition(sign)[0]
    return requirement.lower().replace("_", "-")
