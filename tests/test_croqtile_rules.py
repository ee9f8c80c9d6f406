"""Rules of ``.co`` kernels before any compile: each fires where it must, and only there."""

from __future__ import annotations

import pytest
from croqtile_support import shipped
from ideator_contract import candidate_of
from rules_croqtile_support import COMPILED, context

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.ideas import Replace
from croq_fsm.domain.source import set_macros
from croq_fsm.domain.task import Task
from croq_fsm.ideators.rules.croqtile import CroqtileMoves
from croq_fsm.ideators.rules.croqtile_config import Gemm
from croq_fsm.ideators.rules.croqtile_render import render
from croq_fsm.toolchain import croqtile_rules
from croq_fsm.toolchain.croqtile_lint import lint

MAIN = (4096, 8192, 4096)


def task(shape: tuple[int, ...] = MAIN, dtype: str = "f16") -> Task:
    """A matmul task."""
    return Task(dsl="croqtile", operator="matmul", dtype=dtype, shape=shape, kernel="", model="x")


def found(
    source: str,
    *,
    shape: tuple[int, ...] = MAIN,
    flags: tuple[str, ...] = (),
    patch: str = "",
    **macros: str,
) -> str:
    """Findings on a source, one a line."""
    patches = (Replace(search="x", replace=patch),) if patch else ()
    candidate = Candidate(source=set_macros(source, macros), flags=flags, patches=patches)
    return "\n".join(lint(candidate, task(shape)))


def changed(source: str, old: str, new: str) -> str:
    """The source with a text replaced that must be there."""
    assert old in source
    return source.replace(old, new)


PLAIN, SPECIALISED = shipped("f16_plain"), shipped("f16_warpspec")
LOWER = changed(PLAIN, "128 : thread", "64 : thread")
WIDE = changed(PLAIN, "TILE_N", "WIDE_N")
ONE_PER_SM = "__launch_bounds__(384, 1)"
SMALL = set_macros(PLAIN, {"TILE_N": "64", "TILE_M": "64", "STAGES": "2", "CONSUMERS": "1"})

