"""Every rule of the protocol fires, alone, and says what to do instead."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from ideator_contract import make_profile
from pydantic import ValidationError
from test_layers import _importers

from croq_fsm.domain import guards
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.guards import Facts, refusals
from croq_fsm.domain.ideas import Proposal, Replace
from croq_fsm.domain.states import Bottleneck, Decision
from croq_fsm.ideators.contract import Context
from support.bench import Bench
from support.rules import part, proofs, proves
from support.scripted import ScriptedIdeator, proposal

_BASE = Candidate(
    source=(
        "#define TILE 8\n#define MM_DEFAULT_M 4096\n"
        "void matmul(void) { for (;;) break; }\n"
        'int main() { if (1) verify("}"); return 0; }\n'
    )
)
_HYPOTHESIS = "ipc is 1.1, so most cycles issue nothing"


def facts(source: str | None = None, **changes: object) -> Facts:
    """Facts about a structural change that every guard admits, with these changes."""
    text = _BASE.source.replace("for (;;) break;", "for (int i = 0; i < 1; ++i) {}")
    proposed = proposal(3, {}, hypothesis=_HYPOTHESIS, metrics=("ipc",), research_basis="")
    return replace(
        Facts(
            proposal=proposed,
            candidate=Candidate(source=text if source is None else source),
            base=_BASE,
            active_bases=(3, 1),
            profile=make_profile(),
            macro_run=0,
            macro_limit=2,
            is_tried=lambda _key: False,
            has_fingerprint=lambda _key: False,
        ),
        **changes,  # type: ignore[arg-type]
    )


def proposed(**changes: object) -> Proposal:
    """The admitted proposal with changes."""
    return facts().proposal.model_copy(update=changes)


def only(found: list[str], guard: str, advice: str) -> None:
    """Exactly one guard refuses, so nothing else would have; its reason holds the advice."""
    assert len(found) == 1, found
    assert found[0].startswith(f"{guard}: ")
    assert advice in found[0]


def test_an_honest_idea_is_admitted() -> None:
    """What the other tests change is what they are refused for."""
    assert refusals(facts()) == []


@proves("rule 1", "no profile")
def test_no_idea_without_a_profile() -> None:
    """Profiling cannot be skipped."""
    only(refusals(facts(profile=None)), "profiled_first", "profile the base before")


@proves("rule 1", "unknown class")
def test_there_is_no_unknown_bottleneck() -> None:
    """A profile's class is one of five; nothing else can be said or stored."""
    assert {str(b).removesuffix("_bound") for b in Bottleneck} == {
        *("memory", "compute", "latency", "launch", "mixed")
    }
    values = make_profile().model_dump() | {"bottleneck": "unknown"}
    with pytest.raises(ValidationError):
        type(make_profile()).model_validate(values)


@proves("rule 2", "other base")
def test_no_idea_on_another_base() -> None:
    """A kernel that is not an active base is no base."""
    found = refusals(facts(proposal=proposed(base=2)))
    only(
        found, "from_active_base", "derive the idea from one of the active bases: iter003, iter001"
    )


@proves("rule 3", "macros only")
def test_no_third_macro_only_round() -> None:
    """After two macro-only rounds values of macros alone are refused, structure is not."""
    text = _BASE.source.replace("TILE 8", "TILE 16")
    assert refusals(facts(text, macro_run=1)) == []
    only(refusals(facts(text, macro_run=2)), "structural_when_due", "change the structure now")
    assert refusals(facts(macro_run=2)) == []


@proves("rule 4", "repetition")
def test_no_source_twice() -> None:
    """What was tried, in whatever layout or with other comments, is refused."""
    tried = guards.identity(facts().candidate)
    text = "/* new */\n" + facts().candidate.source.replace("++i) {}", "++i)  {\n}")
    found = refusals(facts(text, is_tried=lambda key: key == tried))
    only(found, "not_repeated", "propose another combination")


@proves("rule 4", "repetition")
def test_no_combination_twice() -> None:
    """A fingerprint that was taken is refused."""
    taken = guards.fingerprint(facts().candidate, _BASE)
    found = refusals(facts(has_fingerprint=lambda key: key == taken))
    only(found, "not_repeated", "propose another one")


@proves("rule 4", "repetition")
def test_the_base_itself_is_no_idea() -> None:
    """A change that no compiler sees is none."""
    found = refusals(facts("// faster\n" + _BASE.source))
    only(found, "not_repeated", "equals its base")


