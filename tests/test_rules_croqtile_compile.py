"""Renderings of the ``.co`` GEMM family with the real compilers: Choreo, nvcc, our link."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
from croqtile_support import need_choreo, need_nvcc, task, workbench
from rules_croqtile_support import COMPILED, MACHINE, MAIN, SHAPES, context, members

from croq_fsm.config import CroqtileOptions
from croq_fsm.domain.build import Candidate
from croq_fsm.ideators.rules import croqtile_patches as patches
from croq_fsm.ideators.rules.croqtile import CroqtileMoves
from croq_fsm.ideators.rules.croqtile_config import Gemm, Guard, Release, Shape
from croq_fsm.ideators.rules.croqtile_render import render
from croq_fsm.ideators.rules.croqtile_search import ranked
from croq_fsm.toolchain.croqtile import CroqtileWorkbench
from croq_fsm.toolchain.croqtile_tools import find_tools

pytestmark = pytest.mark.choreo

_SCOPED = re.compile(r"[{}]|\b(?:auto|int)\s+(anon_\d+)\s*=|\b(anon_\d+)\b(?!\s*\[)")


@cache
def compiler() -> Path:
    """The Choreo compiler; the test is skipped without it."""
    need_choreo()
    return find_tools(CroqtileOptions()).need("choreo")


def generated(config: Gemm, folder: Path) -> str:
    """CUDA text that the compiler makes of a configuration."""
    source, target = folder / "kernel.co", folder / "kernel.cu"
    source.write_text(render(config), encoding="utf-8")
    argv = [str(compiler()), "-es", "-t", "cute", "-arch=sm_90a", str(source), "-o", str(target)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{config}\n{done.stdout}{done.stderr}"
    return target.read_text(encoding="utf-8")


def kernel_of(text: str) -> str:
    """The device kernel in a generated text."""
    match = re.search(r"^__global__.*?^}", text, re.DOTALL | re.MULTILINE)
    assert match is not None
    return match[0]


def undefined(kernel: str) -> list[str]:
    """Names of the compiler's own that are used outside of the scope that defines them."""
    scopes: list[set[str]] = [set()]
    missing = []
    for line in re.sub(r"//.*", "", kernel).splitlines():
        for match in _SCOPED.finditer(line):
            if match[0] == "{":
                scopes.append(set())
            elif match[0] == "}":
                scopes.pop()
            elif match[1]:
                scopes[-1].add(match[1])
            elif not any(match[2] in scope for scope in scopes) and "alignas" not in kernel:
                missing.append(match[2])
    return missing


@pytest.mark.parametrize("name", COMPILED)
def test_choreo_accepts(name: str, tmp_path: Path) -> None:
    """Each kernel of the list is accepted, and refers to nothing that is not there."""
    kernel = kernel_of(generated(COMPILED[name], tmp_path))
    assert undefined(kernel) == []


@pytest.mark.parametrize("seed", [1, 2])
def test_choreo_accepts_members_at_random(seed: int, tmp_path: Path) -> None:
    """Whatever the static limits admit, the compiler takes."""
    for config in islice(members(seed), 12):
        kernel = kernel_of(generated(config, tmp_path))
        assert undefined(kernel) == [], config


@pytest.mark.parametrize("shape", SHAPES)
def test_choreo_accepts_what_ranks_first(shape: tuple[int, ...], tmp_path: Path) -> None:
    """The model's favourites are compilable, in plain language and with helpers."""
    for plain in (True, False):
        for config in ranked(Shape(*shape), MACHINE, "f16", plain=plain)[:2]:
            assert undefined(kernel_of(generated(config, tmp_path))) == [], config


@pytest.mark.parametrize(("release", "arrivals"), [("thread", 256), ("warp", 8), ("group", 2)])
def test_a_stage_is_free_when_all_consumers_said_so(
    release: Release, arrivals: int, tmp_path: Path
) -> None:
    """The barrier of a stage counts both consumers, and a consumer arrives after its wait."""
    config = replace(COMPILED["persistent_200"], release=release)
    kernel = kernel_of(generated(config, tmp_path))
    assert f"empty[0].init({arrivals});" in kernel
    wait, arrive = kernel.index("warpgroup_wait<0>();"), kernel.index(".arrive();")
    assert wait < arrive
    assert kernel.count("warpgroup_wait<") == 1


