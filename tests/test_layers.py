"""The layers hold: who imports whom, and who may do what."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent
PACKAGES = ("croq_fsm", "states")
#: What a value or a rule has no business with.
_OUTSIDE_WORLD = {
    "asyncio", "glob", "io", "multiprocessing", "os", "psutil", "random", "shutil", "signal",
    "socket", "sqlalchemy", "sqlite3", "structlog", "subprocess", "sys", "tempfile", "threading",
    "time", "urllib",
}  # fmt: skip


def _modules(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """Dotted name and syntax tree of each module below the folders."""
    for folder in folders:
        base = TOP / folder
        for path in [base] if base.is_file() else sorted(base.rglob("*.py")):
            name = ".".join(path.relative_to(TOP).with_suffix("").parts)
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def _imports(tree: ast.Module) -> set[str]:
    """All modules that are imported anywhere in a module; also what is taken from a package."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _importers(of: str, *folders: str) -> set[str]:
    """Modules that import a package or something below it."""
    return {
        name
        for name, tree in _modules(*folders)
        if any(i == of or i.startswith(f"{of}.") for i in _imports(tree))
    }


def test_there_is_something_to_look_at() -> None:
    """The tests of this module would pass on an empty tree; it is not empty."""
    names = {name for name, _ in _modules(*PACKAGES)}
    assert {"croq_fsm.daemon", "states.measure", "croq_fsm.domain.guards"} <= names


def test_states_are_imported_at_the_composition_root_only() -> None:
    """croq_fsm imports states in daemon.py and nowhere else."""
    assert _importers("states", "croq_fsm") == {"croq_fsm.daemon"}


def test_the_domain_does_no_io() -> None:
    """Values and rules import no module of the outside world, and no other layer."""
    for name, tree in _modules("croq_fsm/domain"):
        imports = _imports(tree)
        tops = {i.split(".")[0] for i in imports}
        assert not tops & _OUTSIDE_WORLD, name
        foreign = {i for i in imports if i.startswith("croq_fsm.") and i.count(".") > 1}
        assert all(i.startswith("croq_fsm.domain.") for i in foreign if "errors" not in i), name


def test_sql_is_in_the_storage_layer_only() -> None:
    """SQLAlchemy's tables and statements are used below croq_fsm/storage; a handle may pass."""
    users = _importers("sqlalchemy", *PACKAGES)
    beyond = {u for u in users if not u.startswith("croq_fsm.storage.")}
    for name, tree in _modules(*PACKAGES):
        if name in beyond:
            taken = {i for i in _imports(tree) if i.startswith("sqlalchemy")}
            assert taken <= {"sqlalchemy", "sqlalchemy.Engine"}, name
    assert _importers("sqlite3", *PACKAGES) <= {
        "croq_fsm.environment",
        "croq_fsm.storage.backups",
        "croq_fsm.storage.engine",
        "croq_fsm.storage.migrate",
    }


def test_children_are_started_in_one_place() -> None:
    """Only the runner's modules start processes."""
    starters = {
        name
        for name in _importers("subprocess", *PACKAGES)
        if not name.startswith("croq_fsm.toolchain.")
    }
    assert starters <= {"croq_fsm.cli.detach"}


@pytest.mark.parametrize("layer", ["storage", "toolchain", "measure", "gpu", "profiling", "report"])
def test_handlers_know_the_ports_only(layer: str) -> None:
    """A state imports no engine, no repository and no DSL; ports, values and pure parts."""
    allowed = {
        "storage": {"croq_fsm.storage.views"},
        "toolchain": {"croq_fsm.toolchain.workbench"},
        "measure": {
            "croq_fsm.measure.judging",
            "croq_fsm.measure.sets",
            "croq_fsm.measure.stats",
            "croq_fsm.measure.telemetry",
        },
    }.get(layer, set())
    for name, tree in _modules("states"):
        used = {i for i in _imports(tree) if i.startswith(f"croq_fsm.{layer}.")}
        foreign = {u for u in used if not any(u == a or u.startswith(f"{a}.") for a in allowed)}
        assert not foreign, name


def test_the_audit_does_not_write() -> None:
    """Validation imports nothing that changes a database, a file or a commit."""
    for writer in ("croq_fsm.storage.repository", "croq_fsm.storage.files", "croq_fsm.cleaning"):
        assert _importers(writer, "croq_fsm/validation") == set()


def _has_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and bool(ast.get_docstring(node))


def test_every_test_says_its_promise() -> None:
    """Each test function has a docstring."""
    silent = [
        f"{name}:{node.name}"
        for name, tree in _modules("tests")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not _has_docstring(node)
    ]
    assert silent == []


def test_functions_are_short() -> None:
    """No function of the packages is longer than sixty lines."""
    long = [
        f"{name}:{node.name} {node.end_lineno - node.lineno + 1}"
        for name, tree in _modules(*PACKAGES)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= 60
        and "migrations" not in name
    ]
    assert long == []
