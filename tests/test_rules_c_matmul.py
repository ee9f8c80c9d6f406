"""The C matmul family: every member is right, and the moves between them make sense."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
from c_kernels import check, needs_cc
from ideator_contract import PLAIN_MATMUL, make_context, make_profile

from croq_fsm.domain.ideas import SetMacros, WholeSource
from croq_fsm.domain.source import macros, set_macros, structure_hash
from croq_fsm.domain.states import Bottleneck
from croq_fsm.ideators.rules.c import CMoves
from croq_fsm.ideators.rules.c_matmul_family import (
    Config,
    Loops,
    Shape,
    Tiles,
    balanced,
    canonical,
    cost,
    is_feasible,
)
from croq_fsm.ideators.rules.c_matmul_search import neighbourhood
from croq_fsm.ideators.rules.c_matmul_text import recognise, render
from croq_fsm.ideators.rules.c_target import Target, target_of

#: Vectors, single rows and columns, primes, whole tiles, remainders on each side.
ODD_SHAPES = [
    (1, 1, 1),
    (1, 37, 7),
    (5, 1, 9),
    (37, 53, 7),
    (64, 64, 64),
    (65, 130, 33),
    (13, 97, 130),
    (100, 16, 129),
    (71, 71, 71),
]
TARGET = Target(
    vector_bytes=64, widest_bytes=64, registers=32, l1d=48 << 10, l2=1 << 20, l3=32 << 20
)
SHAPE = Shape(m=512, n=512, k=512)


def structures() -> list[Config]:
    """One member of each structure of the family."""
    tiles = (
        Tiles(
            blocked=blocked,
            order=order,
            sweep=sweep,
            pack_a=pack_a and blocked,
            pack_b=pack_b,
            unroll=unroll,
            prefetch=prefetch,
        )
        for blocked, order, sweep, pack_a, pack_b, unroll, prefetch in itertools.product(
            (False, True),
            ("jpi", "ipj"),
            ("i", "j"),
            (False, True),
            (False, True),
            (1, 2, 4, 8),
            ("none", "c", "b", "bc"),
        )
    )
    loops = (
        Loops(restrict=restrict, fuse=fuse, blocked=blocked)
        for restrict, fuse, blocked in itertools.product((False, True), (1, 2, 4, 8), (False, True))
    )
    return [*dict.fromkeys(canonical(config) for config in tiles), *loops]


def with_sizes(config: Config, rng: random.Random) -> Config:
    """The same structure with small sizes, so that odd shapes have blocks and remainders."""
    if isinstance(config, Loops):
        return config.model_copy(update={"kc": rng.choice((4, 30)), "nc": rng.choice((7, 64))})
    sizes = {
        "vector": rng.choice((16, 32, 64)),
        "mr": rng.choice((1, 2, 3, 4, 6, 8, 14)),
        "nv": rng.choice((1, 2, 3)),
        "kc": rng.choice((8, 24, 64, 100)),
    }
    if config.blocked:
        sizes |= {"mc": rng.choice((8, 10, 32, 60)), "nc": rng.choice((8, 48, 100, 128))}
    return config.model_copy(update=sizes)


def sample(count: int) -> list[Config]:
    """Members spread over all structures; the same in each run."""
    rng = random.Random(11)
    chosen = rng.sample(structures(), count)
    return [with_sizes(config, rng) for config in chosen]


@needs_cc
def test_a_sample_is_right_on_odd_shapes(tmp_path: Path) -> None:
    """Members compile without a warning and agree with double precision, remainders and all."""
    sources = [render(config) for config in sample(12)]
    assert check("matmul", sources, ODD_SHAPES, tmp_path) == []


@needs_cc
@pytest.mark.slow
@pytest.mark.parametrize("flags", [("-O1",), ("-O3", "-march=native", "-ffast-math")])
@pytest.mark.timeout(900)
def test_every_structure_is_right_on_odd_shapes(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """All structures of the family, not only a sample, under plain and under bold flags."""
    rng = random.Random(5)
    configs = [with_sizes(config, rng) for config in structures()]
    for start in range(0, len(configs), 40):
        sources = [render(config) for config in configs[start : start + 40]]
        assert check("matmul", sources, ODD_SHAPES, tmp_path, flags) == []


@pytest.mark.parametrize("config", sample(40), ids=str)
def test_knows_its_own_texts(config: Config) -> None:
    """A rendered member is recognised with all fields that its text shows."""
    found = recognise(render(config))
    assert found is not None
    assert found == (canonical(config) if isinstance(config, Tiles) else found)
    assert render(found) == render(config)


def test_knows_a_member_whose_macros_were_set() -> None:
    """New values of macros are read from the text, not from the mark."""
    source = set_macros(render(Tiles(vector=64)), {"MR": "6", "KC": "99"})
    found = recognise(source)
    assert isinstance(found, Tiles)
    assert (found.mr, found.kc, found.vector) == (6, 99, 64)


def test_does_not_trust_the_mark() -> None:
    """A text that keeps our mark but not our structure is not ours."""
    source = render(Tiles()).replace("sum[r][v] += x * from[v];", "sum[r][v] -= x * from[v];")
    assert recognise(source) is None
    assert recognise(PLAIN_MATMUL) is None
    assert recognise(PLAIN_MATMUL + '// family: {"style": "tiles", "mr": "many"}\n') is None
    assert recognise(PLAIN_MATMUL + "// family: {broken}\n") is None


def test_feasible_means_it_fits() -> None:
    """Too many sums, too wide vectors and blocks beyond a cache are refused."""
    good = Tiles(vector=64, mr=8, nv=2, kc=256, mc=96, nc=512, blocked=True)
    assert is_feasible(good, TARGET)
    for change in (
        {"mr": 16},
        {"kc": 1024},
        {"mc": 2048},
        {"nc": 1 << 16},
        {"blocked": False, "pack_a": True},
    ):
        assert not is_feasible(good.model_copy(update=change), TARGET), change
    assert not is_feasible(good, replace(TARGET, vector_bytes=32))


@pytest.mark.parametrize(
    ("size", "most", "unit", "block"),
    [(512, 192, 8, 176), (512, 512, 8, 512), (7, 256, 8, 8), (100, 3, 4, 4), (1, 1, 1, 1)],
)
def test_blocks_are_cut_evenly(size: int, most: int, unit: int, block: int) -> None:
    """Parts are equal up to a unit, and at least one unit."""
    assert balanced(size, most, unit) == block


def test_the_estimate_prefers_what_is_known_to_be_better() -> None:
    """More reuse per load, fitting tiles and packed panels are cheaper; the reverse dearer."""
    plain = Tiles(vector=64, mr=4, nv=2, kc=176)
    shapes = (plain.model_copy(update={"mr": 8}), plain, plain.model_copy(update={"mr": 1}))
    costs = [cost(config, TARGET, SHAPE) for config in shapes]
    assert costs == sorted(costs)
    packed = plain.model_copy(update={"pack_b": True})
    assert cost(packed, TARGET, SHAPE) < cost(plain, TARGET, SHAPE)
    one_row = Shape(m=1, n=512, k=512)
    assert cost(plain, TARGET, one_row) < cost(packed, TARGET, one_row)


def test_the_neighbourhood_is_feasible_and_without_repeats() -> None:
    """Hundreds of members, nearest first, each once, all of them fitting the machine."""
    start = Tiles(vector=64, mr=8, nv=2, kc=176)
    found = list(itertools.islice(neighbourhood(start, TARGET, SHAPE), 300))
    members = [config for config, _ in found]
    assert len(set(members)) == 300
    assert all(is_feasible(config, TARGET) for config in members)
    distances = [len(fields) for _, fields in found]
    assert distances == sorted(distances)


def test_vectors_follow_the_flags() -> None:
    """Without a target flag only the baseline vectors count, however wide the device's are."""
    assert target_of(make_context()).vector_bytes == 16
    assert target_of(make_context(flags=("-O3", "-march=native"))).vector_bytes == 64


