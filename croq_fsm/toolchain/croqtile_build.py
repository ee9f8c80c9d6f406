"""Building a Choreo kernel: ``.co`` → ``.cu`` by Choreo, the rest as for any device kernel."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Final

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.source import sha256
from croq_fsm.domain.task import Task
from croq_fsm.errors import CompileFailed, EnvironmentMissing
from croq_fsm.sandbox import files
from croq_fsm.toolchain import croqtile_generated as generated
from croq_fsm.toolchain import croqtile_log as log
from croq_fsm.toolchain import croqtile_sparse
from croq_fsm.toolchain.croqtile_flags import Flags, split_flags
from croq_fsm.toolchain.device_build import (
    RECIPE,
    TARGET_SOURCE,
    DeviceBuilder,
    Harness,
    Job,
    Prepared,
    tree_hash,
)

_CANDIDATE: Final = (
    "-D__CHOREO_TARGET_CUTE__",
    "-D__USE_CUDA_TYPE__",
    "-DCUTLASS_ENABLE_TENSOR_CORE_MMA=1",
    "--expt-relaxed-constexpr",
    "-diag-suppress=177,20054",
    "-Xptxas=-v",
)
#: Bytes of a translated source.
_LARGEST: Final = 64 << 20
#: Options that make a file without a program of its own, where the compiler knows them.
_NO_PROGRAM: Final = "--suppress-main"
_CHOREO_ALWAYS: Final = (_NO_PROGRAM, "--disable-cuda-runtime-env-check")


class Builder(DeviceBuilder):
    """Builds Choreo kernels; arguments as its base."""

    @cached_property
    def options(self) -> frozenset[str]:
        """Options that the Choreo compiler knows."""
        return self._probe.options()

    @cached_property
    def compilers(self) -> dict[str, str]:
        """Name → version of what takes part in a build."""
        choreo = self._tools.need("choreo")
        versions = {
            "choreo": f"{self._tools.choreo_version} sha256:{sha256(choreo.read_bytes())[:16]}",
            "nvcc": self._probe.nvcc_version(),
            "cutlass": self._probe.cutlass_version(),
        }
        return {name: version.strip() for name, version in versions.items()}

    def key(self, candidate: Candidate, task: Task) -> str:
        """Content address of a build."""
        identity = {
            "recipe": RECIPE,
            "candidate": candidate.model_dump(mode="json"),
            "glue": generated.glue(task),
            "arch": self._config.croqtile.arch,
            "compilers": self.compilers,
            "headers": self._headers,
            "harness": self.harness_hash,
        }
        return sha256(json.dumps(identity, sort_keys=True))

    def check_flags(self, candidate: Candidate) -> None:
        """See ``DeviceBuilder.check_flags``."""
        split_flags(candidate.flags, self.options)

    def job(self, folder: Path, candidate: Candidate, harness: Harness) -> Job:
        """See ``DeviceBuilder.job``."""
        return _Job(self, folder, split_flags(candidate.flags, self.options), harness)

    @property
    def arch(self) -> str:
        """Architecture that Choreo compiles for."""
        return self._config.croqtile.arch

    def with_main(self, flags: Flags) -> tuple[str, ...]:
        """Command that translates ``kernel.co`` with the program that it brings to ``raw.cu``."""
        quiet = (o for o in _CHOREO_ALWAYS if o in self.options and o != _NO_PROGRAM)
        target = ("-es", "-t", "cute", f"-arch={self.arch}")
        return (self.tool("choreo"), *target, *quiet, *flags.choreo, "kernel.co", "-o", "raw.cu")

    def device_options(self, flags: Flags) -> tuple[str, ...]:
        """Options of nvcc for what Choreo writes."""
        return (*_CANDIDATE, *flags.nvcc, *self.includes())

    def includes(self) -> tuple[str, ...]:
        """Include folders of a candidate; nothing else is on its path."""
        return tuple(f"-I{self._tools.need(name)}" for name in ("choreo_headers", "cute_headers"))

    @cached_property
    def _headers(self) -> dict[str, str]:
        """Identity of the headers: content of the small ones, names and sizes of the many."""
        return {
            "choreo": tree_hash(self._tools.need("choreo_headers"), content=True),
            "cute": tree_hash(self._tools.need("cute_headers"), content=False),
        }


class _Job(Job):
    """The steps of one candidate's build, in its own folder."""

    def __init__(self, builder: Builder, folder: Path, flags: Flags, harness: Harness) -> None:
        super().__init__(builder, folder, harness)
        self._choreo = builder
        self._flags = flags

    def generated(self, key: str) -> str:
        """See ``Job.generated``."""
        return f"{key}/{TARGET_SOURCE}"

    def prepare(self, candidate: Candidate, task: Task) -> Prepared:
        """See ``Job.prepare``."""
        too_old = croqtile_sparse.cuda_problem(self._choreo.compilers["nvcc"])
        if too_old and task.operator == croqtile_sparse.OPERATOR:
            raise EnvironmentMissing(too_old)
        text, output = self._translate(candidate)
        made = generated.prepare(text, candidate.patches, task)
        self._log += [f"harness: {note}" for note in made.notes]
        self._log += [f"harness: applied {len(candidate.patches)} patch(es)"]
        extended = (generated.EXTENDED_SHAPES,) if made.extended else ()
        return Prepared(
            text=made.text,
            options=(*_CANDIDATE, *extended, *self._flags.nvcc, *self._choreo.includes()),
            identity=generated.host_identity(made.text),
            kernels=made.kernels,
            smem_dynamic=log.read_dynamic_smem(output),
        )

    def _translate(self, candidate: Candidate) -> tuple[str, str]:
        """What Choreo makes of the source, and what it says."""
        (self._folder / "kernel.co").write_text(candidate.source, encoding="utf-8")
        always = (o for o in _CHOREO_ALWAYS if o in self._choreo.options)
        argv = (
            *("-es", "-t", "cute", f"-arch={self._choreo.arch}"),
            *(*always, *self._flags.choreo),
            *("kernel.co", "-o", "raw.cu"),
        )
        output = self.step("choreo", (self._choreo.tool("choreo"), *argv))
        if not files.is_plain(self._folder, "raw.cu"):
            raise CompileFailed("choreo wrote no target source", log=output)
        return files.read_text(self._folder, "raw.cu", most=_LARGEST, error=CompileFailed), output
