"""Rounds driven by hand: the tools take ideas and sources, and every figure is the engine's."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_support import Shell, shell

from croq_fsm.cli.main import main
from croq_fsm.domain.ideas import apply_replacements
from croq_fsm.domain.states import Decision, State
from croq_fsm.errors import UsageError
from croq_fsm.tools import plans
from croq_fsm.tools.answers import claims
from support.scripted import START

__all__ = ["shell"]

SHAPE_KEY = "matmul_f32_64x64x64"
KEY = ("--dsl", "c", "--shape-key", SHAPE_KEY, "--model", "claude-hand")


@dataclass
class Hand:
    """Someone who drives a session with the tools."""

    shell: Shell

    def __call__(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Exit code and the one line of JSON."""
        said = self.shell("tool", *arguments)
        lines = said.out.splitlines()
        assert len(lines) == 1, said
        return said.code, json.loads(lines[0])

    def place(self, kind: str, name: str) -> Path:
        """A path of the layout."""
        return self.shell.root / "tuning/cpu_test/c" / kind / SHAPE_KEY / "claude-hand" / name

    def profile(self) -> dict[str, Any]:
        """Profile the base of the round."""
        out = str(self.place("perf", "ncu_now"))
        code, told = self("ncu-profile", "--out", out)
        assert code == 0, told
        return told

    def plan(self, tag: str, idea: str = 'it\'s "faster" \t so', *more: str) -> dict[str, Any]:
        """Keep a plan that answers the profile."""
        code, told = self(
            "checkpoint", "write", *KEY, "--iter", f"iter007_{tag}", "--bottleneck",
            "compute_bound", "--idea", idea, "--hypothesis", "time.us is too long", *more,
        )  # fmt: skip
        assert code == 0, told
        return told

    def build(self, name: str, macros: str) -> tuple[int, dict[str, Any]]:
        """Write a source and build it."""
        source = self.place("srcs", f"{name}.c")
        source.write_text(macros + START.split("\n", 1)[1], encoding="utf-8")
        return self("build-iter", "--cu", str(source), "--out", str(self.place("bin", name)))

    def store(self, *more: str) -> tuple[int, dict[str, Any]]:
        """Store the round."""
        return self("store-round", *KEY, *more)


@pytest.fixture
def hand(shell: Shell) -> Hand:
    """A session with its baseline, ready for the first round."""
    driven = Hand(shell)
    code, told = driven("store-baseline", *KEY, "--dtype", "f32", "--m", "64", "--task-uid", "u")
    assert (code, told["state"], told["warnings"]) == (0, "PROFILE", [])
    return driven


def test_three_rounds_by_hand_and_the_daemon_goes_on(hand: Hand) -> None:
    """KEEP, a wrong kernel, DISCARD; then start takes the same session up with iter004."""
    hand.profile()
    assert hand.plan("fast")["status"] == "PLANNED"
    assert hand.build("iter002_fast", "#define TIME_US 800\n")[1]["status"] == "built"
    assert hand("checkpoint", "verify", *KEY, "--iter", "iter002_fast")[0] == 0
    _, first = hand.store()
    assert (first["decision"], first["kernel"]) == ("KEEP", "iter002_fast")
    hand.profile()
    hand.plan("wrong")
    hand.build("iter003_wrong", "#define TIME_US 700\n#define WRONG 1\n")
    code, told = hand("measure", *KEY)
    assert (code, told.get("kind")) == (1, "VERIFY_FAIL"), told
    assert hand.store()[1]["decision"] == "VERIFY_FAIL"
    hand.profile()
    hand.plan("slow")
    hand.build("iter003_slow", "#define TIME_US 900\n")
    assert hand.store()[1]["kernel"] == "iter003_slow"
    hand.shell.ideator.script = [{"TIME_US": "600"}]
    said = hand.shell("start", "c", "f32", "64x64x64", "--rounds", "1")
    assert said.code == 0, said.err
    (session,) = hand.shell.sessions()
    assert (session.state, session.round, session.best_iteration) == (State.DONE, 4, 4)
    assert session.counts[Decision.KEEP] == 2
    table = hand.place("logs", "results.tsv").read_text(encoding="utf-8")
    names = [line.split("\t")[1] for line in table.splitlines()[1:]]
    assert names == ["iter000", "iter001", "iter002", "iter003", "iter004"]
    assert hand.shell("validate").code == 0


