"""The sandbox on a real SM90 device: compilers, CUDA programs and profilers work inside it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from croqtile_support import need_gpu, need_nvcc
from sandbox_support import TOP

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def test_everything_works_at_the_strongest_level() -> None:
    """nvcc, a CUDA program and ncu all work confined; a failure tells which restriction it is."""
    need_nvcc()
    need_gpu()
    script = str(TOP / "scripts" / "gpu_sandbox.py")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "full (Landlock ABI" in done.stdout, done.stdout
