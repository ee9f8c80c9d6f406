"""Documentation that is true: generated parts, commands, paths, links and words."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from croq_fsm.cli.main import build
from croq_fsm.config import Config, Section
from croq_fsm.errors import CroqError

TOP = Path(__file__).resolve().parent.parent
#: Scripts find the checkout's package, whether it is installed or not.
ENV = os.environ | {"PYTHONPATH": str(TOP)}
PAGES = sorted([TOP / "README.md", *(TOP / "docs").glob("*.md")])
SCRIPTS = sorted((TOP / "scripts").glob("*.sh"))
_LINK = re.compile(r"\]\(([^)#\s]+)(#[\w-]+)?\)")
_COMMAND = re.compile(r"\bcroq-fsm ([a-z][a-z-]+)([^`'\n|·;)]*)")
_OPTION = re.compile(r"--[a-z][a-z-]+")
#: Folders of a machine, never of the project.
_HOST_PATHS = re.compile(r"(?<![\w.<>}])/(?:work|opt)/(?!nvidia)[a-z]")
#: Where packages come from is a matter of the machine.
_HOSTS = re.compile("|".join(("py" + "pi\\.org", "python" + "hosted", "npm" + "js\\.")))


def _commands() -> dict[str, set[str]]:
    """Options of each command of the application."""
    group = typer.main.get_command(build())
    commands = getattr(group, "commands")  # noqa: B009 - a group of typer's own make
    return {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in commands.items()
    }


def test_the_state_machine_page_is_the_table() -> None:
    """docs/state-machine.md holds what scripts/write_docs.py writes, and the check can fail."""
    script = TOP / "scripts" / "write_docs.py"
    check = [sys.executable, str(script), "--check"]
    assert subprocess.run(check, check=False, cwd=TOP, env=ENV).returncode == 0
    spec = importlib.util.spec_from_file_location("write_docs", script)
    assert spec is not None
    assert spec.loader is not None
    write_docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(write_docs)
    page = write_docs.PATH.read_text(encoding="utf-8")
    spoilt = page.replace("INIT --> BASELINE", "INIT --> DONE")
    assert spoilt != page
    assert write_docs.written(spoilt) == page


@pytest.mark.parametrize("page", [*PAGES, *SCRIPTS], ids=lambda p: p.name)
def test_commands_in_the_docs_exist(page: Path) -> None:
    """Each croq-fsm command that a page or script names is there, with the options it is given."""
    known = _commands()
    for name, rest in _COMMAND.findall(page.read_text(encoding="utf-8")):
        assert name in known, f"croq-fsm {name}"
        unknown = set(_OPTION.findall(rest)) - known[name]
        assert not unknown, f"croq-fsm {name} {rest}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link is a file of the checkout, and its heading is there."""
    for target, anchor in _LINK.findall(page.read_text(encoding="utf-8")):
        path = page.parent / target
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor[1:] in slugs, anchor


def test_settings_in_the_docs_exist() -> None:
    """Each setting that a page names by its dotted name is one."""
    fields = {
        f"{table}.{key}"
        for table, section in Config()
        if isinstance(section, Section)
        for key in type(section).model_fields
    }
    tables = {name.split(".")[0] for name in fields} - {"git"}
    dotted = re.compile(rf"`((?:{'|'.join(sorted(tables))})\.[a-z_]+)`")
    named = {name for page in PAGES for name in dotted.findall(page.read_text(encoding="utf-8"))}
    assert named
    assert named <= fields


def test_exit_codes_in_the_readme_are_those_of_the_errors() -> None:
    """The README names every exit code that an error of ours has."""
    text = (TOP / "README.md").read_text(encoding="utf-8")
    told = {int(code) for code in re.findall(r"\| (\d) \|", text)}
    used = {0, 1} | {cls.exit_code for cls in _descendants(CroqError)}
    assert told == used


def _descendants(cls: type[CroqError]) -> set[type[CroqError]]:
    below = set(cls.__subclasses__())
    return below.union(*(_descendants(sub) for sub in below)) if below else below


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_shell_scripts_help_and_parse(script: Path) -> None:
    """Each script is executable, strict, and says what it does before it does anything."""
    text = script.read_text(encoding="utf-8")
    assert script.stat().st_mode & 0o111
    assert "set -euo pipefail" in text
    done = subprocess.run([script, "--help"], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("usage: scripts/")
    subprocess.run(["bash", "-n", script], check=True)


def test_quickstart_does_not_nest_or_overwrite(tmp_path: Path) -> None:
    """A folder inside another repository, or with something in it, is refused and left alone."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").touch()
    for folder in (full, tmp_path / "inside"):
        run = subprocess.run(
            [TOP / "scripts" / "quickstart.sh", folder], check=False, capture_output=True, text=True
        )
        assert run.returncode == 2
        assert str(folder) in run.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == [".git", "full"]


@pytest.mark.parametrize("name", ["validate_tuning_session.py", "clean_kernel_work_state.py"])
def test_older_names_work(name: str, tmp_path: Path) -> None:
    """The scripts of older times answer on a fresh repository, and refuse an unknown DSL."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    script = [sys.executable, str(TOP / "scripts" / name)]
    run = functools.partial(
        subprocess.run, check=False, cwd=tmp_path, capture_output=True, text=True, env=ENV
    )
    fine = run([*script, "--dsl", "all"])
    assert (fine.returncode, fine.stderr) == (0, "")
    wrong = run([*script, "--dsl", "fortran"])
    assert wrong.returncode == 2
    assert "fortran" in wrong.stderr


def test_no_path_of_a_machine_is_in_the_tree() -> None:
    """No tracked text names a folder or a registry of the machine that it was written on."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], check=False, cwd=TOP, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = TOP / name
        if path.is_symlink() or not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        for pattern in (_HOST_PATHS, _HOSTS):
            found += [f"{name}: {match.group(0)}" for match in pattern.finditer(text)]
    assert found == []
