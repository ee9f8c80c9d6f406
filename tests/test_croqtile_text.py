"""Reading ``.co`` text, lints and structure."""

from __future__ import annotations

import pytest
from croqtile_support import SHIPPED, shipped, task
from hypothesis import given
from hypothesis import strategies as st

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.ideas import Replace
from croq_fsm.domain.source import set_macros
from croq_fsm.toolchain.croqtile_lint import lint, structure
from croq_fsm.toolchain.croqtile_text import KernelText, evaluate, holds

KERNELS = sorted(p.name for p in SHIPPED.iterdir() if p.name.endswith(".co"))


def lints(source: str, **macros: str) -> str:
    """Findings on a source with some macros changed, as one text."""
    return "\n".join(lint(Candidate(source=set_macros(source, macros)), task()))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("shape", [(4096, 8192, 4096), (8, 8, 8), (1024, 1160, 128)])
def test_no_false_alarm_on_shipped_kernels(name: str, shape: tuple[int, ...]) -> None:
    """The lints say nothing about kernels that are right."""
    source = SHIPPED.joinpath(name).read_text(encoding="utf-8")
    assert lint(Candidate(source=source), task(name.split("_")[1], shape)) == []


@pytest.mark.parametrize("kind", ["plain", "warpspec"])
def test_bf16_twins_differ_in_the_element_type_alone(kind: str) -> None:
    """The bf16 kernels stay in step with the f16 ones."""
    assert shipped(f"f16_{kind}").replace("f16", "bf16") == shipped(f"bf16_{kind}")


@pytest.mark.parametrize(
    ("macros", "says"),
    [
        ({"TILE_N": "260"}, "WGMMA N is 260"),
        ({"TILE_N": "164"}, "WGMMA N is 164"),
        ({"STAGES": "5"}, "shared tiles need"),
        ({"TILE_M": "256", "STAGES": "1"}, "H1: 2 consumer(s) write 128 of the 256 rows"),
        ({"CONSUMERS": "1"}, "H1: 1 consumer(s) write 64 of the 128 rows"),
        ({"CONSUMERS": "3"}, "one accumulator takes 128 registers"),
    ],
)
def test_impossible_macros_are_seen(macros: dict[str, str], says: str) -> None:
    """Hardware limits and coverage are checked on the values of the macros."""
    assert says in lints(shipped("f16_plain"), **macros)


def test_a_legal_change_of_macros_is_let_pass() -> None:
    """A smaller tile with fewer consumers is another legal kernel."""
    assert lints(shipped("f16_plain"), TILE_M="64", CONSUMERS="1", STAGES="4") == ""


def test_register_trade_that_cannot_be_granted_is_seen() -> None:
    """Values of setmaxnreg must be legal and fit the register file."""
    source = shipped("f16_warpspec")
    assert "asks for 70656 registers" in lints(source, CONSUMER_REGS="256")
    assert "setmaxnreg 229 is illegal" in lints(source, CONSUMER_REGS="229")


def test_early_release_of_a_stage_is_seen() -> None:
    """H2 speaks when a stage is given back before the WGMMA that reads it was waited for."""
    source = shipped("f16_plain")
    wait, release = "          wait op;\n", "          trigger empty.at(k);\n"
    early = source.replace(wait + release, release + wait)
    assert early != source
    assert "H2" in lints(early)


def test_release_of_the_previous_stage_is_no_early_release() -> None:
    """A pipeline that gives back an older, drained stage is legal."""
    source = shipped("f16_plain")
    wait, release = "          wait op;\n", "          trigger empty.at(k);\n"
    older = source.replace(wait + release, "          trigger empty.at(k - 1);\n" + wait)
    assert "H2" not in lints(older)


