"""How well the simulator ranks real kernels: Spearman's rank correlation on recorded timings.

Usage: ``PYTHONPATH=. python3 scripts/calibrate_simulator.py FOLDER [--fit]``

FOLDER holds ``timings.csv`` (shape_MxNxK, variant, ratio_to_cublas, tflops_median) and
``variants.jsonl`` (typed configurations). ``--fit`` adjusts the coefficients to the first half of
the variants, by coordinate search, and prints them; the table always tells both halves apart, for
a model is only as good as it is on what it was not fitted to.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import zlib
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from croq_fsm.toolchain.simulated.features import Arrivals, Descriptors, Features, Order
from croq_fsm.toolchain.simulated.model import FITTED, Coefficients, truth

_ARRIVALS: dict[str, Arrivals] = {"all": "all", "wg1": "group", "warp1": "warp"}
_DESCRIPTORS: dict[str, Descriptors] = {"make": "made", "inc": "stepped", "inc32": "stepped32"}
_PLAIN_PROMOTION = 128
_SOFTEST = 2.0
_PASSES = 20
_FEWEST = 5
#: Variants that are text edits of one kernel, as their report describes them.
_PLAIN = Features(elected=False)
_WALK = replace(_PLAIN, ctas=132)
_TRADED = replace(_WALK, registers=(40, 232), elected=True)
_NAMED = {
    "c00_base": _PLAIN,
    "c17_128x128": replace(_PLAIN, tile_n=128, stages=4, staging=32768),
    "d10_persist": _WALK,
    "d40_persist_reg": _TRADED,
    "d41_persist_reg_elect": replace(_TRADED, arrivals="group"),
    "d42_128x192_persist_reg": replace(_TRADED, tile_n=192, stages=4, staging=49152),
    "d43_persist_reg_nm": replace(_TRADED, order="n"),
    "d44_256x128_persist_reg": replace(_TRADED, tile_m=256, tile_n=128),
}


@dataclass(frozen=True)
class Row:
    """One recorded timing."""

    shape: tuple[int, int, int]
    variant: str
    features: Features
    seconds: float

    @property
    def is_fitted(self) -> bool:
        """Whether the row belongs to the half that the fit may see."""
        return zlib.crc32(self.variant.encode()) % 2 == 0


def features_of(v: dict[str, Any]) -> Features:
    """The model's view of a recorded configuration."""
    order, group = _order(v["raster"])
    staging = v["BM"] * v["BN"] * 2
    panels = v["epi"] in ("swz", "warp")
    passes = 1
    if panels and v["PB"]:
        width = min(v["BN"], v["PB"] * v["PW"])
        staging, passes = v["BM"] * width * 2, -(-v["BN"] // width)
    return Features(
        tile_m=v["BM"],
        tile_n=v["BN"],
        tile_k=v["BK"],
        stages=v["ST"],
        consumers=v["NC"],
        ctas=v["persist"],
        registers=tuple(v["setreg"]) if v["setreg"] else None,
        order=order,
        group=group,
        elected=v["prod"] == "one",
        arrivals=_ARRIVALS[v["emp"]],
        uniform=v["uni"],
        descriptors=_DESCRIPTORS[v["desc"]],
        deep=v["loop"] == "pipe",
        epilogue="direct" if v["epi"] == "direct" else "panels" if panels else "rows",
        staging=0 if v["epi"] == "direct" else staging,
        passes=passes,
        event_guard=True,
        cluster=v["CS"] if v["cluster"] else 1,
        shared_side=v["cluster"] or "m",
        pingpong=v["pp"],
        split_k=v["splitk"],
        promoted=v["l2"] > _PLAIN_PROMOTION,
        unroll=max(1, v["unroll"]),
    )


def _order(raster: str | list[Any]) -> tuple[Order, int]:
    """``2d`` and ``m`` walk along M first."""
    if isinstance(raster, list):
        return ("gm" if raster[0] == "gm" else "gn"), int(raster[1])
    return ("n" if raster == "n" else "m"), 0


def rows(folder: Path) -> list[Row]:
    """Recorded timings, as seconds that do not depend on the run: ratio times the library's."""
    known = dict(_NAMED)
    for line in (folder / "variants.jsonl").read_text(encoding="utf-8").splitlines():
        value = json.loads(line)
        known[value["variant"]] = features_of(value)
    with (folder / "timings.csv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    library: dict[str, list[float]] = defaultdict(list)
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in table:
        if row["variant"] == "cublas":
            library[row["shape_MxNxK"]].append(float(row["tflops_median"]))
        elif row["variant"] in known:
            key = (row["shape_MxNxK"], row["variant"])
            ratios[key].append(float(row["ratio_to_cublas"]))
    found = []
    for (text, variant), values in ratios.items():
        m, n, k = (int(size) for size in text.split("x"))
        speed = statistics.median(values) * statistics.median(library[text]) * 1e12
        found.append(Row((m, n, k), variant, known[variant], 2 * m * n * k / speed))
    return found


def spearman(a: list[float], b: list[float]) -> float:
    """Rank correlation; ties share their mean rank."""
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: list[float]) -> np.ndarray:
    array = np.array(values)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2.0)[inverse]


