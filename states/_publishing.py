"""Which files an iteration, an attempt or a round leaves below ``tuning/``."""

from __future__ import annotations

import csv as csv_module
import io
import shlex
from typing import Any

from croq_fsm.domain import own_host
from croq_fsm.domain.build import Build
from croq_fsm.domain.measurement import Samples
from croq_fsm.domain.profile import Profile
from croq_fsm.domain.records import Attempt, BuildDone, Effect, Iteration
from croq_fsm.domain.session import Session
from croq_fsm.domain.source import sha256
from croq_fsm.domain.task import Task
from croq_fsm.measure import stats, telemetry
from croq_fsm.ports import Ports
from croq_fsm.storage import views

Artifact = dict[str, Any]

_EXECUTABLE = 0o755
_PLAIN = 0o644


def text_artifact(path: str, kind: str, text: str, round_: int, *, mode: int = _PLAIN) -> Artifact:
    """A file whose content is kept in the database."""
    return {
        "path": path,
        "kind": kind,
        "text": text,
        "sha256": sha256(text),
        "size": len(text.encode()),
        "mode": mode,
        "origin": "blob",
        "round": round_,
    }


def cached_artifact(
    path: str, kind: str, content: tuple[str, bytes], round_: int, *, mode: int = _PLAIN
) -> Artifact:
    """A file whose content (relative path, bytes) is kept in the build cache, by its hash."""
    relative, data = content
    return {
        "path": path,
        "kind": kind,
        "sha256": sha256(data),
        "size": len(data),
        "mode": mode,
        "origin": f"cache:{relative}",
        "round": round_,
    }


def iteration_artifacts(
    session: Session, ports: Ports, iteration: Iteration, samples: Samples | None
) -> list[Artifact]:
    """Source, generated source, binary, scripts, build log and timing of a measured kernel."""
    layout, round_, name = ports.layout, iteration.round, iteration.name
    if iteration.candidate is None or iteration.build is None:
        return []
    build = iteration.build
    number = f"iter{iteration.number:03d}"
    suffix = ports.workbench.suffix
    log, generated = _texts(ports, build)
    found = [
        text_artifact(layout.source(name, suffix), "source", iteration.candidate.source, round_),
        text_artifact(layout.keyed("perf", f"build_{number}.txt"), "log", log, round_),
        text_artifact(
            layout.keyed("cmd", f"build_{number}.sh"),
            "script",
            _build_script(session, layout.source(name, suffix), build),
            round_,
            mode=_EXECUTABLE,
        ),
        text_artifact(
            layout.keyed("cmd", f"run_{number}.sh"),
            "script",
            _run_script(session, iteration),
            round_,
            mode=_EXECUTABLE,
        ),
    ]
    binary = _cached(ports, build.binary)
    if binary is not None:
        path = layout.binary(name)
        found.append(cached_artifact(path, "binary", binary, round_, mode=_EXECUTABLE))
    if generated and ports.workbench.generated_suffix:
        path = layout.source(name, ports.workbench.generated_suffix)
        found.append(text_artifact(path, "source", generated, round_))
    if samples is not None:
        text = timing_text(session, iteration, samples)
        path = layout.keyed("perf", f"timing_{number}.txt")
        found.append(text_artifact(path, "log", text, round_))
    return found


def attempt_artifacts(ports: Ports, attempts: list[tuple[Attempt, int]]) -> list[Artifact]:
    """Sources and logs of failed attempts; they stay readable whatever happens later."""
    found = []
    for attempt, _ in attempts:
        path = ports.layout.source(attempt.name, ports.workbench.suffix)
        found.append(text_artifact(path, "source", attempt.candidate.source, attempt.round))
        if attempt.log:
            path = ports.layout.keyed("perf", f"build_{attempt.name.partition('_')[0]}.txt")
            found.append(text_artifact(path, "log", attempt.log, attempt.round))
    return found


def profile_artifacts(ports: Ports, round_: int) -> list[Artifact]:
    """CSV and report of the profile that a round rests on."""
    taken = ports.history.last_profile(round_)
    if taken is None:
        return []
    profile, csv, number = taken
    name = f"{ports.history.iteration(number).name}_round{round_}"
    found = []
    if csv:
        path = ports.layout.keyed("perf", f"ncu_{name}.csv")
        found.append(text_artifact(path, "profile", csv, round_))
    else:
        path = ports.layout.keyed("perf", f"profile_{name}.csv")
        found.append(text_artifact(path, "profile", _metrics_csv(profile), round_))
    report = profile.files.get("ncu-rep")
    content = _cached(ports, report) if report else None
    if content is not None:
        path = ports.layout.keyed("perf", f"ncu_{name}.ncu-rep")
        found.append(cached_artifact(path, "report", content, round_))
    return found


def _cached(ports: Ports, relative: str) -> tuple[str, bytes] | None:
    """A file of the cache; None when it was trimmed or cleared, which ends no night."""
    try:
        return relative, ports.workbench.read(relative)
    except OSError:
        return None


