"""Where the numbers come from and how to get them again: device, tools, files, commands."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from croq_fsm.domain.records import Iteration
from croq_fsm.measure import telemetry
from croq_fsm.report import words
from croq_fsm.report.facts import Facts

Row = tuple[str, str]

#: Reasons for repeated blocks that are shown.
_DROPPED: Final = 5


def measured(facts: Facts) -> list[Row]:
    """Device, compilers, library, and how times were taken."""
    session, settings = facts.session, facts.config.measure
    build = facts.best.build if facts.best else None
    compilers = build.compilers if build else {}
    gain = (
        f"a 99 % interval above {1 + settings.min_effect:.4f}, and confirmed in a fresh "
        f"process over {settings.confirm_pairs} pairs or more"
    )
    return [
        ("device", f"{session.device.name} ({session.device.key})" if session.device.key else ""),
        ("identity", session.device.uuid),
        *(("", f"{name}: {words.one_line(text)}") for name, text in session.device.facts.items()),
        *(("compiler", f"{name} {words.one_line(text)}") for name, text in compilers.items()),
        ("library", facts.library.name if facts.library else ""),
        ("host part", _host(facts)),
        ("samples", _samples(facts)),
        ("sandbox", _sandbox(facts)),
        *_device(facts),
        ("noise floor", _noise(session.noise)),
        ("a gain is", gain),
        ("seed", str(session.seed)),
        ("configuration", f"sha256 {session.config_hash}"),
    ]


def _host(facts: Facts) -> str:
    """Whose host part made inputs, checks and times, when it was not ours."""
    task = facts.session.task
    return f"the kernel's own, frozen at the start: sha256 {task.host}" if task.own_host else ""


def _sandbox(facts: Facts) -> str:
    """How the best kernel was confined while it was compiled and while it was measured."""
    built = facts.best.build.sandbox if facts.best and facts.best.build else ""
    measured_in = facts.record.sandbox if facts.record else ""
    if not built and not measured_in:
        return ""
    if built == measured_in:
        return f"{built}, for compiler and candidate"
    return f"{built or 'unknown'} for the compiler, {measured_in or 'unknown'} for the candidate"


def _noise(noise: float | None) -> str:
    """The floor is measured again as the night goes on; the one of the start may differ."""
    return "" if noise is None else f"{100 * noise:.2f} % (newest A/A test)"


def files(facts: Facts) -> list[Row]:
    """Where the best kernel and the records are, relative to the root."""
    if facts.best is None:
        return [("root", str(facts.root)), ("database", str(facts.standing.database))]
    number = f"iter{facts.best.number:03d}"
    layout = facts.layout
    return [
        ("root", str(facts.root)),
        ("best kernel", _present(facts, _source(facts, facts.best))),
        ("binary", _present(facts, layout.binary(facts.best.name))),
        ("build script", _present(facts, layout.keyed("cmd", f"build_{number}.sh"))),
        ("run script", _present(facts, layout.keyed("cmd", f"run_{number}.sh"))),
        ("raw times", _present(facts, layout.keyed("perf", f"timing_{number}.txt"))),
        ("results", _present(facts, layout.log("results.tsv"))),
        ("rounds", _present(facts, layout.memory("rounds.md"))),
        ("commit", facts.commit or "not committed"),
        ("database", str(facts.standing.database)),
    ]


def reproduce(facts: Facts) -> list[str]:
    """Commands that show the result again, and the hashes that they must meet."""
    best = facts.best
    if best is None or best.build is None or best.candidate is None:
        return []
    root, number = shlex.quote(str(facts.root)), f"iter{best.number:03d}"
    commit = [f"git -C {root} show {facts.commit}"] if facts.commit else []
    build = best.build
    return [
        f"croq-fsm run-iter {facts.session.id} {number} --root {root}",
        *commit,
        *(f"flags {' '.join(best.candidate.flags)}" for _ in (1,) if best.candidate.flags),
        f"build {build.key}",
        f"binary sha256 {build.binary_sha256}",
        *([f"harness sha256 {build.harness}"] if build.harness else []),
        f"measured in transition {best.measurement}",
    ]


def _samples(facts: Facts) -> str:
    record = facts.record
    if record is None:
        return ""
    blocks = record.of("candidate")
    launches = sum(len(b.seconds) for b in blocks)
    dropped = f"; {words.count(len(record.dropped), 'block')} repeated" if record.dropped else ""
    return (
        f"{record.regime}; best kernel: {launches} launches in {len(blocks)} interleaved "
        f"blocks ({record.purpose}){dropped}"
    )


def _device(facts: Facts) -> list[Row]:
    """How launches were timed, what the sensors said meanwhile, and which blocks were repeated."""
    found: list[Row] = []
    named = [("", facts.record), *((r.name, r.samples) for r in facts.standing.finals.regimes)]
    for name, samples in named:
        if samples is None:
            continue
        label = f" at the end, {name}" if name else ""
        sensors = telemetry.summary(samples, "candidate") or samples.telemetry
        found += [
            ("method", f"{samples.method}{label}" if samples.method else ""),
            ("sensors", f"{words.one_line(sensors)}{label}" if sensors else ""),
        ]
        dropped = dict.fromkeys(words.one_line(text) for text in samples.dropped)
        found += [("repeated", f"{text}{label}") for text in list(dropped)[:_DROPPED]]
    return found


def _source(facts: Facts, best: Iteration) -> str:
    """The artifact that is the kernel itself, and no generated source."""
    stem = facts.layout.keyed("srcs", best.name)
    named = facts.layout.task.dsl
    suffixes = {"c": ".c", "croqtile": ".co", "cuda": ".cu"}
    return f"{stem}{suffixes.get(named, '')}"


def _present(facts: Facts, relative: str) -> str:
    """The path, and a word when it is not there."""
    if (facts.root / Path(relative)).is_file():
        return relative
    return f"{relative} (missing; 'croq-fsm rebuild' writes it again)"
