#!/usr/bin/env python3
"""Check that tuning sessions may be resumed: ``croq-fsm validate`` under its older name.

usage: scripts/validate_tuning_session.py [--dsl c|cuda|croqtile|all] [--json] [--root DIR]

Works in the git repository around the current folder. Exit code 0: every session is valid;
1: problems, each with its cure; other codes as 'croq-fsm' gives them.
"""

from __future__ import annotations

import sys

from _interpreter import hand_over

if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
    else:
        hand_over("validate", *sys.argv[1:])