def residuals(data: list[Row], c: Coefficients) -> dict[tuple[int, int, int], list[float]]:
    """Logarithm of predicted over recorded time, by shape."""
    found: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for row in data:
        error = np.log(truth(row.features, row.shape, c).seconds / row.seconds)
        found[row.shape].append(float(error))
    return found


def badness(data: list[Row], c: Coefficients) -> float:
    """Mean square of the residuals within shapes, and a little of their common offsets."""
    total, count = 0.0, 0
    for errors in residuals(data, c).values():
        array = np.clip(np.array(errors), -0.5, 0.5)
        middle = float(np.median(array))
        total += (
            float(np.sum(np.minimum((array - middle) ** 2, 0.04))) + len(errors) * (middle / 3) ** 2
        )
        count += len(errors)
    return total / count


def fit(data: list[Row], c: Coefficients) -> Coefficients:
    """Coordinate search with shrinking steps; no coefficient may turn negative."""
    best, scale = badness(data, c), 0.4
    for _ in range(_PASSES):
        for name, value in asdict(c).items():
            for factor in (1 + scale, 1 / (1 + scale)):
                tried = replace(c, **{name: value * factor})
                if not _is_sane(tried):
                    continue
                if (found := badness(data, tried)) < best:
                    best, c = found, tried
        scale *= 0.75
    return c


def _is_sane(c: Coefficients) -> bool:
    """Whether shares are shares, and the soft maximum is one."""
    return c.sharp >= _SOFTEST and max(c.exposed, c.restart, c.power_from) <= 1


def main() -> int:
    """Print the table, and the coefficients of a fit if one was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fit", action="store_true")
    options = parser.parse_args()
    data = rows(options.folder)
    coefficients = FITTED
    if options.fit:
        coefficients = fit([row for row in data if row.is_fitted], FITTED)
        for name, value in asdict(coefficients).items():
            print(f"    {name}: float = {value:.4g}")
    print("| shape | variants | Spearman | unseen half | median error | offset |")
    print("|---|---|---|---|---|---|")
    for shape in dict.fromkeys(row.shape for row in data):
        print(line(shape, [row for row in data if row.shape == shape], coefficients))
    return 0


def line(shape: tuple[int, int, int], data: list[Row], c: Coefficients) -> str:
    """One shape's row of the table."""
    unseen = [row for row in data if not row.is_fitted]
    errors = np.array(residuals(data, c)[shape])
    offset = float(np.median(errors))
    return (
        f"| {'x'.join(map(str, shape))} | {len(data)} | {correlation(data, c):.2f} "
        f"| {correlation(unseen, c):.2f} | {np.median(np.abs(errors - offset)):.1%} "
        f"| {np.expm1(offset):+.1%} |"
    )


def correlation(data: list[Row], c: Coefficients) -> float:
    """Spearman's rank correlation of predicted and recorded times; NaN for too few."""
    if len(data) < _FEWEST:
        return float("nan")
    predicted = [truth(row.features, row.shape, c).seconds for row in data]
    return spearman(predicted, [row.seconds for row in data])


if __name__ == "__main__":
    sys.exit(main())