def test_staging_race_of_short_persistent_tiles_is_seen() -> None:
    """H3 speaks only for shapes on which the ring does not order the tiles."""
    source = shipped("f16_warpspec").replace("__bar_sync(9, CONSUMERS * 128);", "")
    assert "H3" in "\n".join(lint(Candidate(source=source), task(shape=(4096, 4096, 128))))
    assert lint(Candidate(source=source), task(shape=(4096, 4096, 4096))) == []


@pytest.mark.parametrize(
    "text",
    [
        "void f() { cudaMallocManaged(0, 0); }",
        "void f() { cudaStreamCreate(0); }",
        "void f() { std::thread t; }",
        "void f() { cublasGemmEx(); }",
        '#include "/etc/passwd"',
        'void f() { asm(".incbin \\"x\\""); }',
        "#pragma GCC plugin",
    ],
)
def test_what_a_kernel_must_not_hold_is_seen_in_source_and_patches(text: str) -> None:
    """Forbidden constructs are found in the source and in patches of the generated code."""
    source = shipped("f16_plain")
    assert "forbidden" in "\n".join(lint(Candidate(source=f"{source}\n{text}\n"), task()))
    patch = Replace(search="x", replace=text)
    assert "forbidden" in "\n".join(lint(Candidate(source=source, patches=(patch,)), task()))


def test_a_forbidden_word_in_a_comment_is_harmless() -> None:
    """Comments are not code."""
    assert lint(Candidate(source=shipped("f16_plain") + "\n// cublasGemmEx\n"), task()) == []


def test_structure_tells_the_kernels_apart() -> None:
    """Tile, topology, schedule and register use are structural features."""
    plain = structure(Candidate(source=shipped("f16_plain")))
    warpspec = structure(Candidate(source=shipped("f16_warpspec")))
    assert plain["tile"] == "128x256x64"
    assert plain["topology"] == warpspec["topology"] == "1p2c"
    assert (plain["schedule"], warpspec["schedule"]) == ("one tile per block", "persistent")
    assert (plain["registers"], warpspec["registers"]) == ("uniform", "reassigned")


def test_structure_ignores_comments_and_stages() -> None:
    """Text and pipeline depth alone make no distinct structure."""
    source = shipped("f16_plain")
    other = set_macros(source, {"STAGES": "2"}) + "// a comment\n"
    assert structure(Candidate(source=source)) == structure(Candidate(source=other))


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_accident(text: str) -> None:
    """Lints and structure never raise, whatever the source is, and say the same again."""
    candidate = Candidate(source=text)
    assert lint(candidate, task()) == lint(candidate, task())
    assert structure(candidate) == structure(candidate)


@given(st.integers(0, 10**6), st.integers(1, 10**4))
def test_expressions_over_macros_are_computed(a: int, b: int) -> None:
    """Macros expand recursively; division is that of integers; cdiv rounds up."""
    defined = {"A": str(a), "B": "(C)", "C": str(b)}
    assert evaluate("A / B + A % B * 2 - 1", defined, {}) == a // b + a % b * 2 - 1
    assert evaluate("cdiv(A, B)", defined, {}) == -(-a // b)
    assert evaluate("A / UNKNOWN", defined, {}) is None


def test_recursive_macros_end() -> None:
    """A macro that names itself is unknown, not endless."""
    assert evaluate("A", {"A": "A + 1"}, {}) is None


def test_predicates_of_other_names_are_ignored() -> None:
    """The warpgroup's part of a condition decides; what cannot be read does not."""
    assert holds("wg == 0 && t == 0", {"wg": 0}, {}) is True
    assert holds("wg > 0", {"wg": 0}, {}) is False
    assert holds("t == 0", {"wg": 0}, {}) is None


def test_tiles_and_stages_are_read() -> None:
    """Shared arrays carry their sizes and their number."""
    tiles = KernelText(shipped("f16_plain")).tiles
    assert tiles["lhs_s"].dims == (128, 64)
    assert tiles["lhs_s"].count == 3
    assert tiles["out_s"].nbytes == 128 * 256 * 2
