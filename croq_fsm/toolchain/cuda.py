"""DSL ``cuda``: CUDA C++ kernels on an SM90 device, behind the port of ``workbench``.

A candidate is one ``.cu`` file that exports ``extern "C" int launch_<operator>(…)`` in the
operator's argument order: inputs, output, sizes, stream. It returns 0 or a ``cudaError_t``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from croq_fsm.config import Config
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.device import Finding
from croq_fsm.domain.source import strip_comments
from croq_fsm.domain.task import Task
from croq_fsm.toolchain import cuda_rules, cuda_structure
from croq_fsm.toolchain.croqtile_flags import NVCC_FORMS
from croq_fsm.toolchain.cuda_build import CudaBuilder
from croq_fsm.toolchain.device_build import TARGET_SOURCE
from croq_fsm.toolchain.device_doctor import DeviceDoctor
from croq_fsm.toolchain.device_workbench import DeviceWorkbench
from croq_fsm.toolchain.own_host import Maker
from croq_fsm.toolchain.own_host_device import CudaMaker
from croq_fsm.toolchain.process import Runner

#: Sums whose order is not fixed; their last bits may differ from launch to launch.
_UNORDERED: Final = re.compile(r"\batomic\w*|\batom\.|\bred\.(?:global|async|shared)")


class CudaWorkbench(DeviceWorkbench):
    """Implements ``workbench.Workbench`` for CUDA C++ kernels; arguments as its base."""

    dsl = "cuda"
    suffix = ".cu"
    generated_suffix = ""
    aligned_sizes = ("k",)
    aligned_for = "copies of 16 bytes"

    def __init__(self, runner: Runner, config: Config, cache: Path, work: Path) -> None:
        super().__init__(runner, config, cache, work)
        self._builder = CudaBuilder(
            runner,
            config,
            tools=self._tools,
            probe=self._probe,
            cache=self._cache,
            work=self._work,
        )

    def doctor(self) -> list[Finding]:
        """See ``Workbench.doctor``."""
        with self._folder("doctor") as folder:
            looking = DeviceDoctor(self._runner, self._tools, self._probe, folder, self._probe_s)
            return looking.findings()

    def dialect(self) -> dict[str, str]:
        """See ``Workbench.dialect``.

        ``flags`` and ``candidate_flags`` are the forms that may stand in ``Candidate.flags``.
        """
        facts = {"dialect": "cuda c++17", "nvcc": self._probe.nvcc_version()}
        facts |= {"flags": NVCC_FORMS, "candidate_flags": NVCC_FORMS}
        return {name: value for name, value in facts.items() if value}

    def lint(self, candidate: Candidate, task: Task) -> list[str]:
        """See ``Workbench.lint``."""
        if task.own_host:
            return self._own.lint(candidate, task)
        return cuda_rules.lint(candidate, task)

    def own_maker(self) -> Maker:
        """See ``DeviceWorkbench.own_maker``."""
        return CudaMaker(self._builder, self._cache, self._work)

    def structure(self, candidate: Candidate) -> dict[str, str]:
        """See ``Workbench.structure``."""
        return cuda_structure.structure(candidate)

    def _uses_atomics(self, build: Build) -> bool:
        text = self.read(f"{build.key}/{TARGET_SOURCE}").decode(errors="replace")
        return bool(_UNORDERED.search(strip_comments(text)))
