"""Fixtures for all tests; also puts the shared parts on the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import shutil
import subprocess

import pytest

from croq_fsm.measure.fresh import Helper
from croq_fsm.toolchain import c_sources


@pytest.fixture(scope="session")
def helper(tmp_path_factory: pytest.TempPathFactory) -> Helper:
    """The harness's own code for the judge, compiled once."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler 'cc' on PATH")
    made = tmp_path_factory.mktemp("helper") / "libhelper.so"
    flags = ("-std=gnu11", "-O2", "-fPIC", "-shared")
    subprocess.run(["cc", *flags, c_sources.HELPER, "-o", made], check=True, timeout=60)
    return Helper(made)
