"""Reading kernel source as text: comments, macros, identity. C-like syntax (C, CUDA, Choreo)."""

from __future__ import annotations

import difflib
import hashlib
import re
from typing import Final

from croq_fsm.errors import EditError

_TOKEN: Final = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)
_DEFINE: Final = re.compile(
    r"^(?P<head>[ \t]*#[ \t]*define[ \t]+(?P<name>[A-Za-z_]\w*)[ \t]+)(?P<value>[^\n]*?)"
    r"(?P<tail>[ \t]*(?://[^\n]*)?)$",
    re.MULTILINE,
)
_WORD_GAP: Final = re.compile(r"(?<=[\w$])\s+(?=[\w$])")
_GAP: Final = re.compile(r"\s+")


def strip_comments(source: str) -> str:
    """Source without comments; string and character literals stay as they are."""

    def keep_literals(match: re.Match[str]) -> str:
        text = match.group(0)
        return " " if text.startswith("/") else text

    return _TOKEN.sub(keep_literals, source)


def macros(source: str) -> dict[str, str]:
    """Object-like macros with a value, in order of first definition."""
    found: dict[str, str] = {}
    for match in _DEFINE.finditer(strip_comments(source)):
        found.setdefault(match["name"], match["value"].strip())
    return found


def set_macros(source: str, values: dict[str, str]) -> str:
    """Redefine object-like macros; everything else stays byte for byte.

    Raises:
        EditError: A macro is not defined exactly once, or a value spans lines.
    """
    for name, value in values.items():
        if "\n" in value or not value.strip():
            raise EditError(f"macro {name}: the new value must be one non-empty line")
        matches = [m for m in _DEFINE.finditer(source) if m["name"] == name]
        if len(matches) != 1:
            raise EditError(f"macro {name} is defined {len(matches)} times; it must be once")
        match = matches[0]
        source = source[: match.start("value")] + value + source[match.end("value") :]
    return source


def normalise(source: str) -> str:
    """Source with comments and insignificant blanks removed; directives keep their lines."""
    lines: list[str] = []
    code: list[str] = []
    for line in strip_comments(source).replace("\\\n", " ").split("\n"):
        text = line.strip()
        if not text.startswith("#"):
            code.append(text)
            continue
        lines += [_tighten(" ".join(code)), _GAP.sub(" ", text)]
        code = []
    lines.append(_tighten(" ".join(code)))
    return "\n".join(line for line in lines if line)


def normalised_hash(source: str, flags: tuple[str, ...] = (), patches: str = "") -> str:
    """Identity of a candidate: normalised text, flags in order, patches. Hex SHA-256."""
    parts = (normalise(source), "\0".join(flags), patches)
    return hashlib.sha256("\1".join(parts).encode()).hexdigest()


def structure_hash(source: str) -> str:
    """Identity of a source with the values of its macros blanked. Hex SHA-256."""
    blanked = _DEFINE.sub(lambda m: f"{m['head']}?", strip_comments(source))
    return hashlib.sha256(normalise(blanked).encode()).hexdigest()


def difference(before: str, after: str) -> str:
    """Unified diff of two sources, without file names."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2)
    return "\n".join(list(lines)[2:])


def sha256(data: str | bytes) -> str:
    """Hex SHA-256 of text (UTF-8) or bytes."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def _tighten(line: str) -> str:
    """Drop blanks that do not part two words; literals are left alone."""
    pieces, last = [], 0
    for match in _TOKEN.finditer(line):
        pieces.append(_squeeze(line[last : match.start()]))
        pieces.append(match.group(0))
        last = match.end()
    pieces.append(_squeeze(line[last:]))
    return "".join(pieces)


def _squeeze(text: str) -> str:
    marked = _WORD_GAP.sub("\0", text)
    return _GAP.sub("", marked).replace("\0", " ")
