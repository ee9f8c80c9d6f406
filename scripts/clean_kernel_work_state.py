#!/usr/bin/env python3
"""Clear work state away: ``croq-fsm clean`` under its older name, which does not ask.

usage: scripts/clean_kernel_work_state.py --dsl c|cuda|croqtile|all
           [--invalid-only] [--reset-all] [--dry-run] [--undo] [--root DIR]

Without further options, the sessions of that DSL that have not ended are set aside.
  --invalid-only  only what the validation finds broken, and what a crash left behind
  --reset-all     ended sessions too, and all files of all of them
Everything goes into the trash below the state folder; --undo brings the latest cleaning back.
"""

from __future__ import annotations

import sys

from _interpreter import hand_over

if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
    else:
        hand_over("clean", "--yes", *sys.argv[1:])
