"""Content-addressed folder of build results that survives crashes, bit rot and other writers.

::

    <folder>/<key>/meta.json     what was built, and the SHA-256 of each file and of itself
    <folder>/<key>/<file> …
    <folder>/.tmp-<random>/      an entry that is being written, or being removed

An entry appears by one rename after everything in it has reached the disk, so it is there
completely or not at all. What is read is verified first; an entry that fails is dropped and
will be built again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from croq_fsm.domain.build import Build
from croq_fsm.domain.source import sha256
from croq_fsm.errors import DiskFull, EnvironmentMissing
from croq_fsm.sandbox.files import copy_plain

META: Final = "meta.json"
_TEMPORARY: Final = ".tmp-"
_KEY: Final = re.compile(r"[0-9a-f]{16,64}")
_NAME: Final = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]*")
#: Seconds after which a temporary folder belongs to a writer that died.
_STALE_S: Final = 3600.0
_TAKEN: Final = {errno.EEXIST, errno.ENOTEMPTY}
_FULL: Final = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True)
class _Entry:
    """One entry as ``trim`` sees it: size in bytes and time of last use."""

    key: str
    nbytes: int
    used: float


def checked_binary(folder: Path, build: Build) -> Path:
    """The program of a build below ``folder``, if it still is the one that was built.

    Raises:
        EnvironmentMissing: It is gone, or another one.
    """
    path = (folder / build.binary).absolute()
    try:
        found = sha256(path.read_bytes())
    except OSError as exc:
        raise EnvironmentMissing(f"build {build.key[:12]} is gone; build it again") from exc
    if found != build.binary_sha256:
        raise EnvironmentMissing(f"{path} is not what was built; build it again")
    return path


class BuildCache:
    """Build results by key; several processes may share one folder.

    Args:
        folder: Where the entries live; made when absent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> Path | None:
        """Folder of a verified entry, or None. A damaged entry is removed."""
        entry = self._path(key)
        if not entry.is_dir():
            return None
        if _is_sound(entry):
            with contextlib.suppress(OSError):
                os.utime(entry / META)
            return entry
        self._remove(entry)
        return None

    def meta(self, key: str) -> dict[str, Any] | None:
        """What ``put`` was told about a verified entry, or None."""
        entry = self.get(key)
        recorded = None if entry is None else _read_meta(entry)
        return None if recorded is None else dict(recorded["meta"])

    def put(self, key: str, files: Mapping[str, Path | bytes], meta: dict[str, Any]) -> Path:
        """Store files (copied with their mode) and what is known about them.

        When another writer was first, its entry stays and is returned.

        Args:
            key: 16 to 64 hexadecimal digits.
            files: Plain file name → where it is now, or its content.
            meta: Anything that JSON can hold; by custom ``{"build": Build.model_dump(...)}``.

        Raises:
            DiskFull: No space is left; nothing was stored.
            OSError: Anything else that the file system says.
        """
        entry = self._path(key)
        try:
            temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.folder))
            try:
                _fill(temporary, files, meta)
                return self._publish(temporary, entry)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        except OSError as exc:
            if exc.errno in _FULL:
                raise DiskFull(f"no space left for the build cache {self.folder}") from exc
            raise

    def nbytes(self) -> int:
        """Bytes of all entries; what writers that died have left is removed."""
        self._sweep()
        return sum(entry.nbytes for entry in self._entries())

    def trim(self, max_bytes: int, keep: set[str]) -> list[str]:
        """Remove what was not used longest until the rest fits.

        Args:
            max_bytes: Bound for all entries together.
            keep: Keys that must stay, whatever their size.

        Returns:
            Keys that were removed.
        """
        self._sweep()
        entries = sorted(self._entries(), key=lambda entry: entry.used)
        excess = sum(entry.nbytes for entry in entries) - max_bytes
        removed = []
        for entry in entries:
            if excess <= 0:
                break
            if entry.key not in keep:
                self._remove(self._path(entry.key))
                removed.append(entry.key)
                excess -= entry.nbytes
        return removed

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"cache key {key!r} is not 16 to 64 hexadecimal digits")
        return self.folder / key

    def _publish(self, temporary: Path, entry: Path) -> Path:
        """Rename into place, unless a sound entry is there already."""
        while True:
            try:
                temporary.rename(entry)
            except OSError as exc:
                if exc.errno not in _TAKEN:
                    raise
                if self.get(entry.name) is not None:
                    return entry
            else:
                _sync(self.folder)
                return entry

    def _remove(self, entry: Path) -> None:
        """Out of sight by one rename, then piece by piece."""
        doomed = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.folder))
        with contextlib.suppress(FileNotFoundError):
            entry.rename(doomed / entry.name)
        shutil.rmtree(doomed, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what writers that died have left."""
        for path in self.folder.glob(f"{_TEMPORARY}*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_S:
                    shutil.rmtree(path, ignore_errors=True)

    def _entries(self) -> Iterator[_Entry]:
        for path in self.folder.iterdir():
            if _KEY.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    nbytes = sum(file.stat().st_size for file in path.iterdir())
                    marker = path / META
                    used = (marker if marker.exists() else path).stat().st_mtime
                    yield _Entry(path.name, nbytes, used)


def _fill(folder: Path, files: Mapping[str, Path | bytes], meta: dict[str, Any]) -> None:
    """Write all files and the meta file, and make them durable."""
    digests = {}
    for name, content in files.items():
        if name == META or not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a plain file name for the build cache")
        target = folder / name
        if isinstance(content, Path):
            copy_plain(content, target)
        else:
            target.write_bytes(content)
        digests[name] = sha256(target.read_bytes())
        _sync(target)
    body: dict[str, Any] = {"files": digests, "meta": meta}
    text = json.dumps(body | {"seal": _seal(body)}, sort_keys=True, indent=1)
    (folder / META).write_text(text, encoding="utf-8")
    folder.chmod(0o755)
    _sync(folder / META)
    _sync(folder)


def _is_sound(entry: Path) -> bool:
    """Whether the meta file and every file in it are what was written."""
    recorded = _read_meta(entry)
    if recorded is None:
        return False
    try:
        return all(
            sha256((entry / name).read_bytes()) == digest
            for name, digest in recorded["files"].items()
        )
    except OSError:
        return False


def _read_meta(entry: Path) -> dict[str, Any] | None:
    try:
        body = json.loads((entry / META).read_text(encoding="utf-8"))
        seal = body.pop("seal")
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    return body if seal == _seal(body) else None


def _seal(body: dict[str, Any]) -> str:
    return sha256(json.dumps(body, sort_keys=True))


def _sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
