"""croq_fsm: a crash-safe state machine that improves GPU kernels while nobody watches."""

from __future__ import annotations

__version__ = "0.1.0"

#: Version of the state machine's meaning; stored with each session and compared on resume.
FSM_VERSION = 1
