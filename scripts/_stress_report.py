"""Summary, analysis and plots of a stress test, from the results of its sessions alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any, Final

Result = dict[str, Any]

_COLUMNS: Final = (
    "variant", "sessions", "reached_target", "rounds", "violations", "problems", "keeps",
    "false_keeps", "attempts", "crashes", "kills",
)  # fmt: skip
_NOT_RUN_INTO: Final = {
    "no_profiled_first": (
        "cannot be run into: the machine has no way to IDEATE but through PROFILE, and IDEATE "
        "stops without a profile of its round"
    ),
    "no_sparse_constraints": "not tried: the simulator has no sparse kernels",
    "no_from_active_base": (
        "held twice: an edit of a base that is not active is refused before the guard is asked"
    ),
}


def write(folder: Path, results: list[Result], config: Result) -> None:
    """All outputs; a function of the results, whatever their order."""
    results = sorted(results, key=lambda r: (r["variant"], r["dsl"], r["agent"]))
    order = [v for v in config["variants"] if any(r["variant"] == v for r in results)]
    rows = [_row(v, [r for r in results if r["variant"] == v]) for v in order]
    summary = {"variants": rows, "sessions": results}
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    lines = ["\t".join(_COLUMNS)]
    lines += ["\t".join(str(row[name]) for name in _COLUMNS) for row in rows]
    (folder / "summary.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "analysis.md").write_text(analysis(rows, results, config), encoding="utf-8")
    plots = folder / "plots"
    plots.mkdir(exist_ok=True)
    reached = [(r["variant"], 100 * r["reached_target"] / r["sessions"]) for r in rows]
    (plots / "reached.svg").write_text(
        bars("Sessions that reached their target, %", reached), encoding="utf-8"
    )
    lived = [(r["variant"], r["rounds"]) for r in rows]
    (plots / "rounds.svg").write_text(
        bars("Rounds until the end or the first violation found, mean", lived), encoding="utf-8"
    )


def _row(variant: str, results: list[Result]) -> Result:
    crashes = _summed(r["crashes"] for r in results)
    return {
        "variant": variant,
        "sessions": len(results),
        "reached_target": sum(r["reached_target"] for r in results),
        "rounds": round(mean(r["rounds"] for r in results), 1),
        "violations": sum(r["violations"] for r in results),
        "violating_sessions": sum(r["violations"] > 0 for r in results),
        "violations_measured": sum(r["violations_measured"] for r in results),
        "violations_kept": sum(r["violations_kept"] for r in results),
        "problems": sum(_problems(r) for r in results),
        "problem_kinds": dict(sorted(_summed(r["validate_problems"] for r in results).items())),
        "keeps": sum(r["keeps"] for r in results),
        "false_keeps": sum(r["false_keeps"] for r in results),
        "attempts": sum(r["attempts_without_number"] for r in results),
        "full_profiles": sum(r["full_profiles"] for r in results),
        "light_profiles": sum(r["light_profiles"] for r in results),
        "profiler_runs": sum(r["profiler_runs"] for r in results),
        "research_rounds": sum(r["research_rounds"] for r in results),
        "iter000": sum(r["iter000"] for r in results),
        "checkpoints": sum(r["checkpoints"] for r in results),
        "crashes": sum(crashes.values()),
        "kills": crashes.get("kill -9", 0),
        "refused": dict(sorted(_summed(r["refused"] for r in results).items())),
        "stops": dict(sorted(Counter(r["stop_reason"] for r in results).items())),
    }


def _problems(result: Result) -> int:
    of_audit: dict[str, int] = result["validate_problems"]
    return len(result["checkpoint_problems"]) + sum(of_audit.values())


def _summed(counts: Iterable[dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return total


def analysis(rows: list[Result], results: list[Result], config: Result) -> str:
    """The result in words and one table."""
    lines = [
        f"# {config['run_name']}",
        "",
        (
            "Real engine, database, files and audit; SIMULATED device, compilers and clock. Agents "
            "break a rule at about every other first ask. A control has one guard switched off and "
            "ends at the checkpoint that finds what came through."
        ),
        "",
        (
            "| variant | sessions | reached target | rounds, mean | violations | measured | "
            "kept | audit problems | crashes survived | of them kill -9 |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['variant']} | {r['sessions']} | {r['reached_target']} | {r['rounds']} | "
        f"{r['violations']} | {r['violations_measured']} | {r['violations_kept']} | "
        f"{r['problems']} | {r['crashes']} | {r['kills']} |"
        for r in rows
    ]
    lines += ["", *_strict(rows), "", "## Controls that let nothing through", ""]
    quiet = [r["variant"] for r in rows if r["variant"] != "strict" and not r["violations"]]
    lines += [f"- {v}: {_NOT_RUN_INTO.get(v, 'not explained: look')}" for v in quiet] or ["- none"]
    lines += ["", "## What the audit found", ""]
    found = [(r["variant"], r["problem_kinds"]) for r in rows if r["problem_kinds"]]
    lines += [f"- {v}: {_listed(kinds)}" for v, kinds in found] or ["- nothing"]
    odd = sorted({text for r in results for text in r["checkpoint_problems"]})
    lines += ["", "## What checkpoints found", "", *([f"- {t}" for t in odd] or ["- nothing"])]
    lines += ["", "## Why sessions ended", ""]
    lines += [f"- {r['variant']}: {_listed(r['stops'])}" for r in rows]
    return "\n".join(lines) + "\n"


def _strict(rows: list[Result]) -> list[str]:
    """What strict did, in sentences."""
    strict = next((r for r in rows if r["variant"] == "strict"), None)
    if strict is None:
        return []
    text = (
        "Strict: {reached_target} of {sessions} sessions reached their target, {violations} "
        "violations, {problems} problems in {checkpoints} checkpoints and {sessions} audits. "
        "{iter000} have an explicit iter000; {attempts} failed attempts own no iteration number; "
        "{full_profiles} rounds rest on a full profile and {light_profiles} on a light one, from "
        "{profiler_runs} runs of the profiler; {research_rounds} rounds with research; {keeps} "
        "KEEPs, of which {false_keeps} are in truth not faster than what they replaced."
    )
    return [text.format(**strict), "", f"Refused: {_listed(strict['refused'])}."]


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counts.items()) or "nothing"


def bars(title: str, values: list[tuple[str, float]]) -> str:
    """A bar chart as SVG."""
    most = max((value for _, value in values), default=1.0) or 1.0
    height = 40 + 22 * len(values)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{height}" '
            'font-family="sans-serif" font-size="13">'
        ),
        f'<text x="8" y="20" font-size="15">{title} (SIMULATED)</text>',
    ]
    for row, (name, value) in enumerate(values):
        y = 34 + 22 * row
        width = 440 * value / most
        colour = "#2a7f4f" if name == "strict" else "#b04a3a"
        parts.append(f'<text x="8" y="{y + 14}">{name}</text>')
        parts.append(f'<rect x="230" y="{y}" width="{width:.1f}" height="16" fill="{colour}"/>')
        parts.append(f'<text x="{236 + width:.1f}" y="{y + 14}">{value:g}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
