"""Exports: the kernel, its report and script, and every trial in three formats."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from pathlib import Path

import pytest
from cli_support import Shell, shell

__all__ = ["shell"]


@pytest.fixture
def exported(shell: Shell, tmp_path: Path) -> Path:
    """A session with a KEEP, a DISCARD and a compile failure."""
    shell.ideator.script = [
        {"TIME_US": "800"}, {"TIME_US": "900", "STYLE": "1"}, {"NO_COMPILE": "1"},
    ]  # fmt: skip
    shell.ideator.script[2] = lambda c: _broken(c.base.iteration)
    assert shell("start", "c", "f32", "64x64x64", "--rounds", "3").code == 0
    out = tmp_path / "out"
    said = shell("export", "--out", str(out))
    assert said.code == 0, said.err
    return out


def _broken(base: int) -> object:
    from croq_fsm.domain.ideas import SearchReplace  # noqa: PLC0415 - for this idea only
    from support.scripted import proposal  # noqa: PLC0415

    edit = SearchReplace.model_validate(
        {"edits": [{"search": "#define STYLE", "replace": "#define NO_COMPILE 1\n#define STYLE"}]}
    )
    return proposal(base, {}, tag="broken", edit=edit, levers=("NO_COMPILE",))


def test_the_bundle_is_whole(exported: Path) -> None:
    """Kernel, flags and patches, report, an executable script that parses, and the trials."""
    names = {path.name for path in exported.iterdir()}
    assert names >= {
        "iter002_speed.c", "patches.json", "report.txt", "reproduce.sh", "trials.json",
        "trials.csv", "kernel_tuner_cache.json",
    }  # fmt: skip
    assert "#define TIME_US 800" in (exported / "iter002_speed.c").read_text(encoding="utf-8")
    script = exported / "reproduce.sh"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    assert "run-iter" in script.read_text(encoding="utf-8")


def test_all_trials_are_in_all_formats(exported: Path) -> None:
    """Each measured kernel and each failed attempt once, with equal figures everywhere."""
    told = json.loads((exported / "trials.json").read_text(encoding="utf-8"))["trials"]
    by_name = {trial["kernel"]: trial for trial in told}
    assert {t["decision"] for t in told} == {"KEEP", "DISCARD", "COMPILE_FAIL"}
    assert by_name["iter002_speed"]["times"]
    with (exported / "trials.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["kernel"] for row in rows] == [trial["kernel"] for trial in told]
    assert float(rows[1]["seconds"]) == by_name["iter002_speed"]["seconds"]
    cache = json.loads((exported / "kernel_tuner_cache.json").read_text(encoding="utf-8"))
    assert len(cache["cache"]) == len(told)
    for key, entry in cache["cache"].items():
        assert key == ",".join(str(entry[name]) for name in cache["tune_params_keys"])
        assert all(entry[n] in cache["tune_params"][n] for n in cache["tune_params_keys"])
    times = {entry["variant"]: entry["time"] for entry in cache["cache"].values()}
    assert times["iter002_speed"] == by_name["iter002_speed"]["seconds"] * 1e3
    assert "CompilationFailedConfig" in times.values()


def test_nothing_is_overwritten(exported: Path, shell: Shell) -> None:
    """A folder with something in it is refused and left alone."""
    before = sorted(exported.iterdir())
    assert shell("export", "--out", str(exported)).code == 2
    assert sorted(exported.iterdir()) == before
