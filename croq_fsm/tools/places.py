"""Sessions by the names of the file layout. A match is exact, or it is none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from croq_fsm.domain import names, operators
from croq_fsm.domain.session import Session
from croq_fsm.errors import UsageError
from croq_fsm.sessions import Request
from croq_fsm.storage.reading import Reader

_PATH: Final = re.compile(
    r"(?:^|/)tuning/(?P<gpu>[^/]+)/(?P<dsl>[^/]+)/(?P<kind>[^/]+)/(?P<shape_key>[^/]+)/"
    r"(?P<model>[^/]+)/(?P<file>[^/]+)$"
)


@dataclass(frozen=True)
class Key:
    """What names a session in the file layout."""

    dsl: str
    shape_key: str
    model: str
    gpu: str | None = None

    def matches(self, session: Session) -> bool:
        """Whether it is this very session's; a permuted shape is another one."""
        task = session.task
        return (
            task.dsl == self.dsl
            and task.shape_key == self.shape_key
            and names.slug(task.model) == names.slug(self.model)
        )

    def __str__(self) -> str:
        return f"{self.dsl} {self.shape_key} {self.model}"


def key_of(path: Path) -> Key | None:
    """Key of a file below ``tuning/``; None for a file elsewhere."""
    found = _PATH.search(path.as_posix())
    if found is None:
        return None
    return Key(found["dsl"], found["shape_key"], found["model"], found["gpu"])


def keyed(*paths: str | None) -> Key:
    """Key of the first path that has one.

    Raises:
        UsageError: None of them lies below ``tuning/``.
    """
    for path in filter(None, paths):
        key = key_of(Path(path))
        if key is not None:
            return key
    shown = ", ".join(filter(None, paths))
    raise UsageError(
        f"{shown} does not say which session it is of; name a file below "
        "tuning/<gpu>/<dsl>/<kind>/<shape_key>/<model>/"
    )


def session_of(reader: Reader, key: Key) -> Session:
    """The newest session of a key, one that has not ended first.

    Raises:
        UsageError: There is none.
    """
    found = find(reader, key)
    if found is None:
        raise UsageError(f"no session of {key} yet; 'tool store-baseline' makes one")
    return found


def find(reader: Reader, key: Key) -> Session | None:
    """Like ``session_of``; None when there is none."""
    matching = [s for s in reader.sessions() if key.matches(s)]
    return next((s for s in matching if not s.state.is_final), next(iter(matching), None))


def request_of(key: Key, kernel: Path | None) -> Request:
    """A request for the task that a key names.

    Raises:
        UsageError: The shape key does not begin with a known operator.
    """
    for name in sorted(operators.OPERATORS, key=len, reverse=True):
        if key.shape_key.startswith(f"{name}_"):
            dtype, _, shape = key.shape_key[len(name) + 1 :].rpartition("_")
            return Request(key.dsl, dtype, shape, kernel, name, ideator=key.model)
    known = ", ".join(sorted(operators.OPERATORS))
    raise UsageError(
        f"--shape-key {key.shape_key!r} must be <operator>_<dtype>_<shape>; operators: {known}"
    )
