"""A real C workbench on small shapes, and kernels that are right or wrong in one way each."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from croq_fsm.config import Config, COptions, Deadlines, Measure
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.task import Task
from croq_fsm.toolchain.c import CWorkbench
from croq_fsm.toolchain.process import NullJournal
from croq_fsm.toolchain.runner import LocalRunner
from croq_fsm.toolchain.survivors import marked

DEADLINES = Deadlines(
    compile_s=20.0, verify_s=5.0, block_s=5.0, profile_s=20.0, kill_grace_s=0.2, reap_s=5.0
)


def config(**c: object) -> Config:
    """Short deadlines; ``c`` is the DSL's section."""
    return Config(deadlines=DEADLINES, measure=Measure(), c=COptions.model_validate(c))


@contextmanager
def workbench(settings: Config | None = None) -> Iterator[CWorkbench]:
    """A workbench in a folder of its own; at the end none of its children may live."""
    settings = settings or config()
    with tempfile.TemporaryDirectory() as folder:
        run_id = f"c-{Path(folder).name}"
        runner = LocalRunner(run_id, NullJournal(), threading.Event(), settings.deadlines)
        yield CWorkbench(runner, settings, Path(folder) / "cache", Path(folder) / "work")
        assert marked("CROQ_RUN_ID", run_id) == []


def task(operator: str, *shape: int, kernel: str = "builtin:") -> Task:
    """A task of DSL c."""
    return Task(dsl="c", operator=operator, dtype="f32", shape=shape, kernel=kernel, model="rules")


MATMUL = task("matmul", 48, 80, 40)
SOFTMAX = task("softmax", 40, 72)
TASKS = {"matmul": MATMUL, "softmax": SOFTMAX}


def matmul(body: str, before: str = "", flags: tuple[str, ...] = ("-O2",)) -> Candidate:
    """A matmul kernel with the given body."""
    head = "void matmul(const float *a, const float *b, float *c, int m, int n, int k)"
    return Candidate(source=f"{before}\n{head}\n{{\n{body}\n}}\n", flags=flags)


def softmax(body: str, before: str = "", flags: tuple[str, ...] = ("-O2",)) -> Candidate:
    """A softmax kernel with the given body."""
    head = "void softmax(const float *x, float *y, int rows, int cols)"
    source = f"#include <math.h>\n{before}\n{head}\n{{\n{body}\n}}\n"
    return Candidate(source=source, flags=flags)


GOOD_MATMUL = """
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int p = 0; p < k; ++p) sum += a[i * k + p] * b[p * n + j];
            c[i * n + j] = sum;
        }
"""
GOOD_SOFTMAX = """
    for (int i = 0; i < rows; ++i) {
        float most = x[i * cols], sum = 0;
        for (int j = 0; j < cols; ++j) most = fmaxf(most, x[i * cols + j]);
        for (int j = 0; j < cols; ++j) sum += y[i * cols + j] = expf(x[i * cols + j] - most);
        for (int j = 0; j < cols; ++j) y[i * cols + j] /= sum;
    }
"""
GOOD = {"matmul": matmul(GOOD_MATMUL), "softmax": softmax(GOOD_SOFTMAX)}

#: Kernels that compute something else, by operator and name of the fault. More faults are tried
#: on arrays in test_measure_cases.py; these go through compiler, harness and judge.
WRONG = {
    "matmul": {
        "nothing": matmul(""),
        "half of the rows": matmul(GOOD_MATMUL.replace("i < m", "i < m / 2")),
        "last term missing": matmul(GOOD_MATMUL.replace("p < k", "p < k - 1")),
        "transposed": matmul(GOOD_MATMUL.replace("c[i * n + j]", "c[j * m + i]")),
        "half precision": matmul(GOOD_MATMUL.replace("float sum", "_Float16 sum")),
        "adds to the output": matmul(GOOD_MATMUL.replace("= sum", "+= sum")),
    },
    "softmax": {
        "constant": softmax("for (int i = 0; i < rows * cols; ++i) y[i] = 1.0f / cols;"),
        "not normalised": softmax(GOOD_SOFTMAX.replace("/= sum", "/= 1")),
        "maximum not subtracted": softmax(GOOD_SOFTMAX.replace(" - most", "")),
    },
}
