"""Environment report of DSL ``croqtile``: the Choreo compiler beside what any kernel needs."""

from __future__ import annotations

from croq_fsm.domain.device import Finding
from croq_fsm.toolchain.device_doctor import BUILD, DeviceDoctor, missing


class Doctor(DeviceDoctor):
    """Looks at everything that the DSL needs; arguments as its base."""

    def language(self) -> list[Finding]:
        """See ``DeviceDoctor.language``."""
        return [
            self.tool("choreo", self._tools.choreo_version, BUILD),
            self._dialect(),
            self.tool("choreo_headers", "", BUILD),
            self.tool("cute_headers", self._probe.cutlass_version(), BUILD),
        ]

    def _dialect(self) -> Finding:
        name = self._probe.dialect_name() if self._tools.choreo else ""
        if not name:
            cure = "use a Choreo compiler that targets sm_90a through CuTe (-t cute)"
            return missing("dialect", BUILD, cure)
        if name == "head":
            return Finding(name="dialect", ok=True, found=name)
        return Finding(
            name="dialect",
            ok=False,
            found=name,
            forbids="the shipped start kernels; kernels of your own in that dialect work",
            cure="use a newer Choreo compiler, or give a start kernel with --kernel",
            required=False,
        )
