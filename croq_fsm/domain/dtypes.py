"""Dtype words: input, output and accumulation of an operator in one word.

A word is ``<input>[<output>[<accumulate>]]``, for example ``f16``, ``f16f32`` or ``f16f16f16``.
Sums are f32 when nothing is said. The output is the input's type when nothing is said; 8-bit
inputs have no such output, and f16 is meant. The canonical word leaves out what may be left
out, but always names the output of 8-bit inputs: ``f16``, ``e4m3f16``.

Other spellings of the parts are understood (``fp16``, ``float32``, ``f8_e4m3`` …), in any case
and with ``-``, ``_`` or ``,`` between parts; they never reach a path or a record.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_SPELLINGS: Final = {
    "e4m3": ("float8e4m3fn", "float8e4m3", "fp8e4m3", "f8e4m3", "e4m3fn", "e4m3", "fp8", "f8"),
    "bf16": ("bfloat16", "bf16"),
    "f16": ("float16", "fp16", "f16", "half"),
    "f32": ("float32", "fp32", "f32"),
}
_PART: Final = re.compile(
    "|".join(f"(?P<{name}>{'|'.join(spellings)})" for name, spellings in _SPELLINGS.items())
)
_MOST_PARTS: Final = 3


@dataclass(frozen=True)
class Types:
    """Element types of an operator.

    Attributes:
        input: Of what is multiplied.
        output: Of what is written.
        accumulate: Of the sums.
    """

    input: str
    output: str
    accumulate: str = "f32"

    @property
    def word(self) -> str:
        """The canonical word."""
        word = self.input
        if self.output != self.input or self.accumulate != "f32":
            word += self.output
        return word if self.accumulate == "f32" else word + self.accumulate


def parse_dtype(word: str) -> Types | None:
    """Element types that a word means, or None when it is no dtype word."""
    text = re.sub(r"[-_,]", "", word.lower())
    parts: list[str] = []
    at = 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None or match.lastgroup is None:
            return None
        parts.append(match.lastgroup)
        at = match.end()
    if not 0 < len(parts) <= _MOST_PARTS:
        return None
    given = parts[0]
    output = parts[1] if len(parts) > 1 else ("f16" if given == "e4m3" else given)
    return Types(given, output, *parts[2:])
