"""DSL ``croqtile``: Choreo kernels on an SM90 device, behind the port of ``workbench``."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from croq_fsm.config import Config
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.device import Finding
from croq_fsm.domain.task import Task
from croq_fsm.toolchain import croqtile_lint
from croq_fsm.toolchain.croqtile_build import Builder
from croq_fsm.toolchain.croqtile_doctor import Doctor
from croq_fsm.toolchain.croqtile_flags import NVCC_FORMS, allowed_flags
from croq_fsm.toolchain.device_workbench import DeviceWorkbench
from croq_fsm.toolchain.own_host import Maker
from croq_fsm.toolchain.own_host_device import ChoreoMaker
from croq_fsm.toolchain.process import Runner


class CroqtileWorkbench(DeviceWorkbench):
    """Implements ``workbench.Workbench`` for Choreo kernels; arguments as its base."""

    dsl = "croqtile"
    suffix = ".co"
    generated_suffix = ".cu"
    aligned_sizes = ("n", "k")
    aligned_for = "the copy engine"
    _builder: Builder

    def __init__(self, runner: Runner, config: Config, cache: Path, work: Path) -> None:
        super().__init__(runner, config, cache, work)
        self._builder = Builder(
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
            return Doctor(self._runner, self._tools, self._probe, folder, self._probe_s).findings()

    def dialect(self) -> dict[str, str]:
        """See ``Workbench.dialect``.

        ``flags`` are the Choreo options that candidates may bring, as the compiler spells them;
        ``candidate_flags`` all that may stand in ``Candidate.flags``, with their prefixes.
        """
        return dict(self._dialect)

    def lint(self, candidate: Candidate, task: Task) -> list[str]:
        """See ``Workbench.lint``."""
        if task.own_host:
            return self._own.lint(candidate, task)
        return croqtile_lint.lint(candidate, task)

    def own_maker(self) -> Maker:
        """See ``DeviceWorkbench.own_maker``."""
        return ChoreoMaker(self._builder, self._cache, self._work)

    def structure(self, candidate: Candidate) -> dict[str, str]:
        """See ``Workbench.structure``."""
        return croqtile_lint.structure(candidate)

    @cached_property
    def _dialect(self) -> dict[str, str]:
        facts = self._probe.dialect()
        known = frozenset(facts.get("flags", "").split())
        allowed = allowed_flags(known)
        bare = " ".join(flag.partition(":")[2] for flag in allowed)
        return {**facts, "flags": bare, "candidate_flags": " ".join([*allowed, NVCC_FORMS])}
