"""The page of the protocol is true: its tests and its files exist, what is open says so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import typer.main

from croq_fsm.cli.tool import checkpoint, tools

TOP = Path(__file__).resolve().parent.parent
PAGE = (TOP / "docs" / "protocol.md").read_text(encoding="utf-8")
_TEST = re.compile(r"`(test_\w+)::(test_\w+)`")
_ROW = re.compile(r"^\| (?!what|tool \||file|state \||condition|-)(.+) \|$", re.MULTILINE)
_SKILL = (TOP / "docs" / "agent" / "SKILL.md").read_text(encoding="utf-8")


def _tests_of(name: str) -> set[str]:
    tree = ast.parse((TOP / "tests" / f"{name}.py").read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_named_tests_exist() -> None:
    """Each test that the page names is a function of its file."""
    named = set(_TEST.findall(PAGE))
    assert len(named) > 30
    assert [f"{file}::{test}" for file, test in named if test not in _tests_of(file)] == []


def test_every_row_has_a_test_or_is_open() -> None:
    """A row names a test, or says that it is open."""
    rows = _ROW.findall(PAGE)
    assert len(rows) > 60
    assert [row for row in rows if not _TEST.search(row) and "**open**" not in row] == []


def test_named_modules_exist() -> None:
    """Each module that the page names is there."""
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", PAGE))
    places = (TOP, TOP / "croq_fsm")
    assert named
    assert [n for n in named if not any((place / n).is_file() for place in places)] == []


@pytest.mark.parametrize("rule", range(1, 11))
def test_every_numbered_rule_has_a_row(rule: int) -> None:
    """None of the ten rules is left out."""
    assert f"| Rule {rule}: " in PAGE


def test_the_skill_names_tools_and_options_that_exist() -> None:
    """Each tool call in the skill is a command, with options that it has."""
    known = {}
    for app, lead in ((tools, ""), (checkpoint, "checkpoint ")):
        group = typer.main.get_command(app)
        commands = getattr(group, "commands")  # noqa: B009 - a group of typer's own make
        for name, command in commands.items():
            known[lead + name] = {o for p in command.params for o in p.opts}
    calls = re.findall(
        r"croq-fsm tool ((?:checkpoint )?[a-z][a-z0-9-]+)((?:[^\n`#)]|\\\n)*)", _SKILL
    )
    assert len(calls) > 8
    for name, rest in calls:
        assert name in known, name
        quoteless = re.sub(r'"[^"]*"', "", rest)
        assert set(re.findall(r"--[a-z][a-z-]+", quoteless)) <= known[name], (name, rest)
