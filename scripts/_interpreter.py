"""Finds a Python that has croq_fsm, so that the scripts run with any ``python3``."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn


def hand_over(*arguments: str) -> NoReturn:
    """Become ``croq-fsm`` with these arguments: in this Python, else in that of quickstart.sh."""
    project = Path(__file__).resolve().parent.parent
    beside = Path(os.environ.get("CROQ_VENV", project / ".venv")) / "bin" / "python"
    if find_spec("croq_fsm") is not None:
        python = sys.executable
    elif beside.exists():
        python = str(beside)
    else:
        sys.exit(f"croq_fsm is not installed: run 'pip install {project}' first")
    os.execv(python, [python, "-m", "croq_fsm", *arguments])  # noqa: S606 - no shell is wanted
