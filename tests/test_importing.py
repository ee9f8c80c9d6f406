"""Records of other harnesses: every form is read, what is wrong is counted, nothing is believed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cli_support import Shell, shell

from croq_fsm.errors import UsageError
from croq_fsm.importing import suspicion
from croq_fsm.importing.reading import read_tree
from croq_fsm.importing.rows import Row, read_idea_log, read_tsv
from croq_fsm.storage.inspection import archive

#: A tree of a prompt-driven harness, where there is one.
REFERENCE = Path(
    os.environ.get(
        "CROQ_REFERENCE_TUNING",
        Path(__file__).resolve().parents[2] / "shared" / "fixtures" / "reference_tuning",
    )
)
__all__ = ["shell"]
STANDARD = "iter\tkernel\ttflops\tdecision\tbottleneck\tidea_summary\n"


def tsv(*lines: str, header: str = STANDARD) -> list[Row]:
    """Rows of a table."""
    return read_tsv(header + "\n".join(lines) + "\n").rows


@pytest.mark.parametrize(
    ("header", "line", "expected"),
    [
        (STANDARD, "iter011\titer011_reg\t343.0\tKEEP\tcompute_bound\tcap", (11, 343.0, "KEEP")),
        ("round\t" + STANDARD, "1\titer001\titer001_ax\t0.1\tKEEP\tbaseline\tx", (1, 0.1, "KEEP")),
        ("round\t" + STANDARD, "iter002\titer002_bx\t0.2\tKEEP\tmixed\tx", (2, 0.2, "KEEP")),
        (STANDARD, "40\titer040_wmma\tBEST\t109.4\tbetter", (40, 109.4, "KEEP")),
        (
            "iter\ttflops\tdecision\tbottleneck\ttimestamp\n",
            "iter002_s\t23.7\tKEEP\tcompute_bound\t2026-04-21T02:46:21Z",
            (2, 23.7, "KEEP"),
        ),
        (
            "iter\ttflops\ttime_ms\tdecision\tbottleneck\tidea\ttimestamp\n",
            "iter007-110_batch\t941.3\t0.5\tTESTED\tn/a\tsweep\t2026-04-21T22:50:00+08:00",
            (None, 941.3, "UNKNOWN"),
        ),
        (
            "iter\tkernel\ttflops_2k\ttflops_4k\tdecision\tbottleneck\tidea_summary\n",
            "iter053\tk.cu\t\t610.0\tKEEP\tmemory_bound\tx",
            (53, 610.0, "KEEP"),
        ),
        (STANDARD, "iter003\titer003_x\tnan\tDISCARD\tmixed\tx", (3, None, "DISCARD")),
    ],
)
def test_forms_of_a_table(
    header: str, line: str, expected: tuple[int | None, float | None, str]
) -> None:
    """Each layout that occurs gives iteration, rate and decision; the raw line is kept."""
    (row,) = tsv(line, header=header)
    assert (row.iteration, row.tflops, row.decision) == expected
    assert row.raw == line


def test_a_comment_is_no_header() -> None:
    """A comment line above the header is counted and passed over."""
    table = read_tsv("# tuned\n" + STANDARD + "iter001\titer001_ax\t1\tKEEP\tmixed\tx\n")
    assert (len(table.rows), table.notes) == (1, {"comment-line": 1})


def test_forms_of_an_idea_log() -> None:
    """Other field names are read as well; what is no JSON is counted."""
    lines = [
        {"round": 1, "iter": "iter001", "bottleneck": "mixed", "idea": "it's", "category": "x",
         "expected_gain": "?", "decision": "KEEP", "tflops": 2.0,
         "timestamp": "2026-04-20T15:05:49Z"},
        {"round": 2, "idea": "b", "impl": "c", "median_tflops": 3.0, "note": "", "status": "KEEP"},
    ]  # fmt: skip
    table = read_idea_log("\n".join(map(json.dumps, lines)) + "\n{torn\n")
    assert [(r.tflops, r.decision) for r in table.rows] == [(2.0, "KEEP"), (3.0, "KEEP")]
    assert table.notes == {"other-fields": 1, "not-json": 1}


def test_reasons_against_rows() -> None:
    """Equal values, fillers, repeated and unordered numbers and odd verdicts are each named."""
    rows = suspicion.of_table(
        tsv(
            "iter001\titer001_ax\t100\tKEEP\tmixed\tx",
            "iter002\titer002_bx\t150\tDISCARD\tmixed\tlost",
            "iter003\titer003_cx\t90\tKEEP\tmixed\tx",
            "iter003\titer003_dx\t0\tDISCARD\tmisc\tBatch fill iteration 3",
            *(f"iter00{n}\titer00{n}_ex\t50\tDISCARD\tmixed\tx" for n in (4, 5, 6)),
        )
    )
    told = [set(row.suspect) for row in rows]
    assert told[0] == set()
    assert told[1] == {"better-than-kept"}
    assert told[2] == {"keep-not-above-best"}
    assert told[3] == {
        "discard-without-time", "batch-words", "bottleneck-outside-enum", "duplicate-iter",
        "iter-not-increasing",
    }  # fmt: skip
    assert told[4:] == [{"equal-values"}] * 3


def test_pace_and_agreement_of_two_files() -> None:
    """Stores a second apart, times that go back, and rows that differ between files are named."""
    log = [
        Row("idea-log", n, "", n, "", rate, "KEEP", "KEEP", "mixed", f"idea {n}", at)
        for n, rate, at in (
            (1, 1.0, "2026-04-20T15:00:00Z"),
            (2, 2.0, "2026-04-20T15:00:01Z"),
            (3, 3.0, "2026-04-20T14:00:00Z"),
        )
    ]
    paced = suspicion.of_pace(log)
    assert [row.suspect for row in paced] == [(), ("impossible-pace",), ("time-goes-back",)]
    other = tsv("iter001\titer001_ax\t1.5\tKEEP\tmixed\tx")
    left, right = suspicion.across(other, log)
    assert left[0].suspect == ("figures-differ",)
    assert [row.suspect for row in right] == [
        ("figures-differ",), ("in-one-file-only",), ("in-one-file-only",),
    ]  # fmt: skip


def test_a_tree_without_records_is_refused(tmp_path: Path) -> None:
    """A folder that holds no records says so."""
    with pytest.raises(UsageError, match="holds no"):
        read_tree(tmp_path)


def small_tree(top: Path) -> Path:
    """Two kept rows of one session, with a source for one and a stale plan."""
    key = "sm90_X/croqtile/{}/matmul_f16_64x64x64/model"
    logs = top / key.format("logs")
    logs.mkdir(parents=True)
    text = STANDARD + (
        "iter000\titer000_cublas\t400\tKEEP\tbaseline\tref\n"
        "iter001\titer001_ax\t100\tKEEP\tmixed\tx\niter002\titer002_bx\t999\tKEEP\tmixed\tx\n"
    )
    (logs / "results.tsv").write_text(text, encoding="utf-8")
    sources = top / key.format("srcs")
    sources.mkdir(parents=True)
    (sources / "iter001_ax.co").write_text("x", encoding="utf-8")
    plan = top / key.format("checkpoints")
    plan.mkdir(parents=True)
    (plan / "current_idea.json").write_text(
        '{"status": "PLANNED", "iter": "iter001_ax", "shape_key": "other"}', encoding="utf-8"
    )
    return top


def test_what_lies_beside_the_rows(tmp_path: Path) -> None:
    """A row without source, a plan that was never stored, and a plan of another key are found."""
    (found,) = read_tree(small_tree(tmp_path))
    assert [row.suspect for row in found.rows] == [(), (), ("no-source",)]
    assert found.findings["checkpoint-stale"] == 1
    assert found.findings["checkpoint-of-another-key"] == 1
    assert found.findings["baseline-missing"] == 1


def test_importing_twice_changes_nothing(shell: Shell, tmp_path: Path) -> None:
    """A second import of the same files leaves every row; one of changed files replaces them."""
    tree = small_tree(tmp_path / "old")
    assert "1 new; all unverified" in shell("import", str(tree)).out
    database = shell.root / ".croq_fsm" / "croq.sqlite3"

    def rows() -> list[str]:
        with archive(database) as opened, opened.look() as reader:
            (session,) = reader.imports()
            return [row["raw"] for row in reader.imported_rows(session.id)]

    before = rows()
    assert "1 unchanged" in shell("import", str(tree)).out
    assert rows() == before
    table = next(tree.rglob("results.tsv"))
    with table.open("a", encoding="utf-8") as stream:
        stream.write("iter003\titer003_cc\t1\tDISCARD\tmixed\tx\n")
    assert "1 changed" in shell("import", str(tree)).out
    assert len(rows()) == len(before) + 1


def test_imports_show_as_unverified_and_are_no_record(shell: Shell, tmp_path: Path) -> None:
    """Status and report name them and their doubts; no session and no best kernel comes of them."""
    assert shell("import", str(small_tree(tmp_path / "old"))).code == 0
    assert "imported, unverified: 1 sessions" in shell("status").out
    told = shell("status", "--json").json()
    assert told["sessions"] == []
    assert [s["verified"] for s in told["imported"]] == [False]
    report = shell("report", told["imported"][0]["session"])
    assert report.code == 0
    assert "UNVERIFIED" in report.out
    assert "no-source" in report.out
    assert shell("resume").code == 2


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="no tree of another harness here")
def test_a_real_tree(tmp_path: Path) -> None:
    """A tree that people left is read whole: every line becomes a row, every plan is looked at."""
    found = read_tree(REFERENCE)
    lines = sum(
        len([line for line in p.read_text(encoding="utf-8").splitlines()[1:] if line.strip()])
        for p in REFERENCE.rglob("results.tsv")
    )
    assert sum(row.origin == "tsv" for s in found for row in s.rows) == lines
    total = {kind for s in found for kind in s.findings}
    assert {"equal-values", "impossible-pace", "no-source", "batch-words"} <= total
    assert all(s.suspect for s in found)
    assert sum(row.decision != "UNKNOWN" for s in found for row in s.rows) > 0.95 * lines