@proves("rule 5")
def test_five_attempts_and_no_sixth(tmp_path: Path) -> None:
    """An idea whose repairs keep failing is given up after the fifth attempt, and that is said."""

    def broken(context: Context) -> Proposal:
        return proposal(context.base.iteration, {"TIME_US": "900", "STYLE": "1"}, tag="broken")

    ideator = ScriptedIdeator([broken], repairs=[{"STYLE": str(n)} for n in range(2, 20)])
    bench = Bench(tmp_path, ideator)
    bench.workbench.lint = _only_style_zero  # type: ignore[method-assign]
    bench.run()
    with bench.repository.read() as reader:
        rounds = reader.recent_rounds(bench.session_id, 9)
        attempts = reader.attempts_of_round(bench.session_id, 1)
    bench.close()
    assert [(r.decision, r.attempts) for r in rounds] == [(Decision.COMPILE_FAIL, 5)]
    assert len(attempts) == 5
    assert len(ideator.repairs) == 18 - 4
    assert guards.attempts_left(4, 5) is None
    assert "propose a different one" in (guards.attempts_left(5, 5) or "")


def _only_style_zero(candidate: Candidate, task: object) -> list[str]:
    return [] if "STYLE 0" in candidate.source else ["no style but 0 will do"]


@proves("rule 6")
@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"metrics": ()}, "name those it rests on, of: flops"),
        ({"metrics": ("ipc", "sm.busy")}, "the profile has no metric sm.busy; it has: flops"),
        ({"hypothesis": "it is too slow as it is"}, "does not mention ipc"),
    ],
)
def test_no_idea_without_measured_grounds(changes: dict[str, object], advice: str) -> None:
    """A hypothesis names metrics that were measured, and says what they tell."""
    only(refusals(facts(proposal=proposed(**changes))), "understood", advice)


@proves("rule 7", "command line")
@pytest.mark.parametrize("summary", ["nvcc -O3 kernel.cu", "-O3 -ffast-math", "/usr/bin/cc -c x"])
def test_no_command_line_as_a_summary(summary: str) -> None:
    """A summary is made of words."""
    found = refusals(facts(proposal=proposed(summary=summary)))
    only(found, "summary_in_words", "describe in words")


@proves("rule 7")
def test_a_commit_says_what_why_result_and_decision(tmp_path: Path) -> None:
    """The message of a KEEP has all four, from the records and not from the ideator."""
    bench = Bench(tmp_path, ScriptedIdeator([{"TIME_US": "500"}]))
    bench.run()
    bench.close()
    git = ["git", "-C", str(bench.root.path), "log", "-1", "--format=%B"]
    last = subprocess.run(git, check=True, capture_output=True, text=True).stdout
    assert re.search(r"^What: .+\nWhy: .+\nResult: .+\nDecision: KEEP$", last, re.MULTILINE)


@proves("rule 8", "own records")
def test_ideators_start_nothing_and_write_no_records() -> None:
    """No ideator and no state imports what starts children or writes the database."""
    for means in ("subprocess", "sqlalchemy", "croq_fsm.storage.repository"):
        assert _importers(means, "croq_fsm/ideators", "states") == set()


@proves("rule 9")
def test_iteration_numbers_grow_by_one(tmp_path: Path) -> None:
    """Numbers are given out in order, none twice and none for an idea that was never timed."""
    script: list[object] = [{"TIME_US": "900"}, {"TIME_US": "950"}]
    for tag, line in (("broken", "NO_COMPILE"), ("wrong", "WRONG"), ("fine", "FINE")):
        text = f"#define {line} 1\n"
        script.append(
            lambda c, tag=tag, text=text: proposal(
                c.base.iteration,
                {},
                tag=tag,
                edit={"kind": "whole_source", "source": text + c.base.candidate.source},
            )
        )
    bench = Bench(tmp_path, ScriptedIdeator(script))
    bench.run()
    with bench.repository.read() as reader:
        rounds = reader.recent_rounds(bench.session_id, 9)
    bench.close()
    assert [r.iteration for r in rounds] == [2, 3, None, None, 4]


_SPARSE = (
    "#define SPMM_WARP_M 64\n#define SPMM_WARP_K 32\n#define SPMM_PACKED_TILE_K 64\n"
    "#define SPMM_TILE_K 128\n#define SPMM_META_TILE_COLS 4\nvoid gemm_sp(void) { int a; }\n"
)


@proves("rule 10")
@pytest.mark.parametrize(
    ("old", "new", "advice"),
    [
        ("WARP_M 64", "WARP_M 128", "SPMM_WARP_M is 128 and must be 64"),
        ("WARP_K 32", "WARP_K 16", "SPMM_WARP_K is 16 and must be 32"),
        ("_TILE_K 128", "_TILE_K 64", "SPMM_TILE_K is 64 and must be 128"),
        ("COLS 4", "COLS 8", "SPMM_META_TILE_COLS is 8 and must be 4"),
    ],
)
def test_sparse_kernels_keep_to_their_units(old: str, new: str, advice: str) -> None:
    """What the sparse tensor cores demand cannot be tuned away; other operators are free."""
    sparse = {"operator": "gemm_sp", "dtype": "f16", "base": Candidate(source="int main_;\n")}
    assert refusals(facts(_SPARSE, **sparse)) == []
    text = _SPARSE.replace(old, new)
    assert text != _SPARSE
    only(refusals(facts(text, **sparse)), "sparse_constraints", advice)
    assert refusals(facts(text, **sparse | {"operator": "matmul"})) == []


