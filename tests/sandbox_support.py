"""Running things in the sandbox: hostile little programs, and kernels older than this one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from croq_fsm.config import Deadlines
from croq_fsm.sandbox import attempts, landlock
from croq_fsm.sandbox.levels import Level
from croq_fsm.sandbox.policy import Policy
from croq_fsm.toolchain.process import Command, Completed, NullJournal, Role
from croq_fsm.toolchain.runner import LocalRunner

TOP = Path(__file__).resolve().parent.parent
#: Confines itself as a child of the product does, on a kernel that knows less, and tries all.
_ON_ANOTHER_KERNEL = """
import json, sys
from croq_fsm.sandbox import attempts, confine, landlock, namespaces, seccomp
orders, jail, lacks = (json.loads(text) for text in sys.argv[1:])
if "abi" in lacks:
    landlock.abi = lambda: lacks["abi"]
if lacks.get("seccomp"):
    seccomp.build = lambda *_: []
if lacks.get("namespaces"):
    namespaces.separate = lambda _: False
confine.confine(jail)
sys.argv = [sys.argv[0], json.dumps(orders)]
attempts.main()
"""


def needs_landlock() -> str:
    """Why the file rules cannot be tried here; "" when they can."""
    return "" if landlock.abi() >= 3 else f"Landlock ABI {landlock.abi()}"


def local_runner(use: Level = Level.FULL) -> LocalRunner:
    """A runner with short grace."""
    return LocalRunner(
        f"sandbox-{os.urandom(6).hex()}",
        NullJournal(),
        threading.Event(),
        Deadlines(kill_grace_s=0.2, reap_s=10.0),
        policy=Policy(use=use),
    )


def python_in(folder: Path, code: str, role: Role, **more: Any) -> Completed:
    """Run Python code as an untrusted child at the strongest level."""
    argv = (sys.executable, "-I", "-S", "-c", code)
    reads = (Path(sys.base_prefix), *more.pop("reads", ()))
    command = Command(argv, folder, 20.0, "hostile", untrusted=True, role=role, reads=reads, **more)
    return local_runner().run(command)


@contextmanager
def playground(top: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder for a child, and what it may try outside of it."""
    with ExitStack() as stack:
        own, outside = top / "own", top / "outside"
        own.mkdir()
        outside.mkdir()
        (outside / "canary").write_text("canary", encoding="ascii")
        (outside / "doomed").touch()
        port = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        name = f"croq-test-{os.urandom(8).hex()}"
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind("\0" + name)
        abstract.listen()
        orders = {"outside": str(outside), "starter": os.getpid(), "port": port, "name": name}
        yield own, orders | {"path": str(outside / "no-socket")}


def worked_on_kernel(top: Path, role: Role, *, device: bool = False, **lacks: Any) -> set[str]:
    """Attempts that work in a role on a kernel that lacks something.

    Args:
        top: Fresh folder.
        role: What the child is there for.
        device: Whether it uses a GPU.
        lacks: ``abi`` (highest of Landlock), ``seccomp``, ``namespaces``.
    """
    with playground(top) as (own, orders):
        reads = (Path(sys.base_prefix), Path(attempts.__file__))
        command = Command(
            (sys.executable,), own, 1.0, "x", untrusted=True, role=role, device=device, reads=reads
        )
        jail = Policy().jail(command, own)
        done = subprocess.run(
            [
                *(sys.executable, "-c", _ON_ANOTHER_KERNEL),
                *(json.dumps(orders), json.dumps(jail), json.dumps(lacks)),
            ],
            cwd=own,
            env={"PYTHONPATH": str(TOP), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))