def test_all_sums_are_waited_for(tmp_path: Path) -> None:
    """With two accumulators the stage is given back after the last of them."""
    kernel = kernel_of(generated(COMPILED["two_sums"], tmp_path))
    waits = [m.start() for m in re.finditer(r"warpgroup_wait<\d>", kernel)]
    assert kernel[waits[-1] :].startswith("warpgroup_wait<0>")
    assert waits[-1] < kernel.index("empty[(order) % 4].arrive();")


@pytest.mark.parametrize("guard", ["event", "barrier"])
def test_the_staging_tile_is_guarded(guard: Guard, tmp_path: Path) -> None:
    """Consumers pass the guard before they store; who waits for the copy passes it last."""
    config = replace(COMPILED["uniform_event_200"], guard=guard)
    kernel = kernel_of(generated(config, tmp_path))
    store, read_back = kernel.index("store_fragment"), kernel.index("wait_group_read<0>")
    assert store < read_back
    if guard == "event":
        assert "drained[0].init(256);" in kernel
        assert kernel.index("drained[(__iv_round) % 1].wait(") < store
        assert read_back < kernel.index("drained[(__iv_round) % 1].arrive()")
    else:
        assert kernel.index('"bar.sync %0, %1;" :: "r"(1), "r"(256)') < store


def test_panels_leave_in_one_swizzled_copy(tmp_path: Path) -> None:
    """A tile of panels is one copy of a tensor map that is cut into panels."""
    text = generated(COMPILED["panels_224"], tmp_path)
    assert kernel_of(text).count("shared_to_global(") == 1
    assert "__choreo_tma_2_shape[] = {32, M, (N / 32)}" in text
    assert text.count("CU_TENSOR_MAP_SWIZZLE_64B") == 1


def test_turns_write_next_to_each_other(tmp_path: Path) -> None:
    """The copies of a tile that leaves in turns start at successive columns."""
    kernel = kernel_of(generated(COMPILED["turns_256"], tmp_path))
    assert kernel.count("cp_async_bulk_tensor_3d_shared_to_global") == 2
    assert "(block_n * 4), out_s" in kernel
    assert "((anon_0 + 1) * 2), out_s" in kernel


def test_bands_end_with_what_is_left(tmp_path: Path) -> None:
    """The last band is as high as the remaining tiles, by the smaller of the two."""
    kernel = kernel_of(generated(COMPILED["turns_256"], tmp_path))
    assert "- first < 8 ? (M + 127) / 128 - first : 8)" in kernel


def test_patches_match_real_text(tmp_path: Path) -> None:
    """Both patches apply to what the compiler writes for every structure of the list."""
    for config in COMPILED.values():
        text = generated(config, tmp_path)
        assert len(patches.uniform_index(text)) == 1
        found = patches.wide_promotion(text)
        assert [edit.search.split("_elem")[0] for edit in found] == [
            "__choreo_tma_0",
            "__choreo_tma_1",
        ]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> CroqtileWorkbench:
    """One workbench for all builds, so that our own programs are compiled once."""
    need_choreo()
    need_nvcc()
    return workbench(tmp_path_factory.mktemp("bench"))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", COMPILED)
def test_builds_to_a_program(name: str, bench: CroqtileWorkbench) -> None:
    """The workbench builds each kernel of the list; nothing spills, no WGMMA is serialised."""
    config = COMPILED[name]
    build = bench.build(Candidate(source=render(config)), task(config.element))
    assert build.resources["spill_bytes"] == 0
    assert not any("C7510" in remark or "C7520" in remark for remark in build.remarks)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_patched_plain_kernel_builds(bench: CroqtileWorkbench) -> None:
    """Patches and flags that the moves propose on the shipped kernels reach a program."""
    start = context(MAIN)
    first = bench.build(start.base.candidate, start.task)
    text = bench.read(first.generated).decode()
    made = replace(start, base=replace(start.base, generated=text))
    kept = [
        p
        for p in CroqtileMoves().proposals(made)
        if p.levers[0] in ("uniform_patch", "l2_promotion", "flag_ndebug", "flag_expensive")
    ]
    assert len(kept) == 4
    for proposal in kept:
        candidate = Candidate(
            source=start.base.candidate.source, flags=proposal.flags, patches=proposal.patches
        )
        assert bench.build(candidate, start.task).resources["spill_bytes"] == 0