def _metrics_csv(profile: Profile) -> str:
    """Metrics of a profiler that leaves no file of its own."""
    stream = io.StringIO()
    table = csv_module.writer(stream, lineterminator="\n")
    table.writerow(("metric", "value", "unit"))
    table.writerow(("tool", profile.tool, ""))
    table.writerow(("bottleneck", str(profile.bottleneck), profile.confidence))
    table.writerows((m.name, m.value, m.unit) for m in profile.metrics)
    return stream.getvalue()


def publish(
    session: Session,
    artifacts: list[Artifact],
    lines: views.Lines,
    snapshots: views.Lines,
) -> Effect:
    """The effect that writes all of it; offsets make appending happen exactly once."""
    return Effect(
        "publish",
        {
            "artifacts": artifacts,
            "logs": [
                {"path": path, "offset": session.log_sizes.get(path, 0), "text": text}
                for path, text in lines.items()
            ],
            "snapshots": [{"path": path, "text": text} for path, text in snapshots.items()],
        },
    )


def timing_text(session: Session, iteration: Iteration, samples: Samples) -> str:
    """Raw times and their summary, for people and for tools that look for ``TFLOPS:``."""
    task = session.task
    blocks = samples.of("candidate")
    lines = [
        f"kernel: {iteration.name}",
        f"device: {session.device.name} {session.device.uuid}",
        f"shape: {task.shape_key}",
        f"regime: {samples.regime}",
        f"purpose: {samples.purpose}",
        f"simulated: {str(task.simulated).lower()}",
        *([f"{own_host.LABEL}: times and checks are the program's own"] if task.own_host else []),
        f"launches: {sum(len(b.seconds) for b in blocks)} in {len(blocks)} interleaved blocks",
        f"Timing avg ms: {stats.block_seconds(samples, 'candidate') * 1e3:.6f}",
    ]
    tflops = task.tflops(stats.block_seconds(samples, "candidate"))
    if tflops is not None:
        lines.append(f"TFLOPS: {tflops:.4f}{_work_from(task)}")
    if task.op.judged_by_time:
        lines.append(f"GB/s: {task.gbps(stats.block_seconds(samples, 'candidate')):.2f}")
    for label, text in (("method", samples.method), ("sensors", samples.telemetry)):
        if text:
            lines.append(f"{label}: {text}")
    lines += [f"repeated: {text}" for text in samples.dropped]
    for block in samples.blocks:
        times = " ".join(f"{seconds * 1e6:.3f}" for seconds in block.seconds)
        lines.append(f"block {block.pair} {block.contestant} us: {times}")
        if block.readings:
            read = telemetry.line(block.readings)
            lines.append(f"block {block.pair} {block.contestant} sensors: {read}")
    return "\n".join(lines) + "\n"


def _work_from(task: Task) -> str:
    """Where the work comes from that a rate of an unknown operator rests on."""
    return {
        "": "",
        "given": " (operations as given)",
        "reported": " (operations as the program reports them)",
    }[task.work_from]


def build_record(ports: Ports, round_: int, build: Build) -> BuildDone:
    """A build with its log and generated source, read from the cache."""

    def text(relative: str) -> str:
        return ports.workbench.read(relative).decode(errors="replace") if relative else ""

    return BuildDone(round_, build, text(build.log), text(build.generated))


def _texts(ports: Ports, build: Build) -> tuple[str, str]:
    """Log and generated source: from the history, else (not committed yet) from the cache."""
    stored = ports.history.build_texts(build.key)
    if any(stored):
        return stored
    record = build_record(ports, 0, build)
    return record.log, record.generated


def _build_script(session: Session, source: str, build: Build) -> str:
    compilers = "".join(f"#   {name}: {version}\n" for name, version in build.compilers.items())
    commands = "\n".join(build.commands)
    return (
        "#!/usr/bin/env bash\n"
        f"# Rebuilds {source} by hand, from the folder of the harness sources.\n"
        f"# Session {session.id}; build {build.key}\n{compilers}"
        "set -euo pipefail\n"
        f"{commands}\n"
    )


def _run_does(task: Task, iteration: Iteration) -> str:
    if task.own_host:
        return f"Runs {iteration.name} in its own host part; its figures are {own_host.LABEL}."
    return f"Verifies {iteration.name} on its whole output and times it against the library."


def _run_script(session: Session, iteration: Iteration) -> str:
    name = shlex.quote(f"iter{iteration.number:03d}")
    return (
        "#!/usr/bin/env bash\n"
        f"# {_run_does(session.task, iteration)}\n"
        "set -euo pipefail\n"
        'cd "$(git -C "$(dirname "$0")" rev-parse --show-toplevel)"\n'
        f"exec croq-fsm run-iter {shlex.quote(session.id)} {name}\n"
    )
