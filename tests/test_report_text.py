"""The report: every section, only numbers of the database, and what has to be marked."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from croq_fsm.config import load
from croq_fsm.domain.states import Category, Decision
from croq_fsm.errors import EnvironmentMissing
from croq_fsm.report import facts, gains, text, words
from croq_fsm.report.facts import Facts
from croq_fsm.storage.inspection import archive
from support.bench import TASK, Bench
from support.scripted import ScriptedIdeator, proposal

SECTIONS = [
    "RESULT",
    "WHY IT ENDED",
    "WHAT TO DO NEXT",
    "WHAT WAS ASKED",
    "HOW IT WAS MEASURED",
    "ROUNDS",
    "FAILED ATTEMPTS",
    "PROFILES",
    "WHAT GAVE WHAT",
    "FILES",
    "HOW TO REPRODUCE",
]


def night(tmp_path: Path, **changes: object) -> Bench:
    """A gain, a loss, a compile failure, a gain."""
    broken = {"edit": {"kind": "whole_source", "source": "#define NO_COMPILE 0\nint a;\n"}}
    ideator = ScriptedIdeator(
        [
            {"TIME_US": "800"},
            {"TIME_US": "950"},
            lambda c: proposal(c.base.iteration, {}, tag="broken", **broken),
            lambda c: proposal(
                c.base.iteration, {"TIME_US": "500"}, "memory", flags=("-O3",),
                category=Category.MEMORY, levers=("unroll",),
            ),
        ]
    )  # fmt: skip
    task = TASK.model_copy(update={"rounds": 4, **changes})
    bench = Bench(tmp_path, ideator, task=task)
    bench.run()
    return bench


def read(bench: Bench) -> Facts:
    """The facts of the bench's session."""
    with archive(bench.root.database) as opened, opened.look() as inspector:
        session = inspector.session(bench.session_id)
        return facts.read(inspector, session, bench.root, bench.clock.now())


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, Facts, str]:
    """One night, its facts and its report."""
    bench = night(tmp_path_factory.mktemp("night"))
    found = read(bench)
    bench.close()
    return bench, found, text.render(found)


def section(report: str, heading: str) -> str:
    """Text of one section."""
    return re.split(r"\n\n(?=[A-Z][A-Z ]+\n)", report.split(f"\n{heading}\n")[1])[0]


def test_all_sections_in_order(told: tuple[Bench, Facts, str]) -> None:
    """The result comes first, then why and what next, then the details."""
    report = told[2]
    headings = [line for line in report.splitlines() if re.fullmatch(r"[A-Z][A-Z ]+", line)]
    assert headings == SECTIONS
    assert report.startswith(f"croq-fsm report: session {told[0].session_id}\n====")
    assert not [line for line in report.splitlines() if line != line.rstrip()]


def test_the_result_is_that_of_the_database(told: tuple[Bench, Facts, str]) -> None:
    """Best, start and library with their rates; ratio, interval, confirmation, verification."""
    bench, found, report = told
    best, result = found.best, section(report, "RESULT")
    assert best is not None
    assert best.name == "iter004_memory"
    places = words.decimals(found.standing.library_tflops)
    assert f" {bench.task.tflops(best.seconds):.{places}f} TFLOPS" in result
    assert re.search(r"best +iter004_memory +0\.\d+ TFLOPS +\d+\.?\d* us", result)
    assert re.search(r"to library +0\.\d+x \(times of one measurement\); in 18 pairs", result)
    assert re.search(r"to start +[12]\.\d+x .* the ratios of 2 confirmed gains multiply", result)
    assert re.search(r"confirmed +1\.\d+x \[.*18 pairs, in a fresh process", result)
    assert re.search(
        r"(\d) of \1 checks of the whole output passed, largest relative error 1.00e-07", result
    )
    assert "4: 2 KEEP, 1 DISCARD, 1 COMPILE_FAIL" in result


def test_rounds_attempts_profiles_and_gains(told: tuple[Bench, Facts, str]) -> None:
    """Each round with kernel, decision, numbers, idea and reason; each failure with its message."""
    _, found, report = told
    rounds = section(report, "ROUNDS")
    for record in found.rounds:
        assert re.search(
            rf"^ +{record.round}  {record.decision.name} .*{record.kernel}$", rounds, re.MULTILINE
        )
    assert rounds.count("idea: ") == rounds.count("why:  ") == len(found.rounds)
    attempts = section(report, "FAILED ATTEMPTS")
    assert "round 3 attempt 1  COMPILE_FAIL  attemptAAAA_broken" in attempts
    assert "error: NO_COMPILE is set" in attempts
    profiles = section(report, "PROFILES")
    assert "iter001_draft: compute_bound, confidence high, by scripted" in profiles
    assert "iter004_memory: not profiled" in profiles
    assert re.search(r"memory +1 +1 +\+\d+\.\d %", report)
    assert re.search(r"unroll +1 +1 ", report)


def test_it_says_why_and_what_next_and_where(told: tuple[Bench, Facts, str]) -> None:
    """Reason, commands, existing files, the commit of the best kernel."""
    bench, found, report = told
    assert "DONE: budget of 4 rounds is used" in section(report, "WHY IT ENDED")
    advice = section(report, "WHAT TO DO NEXT")
    assert f"croq-fsm run-iter {bench.session_id} iter004" in advice
    assert "the last round was still a gain" in advice
    listed = section(report, "FILES")
    kernel = re.search(r"best kernel +(\S+)", listed)
    assert kernel is not None
    assert (
        (bench.root.path / kernel[1]).read_text(encoding="utf-8").startswith("#define TIME_US 500")
    )
    assert found.commit in listed
    assert "missing" not in listed
    assert f"show {found.commit}" in section(report, "HOW TO REPRODUCE")


