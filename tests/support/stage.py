"""The survival trials' stage for tests: the real command line in a fork, with scripted tools."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "scripts"))

import _survival  # noqa: E402 - the scripts lie outside the packages
import fault_enumeration  # noqa: E402
import power_cut  # noqa: E402

fork = _survival.fork
Stage = fault_enumeration.Stage
waited = fault_enumeration._waited

TASK = ("c", "f32", "64x64x64")


@contextmanager
def tmpfs(megabytes: int) -> Iterator[Path]:
    """A file system of that size; skips where it cannot be mounted."""
    with tempfile.TemporaryDirectory(prefix="croq-tmpfs-") as name:
        place = Path(name, "disk")
        place.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "croq-test", str(place)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"no file system may be mounted here: {done.stderr.strip()}")
        try:
            yield place
        finally:
            subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def ext4() -> Iterator[power_cut.Disk]:
    """An ext4 file system that can be cut; skips where it cannot be mounted."""
    if os.geteuid():
        pytest.skip("only root may mount")
    try:
        with power_cut.disk() as made:
            yield made
    except power_cut.CannotMount as exc:
        pytest.skip(str(exc))
