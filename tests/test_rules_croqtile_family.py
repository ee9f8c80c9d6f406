"""The ``.co`` GEMM family as values: reading back, static limits, the model, the output path."""

from __future__ import annotations

import csv
import json
import re
import statistics
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from croqtile_support import shipped, task
from rules_croqtile_support import COMPILED, MACHINE, MAIN, SHAPES, members

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.source import set_macros, structure_hash
from croq_fsm.ideators.rules.croqtile_config import (
    Gemm,
    Order,
    Shape,
    canonical,
    changed,
    register_pair,
)
from croq_fsm.ideators.rules.croqtile_limits import fitted, is_feasible, violations
from croq_fsm.ideators.rules.croqtile_model import predict
from croq_fsm.ideators.rules.croqtile_read import read
from croq_fsm.ideators.rules.croqtile_render import macros_of, render
from croq_fsm.ideators.rules.croqtile_search import neighbours, ranked
from croq_fsm.toolchain.croqtile_lint import lint

RECORDED = Path(__file__).resolve().parents[2] / "shared/fixtures/h200_gemm"
SIZES = Shape(*MAIN)


@pytest.mark.parametrize("seed", range(4))
def test_every_member_reads_back(seed: int) -> None:
    """Rendering and reading are inverse, and the reader says that nothing was guessed."""
    for config in islice(members(seed), 60):
        reading = read(render(config))
        assert reading is not None
        assert reading.config == config
        assert reading.exact


def test_every_member_passes_the_lints() -> None:
    """The workbench's certain findings speak against no feasible member."""
    for config in islice(members(9), 150):
        asked = task(config.element)
        assert lint(Candidate(source=render(config)), asked) == [], config


def test_numbers_are_macros() -> None:
    """Members of one structure differ in macros alone, and macros lead from one to the other."""
    small, large = COMPILED["persistent_200"], COMPILED["persistent_256"]
    assert structure_hash(render(small)) == structure_hash(render(large))
    values = {name: str(value) for name, value in macros_of(large).items()}
    assert set_macros(render(small), values) == render(large)


def test_text_holds_no_numbers_but_macros() -> None:
    """Tile sizes stand nowhere but at the top."""
    for name, config in COMPILED.items():
        body = render(config).split("__co__", 1)[1]
        for number in (config.tile_n, config.ctas, *(config.registers or ())):
            assert number <= 128 or not re.search(rf"\b{number}\b", body), (name, number)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("f16_plain", Gemm()),
        ("bf16_plain", Gemm(element="bf16")),
        ("f16_warpspec", Gemm(tile_n=200, stages=4, ctas=132, registers=(40, 232))),
    ],
)
def test_hand_written_kernels_are_read(name: str, expected: Gemm) -> None:
    """The nearest member is found, and the text is not taken for it."""
    reading = read(shipped(name))
    assert reading is not None
    assert reading.config == expected
    assert not reading.exact
    assert {"tile_m", "tile_n", "tile_k", "stages"} <= reading.macros.keys()


def test_other_names_for_macros_are_read() -> None:
    """A kernel may call its tile BLOCK_N and its ring NUM_STAGES."""
    text = shipped("f16_plain").replace("TILE_N", "BLOCK_N").replace("STAGES", "NUM_STAGES")
    reading = read(text)
    assert reading is not None
    assert (reading.config.tile_n, reading.config.stages) == (256, 3)
    assert reading.macros["tile_n"] == "BLOCK_N"


def test_a_changed_body_is_not_exact() -> None:
    """One more statement, and the text is only near the family."""
    text = render(COMPILED["persistent_200"])
    changed = text.replace("wait op;", "wait op;\n              __bar_sync(2, 256);")
    assert changed != text
    reading = read(changed)
    assert reading is not None
    assert not reading.exact


