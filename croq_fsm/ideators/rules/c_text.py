"""Writing C: texts with sections that a configuration switches on or off.

A text is C with two additions. Lines ``//@ if NAME``, ``//@ else`` and ``//@ end`` choose
sections; ``$name`` and ``${name}`` are filled in. The files stay readable, and highlightable,
as C.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from string import Template
from typing import Final

_DIRECTIVE: Final = re.compile(r"//@ (?P<word>if|else|end)(?: (?P<name>\w+))?")
_NOTE: Final = re.compile(r"^(?P<head>#define \w+ \S+)\s+(?P<note>// .*)$", re.MULTILINE)


@cache
def _text(name: str) -> str:
    return (files(__package__) / "texts" / name).read_text(encoding="utf-8")


def fill(name: str, switches: dict[str, bool], values: dict[str, object]) -> str:
    """The text ``name`` with its sections chosen and its placeholders filled in.

    Lines that a placeholder leaves blank are dropped when nothing else stood on them.

    Raises:
        KeyError: The text uses a switch or a placeholder that was not given.
        ValueError: Its directives are not balanced.
    """
    kept: list[str] = []
    stack: list[bool] = []
    for line in _text(name).splitlines():
        directive = _DIRECTIVE.fullmatch(line.strip())
        if directive is not None:
            _turn(stack, directive, switches)
        elif all(stack):
            kept += _filled(line, values)
    if stack:
        raise ValueError(f"{name}: a section is not ended")
    return _aligned("\n".join(kept) + "\n")


def _turn(stack: list[bool], directive: re.Match[str], switches: dict[str, bool]) -> None:
    if directive["word"] == "if":
        stack.append(switches[directive["name"]])
    elif not stack:
        raise ValueError(f"{directive[0]} outside a section")
    elif directive["word"] == "else":
        stack[-1] = not stack[-1]
    else:
        stack.pop()


def _filled(line: str, values: dict[str, object]) -> list[str]:
    if "$" not in line:
        return [line]
    text = Template(line).substitute(values)
    return text.splitlines() if text.strip() else []


def _aligned(text: str) -> str:
    """Notes behind macros, one column for all of them."""
    heads = [match["head"] for match in _NOTE.finditer(text)]
    width = max(map(len, heads), default=0)
    return _NOTE.sub(lambda m: f"{m['head']:<{width}}  {m['note']}", text)
