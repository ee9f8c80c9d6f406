"""What an audit finds."""

from __future__ import annotations

from typing import Literal

from croq_fsm.domain.model import Value


class Problem(Value):
    """One finding.

    Attributes:
        kind: Stable name of the rule that is broken.
        dsl: DSL of the session; "" when no session is meant.
        session: Session; "" when none is meant.
        where: Path or row.
        text: What is wrong.
        cure: What to do about it.
        severity: A warning leaves the exit code 0: nothing that was claimed is false.
        path: Path below the root, when ``where`` is a file that lies there; "" otherwise.
    """

    kind: str
    dsl: str = ""
    session: str = ""
    where: str
    text: str
    cure: str
    severity: Literal["problem", "warning"] = "problem"
    path: str = ""

    def as_warning(self, why: str = "") -> Problem:
        """The same finding where it does no harm."""
        text = f"{self.text} ({why})" if why else self.text
        return self.model_copy(update={"severity": "warning", "text": text})


class Report(Value):
    """All findings of an audit.

    Attributes:
        root: The root.
        sessions: Sessions that were looked at, oldest first.
        simulated: Those of them whose numbers are a model's.
        problems: Findings in order of discovery.
    """

    root: str
    sessions: tuple[str, ...]
    simulated: tuple[str, ...] = ()
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Findings that are more than warnings."""
        return tuple(p for p in self.problems if p.severity == "problem")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """Findings that leave the record valid."""
        return tuple(p for p in self.problems if p.severity == "warning")

    @property
    def broken(self) -> dict[str, tuple[Problem, ...]]:
        """Problems by session, warnings left out."""
        found: dict[str, tuple[Problem, ...]] = {}
        for problem in self.errors:
            if problem.session:
                found[problem.session] = (*found.get(problem.session, ()), problem)
        return found
