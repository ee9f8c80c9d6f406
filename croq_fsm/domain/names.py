"""Names that appear in paths and logs: iterations, attempts, tags, devices, models."""

from __future__ import annotations

import re
from typing import Final

TAG_PATTERN: Final = re.compile(r"^[a-z][a-z0-9_]{1,30}$")
_ITER: Final = re.compile(r"^iter(\d{3,})(?:_([a-z][a-z0-9_]{1,30}))?$")
_ATTEMPT_LETTERS: Final = 4
_ALPHABET: Final = 26


def iter_name(number: int, tag: str) -> str:
    """``iter004_tile_k``. Raises ValueError for a tag outside the contract."""
    return f"iter{number:03d}_{_checked(tag)}"


def attempt_name(ordinal: int, tag: str) -> str:
    """``attemptAAAA_tag`` for ordinal 0, ``attemptAAAB_tag`` for 1, and so on."""
    if not 0 <= ordinal < _ALPHABET**_ATTEMPT_LETTERS:
        raise ValueError(f"attempt ordinal {ordinal} is outside AAAA…ZZZZ")
    letters = ""
    for _ in range(_ATTEMPT_LETTERS):
        ordinal, digit = divmod(ordinal, _ALPHABET)
        letters = chr(ord("A") + digit) + letters
    return f"attempt{letters}_{_checked(tag)}"


def iter_number(name: str) -> int:
    """Number of ``iter004`` or ``iter004_tag``. Raises ValueError for anything else."""
    match = _ITER.match(name)
    if match is None:
        raise ValueError(f"{name!r} is not an iteration name (iter<NNN> or iter<NNN>_<tag>)")
    return int(match.group(1))


def clean_tag(text: str) -> str:
    """The nearest legal tag: lower case, blanks to underscores, at most 31 characters."""
    tag = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:31].rstrip("_")
    if not tag or not tag[0].isalpha():
        tag = f"t_{tag}"[:31]
    return tag if TAG_PATTERN.match(tag) else "idea"


def slug(text: str) -> str:
    """Lower case and hyphens, as ``<model>`` demands."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "unnamed"


def gpu_key(prefix: str, name: str) -> str:
    """``sm90`` and ``NVIDIA H200`` → ``sm90_NVIDIA_H200``; safe as one path component."""
    return f"{prefix}_" + re.sub(r"[^A-Za-z0-9.+@-]+", "_", name.strip()).strip("_")


def _checked(tag: str) -> str:
    if not TAG_PATTERN.match(tag):
        raise ValueError(f"tag {tag!r} must match {TAG_PATTERN.pattern}")
    return tag