def test_a_good_foreign_kernel_is_not_sent_back_to_plain_loops() -> None:
    """The loop order is only proposed where little of the peak is reached."""
    slow = make_context(profile=make_profile(flops__pct_of_peak=1.0))
    fast = make_context(profile=make_profile(flops__pct_of_peak=40.0))
    assert "interchange" in {p.levers[0] for p in itertools.islice(CMoves().proposals(slow), 30)}
    assert "interchange" not in {
        p.levers[0] for p in itertools.islice(CMoves().proposals(fast), 200)
    }


def test_sizes_are_edits_of_macros_and_structure_is_a_new_text() -> None:
    """A step that only turns macros is a macro edit of the base; any other is a whole source."""
    source = render(Tiles(vector=64, mr=4, nv=2, kc=176))
    context = make_context(source, ("-O3", "-march=native"))
    moves = {p.levers[0]: p for p in itertools.islice(CMoves().proposals(context), 60)}
    assert isinstance(moves["tile_shape"].edit, SetMacros)
    assert isinstance(moves["depth"].edit, SetMacros)
    packed = moves["pack_b"].edit
    assert isinstance(packed, WholeSource)
    assert structure_hash(packed.source) != structure_hash(source)
    assert macros(packed.source)["MR"] == "4"


def test_every_rule_can_speak() -> None:
    """Each rule's sentences find their words: along a way from plain to packed, all are made."""
    profile = make_profile(Bottleneck.MEMORY, flops__pct_of_peak=5.0)
    native = ("-O3", "-march=native")
    bases = [
        (PLAIN_MATMUL, ()),
        (render(Loops()), native),
        (render(Tiles(vector=16)), native),
        (render(Tiles(vector=64, blocked=True, pack_b=True)), (*native, "-funroll-loops")),
        ("#define TILE 32\n" + PLAIN_MATMUL, native),
    ]
    spoken: set[str] = set()
    for source, flags in bases:
        context = make_context(source, flags, profile=profile)
        for proposal in itertools.islice(CMoves().proposals(context), 120):
            assert "{" not in proposal.summary + proposal.hypothesis
            spoken.add(proposal.levers[0])
    rules = CMoves()._knowledge.rule
    wanted = {rule.name for rule in rules if not rule.operators or "matmul" in rule.operators}
    assert wanted - spoken == set()


def test_a_narrow_device_is_never_offered_wide_vectors() -> None:
    """Every proposal for a machine of 16-byte vectors keeps to them."""
    context = make_context(flags=("-O3", "-march=native"))
    narrow = context.device.model_copy(update={"limits": {"vector_bytes": 16}})
    for proposal in itertools.islice(CMoves().proposals(replace(context, device=narrow)), 80):
        assert "-mprefer-vector-width=512" not in proposal.flags
        if isinstance(proposal.edit, WholeSource):
            found = recognise(proposal.edit.source)
            assert not isinstance(found, Tiles) or found.vector == 16
