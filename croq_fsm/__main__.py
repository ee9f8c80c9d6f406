"""``python -m croq_fsm``: the same command line as ``croq-fsm``."""

from __future__ import annotations

from croq_fsm.cli.main import run

if __name__ == "__main__":
    run()