@pytest.mark.parametrize(
    "text", ["", "int main() {}", "__co__ void matmul(global f16 [M, K] a) {}"]
)
def test_what_is_no_gemm_is_not_read(text: str) -> None:
    """The reader says None rather than guess."""
    assert read(text) is None


def test_direct_stores_are_noticed() -> None:
    """A kernel without a staged output is told apart."""
    text = shipped("f16_plain").replace("    tma.copy out_s => ", "    // ")
    reading = read(text)
    assert reading is not None
    assert reading.direct


WALKING = Gemm(ctas=132, registers=(40, 232))


@pytest.mark.parametrize(
    ("config", "shape", "reason"),
    [
        (Gemm(tile_n=260), MAIN, "multiple of 8"),
        (Gemm(tile_n=264), MAIN, "at most 256"),
        (Gemm(tile_m=192), MAIN, "cannot share 192 rows"),
        (Gemm(tile_m=320, consumers=5), MAIN, "at most 256"),
        (Gemm(tile_k=32), MAIN, "64 or 128 deep"),
        (Gemm(stages=4), MAIN, "262144 bytes of shared memory; a block has 231424"),
        (Gemm(stages=1), MAIN, "1 stages"),
        (Gemm(tile_m=256, tile_n=256, stages=2), MAIN, "registers per consumer thread"),
        (Gemm(tile_m=192, tile_n=256, consumers=3, stages=2), MAIN, "a thread has 128"),
        (Gemm(registers=(40, 240)), MAIN, "more registers than the block has"),
        (Gemm(registers=(44, 228)), MAIN, "multiples of 8"),
        (Gemm(), (4096, 8192, 4097), "multiples of 8"),
        (Gemm(), (4096, 8190, 4096), "multiples of 8"),
        (Gemm(tile_k=128, tile_n=128, stages=2), (4096, 8192, 4104), "multiple of 64"),
        (Gemm(layout="panels", tile_n=200), MAIN, "has no panels"),
        (Gemm(layout="panels"), (1000, 1160, 520), "N must be a multiple of 64 for panels"),
        (Gemm(turns=2), MAIN, "only panels"),
        (Gemm(layout="panels", tile_n=192, turns=2), MAIN, "do not divide"),
        (Gemm(staging="stage", ctas=132), MAIN, "no dead stages"),
        (Gemm(staging="stage", tile_m=256, tile_n=128, consumers=4), MAIN, "4 stages"),
        (Gemm(ctas=132, guard="event"), (4096, 8192, 128), "more steps than stages"),
        (Gemm(order="gm"), MAIN, "bands need a height"),
        (Gemm(order="m"), (128, 1 << 25, 64), "second dimension"),
    ],
)
def test_static_limits(config: Gemm, shape: tuple[int, ...], reason: str) -> None:
    """What cannot run is refused before any compile, with the reason."""
    found = violations(config, Shape(*shape), MACHINE)
    assert any(reason in text for text in found), found


def test_what_compiles_is_feasible() -> None:
    """The limits refuse none of the kernels that are known to compile."""
    for name, config in COMPILED.items():
        assert violations(config, SIZES, MACHINE) == [], name


def test_rings_are_as_deep_as_fits() -> None:
    """Stages follow from the tile, the staging and the number of steps."""
    assert fitted(Gemm(), SIZES, MACHINE).stages == 3
    assert fitted(Gemm(tile_n=200), SIZES, MACHINE).stages == 4
    assert fitted(Gemm(layout="panels", turns=2, ctas=132), SIZES, MACHINE).stages == 4
    assert fitted(Gemm(tile_m=64, tile_n=64, consumers=1), Shape(64, 64, 192), MACHINE).stages == 3


def test_short_tiles_are_guarded_by_a_barrier() -> None:
    """With as many stages as steps nothing but a barrier may guard the staging tile."""
    short = fitted(Gemm(tile_n=200, guard="event", ctas=132), Shape(4096, 8192, 256), MACHINE)
    assert short.guard == "barrier"


