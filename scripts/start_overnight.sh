#!/usr/bin/env bash
# A night: works on the queue of a configuration in the background until it is done or stopped.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/start_overnight.sh [CONFIG] [START OPTION...]

Looks at the machine, then starts the daemon in the background with the queue of CONFIG
(default: config/overnight.toml). Further options go to 'croq-fsm start', for example --root DIR.
In the morning: croq-fsm status, croq-fsm report, croq-fsm validate.
TEXT
}

case "${1:-}" in -h | --help) usage; exit 0 ;; esac

project=$(cd "$(dirname "$0")/.." && pwd)
PATH="${CROQ_VENV:-$project/.venv}/bin:$PATH"
config=$project/config/overnight.toml
if [[ $# -gt 0 && $1 != -* ]]; then
  config=$1
  shift
fi

croq-fsm doctor
exec croq-fsm start --config "$config" --detach "$@"
