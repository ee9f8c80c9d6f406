"""Evidence from an SM90 machine: an unattended run on real tools, and a racy kernel refused.

Usage: ``python3 scripts/gpu_evidence.py --out DIR [--minutes 20] [--rounds 12] [--shape MxNxK]``

Needs CHOREO_HOME, CUTE_HOME, CUDA_HOME, one H100 or H200, and croq_fsm importable (installed, or
this checkout on PYTHONPATH). No network. Everything that is left lies in DIR: doctor.txt, the
reports, results.tsv, idea logs, one profile, and ``state.tar.gz``. Called again with the same
DIR, or with a DIR that holds only ``state.tar.gz``, it goes on where it stopped, also on another
machine of the same kind.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from croq_fsm.config import Storage
from croq_fsm.domain.session import Session
from croq_fsm.root import Root
from croq_fsm.storage.engine import reader
from croq_fsm.storage.reading import Reader
from croq_fsm.toolchain.croqtile_twins import twins

_DRAIN_S: Final = 90.0
#: Rebuilt on demand; too large to carry along.
_NOT_CARRIED: Final = (".croq_fsm/cache", ".croq_fsm/work")
_RACY: Final = ("racy_early", "racy_wait1")


class Night:
    """The runs of one evidence folder.

    Args:
        out: Evidence folder.
        minutes: Wall time after which a run is drained, to be continued later.
    """

    def __init__(self, out: Path, minutes: float) -> None:
        self.out = out
        self.root = out / "root"
        self._until = time.monotonic() + 60.0 * minutes

    def prepare(self) -> None:
        """Unpack an earlier state, or make a fresh repository."""
        self.out.mkdir(parents=True, exist_ok=True)
        archive = self.out / "state.tar.gz"
        if not self.root.exists() and archive.is_file():
            with tarfile.open(archive) as tar:
                tar.extractall(self.out, filter="data")
        if not self.root.exists():
            subprocess.run(["git", "init", "-q", str(self.root)], check=True)

    def call(self, *arguments: str, into: str, bounded: bool = False) -> int:
        """One command of croq-fsm, its output into a file and to the terminal.

        A bounded one is drained when the time is up; the session can be resumed later.
        """
        return self._run(["-m", "croq_fsm", *arguments], into, bounded=bounded)

    def check(self) -> int:
        """Start kernels, wrong kernels and what a weak check would have said of them; once."""
        if (self.out / "check" / "gpu_check.json").is_file():
            return 0
        script = Path(__file__).with_name("gpu_check.py")
        return self._run([str(script), "--out", str(self.out / "check")], "device-check.txt")

    def _run(self, arguments: list[str], into: str, *, bounded: bool = False) -> int:
        command = [sys.executable, *arguments]
        with (self.out / into).open("ab") as log:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            assert child.stdout is not None  # noqa: S101 - asked for above
            os.set_blocking(child.stdout.fileno(), False)
            asked = 0.0
            while child.poll() is None:
                _copy(child, log)
                if bounded and time.monotonic() > self._until and not asked:
                    child.send_signal(signal.SIGTERM)
                    asked = time.monotonic()
                if asked and time.monotonic() > asked + _DRAIN_S:
                    child.kill()
                time.sleep(0.1)
            _copy(child, log)
        return int(child.returncode)

    def session(self, model: str) -> Session | None:
        """The newest session of an ideator."""
        place = Root(self.root, Storage())
        if not place.database.is_file():
            return None
        engine = reader(place.database)
        with engine.begin() as connection:
            found = [s for s in Reader(connection).sessions() if s.task.model == model]
        engine.dispose()
        return found[0] if found else None

    def tune(self, model: str, arguments: list[str], log: str) -> bool:
        """Start or resume a session; True once it has ended."""
        known = self.session(model)
        if known is None:
            self.call("start", *arguments, "--root", str(self.root), into=log, bounded=True)
        elif not known.state.is_final:
            self.call("resume", known.id, "--root", str(self.root), into=log, bounded=True)
        now = self.session(model)
        return now is not None and now.state.is_final

    def collect(self, model: str, name: str) -> None:
        """Report, status and logs of a session, copied beside each other."""
        session = self.session(model)
        if session is None:
            return
        for command, suffix in (("report", "txt"), ("status", "json"), ("validate", "json")):
            target = f"{name}-{command}.{suffix}"
            (self.out / target).unlink(missing_ok=True)
            flags = ["--json"] if suffix == "json" else []
            self.call(command, session.id, *flags, "--root", str(self.root), into=target)
        for log in ("results.tsv", "idea-log.jsonl", "attempt-log.jsonl"):
            for found in self.root.glob(f"tuning/*/croqtile/logs/{session.task.key}/{log}"):
                shutil.copy(found, self.out / f"{name}-{log}")

    def pack(self) -> None:
        """Everything needed to go on elsewhere, in one file."""
        archive = self.out / "state.tar.gz"
        temporary = archive.with_suffix(".tmp")
        with tarfile.open(temporary, "w:gz") as tar:
            tar.add(self.root, arcname="root", filter=_carried)
        temporary.replace(archive)


def _copy(child: subprocess.Popen[bytes], log: object) -> None:
    assert child.stdout is not None  # noqa: S101 - a pipe was asked for
    data = child.stdout.read() or b""
    log.write(data)  # type: ignore[attr-defined]
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def _carried(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    inside = member.name.partition("/")[2]
    skipped = inside.startswith(_NOT_CARRIED) or inside.endswith(".ncu-rep")
    return None if skipped or "/bin/" in inside else member


def recording(night: Night, kernel: str) -> Path:
    """Proposals that release a stage while the tensor cores still read it."""
    from croq_fsm.domain.build import Candidate  # noqa: PLC0415 - only here

    wrong = twins(Candidate(source=kernel))
    lines = [
        {
            "tag": name,
            "base": 1,
            "edit": {"kind": "whole_source", "source": wrong[name].candidate.source}
            if wrong[name].candidate.source != kernel
            else {"kind": "no_edit"},
            "patches": [p.model_dump() for p in wrong[name].candidate.patches],
            "summary": "give a stage back before the tensor cores have read it",
            "hypothesis": "a deliberately wrong kernel; gpu__time_duration.sum would fall",
            "metrics": ["gpu__time_duration.sum"],
            "category": "pipeline",
            "expected_gain": 0.05,
            "levers": ["wait"],
        }
        for name in _RACY
    ]
    path = night.out / "racy.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    config = night.out / "racy.toml"
    text = f'[ideators.replay]\npath = "{path}"\n[limits]\nattempts_per_idea = 1\n'
    config.write_text(text, encoding="utf-8")
    return config


def save_profiles(night: Night, model: str) -> None:
    """First and last profile of a session as JSON, counters included."""
    session = night.session(model)
    if session is None:
        return
    engine = reader(Root(night.root, Storage()).database)
    with engine.begin() as connection:
        rounds = sorted({1, session.round})
        found = {n: Reader(connection).last_profile(session.id, n) for n in rounds}
    engine.dispose()
    for number, taken in found.items():
        if taken is not None:
            text = taken[0].model_dump_json(indent=1)
            (night.out / f"profile-round{number:03d}.json").write_text(text, encoding="utf-8")


def main() -> int:
    """Doctor, racy kernels, the unattended run, the device check; 0 only if all ended well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--shape", default="4096x8192x4096")
    options = parser.parse_args()
    night = Night(options.out.resolve(), options.minutes)
    night.prepare()
    (night.out / "when.txt").open("a", encoding="utf-8").write(f"{datetime.now(UTC)}\n")
    package = Path(__file__).resolve().parent.parent / "croq_fsm"
    kernel = package / "kernels" / "croqtile" / "matmul" / "matmul_f16_plain.co"
    task = ["croqtile", "f16", options.shape, "--kernel", str(kernel)]
    night.call("doctor", "--root", str(night.root), into="doctor.txt")
    config = recording(night, kernel.read_text(encoding="utf-8"))
    racy = ["--ideator", "replay", "--rounds", str(len(_RACY)), "--config", str(config)]
    done = night.tune("replay", [*task, *racy], "racy.log")
    done = night.tune("rules", [*task, "--rounds", str(options.rounds)], "tune.log") and done
    done = done and night.check() == 0
    night.collect("replay", "racy")
    night.collect("rules", "tune")
    save_profiles(night, "rules")
    night.pack()
    print("complete" if done else "not complete: call again to go on")
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
