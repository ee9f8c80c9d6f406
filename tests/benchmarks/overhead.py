"""What the engine costs beside its tools, as a function of how long a session is.

    python tests/benchmarks/overhead.py [--sizes 100,1000,10000,100000] [--rounds 60]
        [--soak 10000] [--folder DIR] [--write docs/benchmarks.md]

For each size a history is made (``history.py``), the session goes on for some rounds, and the
faces look at it. Prints tables and writes ``overhead.json`` into the folder. Nothing is
asserted: the goals stand beside what was measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import history
import structlog
from engine_cost import Meter

from croq_fsm import daemon
from croq_fsm.domain.records import Step
from croq_fsm.domain.session import Session
from croq_fsm.storage.engine import file_system_of, sqlite_is_safe
from support.simulated import Night

_ROOT = Path(__file__).resolve().parent.parent.parent
_MIB = 1 << 20
_BEGIN, _END = "<!-- engine: begin -->", "<!-- engine: end -->"
#: Histories up to this many rounds have all their files, so that ``validate`` can look at all.
_EXACT = 1000

Result = dict[str, Any]


def main() -> None:
    """Measure, print, write."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    asked = _arguments()
    folder = Path(asked.folder or tempfile.mkdtemp(prefix="overhead-"))
    folder.mkdir(parents=True, exist_ok=True)
    found: Result = {"machine": machine(folder), "sizes": [], "soak": None}
    for size in (int(text) for text in asked.sizes.split(",") if text):
        found["sizes"].append(measured(folder / f"rounds-{size}", size, asked.rounds))
        _told(found["sizes"][-1])
    if asked.soak:
        found["soak"] = soaked(folder / "soak", asked.soak)
        _told(found["soak"])
    (folder / "overhead.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    text = table(found)
    sys.stdout.write(text)
    if asked.write:
        put(Path(asked.write), text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="100,1000,10000,100000")
    parser.add_argument("--rounds", type=int, default=60, help="rounds measured at each size")
    parser.add_argument("--soak", type=int, default=0, help="rounds of the run for memory")
    parser.add_argument("--folder", default="", help="where histories and overhead.json go")
    parser.add_argument("--write", default="", help="document whose table is replaced")
    return parser.parse_args()


def _told(result: Result) -> None:
    sys.stderr.write(json.dumps(result) + "\n")


def machine(folder: Path) -> Result:
    """What the numbers were taken on."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = [line.partition(":")[2].strip() for line in info.splitlines() if "model name" in line]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "kernel": platform.release(),
        "disk": _file_system(folder),
        "sqlite": "safe" if sqlite_is_safe() else "older than the fix of its WAL",
    }


def _file_system(folder: Path) -> str:
    return file_system_of(folder)


def measured(folder: Path, size: int, rounds: int) -> Result:
    """All measurements at one size; the history is removed afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    night = history.begin(folder)
    began = time.perf_counter()
    history.grow(night, size, exact=size <= _EXACT)
    grown_s = time.perf_counter() - began
    meter, resume_s = _rounds(night, rounds)
    result = {
        "rounds": size,
        "database_mib": night.root.database.stat().st_size / _MIB,
        "grown_s": grown_s,
        "round_ms": 1e3 * statistics.median(meter.rounds),
        "round_p90_ms": 1e3 * statistics.quantiles(meter.rounds, n=10)[-1],
        "round_cpu_ms": 1e3 * statistics.median(meter.busy),
        "resume_s": resume_s,
        "status_s": _face(night, "status", "--json"),
        "report_s": _face(night, "report"),
        "validate_s": _face(night, "validate", times=1) if size <= _EXACT else None,
    }
    if size <= _EXACT:
        result["problems"] = len(night.audit().problems)
    shutil.rmtree(folder, ignore_errors=True)
    return result


def _rounds(night: Night, rounds: int) -> tuple[Meter, float]:
    """Go on for some rounds; seconds from the start of the daemon to the first transition."""
    meter = Meter()
    first: list[float] = []
    began = time.perf_counter()
    with daemon.opened(night.root, night.config) as running:
        meter.attach(running)
        with running.repository.read() as reader:
            session = reader.sessions()[0]

        def observe(before: Session, step: Step, after: Session) -> None:
            if not first:
                first.append(time.perf_counter() - began)
                meter.restart()
            meter.observe(before, step, after)
            if after.round >= session.round + rounds:
                running.stop.set()

        running.run_session(session.id, observe, ideator=meter.ideator())
    return meter, first[0]


def _face(night: Night, *words: str, times: int = 3) -> float:
    """Seconds of a command as a user starts it, the interpreter included; the best of some."""
    command = [sys.executable, "-m", "croq_fsm", *words, "--root", str(night.path)]
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        subprocess.run(command, cwd=_ROOT, capture_output=True, check=False)
        taken.append(time.perf_counter() - began)
    return min(taken)


def soaked(folder: Path, rounds: int) -> Result:
    """Memory and open files of one daemon over many rounds."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    night = Night.of(folder, rounds=rounds, seed=3, git__commit=False, limits__plateau_rounds=0)
    looks: list[tuple[int, float, int]] = []
    every = max(1, rounds // 20)

    def observe(before: Session, step: Step, after: Session) -> None:
        meter.observe(before, step, after)
        if after.round > before.round and after.round % every == 0:
            gc.collect()
            looks.append((after.round, _resident_mib(), len(list(Path("/proc/self/fd").iterdir()))))

    meter = Meter()
    with daemon.opened(night.root, night.config) as running:
        meter.attach(running)
        session = night._create(running)
        running.run_session(session.id, observe, ideator=meter.ideator())
    tenth = max(1, len(meter.rounds) // 10)
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "rounds": rounds,
        "looks": looks,
        "first_tenth_ms": 1e3 * statistics.median(meter.rounds[:tenth]),
        "last_tenth_ms": 1e3 * statistics.median(meter.rounds[-tenth:]),
    }


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / _MIB


def table(found: Result) -> str:
    """The tables of the document."""
    on = found["machine"]
    lines = [
        (
            f"On {on['cpu']}, {on['cores']} cores, load {on['load']:.1f} at the start, Linux "
            f"{on['kernel']}, Python {on['python']}, {on['disk']}:"
        ),
        "",
        (
            "| rounds of history | database | round, median | 90 % | of it CPU | resume | `status` "
            "| `report` | `validate` |"
        ),
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['rounds']:,} | {r['database_mib']:,.0f} MiB | {r['round_ms']:.1f} ms "
        f"| {r['round_p90_ms']:.1f} ms | {r['round_cpu_ms']:.1f} ms | {r['resume_s']:.2f} s "
        f"| {r['status_s']:.2f} s | {r['report_s']:.2f} s | {_seconds(r['validate_s'])} |"
        for r in found["sizes"]
    ]
    if found["soak"]:
        soak = found["soak"]
        first, last = soak["looks"][0], soak["looks"][-1]
        lines += [
            "",
            (
                f"One daemon over {soak['rounds']:,} rounds: {first[1]:.1f} MiB resident and "
                f"{first[2]} open files after round {first[0]:,}, {last[1]:.1f} MiB and "
                f"{last[2]} at the end; a round took {soak['first_tenth_ms']:.1f} ms in the first "
                f"tenth and {soak['last_tenth_ms']:.1f} ms in the last."
            ),
        ]
    return "\n".join(lines) + "\n"


def _seconds(value: float | None) -> str:
    return "not run" if value is None else f"{value:.1f} s"


def put(document: Path, text: str, marks: tuple[str, str] = (_BEGIN, _END)) -> None:
    """Replace what stands between two marks of a document."""
    whole = document.read_text(encoding="utf-8")
    head, _, rest = whole.partition(marks[0])
    tail = rest.partition(marks[1])[2]
    document.write_text(f"{head}{marks[0]}\n{text}{marks[1]}{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