def test_bank_conflicts_by_width() -> None:
    """8-way at 256, 192 and 128 columns, 4-way at 224, none at odd multiples of 8."""
    ways = {width: Gemm(tile_n=width).conflict_ways for width in (256, 224, 200, 192, 184, 128)}
    assert ways == {256: 8, 224: 4, 200: 1, 192: 8, 184: 1, 128: 8}


@pytest.mark.parametrize("consumers", [2, 3, 4])
def test_register_pairs_fit(consumers: int) -> None:
    """What the producer gives up is at least what the consumers take."""
    pair = register_pair(consumers)
    assert pair is not None
    config = Gemm(tile_m=64 * consumers, tile_n=64, consumers=consumers, registers=pair)
    assert violations(config, SIZES, MACHINE) == []


#: Profiled cycles of one SM on the main shape, in thousands.
PROFILED = {
    638: Gemm(elected=False),
    628: Gemm(elected=False, registers=(40, 232)),
    699: Gemm(tile_n=128, stages=4, elected=False),
    603: WALKING,
    588: replace(WALKING, tile_n=224),
    562: replace(WALKING, tile_n=200, stages=4),
    547: replace(WALKING, tile_n=200, stages=4, uniform=True, guard="event"),
    582: Gemm(stages=4, staging="stage", layout="panels", uniform=True, registers=(40, 232)),
}


@pytest.mark.parametrize(("cycles", "config"), PROFILED.items())
def test_the_model_reproduces_profiles(cycles: int, config: Gemm) -> None:
    """Within 4 % of what was profiled, from the plain kernel to the best one."""
    assert predict(config, SIZES, MACHINE).cycles == pytest.approx(cycles * 1e3, rel=0.04)


def test_the_model_reproduces_memory_traffic() -> None:
    """Bytes from memory for two tile orders, within 10 % of what was profiled."""
    assert predict(Gemm(), SIZES, MACHINE).dram == pytest.approx(350e6, rel=0.1)
    assert predict(Gemm(order="n"), SIZES, MACHINE).dram == pytest.approx(578e6, rel=0.1)


def recorded() -> Iterator[tuple[str, Gemm]]:
    """Recorded variants that the family's terms can describe."""
    if not RECORDED.is_dir():
        pytest.skip("the recorded timings are not here")
    for line in (RECORDED / "variants.jsonl").read_text(encoding="utf-8").splitlines():
        v = json.loads(line)
        special = v["cluster"] or v["pp"] or v["splitk"] != 1 or v["BK"] != 64
        if not special and v["epi"] in ("plain", "swz", "wg"):
            yield v["variant"], described(v)