#: Rule → a text that breaks it, what is said, and an honest twin as near to it as can be.
CASES: dict[str, tuple[str, str, str]] = {
    "shared-memory": (
        found(PLAIN, STAGES="4"),
        "shared tiles need 262144 bytes; a block has 231424",
        found(PLAIN, STAGES="4", TILE_N="128"),
    ),
    "registers": (
        found(PLAIN, CONSUMERS="3", TILE_M="192", STAGES="2"),
        "one accumulator takes 128 registers of a thread; with 512 threads a thread has 128",
        found(PLAIN, CONSUMERS="3", TILE_M="192", STAGES="2", TILE_N="160"),
    ),
    "wgmma-n": (
        found(PLAIN, TILE_N="156"),
        "WGMMA N is 156",
        found(PLAIN, TILE_N="160"),
    ),
    "wgmma-m": (
        found(changed(PLAIN, "lhs_s[slot].subspan(64,", "lhs_s[slot].subspan(32,")),
        "has 32 rows; it must have 64",
        found(PLAIN),
    ),
    "wgmma-k": (
        found(changed(PLAIN, "swiz<128>", "swiz<32>"), TILE_K="40"),
        "an operand is 40 deep; it must be a multiple of 16 elements",
        found(changed(PLAIN, "swiz<128>", "swiz<32>"), TILE_K="48"),
    ),
    "swizzle": (
        found(PLAIN, TILE_K="32"),
        "rows of 64 bytes are no multiple of the 128 bytes of swiz<128>",
        found(changed(PLAIN, "swiz<128>", "swiz<64>"), TILE_K="32"),
    ),
    "copy-box": (
        found(PLAIN, TILE_M="320", CONSUMERS="5", TILE_N="64"),
        "has 320 rows; a copy moves at most 256",
        found(PLAIN, TILE_M="256", CONSUMERS="4", TILE_N="64"),
    ),
    "copy-shape": (
        found(changed(PLAIN, "f16 [TILE_M, TILE_N] out_s", "f16 [TILE_M, TILE_N + 8] out_s")),
        "a copy goes between 128x264 and 128x256 elements",
        found(PLAIN),
    ),
    "threads": (
        found(PLAIN, CONSUMERS="8", TILE_M="512", TILE_N="8", STAGES="2"),
        "a block would have 1152 threads",
        found(PLAIN, CONSUMERS="4", TILE_M="256", TILE_N="8", STAGES="2"),
    ),
    "ring": (
        found(changed(PLAIN, "empty[STAGES] = ready", "empty[STAGES + 1] = ready")),
        "event empty has 4 generations in flight for 3 slots",
        found(changed(PLAIN, "full[STAGES]", "full[STAGES + 1]")),
    ),
    "setmaxnreg": (
        found(changed(SPECIALISED, "call croq::cuda::setreg_dec(PRODUCER_REGS);", "")),
        "setreg_inc waits for registers that nobody gives",
        found(SPECIALISED),
    ),
    "resident-blocks": (
        found(PLAIN, patch="__launch_bounds__(384, 2)"),
        "2 blocks of 384 threads leave 85 registers to each; one accumulator takes 128",
        found(SMALL, patch="__launch_bounds__(256, 2)"),
    ),
    "register-cap": (
        found(PLAIN, flags=("nvcc:-maxrregcount=128",)),
        "128 registers at most, but one accumulator takes 128",
        found(PLAIN, flags=("nvcc:-maxrregcount=160",)),
    ),
    "remainder": (
        found(changed(PLAIN, "[cdiv(K, TILE_K)]", "[K / TILE_K]"), shape=(4096, 8192, 4104)),
        "`K / TILE_K` leaves out the last 8 of 4104; write cdiv(K, TILE_K)",
        found(changed(PLAIN, "[cdiv(K, TILE_K)]", "[K / TILE_K]")),
    ),
    "named-barrier": (
        found(changed(SPECIALISED, "__bar_sync(9,", "__bar_sync(16,")),
        "barrier 16 does not exist",
        found(changed(SPECIALISED, "__bar_sync(9,", "__bar_sync(15,")),
    ),
    "transposed-store": (
        found(changed(PLAIN, "mma.store acc", "mma.store.transp acc")),
        "mma.store.transp writes 256x64 elements into a tile of 64x256",
        found(changed(PLAIN, "mma.store acc", "mma.store.transp acc"), TILE_N="64"),
    ),
    "H1": (
        found(PLAIN, TILE_M="256", TILE_N="64"),
        "2 consumer(s) write 128 of the 256 rows",
        found(PLAIN, TILE_M="256", TILE_N="64", CONSUMERS="4"),
    ),
    "H2": (
        found(
            changed(
                PLAIN,
                "wait op;\n          trigger empty.at(k);",
                "trigger empty.at(k);\n          wait op;",
            )
        ),
        "`trigger empty.at(k);` gives a stage back while `op` may still read it",
        found(
            changed(
                PLAIN,
                "wait op;\n          trigger empty.at(k);",
                "trigger empty.at(k - 1);\n          wait op;",
            )
        ),
    ),
    "H3": (
        found(changed(SPECIALISED, "__bar_sync(9, CONSUMERS * 128);", ""), shape=(4096, 8192, 128)),
        "with 2 steps per tile and 4 stages nothing keeps a consumer from writing out_s",
        found(SPECIALISED, shape=(4096, 8192, 128)),
    ),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_rule_fires_and_its_honest_twin_passes(name: str) -> None:
    """A broken rule is told by name, in words that help; the nearest legal kernel is let pass."""
    broken, says, honest = CASES[name]
    lines = [line for line in broken.splitlines() if line.startswith(f"{name}: ")]
    assert any(says in line for line in lines), broken
    assert honest == ""


def test_each_rule_has_a_case() -> None:
    """No rule is without a kernel that breaks it."""
    assert {rule.name for rule in croqtile_rules.RULES} <= set(CASES)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (found(changed(PLAIN, "swiz<128>", "swiz<96>")), "swiz<96> does not exist"),
        (found(LOWER), "a warpgroup is given 64 threads; it has 128"),
        (
            found(changed(PLAIN, "rhs_s[STAGES]", "rhs_s[STAGES - 1]")),
            "slots go up to 2, but rhs_s has 2 of them",
        ),
        (
            found(
                changed(SPECIALISED, "inthreads.async (wg == 0) {", "inthreads.async (t == 0) {")
            ),
            "setreg_dec must be reached by a whole warpgroup, not by (t == 0)",
        ),
        (found(SMALL, patch="__launch_bounds__(1024, 3)"), "3 blocks of 1024 threads"),
        (
            found(PLAIN, patch="__launch_bounds__(384, 2)"),
            "2 blocks per SM have 115712 bytes of shared memory each, not 212992",
        ),
        (
            found(render(COMPILED["registers"]), patch="__launch_bounds__(384, 2)"),
            "setmaxnreg with more than one block per SM deadlocks",
        ),
        (
            found(changed(SPECIALISED, "CONSUMERS * 128)", "CONSUMERS * 200)")),
            "a barrier for 400 threads; it must be a multiple of 32",
        ),
        (
            found(changed(SPECIALISED, "CONSUMERS * 128)", "CONSUMERS * 256)")),
            "a barrier waits for 512 threads; the block has 384",
        ),
        (
            found(
                changed(PLAIN, "cdiv(M, TILE_M), cdiv(N, TILE_N)", "M / TILE_M, N / TILE_N"),
                shape=(4100, 8192, 4096),
            ),
            "`M / TILE_M` leaves out the last 4 of 4100",
        ),
        (
            found(
                changed(
                    PLAIN,
                    "rhs_s[slot];\n          //",
                    "rhs_s[slot].subspan(TILE_N, 32).at(0, 0);\n          //",
                )
            ),
            "operands are 64 and 32 deep; they must have the same K",
        ),
        (found(PLAIN, TILE_N="264", STAGES="1"), "a copy is 264 elements wide"),
        (found(PLAIN, patch=ONE_PER_SM), ""),
    ],
)
def test_other_findings_of_the_rules(text: str, says: str) -> None:
    """The further cases that a rule knows are told apart."""
    assert says in text
    assert says or text == ""


#: With remainders, few tiles, short and long sums; all but the first run with the slow tests.
FAMILY = [
    pytest.param(shape, marks=[pytest.mark.slow] if number else [], id="x".join(map(str, shape)))
    for number, shape in enumerate(
        [(4104, 8200, 4160), MAIN, (1024, 1024, 1024), (16384, 512, 16384), (128, 256, 64)]
    )
]
BASES = [
    pytest.param(None, id="start kernel"),
    pytest.param(Gemm(element="bf16"), id="bf16", marks=pytest.mark.slow),
    pytest.param(Gemm(ctas=132, registers=(40, 232)), id="persistent", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("shape", FAMILY)
@pytest.mark.parametrize("base", BASES)
def test_nothing_that_the_rules_propose_is_refused(
    shape: tuple[int, ...], base: Gemm | None
) -> None:
    """Every kernel that the rule ideator can come to from a base passes all lints."""
    dtype = base.element if base else "f16"
    given = context(source=render(base) if base else None, dtype=dtype, shape=shape)
    asked, count = task(shape, dtype), 0
    for proposal in CroqtileMoves().proposals(given):
        assert lint(candidate_of(proposal, given), asked) == [], proposal.summary
        count += 1
    assert count > 100
