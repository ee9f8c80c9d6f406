"""Real sessions with models and agents that fail: real daemon, compiler, HTTP and processes.

Whatever the backend does, the session goes on by rules and its record is whole.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from croq_fsm.config import Storage
from croq_fsm.root import Root
from support import model_servers as servers
from support.bench import git_root
from support.model_servers import KEY, Behaviour, serving

pytest.importorskip("pydantic_ai", reason="extra llm is not installed")

_QUICK = {
    "CROQ_FSM_MEASURE__PAIRS": "5",
    "CROQ_FSM_MEASURE__SCREEN_PAIRS": "3",
    "CROQ_FSM_MEASURE__MAX_PAIRS": "10",
    "CROQ_FSM_MEASURE__CONFIRM_PAIRS": "5",
    "CROQ_FSM_MEASURE__BLOCK_S": "0.002",
    "CROQ_FSM_MEASURE__WARMUP_S": "0.002",
    "CROQ_FSM_MEASURE__VERIFY_SEEDS": "1",
}
_BASE = re.compile(r"<<<DATA (\w+) kernel\.c\n(.*?)\n\1 END>", re.DOTALL)
_METRIC = re.compile(r"^(\S+) = (\S+)", re.MULTILINE)


def _text(body: dict[str, Any]) -> str:
    """Everything that a request says, whatever its protocol."""
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _unrolls(body: dict[str, Any]) -> dict[str, Any]:
    """A model that has read its prompt: a new pragma above the base, resting on a metric."""
    text = _text(body)
    base = _BASE.search(text)
    assert base is not None
    metric = _METRIC.search(text[text.index("metrics\n") :])
    assert metric is not None
    times = base[2].count("#pragma GCC optimize") + text.count("\n- ")
    return {
        "tag": "unroll",
        "source": f'#pragma GCC optimize("unroll-loops,max-unroll-times={times}")\n{base[2]}\n'
        if times % 2
        else f'#pragma GCC optimize("O3,tree-vectorize")\n{base[2]}\n',
        "summary": "let the compiler unroll the loops",
        "hypothesis": f"{metric[1]} is {metric[2]}, so the loops cost more than their work",
        "metrics": [metric[1]],
        "category": "compute",
        "expected_gain": 0.1,
        "research_basis": "the manual of the compiler on unrolling",
    }


def _run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | _QUICK
    environment |= {"CROQ_FSM_CONTENTION__LEASE_DIR": str(root.parent), "LOCAL_MODEL_KEY": KEY}
    return subprocess.run(
        [sys.executable, "-m", "croq_fsm", *arguments, "--root", str(root)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def _toml(value: object) -> str:
    return json.dumps(value)


def _night(tmp_path: Path, name: str, sections: dict[str, dict[str, Any]]) -> Path:
    """A finished session of two rounds with this ideator before the rules."""
    root = git_root(tmp_path / "root")
    config = tmp_path / "night.toml"
    lines = ["[ideators.chain]", "failures = 2"]
    for section, values in sections.items():
        lines += [f"[ideators.{section}]", *(f"{k} = {_toml(v)}" for k, v in values.items())]
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    task = ("c", "f32", "64x64x64", "--rounds", "2", "--ideator", f"{name},rules")
    done = _run(root, "start", *task, "--config", str(config))
    assert done.returncode == 0, done.stderr[-3000:]
    assert KEY not in done.stdout + done.stderr
    return root


def _rows(root: Path, query: str) -> list[Any]:
    connection = sqlite3.connect(Root(root, Storage()).database)
    try:
        return [row[0] for row in connection.execute(query)]
    finally:
        connection.close()


def _check(root: Path, outcomes: set[str], ideators: set[str]) -> None:
    """Two rounds by these ideators, calls of these outcomes, a whole record, no key anywhere."""
    assert _rows(root, "SELECT round FROM rounds ORDER BY round") == [1, 2]
    assert set(_rows(root, "SELECT ideator FROM rounds")) == ideators
    assert set(_rows(root, "SELECT outcome FROM calls")) == outcomes
    audit = _run(root, "validate", "--json")
    assert audit.returncode == 0, audit.stdout
    held = [p for p in root.rglob("*") if p.is_file() and KEY.encode() in p.read_bytes()]
    assert held == []


def _family(protocol: str) -> str:
    return "anthropic" if protocol == "anthropic" else "openai"


def _behaviour(name: str, protocol: str) -> Behaviour:
    status, body = {
        "overflow": servers.OVERFLOW[_family(protocol)],
        "quota": servers.QUOTA[_family(protocol)],
    }.get(name, (0, None))
    return {
        "success": servers.proposes(_unrolls),
        "malformed": servers.says("Certainly! Use larger tiles."),
        "429": servers.fails(429, {"error": {"message": "slow down"}}, Retry_After="0"),
        "500": servers.fails(500, {"error": {"message": "oops"}}),
        "hang": servers.hangs(),
        "auth": servers.fails(401, {"error": {"message": "who are you"}}),
    }.get(name) or servers.fails(status, body)


_ENDS = {
    "success": {"OK"},
    "malformed": {"MALFORMED"},
    "429": {"RATE_LIMITED"},
    "500": {"SERVER"},
    "hang": {"TIMEOUT"},
    "overflow": {"OVERFLOW"},
    "quota": {"QUOTA"},
    "auth": {"AUTH"},
}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["openai-compatible", "anthropic"])
@pytest.mark.parametrize("name", _ENDS)
def test_the_night_goes_on_whatever_the_model_does(
    tmp_path: Path, protocol: str, name: str
) -> None:
    """Each kind of failure of a server is recorded by class, and the rounds are made by rules."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler 'cc' on PATH")
    with serving(_behaviour(name, protocol)) as server:
        settings = server.settings(protocol, deadline_s=1.5, attempts=2)
        root = _night(tmp_path, "llm", {"llm": settings})
    _check(root, _ENDS[name], {"local"} if name == "success" else {"rules"})


_AGENTS = {
    "sleeps": ("import time; time.sleep(3600)", {"TIMEOUT"}),
    "nothing": ("print('All done, 3x faster')", {"MALFORMED"}),
    "harness": (
        (
            "import os; os.makedirs('croq_fsm/measure/c'); "
            "open('croq_fsm/measure/c/bench.c','w').write('int main(){}')"
        ),
        {"MALFORMED"},
    ),
    "dies": ("import os; os.abort()", {"SERVER"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", _AGENTS)
def test_the_night_goes_on_whatever_the_agent_does(tmp_path: Path, name: str) -> None:
    """An agent that sleeps, does nothing, edits a harness or dies costs no round."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler 'cc' on PATH")
    program, outcomes = _AGENTS[name]
    command = [sys.executable, "-c", program, "{prompt}"]
    settings = {"command": command, "name": "fake", "deadline_s": 2.0}
    root = _night(tmp_path, "agent", {"agent": settings})
    _check(root, outcomes, {"rules"})
    assert not list((root / ".croq_fsm" / "work").glob("agent-*"))
    if name == "harness":
        details = _rows(root, "SELECT detail FROM calls")
        assert all("ignored what else it left: 'croq_fsm'" in text for text in details)
