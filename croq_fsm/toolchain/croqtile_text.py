"""Reading a ``.co`` kernel as text: shared tiles, warpgroups, pipeline, output path.

What cannot be read for certain is None or absent. Lints and structure rest on this, so nothing
here guesses.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from croq_fsm.domain.operators import ELEMENT_BYTES
from croq_fsm.domain.source import macros, strip_comments

_NAME: Final = re.compile(r"\b[A-Za-z_]\w*\b")
_SHARED: Final = re.compile(
    r"\bshared\s+(?P<element>\w+)\s*\[(?P<dims>[^\]]+)\]\s*(?P<names>[^;{=]+)[;{=]"
)
_DECLARED: Final = re.compile(r"(?P<name>\w+)\s*(?:\[(?P<count>[^\]]+)\])?")
_WARPGROUPS: Final = re.compile(
    r"\bparallel\s+(?P<name>\w+)\s+by\s+(?P<count>[^:{,]+?)\s*:\s*group-4\b"
)
_MMA: Final = re.compile(
    r"(?:(?P<future>\w+)\s*=\s*)?\bmma\.(?:row|col)\.(?:row|col)(?P<flags>[.\w<>]*)\s+"
    r"(?P<accumulator>\w+)\s*,\s*(?P<operands>[^;]+);"
)
_FILL: Final = re.compile(r"\b(\w+)\s*=\s*mma\.fill(?:\.(\w+))?\b")
_STORE: Final = re.compile(r"\bmma\.store\S*\s+\w+\s*,\s*(?P<target>[^;]+);")
_SUBSPAN: Final = re.compile(
    r"^(?P<name>\w+)(?:\[[^\]]*\])?\s*(?:\.subspan\((?P<extent>[^()]*(?:\([^()]*\))?[^()]*)\)"
    r"\s*\.at\((?P<at>.*)\))?"
)
_OUTPUT_COPY: Final = re.compile(
    r"\btma\.copy(?!\S*async)\S*\s+(?P<from>\w+)[^;]*?=>\s*(?P<to>\w+)"
)
_BLOCKS: Final = re.compile(
    r"\bparallel\s+(?P<names>\{[^}]*\}|\w+)\s+by\s+(?P<by>[^:]+):\s*block\b"
)
_OPERATORS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_MAX_EXPANSIONS: Final = 16


@dataclass(frozen=True)
class SharedTile:
    """Shared-memory arrays of one shape.

    Attributes:
        name: Name in the source.
        element: Element type word.
        dims: Sizes; None for one that cannot be read.
        count: Number of such tiles (pipeline stages); None if it cannot be read.
    """

    name: str
    element: str
    dims: tuple[int | None, ...]
    count: int | None

    @property
    def nbytes(self) -> int | None:
        """All of them together, bytes; None if something cannot be read."""
        total = ELEMENT_BYTES.get(self.element)
        for size in (*self.dims, self.count):
            if total is None or size is None:
                return None
            total *= size
        return total


@dataclass(frozen=True)
class Mma:
    """One matrix-multiply statement: its future (or ""), accumulator and operand texts."""

    future: str
    accumulator: str
    operands: tuple[str, ...]
    at: int


class KernelText:
    """A ``.co`` source, read once.

    Args:
        source: Complete text.
    """

    def __init__(self, source: str) -> None:
        self.macros = macros(source)
        self.text = strip_comments(source)

    def value(self, expression: str, bindings: dict[str, int] | None = None) -> int | None:
        """Integer value of an expression of macros, literals and bindings, or None."""
        return evaluate(expression, self.macros, bindings or {})

    @cached_property
    def tiles(self) -> dict[str, SharedTile]:
        """Shared arrays by name; events are none."""
        found: dict[str, SharedTile] = {}
        for match in _SHARED.finditer(self.text):
            dims = tuple(self.value(dim) for dim in _split(match["dims"]))
            for declared in _DECLARED.finditer(match["names"]):
                count = self.value(declared["count"]) if declared["count"] else 1
                tile = SharedTile(declared["name"], match["element"], dims, count)
                found.setdefault(tile.name, tile)
        return found

    @cached_property
    def warpgroups(self) -> tuple[str, int] | None:
        """Name of the warpgroup variable and number of warpgroups of a block."""
        match = _WARPGROUPS.search(self.text)
        count = self.value(match["count"]) if match else None
        return (match["name"], count) if match and count is not None else None

    @cached_property
    def mmas(self) -> tuple[Mma, ...]:
        """Matrix-multiply statements in order."""
        return tuple(
            Mma(m["future"] or "", m["accumulator"], tuple(_split(m["operands"])), m.start())
            for m in _MMA.finditer(self.text)
        )

    @cached_property
    def accumulators(self) -> dict[str, str]:
        """Accumulator name → element type word ("" when not named)."""
        return {m[1]: m[2] or "" for m in _FILL.finditer(self.text)}

    @cached_property
    def consumer_ids(self) -> tuple[int, ...] | None:
        """Values of the warpgroup variable for which the first MMA runs."""
        if self.warpgroups is None or not self.mmas:
            return None
        name, count = self.warpgroups
        predicate = self.predicate_before(self.mmas[0].at)
        if predicate is None:
            return tuple(range(count))
        ids = [i for i in range(count) if holds(predicate, {name: i}, self.macros)]
        return (
            tuple(ids) if None not in map(self._readable(predicate, name), range(count)) else None
        )

    @property
    def output_copy(self) -> tuple[str, str] | None:
        """Shared tile and global tensor of the output copy, or None for another path."""
        for match in _OUTPUT_COPY.finditer(self.text):
            if match["from"] in self.tiles and match["to"] not in self.tiles:
                return match["from"], match["to"]
        return None

    @property
    def stores(self) -> tuple[str, ...]:
        """Targets of the accumulator stores."""
        return tuple(m["target"].strip() for m in _STORE.finditer(self.text))

    @property
    def block_grid(self) -> tuple[str, str] | None:
        """Index names and bounds of the parallel-by of thread blocks."""
        match = _BLOCKS.search(self.text)
        return (match["names"].strip(), match["by"].strip()) if match else None

    def rows_written(self, target: str, consumer: tuple[str, int]) -> tuple[str, int, int] | None:
        """Tile name, first row and number of rows of a store, for one warpgroup."""
        match = _SUBSPAN.match(target)
        if match is None or match["name"] not in self.tiles:
            return None
        dims = self.tiles[match["name"]].dims
        if match["extent"] is None:
            return (match["name"], 0, dims[0]) if dims[0] is not None else None
        rows = self.value(_split(match["extent"])[0])
        block = self.value(_split(match["at"])[0], dict([consumer]))
        if rows is None or block is None:
            return None
        return match["name"], rows * block, rows

    def operand_rows(self, operand: str) -> int | None:
        """Number of rows of an MMA operand in shared memory."""
        match = _SUBSPAN.match(operand)
        if match is None or match["name"] not in self.tiles or ".chunkat" in operand:
            return None
        if match["extent"] is not None:
            return self.value(_split(match["extent"])[0])
        return self.tiles[match["name"]].dims[0]

    def predicate_before(self, at: int) -> str | None:
        """Condition of the innermost ``inthreads.async`` block around a position, or None."""
        found: str | None = None
        for match in re.finditer(r"\binthreads\.async\s*\(", self.text):
            close = _closing(self.text, match.end() - 1)
            body = self.text.find("{", close)
            if match.start() < at < _closing(self.text, body):
                found = self.text[match.end() : close]
        return found

    def _readable(self, predicate: str, name: str) -> Callable[[int], bool | None]:
        return lambda i: holds(predicate, {name: i}, self.macros)


def evaluate(expression: str, defined: dict[str, str], bindings: dict[str, int]) -> int | None:
    """Value of an integer expression over macros and bindings; None if it cannot be read."""
    tree = _parse(expression, defined, bindings)
    return None if tree is None else _value(tree, bindings)


def holds(predicate: str, bindings: dict[str, int], defined: dict[str, str]) -> bool | None:
    """Truth of a comparison such as ``wg > 0 && t == 0``; parts of other names are ignored.

    Returns None when no part can be read.
    """
    truths = []
    for part in predicate.split("&&"):
        match = re.fullmatch(r"\s*(.+?)\s*(==|!=|<=|>=|<|>)\s*(.+?)\s*", part)
        sides = (
            [evaluate(side, defined, bindings) for side in (match[1], match[3])] if match else []
        )
        if match and None not in sides:
            truths.append(_COMPARISONS[match[2]](sides[0] or 0, sides[1] or 0))
    return all(truths) if truths else None


_COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


def _parse(expression: str, defined: dict[str, str], bindings: dict[str, int]) -> ast.expr | None:
    text = expression.strip()
    for _ in range(_MAX_EXPANSIONS):
        expanded = _NAME.sub(
            lambda m: f"({defined[m[0]]})" if m[0] in defined and m[0] not in bindings else m[0],
            text,
        )
        if expanded == text:
            break
        text = expanded
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, bindings: dict[str, int]) -> int | None:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return bindings.get(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _value(operand, bindings)
            return None if inner is None else -inner
        case ast.BinOp(left=left, op=op, right=right):
            return _binary(type(op), _value(left, bindings), _value(right, bindings))
        case ast.Call(func=ast.Name(id="cdiv"), args=[top, bottom]):
            a, b = _value(top, bindings), _value(bottom, bindings)
            return -(-a // b) if a is not None and b else None
    return None


def _binary(kind: type[ast.operator], left: int | None, right: int | None) -> int | None:
    apply = _OPERATORS.get(kind)
    if apply is None or left is None or right is None:
        return None
    return None if right == 0 and apply in (operator.floordiv, operator.mod) else apply(left, right)


def _split(text: str) -> list[str]:
    """Parts between commas that are not inside brackets."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    return parts


def _closing(text: str, opening: int) -> int:
    """Position of the bracket that closes the one at ``opening``; end of text if none."""
    if opening < 0:
        return len(text)
    depth = 0
    for i in range(opening, len(text)):
        depth += (text[i] in "({[") - (text[i] in ")}]")
        if depth == 0:
            return i
    return len(text)