def described(v: dict[str, Any]) -> Gemm:
    """The member that a recorded variant is most like."""
    raster, swizzled = v["raster"], v["epi"] == "swz"
    plain: Order = "n" if raster == "n" else "m"
    order, group = raster if isinstance(raster, list) else (plain, 0)
    panels = (v["PB"] or 99) * v["PW"]
    registers = v["setreg"]
    return Gemm(
        tile_m=v["BM"],
        tile_n=v["BN"],
        stages=v["ST"],
        consumers=v["NC"],
        ctas=v["persist"],
        registers=(registers[0], registers[1]) if isinstance(registers, list) else None,
        order=order,
        group=group,
        elected=v["prod"] == "one",
        uniform=bool(v["uni"]),
        layout="panels" if swizzled else "rows",
        turns=max(1, v["BN"] // panels) if swizzled else 1,
        guard="event",
    )


@pytest.mark.parametrize("shape", [s for s in SHAPES if s != (1000, 1160, 520)])
def test_the_model_orders_what_was_measured(shape: tuple[int, ...]) -> None:
    """Predicted and measured speed of dozens of recorded kernels go together on each shape."""
    known, speeds = dict(recorded()), dict[str, list[float]]()
    with (RECORDED / "timings.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["shape_MxNxK"] == "x".join(map(str, shape)) and row["variant"] in known:
                speeds.setdefault(row["variant"], []).append(float(row["ratio_to_cublas"]))
    measured = [statistics.median(values) for values in speeds.values()]
    expected = [1 / predict(known[name], Shape(*shape), MACHINE).cycles for name in speeds]
    assert len(measured) > 15
    assert np.corrcoef(measured, expected)[0, 1] > 0.8


def test_the_best_tile_of_the_main_shape() -> None:
    """Calculated, not looked up: 128x200, four stages, persistent, registers reassigned."""
    best = ranked(SIZES, MACHINE, "f16", plain=True)[0]
    assert (best.tile_m, best.tile_n, best.stages) == (128, 200, 4)
    assert best.ctas == MACHINE.sms
    assert best.registers == (40, 232)


def test_few_tiles_are_not_made_persistent() -> None:
    """With one tile per SM the plain grid is preferred; small problems get small, deep tiles."""
    wide = ranked(Shape(2048, 2048, 16384), MACHINE, "f16", plain=True)[0]
    assert (wide.tile_m * wide.tile_n, wide.ctas) == (128 * 256, 0)
    small = ranked(Shape(1024, 1024, 1024), MACHINE, "f16", plain=True)[0]
    assert small.ctas == 0
    assert small.tile_m * small.tile_n <= 128 * 80
    assert predict(small, Shape(1024, 1024, 1024), MACHINE).tiles >= 100
    assert small.stages >= 7


def test_order_follows_the_aspect_ratio() -> None:
    """Few tiles along N: N fastest; few along M: M fastest."""
    tall = ranked(Shape(16384, 512, 16384), MACHINE, "f16", plain=True)[0]
    flat = ranked(Shape(512, 16384, 16384), MACHINE, "f16", plain=True)[0]
    assert tall.order in ("n", "gn")
    assert flat.order in ("m", "gm")


@pytest.mark.parametrize("shape", SHAPES)
def test_the_ranked_set_is_feasible_and_sorted(shape: tuple[int, ...]) -> None:
    """Each member of the enumeration can run, each tile appears once, the fastest first."""
    sizes = Shape(*shape)
    for plain in (True, False):
        found = ranked(sizes, MACHINE, "f16", plain=plain)
        assert len(found) > 50
        assert all(is_feasible(config, sizes, MACHINE) for config in found)
        cycles = [predict(config, sizes, MACHINE).cycles for config in found]
        assert cycles == sorted(cycles)
        assert len({(c.tile_m, c.consumers, c.tile_n) for c in found}) == len(found)


def test_neighbours_differ_in_one_choice() -> None:
    """A neighbour changes one thing (a band its order and height), and is feasible."""
    base = COMPILED["uniform_event_200"]
    found = neighbours(base, SIZES, MACHINE)
    assert len(found) > 40
    for config in found:
        assert is_feasible(config, SIZES, MACHINE)
        assert one_choice(base, config), (base, config)


def one_choice(old: Gemm, new: Gemm) -> bool:
    """Whether two members differ in one choice and what belongs to it."""
    together = [{"order", "group"}, {"tile_m", "consumers", "registers", "uniform"}]
    turned = set(changed(old, new))
    if not (old.guarded and new.guarded):
        turned.discard("guard")
    return len(turned) == 1 or any(turned <= group for group in together)


def test_choices_without_effect_are_plain() -> None:
    """Two texts that are the same kernel are one configuration."""
    assert canonical(Gemm(consumers=1, tile_m=64, uniform=True)) == Gemm(consumers=1, tile_m=64)
    assert canonical(Gemm(guard="event")) == Gemm()
    assert canonical(Gemm(order="n", group=8)) == Gemm(order="n")


def test_conflict_free_panels() -> None:
    """Swizzled panels have no conflicts at any width."""
    assert replace(Gemm(), layout="panels").conflict_ways == 1
