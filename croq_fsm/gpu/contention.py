"""Others on the device: foreign compute processes, load and memory, by asking ``nvidia-smi``.

Nobody is ever disturbed by this module: it looks, and says what it sees. See ``eviction`` for
what the user may allow beyond that.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from croq_fsm.errors import EnvironmentMissing
from croq_fsm.toolchain.process import Command, Runner

_BUSY_PERCENT: Final = 10
_PROCESS_FIELDS: Final = 3


@dataclass(frozen=True)
class Occupant:
    """A compute process on the device.

    Attributes:
        pid: Process id as the driver gives it; may be of another pid namespace.
        name: Program.
        visible: Whether this system knows such a process.
    """

    pid: int
    name: str
    visible: bool


class Neighbours:
    """Looks for other users of one device.

    Args:
        runner: Starts ``nvidia-smi``.
        nvidia_smi: Its path.
        uuid: The device.
        cwd: Working folder of the children.
        deadline_s: Seconds for one look.
    """

    def __init__(
        self, runner: Runner, nvidia_smi: Path, uuid: str, *, cwd: Path, deadline_s: float
    ) -> None:
        self._runner = runner
        self._smi = nvidia_smi
        self._uuid = uuid
        self._cwd = cwd
        self._deadline_s = deadline_s

    def occupants(self) -> list[Occupant]:
        """All compute processes on the device, ours included.

        Raises:
            EnvironmentMissing: The driver does not answer.
        """
        output = self._ask("--query-compute-apps=pid,gpu_uuid,process_name")
        found = []
        for line in output.splitlines():
            parts = [part.strip() for part in line.split(",", _PROCESS_FIELDS - 1)]
            if len(parts) == _PROCESS_FIELDS and parts[0].isdigit() and parts[1] == self._uuid:
                pid = int(parts[0])
                found.append(Occupant(pid, parts[2], psutil.pid_exists(pid)))
        return found

    def foreign(self, contexts: int | None = None) -> str:
        """Who else computes on the device, as a sentence; "" when nobody does.

        Args:
            contexts: How many processes of ours compute on it now; None when that is not known,
                and then it may be as many as we have children.
        """
        own, below = own_tree()
        return describe_foreign(self.occupants(), own, below if contexts is None else contexts)

    def memory(self) -> int | None:
        """Device memory in use, MiB, or None. Others show here even if the driver hides them."""
        return self._number("memory.used")

    def load(self) -> int | None:
        """Utilisation of the device in percent over the driver's last window, or None."""
        return self._number("utilization.gpu")

    def _number(self, name: str) -> int | None:
        for line in self._ask(f"--query-gpu=uuid,{name}").splitlines():
            uuid, _, value = (part.strip() for part in line.partition(","))
            if uuid == self._uuid and value.isdigit():
                return int(value)
        return None

    def busy(self) -> str:
        """Why the device is not free now, before anything of ours runs on it; "" when it is."""
        foreign = self.foreign()
        if foreign:
            return foreign
        load = self.load()
        if load is not None and load >= _BUSY_PERCENT:
            return f"the device is {load} % busy though none of our processes runs on it"
        return ""

    def _ask(self, query: str) -> str:
        argv = (str(self._smi), query, "--format=csv,noheader,nounits")
        completed = self._runner.run(
            Command(argv=argv, cwd=self._cwd, deadline_s=self._deadline_s, label="nvidia-smi")
        )
        if not completed.ok:
            raise EnvironmentMissing(f"nvidia-smi failed: {completed.output.strip()[:300]}")
        return completed.stdout


def own_tree() -> tuple[frozenset[int], int]:
    """This process, its ancestors and everything below it; and how many are below it."""
    me = psutil.Process(os.getpid())
    below = me.children(recursive=True)
    relatives: Iterable[psutil.Process] = [me, *me.parents(), *below]
    return frozenset(process.pid for process in relatives), len(below)


def describe_foreign(occupants: list[Occupant], own: frozenset[int], children: int) -> str:
    """Name the processes that are not ours.

    In a container the driver may give process ids of the host's namespace, by which nobody is
    known here, not even ourselves. As many of these as we have contexts on the device, or at most
    living children, are taken for ours; more are somebody else's.
    """
    strangers = [o for o in occupants if o.visible and o.pid not in own]
    unseen = [o for o in occupants if not o.visible]
    if len(unseen) > children:
        strangers += unseen
    names = ", ".join(f"{o.name} (pid {o.pid})" for o in strangers)
    return f"another process computes on the device: {names}" if strangers else ""
