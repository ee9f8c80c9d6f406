"""CUDA kernels that cheat, and honest ones: their texts, and what is seen before they run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from croqtile_support import need_nvcc
from cuda_support import shipped, task, workbench
from test_cuda_kernels import SMALL, host_program, run

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.source import set_macros
from croq_fsm.domain.states import Decision
from croq_fsm.errors import CompileFailed
from croq_fsm.toolchain.cuda_rules import lint
from croq_fsm.toolchain.cuda_twins import twins
from croq_fsm.toolchain.cuda_twins_text import SHAPE, CudaTwin, Text
from support import cheats

TWINS = cheats.cuda_twins()
ASKED = task(shape=SHAPE)


@pytest.mark.parametrize("twin", TWINS.values(), ids=lambda twin: twin.name)
def test_source_rules_see_what_they_must(twin: CudaTwin) -> None:
    """Cheats for the source rules are seen by them, and no others: later rungs are tried."""
    assert bool(lint(twin.candidate, ASKED)) == (twin.rung == "lint" or twin.unseen)


def test_each_says_where_it_must_end() -> None:
    """Rungs and outcomes are those of the states; honest kernels end nowhere."""
    rungs = {"lint", "build", "verify", "time", "hidden-shape"}
    for twin in TWINS.values():
        assert twin.row in cheats.ROWS
        if twin.row == "-":
            assert (twin.rung, twin.outcome) == ("nothing", "")
        else:
            assert twin.rung in rungs
            assert twin.outcome in {decision.name for decision in Decision}


def test_all_differ() -> None:
    """No two of them that must run are the same kernel."""
    sources = [twin.candidate.source for twin in TWINS.values() if not twin.unseen]
    assert len(set(sources)) == len(sources)


def test_an_edit_that_does_not_fit_is_an_error() -> None:
    """When the start kernel changes, no cheat becomes honest by accident."""
    with pytest.raises(ValueError, match="does not hold"):
        twins(Candidate(source=shipped().replace("const int steps", "const int count")))
    with pytest.raises(ValueError, match="once"):
        Text("a a").instead("a", "b")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_compile_or_are_refused(tmp_path: Path) -> None:
    """Each comes as far as the compiler and the symbols let it, and no farther."""
    need_nvcc()
    bench = workbench(tmp_path)
    for twin in TWINS.values():
        if twin.rung == "lint":
            continue
        if twin.is_built:
            bench.build(twin.candidate, ASKED)
            continue
        with pytest.raises(CompileFailed, match="may not be linked"):
            bench.build(twin.candidate, ASKED)


#: What the emulation of a device on the host knows under another name.
ON_THE_HOST = {
    "blockDim.x": "256",
    "static_cast<int>(gridDim.x)": "3",
    "min(132, tiles_m * tiles_n)": "3",
    "dim3(tiles_m * tiles_n, 1, 2)": "2 * tiles_m * tiles_n",
    "blockIdx.z": "(blockIdx.x % 2)",
    "__float2half_rn(": "narrow(",
}
HEAD = """
using std::max;
static void atomicAdd(float *to, float x) { *to += x; }
static void cudaGetSymbolAddress(void **to, Element *from) {
  *to = from;
  const auto *first = reinterpret_cast<const unsigned char *>(from);
  shim::readable.emplace_back(first, first + (1 << 16));
}
"""
HELPERS = re.compile(r"  (finish|pack)<<<\(([^;]*?) \+ 255\) / 256, 256, 0, stream>>>\(([^;]*)\);")


def on_the_host(twin: CudaTwin) -> str:
    """A twin's source in the emulation's words."""
    text = set_macros(twin.candidate.source, SMALL)
    if twin.name == "split_k_atomics":
        text = text.replace("(blockIdx.x), band", "(blockIdx.x / 2), band")
    for old, new in ON_THE_HOST.items():
        text = text.replace(old, new)
    text = HELPERS.sub(
        r"  shim::emulate((\2 + 255) / 256, 256, 0, std::function<void()>([&] { \1(\3); }));", text
    )
    return text.replace("// [instructions", HEAD + "// [instructions", 1)


@pytest.mark.parametrize("name", ["plain", "split_k_atomics", "persistent", "static_buffers"])
def test_honest_ones_compute_the_product(tmp_path: Path, name: str) -> None:
    """In the emulation of a device they are right on many tiles with remainders, twice as well."""
    program = host_program(on_the_host(TWINS[name]), tmp_path)
    for shape in ((97, 66, 104), (64, 64, 64), (33, 130, 40)):
        for backwards in (True, False):
            assert run(program, *shape, backwards=backwards) == "", shape


@pytest.mark.parametrize("name", ["last_step_missing", "zeros", "unsynchronised"])
def test_wrong_ones_do_not(tmp_path: Path, name: str) -> None:
    """The emulation tells those that compute something else from the honest ones."""
    text = on_the_host(TWINS[name])
    program = host_program(text, tmp_path)
    runs = [
        run(program, 97, 67, 104, late=late, backwards=backwards)
        for late in (True, False)
        for backwards in (True, False)
    ]
    assert "wrong elements" in "\n".join(runs)


def test_the_page_tells_what_a_device_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without stored evidence the page says so; with it, the page tells each result."""
    monkeypatch.setattr(cheats, "EVIDENCE", tmp_path / "cheats-sm90.json")
    lines = cheats._cuda_lines()
    assert "not yet run on a device" in lines[0]
    assert sum(line.endswith("| not yet run on a device |") for line in lines) == len(TWINS)
    found = {"rung": "verify", "outcome": "VERIFY_FAIL", "reason": "", "holds": True}
    facts = {"date": "2026-01-01", "device": "H", "kernels": {"zeros": found}, "told": []}
    cheats.EVIDENCE.write_text(json.dumps(facts))
    lines = cheats._cuda_lines()
    assert lines[0] == "## SM90, DSL cuda, on one H, 2026-01-01"
    (zeros,) = (line for line in lines if line.startswith("| `zeros`"))
    assert zeros.endswith("| verify VERIFY_FAIL |")


def test_stored_evidence_holds() -> None:
    """What was stored from a device says that no cheat passed and no honest kernel was refused."""
    facts = cheats.evidence()
    if not facts:
        pytest.skip("nothing was stored from a device yet")
    assert set(facts["kernels"]) == set(TWINS)
    bad = {name for name, result in facts["kernels"].items() if not result["holds"]}
    assert bad == set()
