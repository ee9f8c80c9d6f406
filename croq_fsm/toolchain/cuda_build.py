"""Building a CUDA C++ kernel: its object, our glue to its launcher, and the bench program."""

from __future__ import annotations

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Final

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.source import normalise, sha256
from croq_fsm.domain.task import Task
from croq_fsm.errors import CompileFailed, EnvironmentMissing, UsageError
from croq_fsm.toolchain.croqtile_sparse import OPERATOR, cuda_problem
from croq_fsm.toolchain.cuda_rules import PATCHES_REFUSED, entry_of, flag_problem
from croq_fsm.toolchain.device_build import (
    BASE,
    RECIPE,
    DeviceBuilder,
    Harness,
    Job,
    Prepared,
    tree_hash,
)

_GLUE: Final = Path(__file__).resolve().parent.parent / "measure" / "cuda_glue"
_TMA: Final = re.compile(r"\bcp\.async\.bulk\b|\bcuTensorMapEncode\w*")
_CANDIDATE: Final = ("--expt-relaxed-constexpr", "--extended-lambda", "-Xptxas=-v")


class CudaBuilder(DeviceBuilder):
    """Builds CUDA C++ kernels; arguments as its base."""

    @cached_property
    def compilers(self) -> dict[str, str]:
        """Name → version of what takes part in a build."""
        self._tools.need("nvcc")
        return {"nvcc": self._probe.nvcc_version()}

    def key(self, candidate: Candidate, task: Task) -> str:
        """Content address of a build."""
        identity = {
            "recipe": RECIPE,
            "dsl": "cuda",
            "candidate": candidate.model_dump(mode="json"),
            "operator": task.operator,
            "glue": tree_hash(_GLUE, content=True),
            "options": [*BASE, *_CANDIDATE],
            "compilers": self.compilers,
            "harness": self.harness_hash,
        }
        return sha256(json.dumps(identity, sort_keys=True))

    def check_flags(self, candidate: Candidate) -> None:
        """See ``DeviceBuilder.check_flags``; patches are refused here, too."""
        for problem in filter(None, map(flag_problem, candidate.flags)):
            raise CompileFailed(problem)
        if candidate.patches:
            raise CompileFailed(PATCHES_REFUSED)

    def job(self, folder: Path, candidate: Candidate, harness: Harness) -> Job:
        """See ``DeviceBuilder.job``."""
        del candidate  # its flags were checked and are read where they are used
        return _Job(self, folder, harness)


class _Job(Job):
    """The steps of one candidate's build, in its own folder."""

    def generated(self, key: str) -> str:
        """See ``Job.generated``: nothing is generated."""
        del key
        return ""

    def prepare(self, candidate: Candidate, task: Task) -> Prepared:
        """See ``Job.prepare``."""
        source = _GLUE / f"{task.operator}.cpp"
        if not source.is_file():
            raise UsageError(f"DSL cuda has no harness for operator {task.operator}")
        too_old = cuda_problem(self._builder.compilers["nvcc"])
        if too_old and task.operator == OPERATOR and _TMA.search(candidate.source):
            raise EnvironmentMissing(too_old)
        self.step("nvcc", (self._builder.tool("nvcc"), "-c", *BASE, str(source), "-o", "glue.o"))
        flags = (flag.removeprefix("nvcc:") for flag in candidate.flags)
        return Prepared(
            text=candidate.source,
            options=(*_CANDIDATE, *flags),
            identity=normalise(candidate.source),
            extra=("glue.o",),
            entry=entry_of(task),
        )
