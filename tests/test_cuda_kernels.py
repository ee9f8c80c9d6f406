"""The shipped CUDA kernels' own text, run on the host: addressing, remainders, pipeline, banks.

No device is needed. Instructions that a host lacks are written out in ``support/cuda_shim.h``
after the PTX manual's layouts; everything else is the text that nvcc compiles.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cuda_support import of, shipped

from croq_fsm.domain.source import set_macros

SHIM = Path(__file__).parent / "support" / "cuda_shim.h"
SMALL = {"TILE_M": "32", "TILE_N": "32", "WARPS_M": "2", "WARPS_N": "1"}
INSTRUCTIONS = re.compile(r"// \[instructions\n.*?// instructions\]\n", re.DOTALL)
LAUNCH = re.compile(r"(\w+)<<<([^;]*?), stream>>>\(([^;]*)\);")


#: Operator → its number in the shim.
OPERATORS = {"matmul": 0, "blockscale_gemm": 1, "gemm_sp": 2}


def host_program(source: str, folder: Path, dtype: str = "f16", operator: str = "matmul") -> Path:
    """The kernel as a host program."""
    text, cut = INSTRUCTIONS.subn("", re.sub(r"#include <cuda\w*\.h>\n", "", source))
    text, launched = LAUNCH.subn(r"shim::emulate(\2, [&] { \1(\3); });", text)
    assert (cut, launched) == (1, 1)
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ not found")
    path = folder / "kernel.cpp"
    path.write_text(f'#include "{SHIM}"\n{text}', encoding="utf-8")
    defines = [f"-DCROQ_OPERATOR={OPERATORS[operator]}"]
    defines += ["-DCROQ_ELEMENT=unsigned char"] if dtype.startswith("e4m3") else []
    defines += ["-DCROQ_OUTPUT=float"] if dtype.endswith("f32") else []
    argv = [compiler, "-std=c++17", "-O1", "-w", *defines, str(path), "-o", str(folder / "kernel")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "kernel"


def run(program: Path, *shape: int, late: bool = True, backwards: bool = False) -> str:
    """What was wrong; "" for a right output."""
    argv = [str(program), *map(str, shape), str(int(late)), str(int(backwards))]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in {0, 1, 3}, done
    return done.stdout.strip()


@pytest.fixture(scope="module", params=["f16_plain", "bf16_plain"])
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shipped kernel as it is."""
    return host_program(shipped(request.param), tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("shape", [(128, 128, 32), (130, 129, 8), (1, 1, 40), (7, 250, 72)])
def test_shipped_tiles_cover_every_remainder(plain: Path, shape: tuple[int, ...]) -> None:
    """Whole tiles, one row, odd widths, less than a step: all is right, nothing else touched."""
    assert run(plain, *shape) == ""


@pytest.mark.parametrize(
    "changed",
    [
        {"GROUP_M": "2"},
        {"STAGES": "3", "TILE_K": "16"},
        {"STAGES": "4", "TILE_K": "64", "TILE_N": "48", "GROUP_M": "1"},
        {"WARPS_M": "1", "WARPS_N": "2", "TILE_M": "64"},
    ],
    ids=str,
)
def test_turned_macros_stay_right(tmp_path: Path, changed: dict[str, str]) -> None:
    """Many tiles in bands, whatever is early or late: copies and warps in either order."""
    program = host_program(set_macros(shipped(), {**SMALL, **changed}), tmp_path)
    for late in (True, False):
        for backwards in (True, False):
            found = run(program, 161, 98, 136, late=late, backwards=backwards)
            assert found == "", (late, backwards)


@pytest.mark.parametrize(
    ("search", "replace", "says"),
    [
        ("await_copies<STAGES - 2>", "await_copies<STAGES - 1>", "wrong elements"),
        ("    __syncthreads();", "    ", "wrong elements"),
        ("k0 + column < k;", "true;", "outside of an operand|wrong elements"),
        ("row >= m || column >= n", "row >= m", "wrong elements"),
        ("if (n % 2 == 0)", "if (true)", "unaligned|wrong elements"),
        ("kPitch = TILE_K + kChunk", "kPitch = TILE_K", "bank conflict"),
        ("lane / 8 % 2 * 8", "lane / 16 * 8", "wrong elements|bank conflict"),
        ("within % height", "within % GROUP_M", "wrong elements"),
    ],
)
def test_the_emulation_bites(tmp_path: Path, search: str, replace: str, says: str) -> None:
    """Each fault of synchronisation, bounds or addressing shows."""
    source = set_macros(shipped(), SMALL)
    assert source.count(search) == 1
    program = host_program(source.replace(search, replace), tmp_path)
    runs = [
        run(program, 97, 67, 104, late=late, backwards=backwards)
        for late in (True, False)
        for backwards in (True, False)
    ]
    assert re.search(says, "\n".join(runs))


#: Operator, dtype, and shapes with whole tiles and with whatever remainders the operator allows.
OTHERS = [
    ("matmul", "f16f32", [(130, 129, 40), (7, 250, 72)]),
    ("matmul", "f16f16f16", [(130, 126, 40)]),
    ("matmul", "e4m3f16", [(130, 126, 48), (7, 33, 144)]),
    ("matmul", "e4m3f32", [(65, 129, 80)]),
    ("blockscale_gemm", "e4m3f16", [(128, 256, 256)]),
    ("blockscale_gemm", "e4m3f32", [(128, 128, 128)]),
    ("gemm_sp", "f16", [(128, 136, 64), (130, 24, 112)]),
    ("gemm_sp", "f16f32", [(128, 128, 64)]),
    ("gemm_sp", "e4m3f16", [(128, 144, 256)]),
]


@pytest.mark.parametrize(("operator", "dtype", "shapes"), OTHERS)
def test_other_operators_address_their_operands(
    tmp_path: Path, operator: str, dtype: str, shapes: list[tuple[int, int, int]]
) -> None:
    """8-bit operands, f32 outputs, scales and metadata: all is right, nothing else touched."""
    program = host_program(of(operator, dtype), tmp_path, dtype, operator)
    for shape in shapes:
        for late in (True, False):
            assert run(program, *shape, late=late) == ""


@pytest.mark.parametrize(
    ("operator", "dtype", "search", "replace"),
    [
        ("matmul", "e4m3f16", "lane / 8 % 2 * kChunk", "lane / 8 % 2 * 8"),
        ("matmul", "f16f32", "pair_of(sums[i][j], 1)", "pair_of(sums[i][j], 0)"),
        ("blockscale_gemm", "e4m3f16", "(e < 2 ? above : below)", "above"),
        ("blockscale_gemm", "e4m3f16", "column0 / kScaleBlock", "0"),
        ("blockscale_gemm", "e4m3f16", "(first) * steps + step,", "(first) * steps,"),
        ("gemm_sp", "f16", "bits >> (2 * first + 2) & 3", "bits >> (2 * first) & 3"),
        ("gemm_sp", "f16", "bits = meta[at / 8];", "bits = 0x44;"),
        ("gemm_sp", "e4m3f16", "place == a ? kept[first] :", "place == a ? kept[first + 1] :"),
    ],
)
def test_the_emulation_bites_for_other_operators(
    tmp_path: Path, operator: str, dtype: str, search: str, replace: str
) -> None:
    """Each fault of scales, metadata or addressing shows."""
    source = of(operator, dtype)
    assert source.count(search) == 1
    program = host_program(source.replace(search, replace), tmp_path, dtype, operator)
    shape = (128, 256, 256) if operator == "blockscale_gemm" else (130, 130, 112)
    assert re.search("wrong elements|outside of|bank conflict|unaligned", run(program, *shape))
