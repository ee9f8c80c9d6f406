#!/usr/bin/env bash
# After a crash, a power cut or a stop: checks that the record holds, then goes on with it.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/resume_session.sh [ROOT] [RESUME OPTION...]

Validates the sessions below ROOT (default: the current folder) and resumes the one last worked
on. Further options go to 'croq-fsm resume', for example a session's name, --for 4h or --detach.
Nothing is resumed when the validation fails; it says what to do.
TEXT
}

case "${1:-}" in -h | --help) usage; exit 0 ;; esac

project=$(cd "$(dirname "$0")/.." && pwd)
PATH="${CROQ_VENV:-$project/.venv}/bin:$PATH"
root=$PWD
if [[ $# -gt 0 && -d $1 ]]; then
  root=$1
  shift
fi

croq-fsm validate --root "$root"
exec croq-fsm resume --root "$root" "$@"