@proves("rule 10")
def test_sparse_kernels_keep_their_flags() -> None:
    """A flag that sparse kernels need cannot be dropped."""
    base = Candidate(source="int a;\n", flags=("--use-prepack",))
    found = refusals(facts(_SPARSE, operator="gemm_sp", dtype="f16", base=base))
    only(found, "sparse_constraints", "--use-prepack of the base is missing")


@proves("library")
@pytest.mark.parametrize(
    "changes",
    [
        {"source": "void matmul(void) { cublasGemmEx(h); }\n"},
        {"source": "void matmul(void) {}\n", "flags": ("-lcublas",)},
        {
            "source": "void matmul(void) {}\n",
            "patches": (Replace(search="a", replace="cublasLtMatmul(h)"),),
        },
    ],
)
def test_no_library_in_source_flags_or_patches(changes: dict[str, object]) -> None:
    """A candidate that calls the reference is no candidate, wherever the call stands."""
    candidate = Candidate.model_validate(changes)
    found = refusals(facts(candidate=candidate, base=Candidate(source="int a;\n")))
    only(found, "no_library", "write the computation itself")


@proves("host part")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('verify("}");', ""),
        ("return 0;", "return 1;"),
        ("int main()", "int verify() { } int main()"),
    ],
)
def test_the_host_part_stays(old: str, new: str) -> None:
    """Changing, adding or removing a host function is refused; its layout is free."""
    text = facts().candidate.source
    assert old in text
    only(refusals(facts(text.replace(old, new))), "host_untouched", "change the kernel only")
    assert refusals(facts(text.replace("return 0;", "return /* well */  0;"))) == []


@proves("shape")
@pytest.mark.parametrize(
    "changes",
    [
        {"source": facts().candidate.source.replace("4096", "64")},
        {"source": facts().candidate.source, "flags": ("-DMM_DEFAULT_M=64",)},
    ],
)
def test_the_problem_size_stays(changes: dict[str, object]) -> None:
    """A smaller problem is no faster kernel, by macro or by flag."""
    found = refusals(facts(candidate=Candidate.model_validate(changes)))
    only(found, "shape_untouched", "MM_DEFAULT_M")


@proves("verification")
def test_checking_stays_on() -> None:
    """A switch that turns checking or timing off cannot come in; one that was there may stay."""
    text = facts().candidate.source + "int skip_verify = 1;\n"
    only(refusals(facts(text)), "verification_untouched", "skip_verify switches checking")
    had = Candidate(source="int skip_verify = 0;\n" + _BASE.source)
    assert refusals(facts("int skip_verify = 0;\n" + facts().candidate.source, base=had)) == []


@proves("made-up numbers")
@pytest.mark.parametrize("gain", [1e9, -1.0])
def test_no_boundless_expectation(gain: float) -> None:
    """An expectation is a fraction that a change can give."""
    only(refusals(facts(proposal=proposed(expected_gain=gain))), "modest", "measured by the engine")


@proves("made-up numbers")
@pytest.mark.parametrize(
    "values", [{"tflops": 400.0}, {"decision": "KEEP"}, {"expected_gain": float("nan")}]
)
def test_a_proposal_has_no_place_for_numbers_of_record(values: dict[str, object]) -> None:
    """A result, a decision or something that is no number cannot be put into a proposal."""
    with pytest.raises(ValidationError):
        Proposal.model_validate(facts().proposal.model_dump() | values)


@proves("research")
def test_research_has_a_basis() -> None:
    """From the research level on an idea says what it was looked up in; before, it need not."""
    assert refusals(facts(escalation=1)) == []
    only(refusals(facts(escalation=2)), "researched", "say in research_basis")
    found = proposed(research_basis="the toolkit's guide: wide loads hide latency")
    assert refusals(facts(escalation=2, proposal=found)) == []


def test_every_rule_has_a_proof_and_every_guard_a_rule() -> None:
    """No rule is without a test, no guard without a rule, and no mark without a rule."""
    assert set(proofs()) == {rule.key for rule in guards.RULES}
    named = {holder for rule in guards.RULES for holder in rule.holders}
    assert {guard.__name__ for guard in guards.GUARDS} <= named
    assert {f"rule {n}" for n in range(1, 11)} <= {rule.key for rule in guards.RULES}


def test_the_page_of_the_ideators_is_in_step() -> None:
    """docs/ideators.md holds the settings, rules, guards and tests as they are now."""
    page = Path(__file__).resolve().parent.parent / "docs" / "ideators.md"
    assert part() in page.read_text(encoding="utf-8"), "run scripts/write_docs.py --rules"
