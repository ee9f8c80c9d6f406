#!/usr/bin/env bash
# All checks that need an SM90 device, one after the other, with their logs and results in OUT.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/gpu_all.sh OUT [PART...]

Parts, all of them by default: build sandbox check operators cheats trust aa
Needs CHOREO_HOME, CUTE_HOME, CUDA_HOME, one H100 or H200, and a Python with croq_fsm's
dependencies ($PYTHON, default python3). No network. Builds lie in OUT/cache, so a second call
compiles nothing. The exit status is the number of parts that failed.
  JOBS          builds at one time (default: all cores)
  TORCH_PYTHON  a Python that has PyTorch, for the second opinion on times (default: python3)
  SHAPE, ROUNDS, MINUTES   of the A/A trial (default: 2048x2048x2048, 100, 60)
TEXT
}

case "${1:-}" in -h | --help) usage; exit 0 ;; '') usage >&2; exit 2 ;; esac

mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- build sandbox check operators cheats trust aa
python=${PYTHON:-python3}
jobs=${JOBS:-$(nproc)}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
failed=0

part() { # part NAME COMMAND...: run it, log it, count a failure
  local name=$1 began=$SECONDS status=0
  shift
  "$@" >"$out/$name.log" 2>&1 || status=$?
  [ $status -eq 0 ] || failed=$((failed + 1))
  echo "$name: exit status $status, $((SECONDS - began)) s"
}

build() { # every kernel of the other parts, several at one time
  local rows="$out/rows.txt"
  $python scripts/gpu_operators.py --out "$out" --cache "$out/cache" --list >"$rows" || return 1
  # One first: it builds our own programs, which the others share.
  $python scripts/gpu_operators.py --out "$out" --cache "$out/cache" --build-only --exact \
    --only "$(head -1 "$rows")" || return 1
  {
    while read -r row; do
      printf '%s\0' "scripts/gpu_operators.py --build-only --exact --only '$row'"
    done <"$rows"
    for name in $($python scripts/gpu_cheats.py --out "$out" --cache "$out/cache" --list); do
      printf '%s\0' "scripts/gpu_cheats.py --build-only --only $name"
    done
    printf '%s\0' "scripts/gpu_trust.py --build-only" "scripts/gpu_check.py --build-only --jobs 8"
  } | xargs -0 -P "$jobs" -I{} bash -c \
    "scratch=\$(mktemp -d) && $python {} --out \"\$scratch\" --cache '$out/cache'"
}

for name; do
  case $name in
    build) part build build ;;
    sandbox) part sandbox "$python" scripts/gpu_sandbox.py ;;
    check) part check "$python" scripts/gpu_check.py --out "$out/check" --cache "$out/cache" ;;
    operators)
      part operators "$python" scripts/gpu_operators.py --out "$out" --cache "$out/cache"
      ;;
    cheats) part cheats "$python" scripts/gpu_cheats.py --out "$out" --cache "$out/cache" ;;
    trust)
      part trust "$python" scripts/gpu_trust.py --out "$out" --cache "$out/cache" \
        --torch-python "${TORCH_PYTHON:-$(command -v python3)}"
      ;;
    aa)
      part aa "$python" scripts/aa_trial.py --dsl croqtile --dtype f16 \
        --shape "${SHAPE:-2048x2048x2048}" --rounds "${ROUNDS:-100}" \
        --minutes "${MINUTES:-60}" --jobs "$jobs" --cache "$out/cache" --out "$out/aa.json"
      ;;
    *) echo "unknown part $name" >&2; exit 2 ;;
  esac
done
exit $failed
