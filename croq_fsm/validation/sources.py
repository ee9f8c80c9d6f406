"""Sources may be resumed from only if they stand on their own inside the repository."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Final

from croq_fsm.domain import source
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.states import State
from croq_fsm.validation.record import Findings, Record

_INCLUDE: Final = re.compile(
    r"^[ \t]*(?:\#|%:)[ \t]*(?:include|include_next|import|embed)[ \t]*[<\"]([^>\"\n]+)[>\"]",
    re.MULTILINE,
)
_EMBEDDED: Final = re.compile(r"\.(?:incbin|include)\s+\\?\"([^\"\\\n]+)\\?\"")
#: Folders of work that is written up, beside the repository; never a source to go on from.
_PAPER: Final = re.compile(r"(?:^|/)[^/]*[-_]paper(?:/|$)")

_CURE: Final = (
    "start again from a kernel that includes nothing outside this repository; "
    "'croq-fsm clean --invalid-only' sets this session aside"
)


def check(record: Record, root: Path) -> Findings:
    """Includes of every measured source and of the one in hand; where the start came from."""
    folder = posixpath.dirname(record.layout.source("iter000_x", ""))
    for name, candidate in _sources(record):
        for text in foreign_includes(candidate.source, folder, root):
            path = record.layout.keyed("srcs", name)
            yield record.problem("foreign-include", path, text, cure=_CURE)
    kernel = record.session.task.kernel
    if _PAPER.search(kernel) and not Path(kernel).resolve().is_relative_to(root):
        text = f"the start kernel {kernel} comes from a *-paper folder beside the repository"
        yield record.problem("foreign-kernel", "sessions task", text, cure=_CURE)


def _sources(record: Record) -> list[tuple[str, Candidate]]:
    found = [(it.name, it.candidate) for it in record.iterations if it.candidate is not None]
    session = record.session
    # Before IMPLEMENT has linted it, a candidate in hand is allowed to be bad; a session that
    # failed before anything was measured has refused it, and would look at it again.
    refused = session.state is State.FAILED and not record.iterations
    in_hand = session.state is not State.IMPLEMENT and not refused
    if session.work.candidate is not None and in_hand:
        found.append(("candidate in hand", session.work.candidate))
    return found


def foreign_includes(text: str, folder: str, root: Path) -> list[str]:
    """Includes that leave the repository, each as a sentence.

    Args:
        text: Source.
        folder: Where the source lies, relative to the root.
        root: Top folder of the repository.
    """
    plain = source.strip_comments(text.replace("\\\n", ""))
    named = [*_INCLUDE.findall(plain), *_EMBEDDED.findall(plain)]
    reasons = ((path, _foreign(path.strip(), folder, root)) for path in named)
    return [f"#include of {path!r}: {why}" for path, why in reasons if why is not None]


def _foreign(path: str, folder: str, root: Path) -> str | None:
    if path.startswith(("/", "~")):
        return "an absolute path"
    if _PAPER.search(path):
        return "a *-paper folder"
    lexical = posixpath.normpath(posixpath.join(folder, path))
    if lexical.startswith(".."):
        return "leaves the repository"
    if not (root / lexical).resolve().is_relative_to(root.resolve()):
        return "leaves the repository through a symbolic link"
    return None
