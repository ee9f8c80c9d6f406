"""A program that tries what an untrusted child must not do, and tells what it could do.

Standard library only; run as ``python -I -S attempts.py ORDERS``. It harms nothing: it asks and
changes what the probe has laid out for it, and itself. ORDERS is JSON: ``outside`` (a folder with
a file ``canary``), ``starter`` (pid of the daemon), ``port`` (where it listens), ``name`` (of an
abstract socket), ``path`` (of a socket in the file system). Prints a JSON list of what worked.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PR_GET_NO_NEW_PRIVS = 39


def gains_privileges(_orders: dict[str, Any]) -> None:
    """Root's powers, or those of a program that lends them."""
    libc = ctypes.CDLL(None)
    lines = dict(row.split(b":", 1) for row in Path("/proc/self/status").read_bytes().splitlines())
    if int(lines[b"CapEff"], 16) == 0 and libc.prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1:
        raise PermissionError


def connects(orders: dict[str, Any]) -> None:
    """A TCP connection."""
    with socket.create_connection(("127.0.0.1", orders["port"]), timeout=2):
        """It stands."""


def sends_datagram(orders: dict[str, Any]) -> None:
    """A UDP datagram."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", orders["port"]))


def opens_raw_socket(_orders: dict[str, Any]) -> None:
    """Whole packets of a device."""
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()


def reaches_abstract_socket(orders: dict[str, Any]) -> None:
    """A program of the same machine that listens at a name."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect("\0" + orders["name"])


def reaches_socket_file(orders: dict[str, Any]) -> None:
    """A program that listens in the file system, as container engines and agents do."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(orders["path"])


def signals_starter(orders: dict[str, Any]) -> None:
    """Signal 0 is a question only."""
    os.kill(orders["starter"], 0)


def reads_environment_of_starter(orders: dict[str, Any]) -> None:
    """Keys are in there; whoever may read it may also trace the process."""
    Path(f"/proc/{orders['starter']}/environ").read_bytes()


def limits_starter(orders: dict[str, Any]) -> None:
    """Lets a limit be; setting one of the CPU time would end the process."""
    resource.prlimit(orders["starter"], resource.RLIMIT_CORE)


def reads_outside(orders: dict[str, Any]) -> None:
    """A private file of the user."""
    Path(orders["outside"], "canary").read_bytes()


def lists_outside(orders: dict[str, Any]) -> None:
    """The names in a folder of the user."""
    list(Path(orders["outside"]).iterdir())


def reads_users(_orders: dict[str, Any]) -> None:
    """What any user may read, but no kernel needs."""
    Path("/etc/passwd").read_bytes()


def writes_outside(orders: dict[str, Any]) -> None:
    """A new file beside its own folder."""
    Path(orders["outside"], "new").write_bytes(b"")


def appends_outside(orders: dict[str, Any]) -> None:
    """A change to a file of the user."""
    with Path(orders["outside"], "canary").open("ab"):
        """It could be changed."""


def empties_outside(orders: dict[str, Any]) -> None:
    """The other way to change a file: without opening it for writing."""
    os.truncate(Path(orders["outside"], "canary"), 0)


def removes_outside(orders: dict[str, Any]) -> None:
    """A file that was laid out for this."""
    Path(orders["outside"], "doomed").unlink()


def links_to_outside(orders: dict[str, Any]) -> None:
    """A link that a later reader or writer of the folder would follow."""
    Path("link").symlink_to(Path(orders["outside"], "canary"))


def borrows_outside(orders: dict[str, Any]) -> None:
    """The same file under a name of its own."""
    Path("borrowed").hardlink_to(Path(orders["outside"], "canary"))


def starts_programs(_orders: dict[str, Any]) -> None:
    """A copy of this process, which could become any program."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


ATTEMPTS: tuple[Callable[[dict[str, Any]], None], ...] = (
    gains_privileges,
    connects,
    sends_datagram,
    opens_raw_socket,
    reaches_abstract_socket,
    reaches_socket_file,
    signals_starter,
    reads_environment_of_starter,
    limits_starter,
    reads_outside,
    lists_outside,
    reads_users,
    appends_outside,
    links_to_outside,
    borrows_outside,
    writes_outside,
    removes_outside,
    empties_outside,
    starts_programs,
)


def main() -> None:
    """Try everything; an attempt fails by any error."""
    orders = json.loads(sys.argv[1])
    done = []
    for attempt in ATTEMPTS:
        try:
            attempt(orders)
        except Exception:  # noqa: BLE001, S112 - whatever stopped it, it was stopped
            continue
        done.append(attempt.__name__)
    print(json.dumps(done))  # noqa: T201 - this is the answer


if __name__ == "__main__":
    main()
