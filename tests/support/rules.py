"""Generated parts of docs/ideators.md: settings, and which test proves which rule."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from croq_fsm.domain import guards
from croq_fsm.ideators.agent import AgentSettings
from croq_fsm.ideators.chain import BreakerSettings
from croq_fsm.ideators.llm.settings import LlmSettings
from croq_fsm.ideators.replay import RecordSettings, ReplaySettings
from croq_fsm.ideators.rules import RulesSettings

TESTS = Path(__file__).resolve().parent.parent
#: Section → its settings.
_SECTIONS: Final[dict[str, type[BaseModel]]] = {
    "llm": LlmSettings,
    "agent": AgentSettings,
    "chain": BreakerSettings,
    "rules": RulesSettings,
    "replay": ReplaySettings,
    "record": RecordSettings,
}
_LEAD: Final = """\
Every proposal passes all guards before anything is compiled. A refused one costs no compile; its
reason says what to do instead, and the ideator reads it before it is asked again.
"""
_Test = TypeVar("_Test", bound=Callable[..., Any])


def proves(*_keys: str) -> Callable[[_Test], _Test]:
    """Mark a test as the proof of rules; the marks are read from the source."""
    return lambda test: test


def proofs() -> dict[str, list[str]]:
    """Rule → tests that prove it, as ``file::test``."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.glob("test_*.py")):
        for name, keys in _marked(ast.parse(path.read_text(encoding="utf-8"))):
            for key in keys:
                found.setdefault(key, []).append(f"{path.name}::{name}")
    return found


def _marked(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "proves":
                    yield node.name, [str(ast.literal_eval(a)) for a in mark.args]


def settings() -> str:
    """Settings of each built-in ideator with default and meaning, from their classes."""
    parts = []
    for section, model in _SECTIONS.items():
        lines = [
            f"### `[ideators.{section}]`",
            "",
            "| setting | default | meaning |",
            "|---|---|---|",
        ]
        meanings = _meanings(model)
        for name, info in model.model_fields.items():
            default = "required" if info.is_required() else f"`{_written(info.get_default())}`"
            lines.append(f"| `{name}` | {default} | {meanings[name]} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _written(value: object) -> str:
    """A default as TOML would have it."""
    if value is None:
        return "not set"
    if isinstance(value, str):
        return f'"{value}"'
    return "[]" if value == () else str(value)


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """What the docstring says of each attribute, in one line."""
    attributes = inspect.cleandoc(model.__doc__ or "").partition("Attributes:\n")[2]
    found = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", attributes, re.MULTILINE)
    return {name: " ".join(text.split()).replace("``", "`") for name, text in found}


def part() -> str:
    """Everything that is generated."""
    return f"## Settings\n\n{settings()}\n## Rules and what holds them\n\n{_LEAD}\n{table()}"


def table() -> str:
    """Rule → what holds it → which tests show it, as Markdown."""
    shown = proofs()
    lines = ["| rule | demands | held by | shown by |", "|---|---|---|---|"]
    for rule in guards.RULES:
        holders = ", ".join(f"`{holder}`" for holder in rule.holders)
        tests = ", ".join(f"`{test}`" for test in shown[rule.key])
        lines.append(f"| {rule.key} | {rule.text} | {holders} | {tests} |")
    return "\n".join(lines) + "\n"
