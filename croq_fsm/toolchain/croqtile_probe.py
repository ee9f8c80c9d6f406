"""What the compilers can do, found out by asking them: dialect, options, versions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from croq_fsm.domain.source import sha256
from croq_fsm.errors import CroqError
from croq_fsm.toolchain.croqtile_tools import Tools
from croq_fsm.toolchain.process import Command, Completed, Runner

_OPTION: Final = re.compile(r"^\s{1,4}(-[^\s].*?)(?:\s{2,}|$)", re.MULTILINE)
_NVCC_VERSION: Final = re.compile(r"release [\d.]+, V([\d.]+)")
_CUTLASS_PART: Final = re.compile(r"#define CUTLASS_(MAJOR|MINOR|PATCH) (\d+)")

#: Futures that are bound to events, and rings of events by generation.
HEAD_SNIPPET: Final = """\
__co__ void probe(global f16 [64, 64] a, global f16 [64, 64] b) {
  parallel cta by 1 : block {
    shared event full[2], empty[2] = ready;
    shared f16 [64, 64] a_s;
    parallel wg by 2 : group-4 {
      inthreads.async (wg == 0) {
        wait empty.at(0);
        tile = tma.load.async.swiz<128> a => a_s;
        trigger full.at(0) after tile;
      }
      inthreads.async (wg == 1) {
        wait full.at(0);
        trigger empty.at(0);
      }
    }
  }
}
"""

#: Events named in the copy itself, and triggered without a future.
SPRING_SNIPPET: Final = """\
__co__ void probe(global f16 [64, 64] a, global f16 [64, 64] b) {
  parallel cta by 1 : block {
    shared event full[2], empty[2];
    shared f16 [64, 64] a_s;
    parallel wg by 2 : group-4 {
      inthreads.async (wg == 0) {
        wait empty[0];
        tma.copy.async<full[0]>.swiz<128> a => a_s;
        trigger full[0];
      }
      inthreads.async (wg == 1) {
        wait full[0];
        trigger empty[0];
      }
    }
  }
}
"""


class Probe:
    """Asks the compilers; every answer is a child's, with a deadline.

    Args:
        runner: Starts the children.
        tools: Where the compilers are.
        work: Private folder for snippets and their output.
        deadline_s: Seconds for each child.
    """

    def __init__(self, runner: Runner, tools: Tools, work: Path, deadline_s: float) -> None:
        self._runner = runner
        self._tools = tools
        self._work = work
        self._deadline_s = deadline_s

    def dialect(self) -> dict[str, str]:
        """Facts about the compilers. A fact that cannot be had is absent."""
        facts = {
            "dialect": self.dialect_name(),
            "choreo": self._tools.choreo_version,
            "choreo_sha256": _file_hash(self._tools.choreo),
            "flags": " ".join(sorted(self.options())),
            "features": " ".join(self.features()),
            "nvcc": self.nvcc_version(),
            "cutlass": self.cutlass_version(),
        }
        return {name: value for name, value in facts.items() if value}

    def dialect_name(self) -> str:
        """``head``, ``spring``, or "" when neither snippet compiles."""
        for name, snippet in (("head", HEAD_SNIPPET), ("spring", SPRING_SNIPPET)):
            completed = self._compile(name, snippet)
            if completed is not None and completed.ok:
                return name
        return ""

    def options(self) -> frozenset[str]:
        """Names of the Choreo compiler's options, as its hidden help spells them."""
        completed = self._ask(self._tools.choreo, "--help-hidden")
        names: set[str] = set()
        for match in _OPTION.finditer(completed.output if completed else ""):
            names.update(word.split("=")[0].strip() for word in match[1].split(","))
        return frozenset(name.split()[0] for name in names if name.startswith("-"))

    def features(self) -> list[str]:
        """Features of the target, as the Choreo compiler lists them."""
        completed = self._ask(self._tools.choreo, "--print-features", "-t", "cute")
        words = completed.stdout.split() if completed and completed.ok else []
        return sorted({word for word in words if word.replace("_", "").isalnum()})

    def nvcc_version(self) -> str:
        """``13.0.88``, or "" when there is no nvcc."""
        completed = self._ask(self._tools.nvcc, "--version")
        match = _NVCC_VERSION.search(completed.output if completed else "")
        return match[1] if match else ""

    def cutlass_version(self) -> str:
        """Version of the CUTLASS headers, or ""."""
        headers = self._tools.cute_headers
        path = headers / "cutlass" / "version.h" if headers else None
        if path is None or not path.is_file():
            return ""
        return ".".join(m[2] for m in _CUTLASS_PART.finditer(path.read_text(errors="replace")))

    def _compile(self, name: str, snippet: str) -> Completed | None:
        self._work.mkdir(parents=True, exist_ok=True)
        source = self._work / f"probe_{name}.co"
        source.write_text(snippet, encoding="utf-8")
        target = source.with_suffix(".cu")
        argv = ("-es", "-t", "cute", "-arch=sm_90a", str(source), "-o", str(target))
        return self._ask(self._tools.choreo, *argv)

    def _ask(self, program: Path | None, *arguments: str) -> Completed | None:
        """What a program answers; None when there is none or it cannot be started."""
        if program is None:
            return None
        self._work.mkdir(parents=True, exist_ok=True)
        command = Command(
            argv=(str(program), *arguments),
            cwd=self._work,
            deadline_s=self._deadline_s,
            label=f"probe {program.name}",
        )
        try:
            return self._runner.run(command)
        except CroqError:
            return None


def _file_hash(path: Path | None) -> str:
    return sha256(path.read_bytes()) if path else ""
