"""The shipped configuration says what the code does, key by key."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from croq_fsm.cli.requests import from_tables, plan
from croq_fsm.config import Config, load, shipped_config
from croq_fsm.errors import UsageError

FOLDER = Path(__file__).resolve().parent.parent / "config"
#: Tables that a user fills; they have no keys of their own.
_OPEN = {"ideators", "tasks"}


def _leaves(model: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """Dotted name → default of every setting."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        default = field.get_default()
        if isinstance(default, BaseModel):
            found |= _leaves(type(default), f"{prefix}{name}.")
        elif name not in _OPEN:
            found[prefix + name] = default
    return found


def _written(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted name → value of every key in a TOML file."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= _written(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = tuple(value) if isinstance(value, list) else value
    return found


def _default() -> dict[str, Any]:
    return _written(tomllib.loads((FOLDER / "default.toml").read_text(encoding="utf-8")))


def test_every_setting_is_written_with_its_default() -> None:
    """No key is missing in default.toml, none is too much, and each value is the code's."""
    defaults = _leaves(Config)
    assert len(defaults) > 40
    assert _default() == defaults


def test_values_have_the_types_of_the_code() -> None:
    """A float is written as one: 3600 for 3600.0 would tell the reader that only integers go."""
    defaults = _leaves(Config)
    wrong = {k: v for k, v in _default().items() if type(v) is not type(defaults[k])}
    assert wrong == {}


def test_every_setting_has_a_comment() -> None:
    """Above each key and each table stands a sentence."""
    lines = (FOLDER / "default.toml").read_text(encoding="utf-8").splitlines()
    bare = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if re.match(r"\w+ =|\[", line) and not before.startswith("# ")
    ]
    assert bare == []


def test_default_configuration_is_the_default() -> None:
    """Loading default.toml changes nothing."""
    assert load(FOLDER / "default.toml") == load(None)


@pytest.mark.parametrize("name", ["quickstart.toml", "overnight.toml"])
def test_examples_can_be_loaded(name: str) -> None:
    """Each example is accepted, and differs from the default."""
    assert load(FOLDER / name) != load(None)


def test_the_overnight_queue_can_be_planned() -> None:
    """Each task of the example is known, complete, and has hours of its own."""
    path = FOLDER / "overnight.toml"
    config = load(path)
    planned = plan(from_tables(config.tasks, path), config, now=0.0)
    shapes = sum(1 if isinstance(t["shape"], str) else len(t["shape"]) for t in config.tasks)
    assert len(planned) == shapes > len(config.tasks) > 1
    assert all(p.task.deadline for p in planned)


def test_unknown_keys_are_errors(tmp_path: Path) -> None:
    """A misspelt key is named, and so is its file."""
    path = tmp_path / "mine.toml"
    path.write_text("[measure]\npears = 12\n")
    with pytest.raises(UsageError, match=r"mine\.toml: measure\.pears"):
        load(path)


def test_shipped_configuration_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Beside the package, or where a variable says; a folder without it is an error."""
    monkeypatch.delenv("CROQ_FSM_CONFIG_DIR", raising=False)
    assert shipped_config() == FOLDER
    monkeypatch.setenv("CROQ_FSM_CONFIG_DIR", str(tmp_path))
    with pytest.raises(UsageError, match="no shipped configuration"):
        shipped_config()


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("CROQ_FSM_MEASURE__PAIRS", "many", r"measure\.pairs \(variable CROQ_FSM_MEASURE__PAIRS\)"),
        ("CROQ_FSM_MEASURE__PAIRZ", "3", r"measure\.pairz"),
        ("CROQ_FSM_MEASSURE__PAIRS", "3", "CROQ_FSM_MEASSURE__PAIRS names no setting"),
    ],
)
def test_bad_variables_are_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    """A variable that is misspelt or holds nonsense is an error as in a file."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=says):
        load(None)


@pytest.mark.parametrize("path", [".git/config", "sub/.GIT/hooks/post-commit", "/x/.git/index"])
def test_nothing_is_written_into_gits_own_folder(path: str) -> None:
    """A view with such a path would make an end of the repository."""
    with pytest.raises(ValueError, match="git's own folder"):
        Config.model_validate({"storage": {"compaction_summary": path}})


@pytest.mark.parametrize("seconds", [0, -1, 1e308, float("inf"), float("nan")])
def test_absurd_lengths_of_time_are_errors(seconds: float) -> None:
    """They are refused when they are read, not by an overflow in the night."""
    with pytest.raises(ValueError, match="block_s"):
        Config.model_validate({"measure": {"block_s": seconds}})


@pytest.mark.parametrize("folder", ["", ".", "..", "../../etc", "a/../..", "/"])
def test_the_state_has_a_folder_of_its_own(folder: str) -> None:
    """The root itself and what climbs out of it would be written into, and hidden from git."""
    with pytest.raises(UsageError, match=r"storage\.state_dir"):
        load(None, {"storage.state_dir": folder})


def test_an_author_git_cannot_take_is_refused_at_once() -> None:
    """Not after the first measurement, when the commit fails."""
    with pytest.raises(UsageError, match=r"git\.author"):
        load(None, {"git.author": "nobody"})
