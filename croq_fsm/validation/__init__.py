"""Does the record hold? Everything that the database, the files and git claim, recomputed.

``validate`` opens the database read-only and changes nothing anywhere.
"""

from __future__ import annotations

from croq_fsm.validation.problems import Problem, Report
from croq_fsm.validation.run import validate

__all__ = ["Problem", "Report", "validate"]
