"""The files of an export, by name."""

from __future__ import annotations

import json
import shlex

from croq_fsm.domain.records import Iteration
from croq_fsm.domain.shapes import format_shape
from croq_fsm.domain.task import SUFFIXES
from croq_fsm.errors import UsageError
from croq_fsm.exporting import kernel_tuner
from croq_fsm.exporting.trials import Sampled, as_csv, as_json, trials
from croq_fsm.report import text
from croq_fsm.report.facts import Facts


def files(facts: Facts, samples_of: Sampled, generated: str, suffix: str) -> dict[str, str]:
    """Contents by name: kernel, patches, report, script, trials.

    Args:
        facts: The session.
        samples_of: Samples that a transition wrote.
        generated: Generated target source of the best kernel, or "".
        suffix: Its file suffix.

    Raises:
        UsageError: The session has no measured kernel.
    """
    best = facts.standing.best
    if best is None or best.candidate is None or best.build is None:
        raise UsageError(f"session {facts.standing.session.id} has no measured kernel to export")
    found = trials(facts, samples_of)
    kernel = f"{best.name}{SUFFIXES[facts.standing.session.task.dsl]}"
    made = {
        kernel: best.candidate.source,
        "patches.json": _patches(best),
        "report.txt": text.render(facts),
        "reproduce.sh": _script(facts, best, kernel),
        "trials.json": as_json(facts, found),
        "trials.csv": as_csv(found),
        "kernel_tuner_cache.json": kernel_tuner.cache(facts, found),
    }
    if generated and suffix:
        made[f"{best.name}{suffix}"] = generated
    return made


def _patches(best: Iteration) -> str:
    """Flags and edits of the generated code, without which the source is another kernel."""
    candidate = best.candidate
    value = {
        "kernel": best.name,
        "flags": list(candidate.flags) if candidate else [],
        "patches": [p.model_dump() for p in candidate.patches] if candidate else [],
        "build": best.build.model_dump(mode="json") if best.build else None,
    }
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _script(facts: Facts, best: Iteration, kernel: str) -> str:
    """Builds, verifies and times the kernel again: from the database if it is here, else anew."""
    session, task = facts.standing.session, facts.standing.session.task
    build = best.build
    compilers = "".join(f"#   {k}: {v}\n" for k, v in (build.compilers if build else {}).items())
    commands = "".join(f"#   {line}\n" for line in (build.commands if build else ()))
    words = [task.dsl, task.dtype, format_shape(task.shape)]
    again = " ".join(map(shlex.quote, words))
    special = bool(best.candidate and (best.candidate.flags or best.candidate.patches))
    caution = (
        "# This kernel also has flags or patches (patches.json); a new session begins without.\n"
        if special
        else ""
    )
    return (
        "#!/usr/bin/env bash\n"
        f"# {best.name} of session {session.id}, measured on {session.device.name}.\n"
        f"# Built with:\n{compilers}# by:\n{commands}"
        "# Usage: reproduce.sh [ROOT], ROOT a git repository; with the session's database in it\n"
        "# the very build is made again, otherwise a session of one round begins with the source.\n"
        "set -euo pipefail\n"
        'here="$(cd "$(dirname "$0")" && pwd)"\n'
        'root="${1:-$PWD}"\n'
        f'if croq-fsm status {shlex.quote(session.id)} --root "$root" >/dev/null 2>&1; then\n'
        f"  exec croq-fsm run-iter {shlex.quote(session.id)} {shlex.quote(best.name)} "
        '--root "$root"\n'
        "fi\n"
        f"{caution}"
        f'exec croq-fsm start {again} --kernel "$here"/{shlex.quote(kernel)} '
        f'--operator {shlex.quote(task.operator)} --rounds 1 --root "$root"\n'
    )