def test_every_decimal_is_stored_or_computed_from_what_is(
    told: tuple[Bench, Facts, str],
) -> None:
    """Decimals in the report belong to values that the database holds or that follow from them."""
    _, found, report = told
    session, task = found.session, found.session.task
    numbers: set[float] = {session.noise or 0.0, 100 * (session.noise or 0.0), 1.005}
    for it in found.iterations.values():
        numbers |= {it.seconds, it.seconds * 1e3, it.seconds * 1e6, task.tflops(it.seconds)}
        for library in (it.library_seconds, session.library_seconds):
            numbers |= {library / it.seconds, it.seconds / library} if library else set()
        for other in found.iterations.values():
            numbers.add(it.seconds / other.seconds)
        if it.estimate:
            numbers |= {it.estimate.ratio, it.estimate.low, it.estimate.high}
    ratio = found.against_library()
    assert ratio is not None
    numbers |= {ratio.ratio, ratio.low, ratio.high}
    for group in (gains.by_category, gains.by_lever):
        for gain in group(found.rounds):
            numbers |= {gain.gain, 100 * (gain.gain - 1), gain.seconds, gain.seconds / 60}
    numbers.add(gains.product(found.rounds))
    for regime in found.standing.finals.regimes:
        for last in (regime.to_library, regime.to_start):
            assert last is not None
            numbers |= {last.ratio, last.low, last.high}
        numbers |= {TASK.tflops(seconds) for seconds in regime.seconds.values()}
    numbers |= {r.wall_s for r in found.rounds}
    body = report.split("\nHOW TO REPRODUCE\n")[0]
    for reason in (*(r.reason for r in found.rounds), "croq-fsm 0.1.0", "1.00e-07"):
        body = " ".join(body.split()).replace(" ".join(reason.split()), "")
    shown = re.findall(r"(?<![\w.])\d+\.\d+(?=x|[^\w.]|$)", body)
    assert len(shown) > 40
    unknown = [
        n
        for n in shown
        if not any(f"{abs(v):.{len(n.split('.')[1])}f}" == n for v in numbers)
        and not any(f"{abs(v):.4g}" == n for v in numbers)
    ]
    assert unknown == []


def test_self_reported_results_are_marked(told: tuple[Bench, Facts, str]) -> None:
    """A number from the kernel's own host program never looks like one of ours."""
    found = told[1]
    doubted = {n: replace(it, self_reported=n == 2) for n, it in found.iterations.items()}
    report = text.render(replace(found, iterations=doubted))
    assert "SELF-REPORTED: marked results" in report
    assert [r for r in section(report, "ROUNDS").splitlines() if "[self-reported]" in r] == [
        r for r in section(report, "ROUNDS").splitlines() if "iter002_" in r
    ]


def test_simulated_and_degraded_are_marked(tmp_path: Path) -> None:
    """No number of a model, and no class from timing alone, looks like any other."""
    bench = Bench(
        tmp_path,
        ScriptedIdeator([{"TIME_US": "800"}]),
        task=TASK.model_copy(update={"rounds": 1, "simulated": True}),
        config=load(None, {"profiling.when_unavailable": "degrade"}),
    )

    def no_counters(*_: object, **__: object) -> object:
        raise EnvironmentMissing("no permission to read counters")

    bench.workbench.profile = no_counters  # type: ignore[method-assign,assignment]
    ideator = bench.ideator
    ideator.script = [lambda c: proposal(c.base.iteration, {"TIME_US": "800"})]
    bench.run()
    report = text.render(read(bench))
    bench.close()
    assert "SIMULATED: every number below comes from a model and is no measurement." in report
    assert "DEGRADED: 1 of the 1 profile taken rest on timing alone" in report
    assert "by timing only DEGRADED" in report
    assert "let the profiler read its counters" in report
    assert report.count("[simulated]") >= 4


def test_a_session_that_measured_nothing(tmp_path: Path) -> None:
    """A failure in BASELINE gives a report with the reason and what to do."""
    bench = Bench(tmp_path, ScriptedIdeator([]), source="#define WRONG 1\n#define TIME_US 9\n")
    bench.run()
    report = text.render(read(bench))
    bench.close()
    assert "nothing was measured" in section(report, "RESULT")
    assert "FAILED: the start kernel computes wrong results" in section(report, "WHY IT ENDED")
    assert "mend the kernel and start again" in section(report, "WHAT TO DO NEXT")


def test_gains_multiply_ratios_of_keeps_only(told: tuple[Bench, Facts, str]) -> None:
    """Discarded ratios never count as gain, whatever they were."""
    rounds = told[1].rounds
    kept = [r.ratio for r in rounds if r.decision is Decision.KEEP]
    product = 1.0
    for ratio in kept:
        product *= ratio or 1.0
    assert gains.product(rounds) == pytest.approx(product)
    table = {g.name: g for g in gains.by_category(rounds)}
    assert table["memory"].kept == 1
    assert table["compute"].rounds == 3
    assert sum(g.seconds for g in table.values()) == pytest.approx(sum(r.wall_s for r in rounds))
