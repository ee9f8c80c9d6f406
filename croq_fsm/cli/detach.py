"""Daemonising: this command again, in a session of its own, announced over a pipe.

Works without any service manager. The child holds no terminal; what it writes goes to the log.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer

from croq_fsm.cli.place import Place, beside, remembered
from croq_fsm.errors import CroqError

#: Names the descriptor on which a detached child says which sessions it works on.
_VARIABLE: Final = "CROQ_FSM_ANNOUNCE"
_WAIT_S: Final = 120.0
_EXIT_WAIT_S: Final = 30.0
_TAIL_BYTES: Final = 4000
_PREFIX: Final = "croq-fsm: "


class DetachedFailed(CroqError):
    """The detached child ended, or did not get as far as a session."""


@dataclass(frozen=True)
class Detached:
    """A child that works on its own.

    Attributes:
        pid: Its process.
        sessions: What it works on, in order.
    """

    pid: int
    sessions: tuple[str, ...]


def start(arguments: list[str], log: Path) -> Detached | int:
    """Start ``croq-fsm`` with these arguments detached; wait until it has a session.

    Args:
        arguments: Of the command, without ``--detach``.
        log: File that the child's output is appended to.

    Returns:
        The child, or its exit code if it ended first; its message is then on standard error.

    Raises:
        DetachedFailed: It neither ended nor got a session within two minutes. It goes on.
    """
    log.touch(mode=0o600)
    before = log.stat().st_size
    ours, theirs = os.pipe()
    with log.open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "croq_fsm", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(theirs,),
            env={**os.environ, _VARIABLE: str(theirs)},
        )
    os.close(theirs)
    try:
        message = _read(ours, time.monotonic() + _WAIT_S)
    finally:
        os.close(ours)
    if message:
        return Detached(child.pid, tuple(json.loads(message)))
    return _failed(child, log, before)


def background(here: Place) -> int:
    """Run this very command in the background; say which session it works on and how to watch.

    Returns:
        Exit code for this process.
    """
    here.root.prepare()
    arguments = [argument for argument in remembered() if argument != "--detach"]
    found = start([*arguments, "--log-json"], here.root.log)
    if isinstance(found, int):
        return found
    at = beside(here.root)
    typer.echo(f"daemon {found.pid} works on session {', '.join(found.sessions)}")
    typer.echo(f"  watch   croq-fsm status --watch{at}")
    typer.echo(f"  stop    croq-fsm stop{at}")
    typer.echo(f"  log     {here.root.log}")
    return 0


def announce(session_ids: list[str]) -> None:
    """In a detached child: tell the parent which sessions exist. Elsewhere: nothing."""
    descriptor = os.environ.pop(_VARIABLE, None)
    if descriptor is None:
        return
    # The parent may have gone; the work goes on without it.
    try:
        with os.fdopen(int(descriptor), "w") as stream:
            json.dump(session_ids, stream)
    except (OSError, ValueError):
        return


def _read(descriptor: int, deadline: float) -> bytes:
    """All that comes until the end of the stream or the deadline."""
    data = b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return data
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return data
        data += piece


def _failed(child: subprocess.Popen[bytes], log: Path, before: int) -> int:
    try:
        code = child.wait(_EXIT_WAIT_S)
    except subprocess.TimeoutExpired as exc:
        raise DetachedFailed(
            f"the daemon (pid {child.pid}) has no session after {_WAIT_S:.0f} s; it goes on, "
            f"see {log}"
        ) from exc
    sys.stderr.write(_message(log, before) + "\n")
    return code if code > 0 else DetachedFailed.exit_code


def _message(log: Path, before: int) -> str:
    """What the child said about its end, else the tail of what it wrote."""
    with log.open("rb") as stream:
        stream.seek(before)
        text = stream.read().decode(errors="replace")
    at = text.rfind(_PREFIX)
    if at >= 0:
        return text[at:].rstrip()
    return f"{_PREFIX}the daemon ended at once; {log} ends with:\n{text[-_TAIL_BYTES:].rstrip()}"
