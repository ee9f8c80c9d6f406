"""The one place that starts children: own session, markers, limits, deadline, certain end.

A child lives in its own session under ``launcher.py``, which is its subreaper and dies with
us. Start children from a thread that outlives them.
"""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Callable
from typing import Final

import psutil

from croq_fsm.config import Config, Deadlines
from croq_fsm.errors import Drained, EnvironmentMissing
from croq_fsm.sandbox.policy import Policy
from croq_fsm.toolchain.child import Child, check_folder
from croq_fsm.toolchain.conversation import LocalConversation
from croq_fsm.toolchain.process import ChildJournal, Command, Completed, Conversation, Ending
from croq_fsm.toolchain.survivors import CHILD_MARKER, RUN_MARKER, kill_survivors

__all__ = ["CHILD_MARKER", "RUN_MARKER", "LocalRunner", "kill_survivors"]

#: Variables that a child may inherit; no secret is among them.
INHERITED: Final = frozenset(
    {
        "PATH",
        "LANG",
        "LD_LIBRARY_PATH",
        "CUDA_HOME",
        "CUDA_VISIBLE_DEVICES",
        "CHOREO_HOME",
        "CUTE_HOME",
    }
)


class LocalRunner:
    """Implements ``process.Runner`` with processes of this machine.

    Args:
        run_id: Identity of this start of the daemon; each child carries it as a marker.
        journal: Told about each child before it is waited for.
        stop: Set when a stop is asked for; running children are then ended.
        deadlines: Grace and reaping times.
        tick: Called at least every 50 ms while a child is waited for (watchdog).
        policy: What untrusted children may see and do; None takes that of the default
            configuration.

    Attributes:
        policy: As given.
        sandbox: See ``process.Runner``; ``sandbox.probe.ensure`` sets it.
    """

    def __init__(
        self,
        run_id: str,
        journal: ChildJournal,
        stop: threading.Event,
        deadlines: Deadlines,
        tick: Callable[[], None] = lambda: None,
        *,
        policy: Policy | None = None,
    ) -> None:
        self.policy = policy or Policy.of(Config())
        self.sandbox = ""
        self._run_id = run_id
        self._journal = journal
        self._stop = stop
        self._deadlines = deadlines
        self._tick = tick

    def run(self, command: Command) -> Completed:
        """See ``process.Runner.run``."""
        self._refuse_when_stopping(command)
        child = self._start(command, talk=False)
        try:
            ending = self._watch(child)
            if ending is not None:
                child.terminate(self._deadlines.kill_grace_s)
        except BaseException:
            self._bury(child, Ending.DRAINED)
            raise
        completed = self._bury(child, ending)
        if child.start_failure:
            raise EnvironmentMissing(child.start_failure)
        if ending is Ending.DRAINED:
            raise Drained(f"stop requested while {command.label} was running")
        return completed

    def converse(self, command: Command) -> Conversation:
        """See ``process.Runner.converse``."""
        self._refuse_when_stopping(command)
        child = self._start(command, talk=True)
        return LocalConversation(
            child,
            self._stop.is_set,
            self._deadlines,
            lambda completed: self._journal.ended(child.child_id, completed),
        )

    def _refuse_when_stopping(self, command: Command) -> None:
        if self._stop.is_set():
            raise Drained(f"stop requested before {command.label} was started")

    def _watch(self, child: Child) -> Ending | None:
        """Serve the child until it ends (None) or must be ended (why)."""
        while not child.ended:
            child.pump()
            if child.flooded:
                return Ending.FLOODED
            if self._stop.is_set():
                return Ending.DRAINED
            if child.seconds > child.command.deadline_s:
                return Ending.DEADLINE
        return None

    def _bury(self, child: Child, ending: Ending | None) -> Completed:
        completed = child.bury(self._deadlines.reap_s, ending)
        self._journal.ended(child.child_id, completed)
        return completed

    def _start(self, command: Command, *, talk: bool) -> Child:
        check_folder(command.cwd)
        env = self._environment(command)
        if shutil.which(command.argv[0], path=env["PATH"]) is None and "/" not in command.argv[0]:
            raise EnvironmentMissing(f"{command.argv[0]} is not on PATH ({env['PATH']})")
        # Unique in the world: what carries this marker is killed when the child ends.
        child_id = uuid.uuid4().hex
        env |= {RUN_MARKER: self._run_id, CHILD_MARKER: child_id}
        child = Child(command, child_id, env, talk=talk, tick=self._tick, policy=self.policy)
        try:
            self._journal.started(child_id, child.pid, _start_time(child.pid), command)
        except BaseException:
            child.bury(self._deadlines.reap_s, Ending.DRAINED)
            raise
        return child

    def _environment(self, command: Command) -> dict[str, str]:
        """Allow-listed variables, then what the command asks for."""
        env = {
            name: value
            for name, value in os.environ.items()
            if name in INHERITED or name.startswith("LC_")
        }
        env.setdefault("PATH", os.defpath)
        env["HOME"] = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises without a home
        return env | command.env


def _start_time(pid: int) -> float:
    """Creation time, seconds since the epoch; 0.0 for a child that has ended already."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return 0.0