def test_numbers_of_the_caller_are_never_stored(hand: Hand) -> None:
    """TFLOPS, decision, class and name that are claimed are compared, warned of and ignored."""
    hand.profile()
    told = hand.plan("claim", "faster loops")
    assert told["iter"] == "iter002_claim"
    assert any("iter007" in text for text in told["warnings"])
    hand.build("iter002_claim", "#define TIME_US 1100\n")
    code, stored = hand.store(
        "--tflops", "999.5", "--decision", "KEEP", "--round", "9", "--bottleneck", "memory_bound",
        "--iter", "iter099", "--kernel", "iter099_x",
    )  # fmt: skip
    assert (code, stored["decision"], stored["round"]) == (0, "DISCARD", 1)
    assert stored["tflops"] < 1
    named = {text.split()[0] for text in stored["warnings"]}
    assert named == {"--tflops", "--decision", "--round", "--bottleneck", "--iter", "--kernel"}


def test_a_failed_attempt_waits_for_its_repair(hand: Hand) -> None:
    """A compile error leaves the idea in hand; its repair is the second attempt of one idea."""
    hand.profile()
    hand.plan("mend")
    code, told = hand.build("iter002_mend", "#define TIME_US 800\n#define NO_COMPILE 1\n")
    assert (code, told.get("status"), told.get("attempt")) == (1, "attempt_failed", 1), told
    assert "line 1: error" in told["log"]
    assert hand.build("iter002_mend", "#define TIME_US 800\n")[0] == 0
    stored = hand.store()[1]
    assert (stored["decision"], stored["attempts"]) == ("KEEP", 1)


def test_an_idea_is_given_up_after_five_attempts(hand: Hand) -> None:
    """The fifth failure ends the idea; an iteration number is not used for it."""
    hand.profile()
    hand.plan("stuck")
    told: dict[str, Any] = {}
    for number in range(1, 6):
        code, told = hand.build(
            "iter002_stuck", f"#define NO_COMPILE {number}\n#define TIME_US 5\n"
        )
        assert code == 1
    assert told["status"] == "given_up"
    stored = hand.store()[1]
    assert (stored["decision"], stored["attempts"], stored["iter"]) == ("COMPILE_FAIL", 5, None)


def test_a_wrong_kernel_is_mended_before_it_is_stored(hand: Hand) -> None:
    """Measuring finds it wrong, the next build is its repair, and that is what is stored."""
    hand.profile()
    hand.plan("right")
    hand.build("iter002_right", "#define TIME_US 800\n#define WRONG 1\n")
    assert hand("measure", *KEY)[0] == 1
    assert hand.build("iter002_right", "#define TIME_US 800\n")[0] == 0
    stored = hand.store()[1]
    assert (stored["decision"], stored["attempts"]) == ("KEEP", 1)


def test_verify_finds_drift(hand: Hand) -> None:
    """A source changed after its build, another name and an untouched lever are drift: exit 3."""
    hand.profile()
    hand.plan("drift", "faster", "--levers", "STYLE")
    hand.build("iter002_drift", "#define TIME_US 800\n")
    source = hand.place("srcs", "iter002_drift.c")
    source.write_text(source.read_text(encoding="utf-8") + "int more;\n", encoding="utf-8")
    code, told = hand("checkpoint", "verify", *KEY, "--iter", "iter005_other")
    assert code == 3
    assert told["status"] == "DRIFTED"
    drift = " | ".join(told["drift"])
    assert "iter005_other was built" in drift
    assert "was changed after it was built" in drift
    assert "lever STYLE was planned and is as in the base" in drift
    assert "TIME_US was changed and is no lever" in drift


