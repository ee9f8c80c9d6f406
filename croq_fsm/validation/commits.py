"""Asking git which commits carry the trailers of a session."""

from __future__ import annotations

import threading
from collections.abc import Callable

from croq_fsm.config import Deadlines, Git
from croq_fsm.root import Root
from croq_fsm.storage import git
from croq_fsm.toolchain.process import NullJournal
from croq_fsm.toolchain.runner import LocalRunner


def reader(root: Root) -> Callable[[str], dict[str, str]]:
    """Reads the trailers of a session from the root's repository."""
    deadlines = Deadlines()
    runner = LocalRunner("validate", NullJournal(), threading.Event(), deadlines)
    return git.Git(root.path, runner, Git().author, deadlines.git_s).trailers
