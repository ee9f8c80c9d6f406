"""Compiling C kernels and comparing them with double precision, outside the test process.

All kernels of a call become one shared object, each under a name of its own, and one child
runs them, so that a kernel that crashes fails its test and not the whole run.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler 'cc' on PATH")

_STRICT = ("-Wall", "-Wextra", "-Wshadow", "-pedantic", "-Werror", "-std=gnu11")

#: Run by the child: errors per kernel and shape, as JSON on standard output.
_CHECK = """
import ctypes, json, sys
import numpy as np
library, operator = sys.argv[1:3]
count, shapes = int(sys.argv[3]), json.loads(sys.argv[4])
loaded = ctypes.CDLL(library)
rng = np.random.default_rng(7)

def case(shape):
    if operator == "matmul":
        m, n, k = shape
        a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
        a, b = a.astype("f4"), b.astype("f4")
        return [a, b], a.astype("f8") @ b.astype("f8"), k
    # Wide enough for results below the least normal number, which may be 0 and nothing else.
    x = (rng.standard_normal(shape) * 30).astype("f4")
    e = np.exp(x.astype("f8") - x.max(axis=1, keepdims=True))
    return [x], e / e.sum(axis=1, keepdims=True), shape[1]

for shape in shapes:
    inputs, wanted, steps = case(shape)
    bound = 4 * 2.0**-24 * (np.sqrt(steps) + 1)
    for number in range(count):
        room = np.full(wanted.size + 64, np.nan, "f4")
        room[:32] = room[-32:] = 77.0
        got = room[32:-32]
        pointers = [ctypes.c_void_p(v.ctypes.data) for v in [*inputs, got]]
        getattr(loaded, f"{operator}_{number}")(*pointers, *shape)
        error = np.linalg.norm(got.reshape(wanted.shape) - wanted) / np.linalg.norm(wanted)
        if not error < bound:
            print(json.dumps([number, shape, f"relative error {error}"]))
        if operator == "softmax":
            slack = 2e-5 * wanted + np.finfo("f4").tiny
            wrong = int((np.abs(got.reshape(wanted.shape) - wanted) > slack).sum())
            if wrong:
                print(json.dumps([number, shape, f"{wrong} elements are wrong"]))
        if (room[:32] != 77.0).any() or (room[-32:] != 77.0).any():
            print(json.dumps([number, shape, "wrote outside the output"]))
"""


def check(
    operator: str,
    sources: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    folder: Path,
    flags: Sequence[str] = ("-O2",),
) -> list[str]:
    """What is wrong with the kernels: compiler messages, or wrong results; empty means nothing."""
    objects = []
    for number, source in enumerate(sources):
        text, made = folder / f"k{number}.c", folder / f"k{number}.o"
        text.write_text(source, encoding="utf-8")
        rename = f"-D{operator}={operator}_{number}"
        command = ["cc", *_STRICT, *flags, rename, "-fPIC", "-c", text, "-o", made]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode or done.stderr:
            return [f"kernel {number} does not compile cleanly:\n{done.stderr}\n{source}"]
        objects.append(made)
    library = folder / "kernels.so"
    subprocess.run(["cc", "-shared", *objects, "-lm", "-o", library], check=True, timeout=60)
    arguments = [library, operator, str(len(sources)), json.dumps(shapes)]
    done = subprocess.run(
        [sys.executable, "-c", _CHECK, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    problems = done.stdout.splitlines()
    if done.returncode:
        problems.append(f"the child ended with {done.returncode}: {done.stderr}")
    return problems
