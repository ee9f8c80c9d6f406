"""Which test proves which rule: a mark on tests, and the table that is made of the marks."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from croq_fsm.domain import guards

TESTS = Path(__file__).resolve().parent.parent
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


def table() -> str:
    """Rule → what holds it → which tests show it, as Markdown."""
    shown = proofs()
    lines = ["| rule | demands | held by | shown by |", "|---|---|---|---|"]
    for rule in guards.RULES:
        holders = ", ".join(f"`{holder}`" for holder in rule.holders)
        tests = ", ".join(f"`{test}`" for test in shown[rule.key])
        lines.append(f"| {rule.key} | {rule.text} | {holders} | {tests} |")
    return "\n".join(lines) + "\n"