def test_no_step_is_skipped(hand: Hand) -> None:
    """No plan without a profile, no build without a plan, no round without a build."""
    code, told = hand(
        "checkpoint",
        "write",
        *KEY,
        "--iter",
        "iter002_xx",
        "--bottleneck",
        "mixed",
        "--idea",
        "i i",
    )
    assert (code, "ncu-profile" in told["message"]) == (2, True)
    source = hand.place("srcs", "iter002_xx.c")
    source.write_text(START, encoding="utf-8")
    code, told = hand("build-iter", str(source), str(hand.place("bin", "iter002_xx")))
    assert (code, "checkpoint write" in told["message"]) == (2, True)
    code, told = hand.store("--tflops", "500")
    assert (code, "no round is in hand" in told["message"]) == (2, True)


def test_guards_hold_for_hands_too(hand: Hand) -> None:
    """A source that equals its base is refused with the reason, and nothing is stored."""
    hand.profile()
    hand.plan("same")
    before = hand.shell.sessions()[0].seq
    code, told = hand.build("iter002_same", "#define TIME_US 1000\n")
    assert (code, "equals its base" in told["message"]) == (1, True)
    assert hand.shell.sessions()[0].seq == before
    assert hand.build("iter002_same", "#define TIME_US 900\n")[0] == 0


def test_a_profile_is_the_engines_or_none(hand: Hand) -> None:
    """profile-extract answers for the engine's table; an edited one is nobody's: exit 3."""
    told = hand.profile()
    path = Path(told["csv"])
    code, found = hand("profile-extract", "--csv", str(path), "--iter", "iter001_draft")
    assert (code, found["bottleneck"], found["warnings"]) == (0, "compute_bound", [])
    path.write_text(path.read_text(encoding="utf-8").replace("1", "2"), encoding="utf-8")
    assert hand("profile-extract", "--csv", str(path))[0] == 3
    path.write_text("", encoding="utf-8")
    assert hand("profile-extract", "--csv", str(path))[0] == 2


def test_names_are_printed_plain(hand: Hand) -> None:
    """next-iter prints a name and nothing else, by its script's name too; bad tags are refused."""
    for name in ("next-iter", "next_iter.sh"):
        assert hand.shell("tool", name, *KEY, "--tag", "tile_k").out == "iter002_tile_k\n"
    attempt = hand.shell("tool", "next-iter", *KEY, "--tag", "tile_k", "--attempt").out
    assert attempt == "attemptAAAA_tile_k\n"
    assert hand("next-iter", *KEY, "--tag", "Bad")[0] == 2


def test_the_key_is_matched_exactly(hand: Hand) -> None:
    """A session of another shape, or of nobody's, is not taken up: exit 2."""
    other = [word.replace("64x64x64", "64x64x32") for word in KEY]
    assert hand("resume-state", *other)[0] == 2
    code, told = hand("resume-state", *KEY)
    assert (code, told["next_iter_number"], told["next"]) == (0, 2, "ncu-profile")
    assert "rule 1" in hand("reinforce", *KEY)[1]["rules"]
    assert hand("activity-trace", *KEY)[1]["transitions"][-1]["to_state"] == "PROFILE"


def test_a_plan_can_be_read_again(hand: Hand) -> None:
    """Without a plan checkpoint read ends in 2; with one it gives back idea, levers and stage."""
    assert hand("checkpoint", "read", *KEY)[0] == 2
    hand.profile()
    hand.plan("again", "it's faster", "--levers", "TIME_US, STYLE", "--expected-gain", "+5%")
    code, told = hand("checkpoint_write", "read", *KEY)
    assert (code, told["status"], told["idea"]) == (0, "PLANNED", "it's faster")
    assert (told["levers"], told["expected_gain"]) == (["TIME_US", "STYLE"], "+5.0%")
    hand.build("iter002_again", "#define TIME_US 800\n#define STYLE 1\n")
    assert hand("checkpoint", "read", *KEY)[1]["status"] == "BUILT"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_tools_about_the_machine(shell: Shell) -> None:
    """The key of the CPU is printed plain; what a DSL lacks is listed, and code 1 says so."""
    hand = Hand(shell)
    code, told = _machine_tool(hand, "validate-env", "--dsl", "c")
    assert (code, told["pass"], told["errors"]) == (0, True, [])
    code, told = _machine_tool(hand, "validate_env.sh", "--dsl", "fortran")
    assert (code, told["pass"]) == (1, False)
    assert "fortran" in told["errors"][0]
    shell.capture.readouterr()
    assert main(["tool", "detect-gpu", "--dsl", "c"]) == 0
    assert shell.capture.readouterr().out.startswith("cpu_")


