#!/usr/bin/env bash
# Everything that has to hold before a commit: lint, types, tests. CI runs this same script.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/test.sh [PYTEST ARGUMENT...]

Makes a virtual environment (.venv, or $CROQ_VENV), installs croq_fsm and the tools of developers
into it, then runs ruff, mypy and the default tests. Arguments go to pytest, for example
  scripts/test.sh tests/test_engine.py
  scripts/test.sh -m slow
Needs python3 with venv, git and a C compiler; tests that need a GPU or Choreo are skipped.
TEXT
}

case "${1:-}" in -h | --help) usage; exit 0 ;; esac

cd "$(dirname "$0")/.."
venv=${CROQ_VENV:-$PWD/.venv}

[[ -x $venv/bin/python ]] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --constraint requirements.lock --editable '.[dev]'
export PATH="$venv/bin:$PATH"

ruff check .
ruff format --check .
mypy
python -m pytest -n 2 -m "not slow" "$@"
