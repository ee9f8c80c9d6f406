#!/usr/bin/env bash
# First look: installs croq_fsm, then tunes a C matrix multiplication for twelve rounds on the CPU.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/quickstart.sh [FOLDER]

Makes a virtual environment (.venv beside this script's folder, or $CROQ_VENV), installs croq_fsm
into it, makes FOLDER a git repository and tunes a 512x512x512 matrix multiplication there.
FOLDER must be new or empty; default: a fresh folder below the folder for temporary files.
Needs python3 with venv, git and a C compiler. Takes a few minutes; no GPU.
TEXT
}

case "${1:-}" in -h | --help) usage; exit 0 ;; esac

project=$(cd "$(dirname "$0")/.." && pwd)
venv=${CROQ_VENV:-$project/.venv}
root=${1:-${TMPDIR:-/tmp}/croq-demo-$(id -un)-$(date +%Y%m%d-%H%M%S)}

if [[ -d $root && -n $(ls -A "$root") ]]; then
  echo "quickstart: $root is not empty; name a new folder" >&2
  exit 2
fi
mkdir -p "$root"
root=$(cd "$root" && pwd)
if git -C "$root" rev-parse --show-toplevel >/dev/null 2>&1; then
  rmdir "$root"
  echo "quickstart: $root lies inside another git repository; name a folder outside" >&2
  exit 2
fi

[[ -x $venv/bin/python ]] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --constraint "$project/requirements.lock" --editable "$project"
git init --quiet "$root"

"$venv/bin/croq-fsm" start c f32 512x512x512 --rounds 12 \
  --config "$project/config/quickstart.toml" --root "$root"

"$venv/bin/croq-fsm" status --root "$root"
"$venv/bin/croq-fsm" validate --root "$root"
cat <<TEXT

the kernels, their times and the whole story lie in $root/tuning
  report:  $venv/bin/croq-fsm report --root $root
  history: git -C $root log --oneline
TEXT