def test_the_baseline_is_stored_once(hand: Hand) -> None:
    """A second call changes nothing and answers the same."""
    code, told = hand("store-baseline", *KEY, "--k", "65")
    assert code == 0
    assert told["warnings"] == ["--k 65 is ignored: the engine has 64"]
    assert len(hand.shell.sessions()) == 1


def test_discovery_lists_files_before_sessions(hand: Hand, tmp_path: Path) -> None:
    """Kernels of a folder come first, former outputs are left out; then the best of sessions."""
    what = ("discover-baseline", "--dsl", "c", "--operator", "matmul")
    code, told = hand(*what)
    assert (code, told["tier"], told["total"]) == (0, 2, 1)
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    for name in ("matmul_b.c", "matmul_aitune_x.c", "matmul_a_f32.c"):
        (kernels / name).write_text(START, encoding="utf-8")
    told = hand(*what, "--kernels", str(kernels), "--dtype", "f32")[1]
    assert [Path(c["path"]).name for c in told["candidates"]] == ["matmul_a_f32.c", "matmul_b.c"]


def test_nobody_is_ended_and_nothing_is_reset_unasked(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--kill ends nothing as configured; the reset is called only when it is asked for."""
    log = tmp_path / "log"
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        f'#!/bin/sh\necho "$@" >> {log}\n'
        'case "$1" in\n'
        '*compute-apps*) echo "1, GPU-1, init";;\n'
        '--query-gpu=uuid,*) echo "GPU-1, 50";;\n'
        '--query-gpu=*) echo "0, NVIDIA H200, GPU-1, 570, 9.0, 1, 1, 1, 1, E, E, D";;\n'
        "esac\n",
        encoding="utf-8",
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    hand = Hand(shell)
    code, told = _machine_tool(hand, "gpu-contention", "--kill")
    assert (code, told["killed"]) == (1, [])
    assert told["contenders"][0]["pid"] == 1
    assert _machine_tool(hand, "gpu-check")[0] == 1
    assert "--gpu-reset" not in log.read_text(encoding="utf-8")
    assert _machine_tool(hand, "gpu-check", "--reset")[1]["reset"] == "done"
    assert "--gpu-reset -i GPU-1" in log.read_text(encoding="utf-8")


def _machine_tool(hand: Hand, *arguments: str) -> tuple[int, dict[str, Any]]:
    """A tool that needs no root."""
    hand.shell.capture.readouterr()
    code = main(["tool", *arguments])
    said = hand.shell.capture.readouterr()
    assert said.out, said.err
    return code, json.loads(said.out)


def test_claims_are_compared_by_value() -> None:
    """A figure with fewer digits is the same; another one, or another word, is not."""
    assert claims({"tflops": 1.234}, {"tflops": 1.2341}) == []
    assert len(claims({"tflops": 1.3, "iter": None}, {"tflops": 1.2341})) == 1
    assert claims({"decision": "KEEP"}, {"decision": "DISCARD"})


@pytest.mark.parametrize(
    ("text", "gain"),
    [("+5%", 0.05), ("+20 TFLOPS", 0.1), ("0.03", 0.03), (None, 0.0), ("soon", 0.0), ("900", 0.0)],
)
def test_expected_gains_are_fractions(text: str | None, gain: float) -> None:
    """Percent and TFLOPS become a fraction of the best; nonsense becomes nothing."""
    assert plans.gain_of(text, 200.0)[0] == pytest.approx(gain)


def test_hand_edits_of_generated_code_become_patches() -> None:
    """Edits of a generated source, also of repeated lines, apply to it one after the other."""
    old = "a\nb\nx\nc\nb\nx\nd\n"
    new = "a\nb\ny\nc\nb\nx\nnew\nd\n"
    assert apply_replacements(plans.patches_between(old, new), old) == new
    assert plans.patches_between(old, old) == ()
    many = "".join(f"{n}\nsame\n" for n in range(500))
    with pytest.raises(UsageError, match="places"):
        plans.patches_between(many, many.replace("same", "other"))
