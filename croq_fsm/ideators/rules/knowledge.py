"""What is known about a DSL, as data: when an operator helps, how much, and on what evidence.

One TOML file per DSL under ``config/knowledge``; each ``[[rule]]`` is a :class:`Rule`. The
code knows *how* to turn a lever, the data say *when* it is worth it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError

from croq_fsm import config
from croq_fsm.domain.model import Value
from croq_fsm.domain.profile import Profile
from croq_fsm.domain.states import Bottleneck, Category
from croq_fsm.errors import UsageError

#: Share of its gain that a rule keeps when the profile speaks for another bottleneck.
_OFF_TARGET: Final = 0.4

#: A kernel near its peak still has this share of its headroom left to any rule.
_LEAST_HEADROOM: Final = 0.1

#: Metric that says how much of the device's arithmetic peak is reached, percent.
PEAK_METRIC: Final = "flops.pct_of_peak"


class Bound(Value):
    """A condition on one metric. A metric that is absent rules nothing out."""

    metric: str
    above: float | None = None
    below: float | None = None

    def holds(self, profile: Profile) -> bool:
        """Whether the profile does not contradict the condition."""
        value = profile.metric(self.metric)
        if value is None:
            return True
        too_low = self.above is not None and value <= self.above
        too_high = self.below is not None and value >= self.below
        return not (too_low or too_high)


class Rule(Value):
    """Knowledge about one operator.

    Attributes:
        name: Name of the operator; the first lever of its proposals.
        operators: Problem families that it applies to; empty means all.
        category: Kind of the idea.
        gain: Expected relative gain where it applies, hit rate included (0.5 = half as fast
            again).
        bottlenecks: Classes that it answers; empty means any.
        when: Conditions on metrics, all of which must hold.
        after: Operators that must have been tried, or be in effect, before this one.
        quotes: Metrics worth quoting in a hypothesis, most telling first.
        what: Sentence that says what changes; ``{names}`` are filled in by the operator.
        why: Sentence that says why it should help.
        flag: Compiler flag, for operators that only add one.
        group: Prefixes of flags that the new flag takes the place of.
        compiler: Kind of compiler that knows the flag; empty means any.
        device: Text that the device's key must hold, for example ``x86_64``; empty means any.
        min_vector_bytes: Width of the device's vectors below which the rule is idle.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{1,24}$")]
    operators: tuple[str, ...] = ()
    category: Category
    gain: Annotated[float, Field(gt=0)]
    bottlenecks: tuple[Bottleneck, ...] = ()
    when: tuple[Bound, ...] = ()
    after: tuple[str, ...] = ()
    quotes: tuple[str, ...] = ()
    what: str
    why: str
    flag: str = ""
    group: tuple[str, ...] = ()
    compiler: str = ""
    device: str = ""
    min_vector_bytes: int = 0

    def applies(self, operator: str, profile: Profile) -> bool:
        """Whether family and metrics admit the rule."""
        if self.operators and operator not in self.operators:
            return False
        return all(bound.holds(profile) for bound in self.when)

    def expectation(self, profile: Profile) -> float:
        """Expected gain in the light of the profile: the class, and the headroom left."""
        on_target = not self.bottlenecks or profile.bottleneck in self.bottlenecks
        reached = profile.metric(PEAK_METRIC) or 0.0
        headroom = max(_LEAST_HEADROOM, 1.0 - reached / 100.0)
        return self.gain * headroom * (1.0 if on_target else _OFF_TARGET)


class Knowledge(Value):
    """All rules of one DSL, in the order of the file."""

    rule: tuple[Rule, ...]

    def for_operator(self, operator: str, profile: Profile) -> list[Rule]:
        """Rules that apply, in the order of the file."""
        return [rule for rule in self.rule if rule.applies(operator, profile)]

    def get(self, name: str) -> Rule:
        """The rule of that name; KeyError when the file has none."""
        for rule in self.rule:
            if rule.name == name:
                return rule
        raise KeyError(name)


def load(dsl: str, folder: Path | None = None) -> Knowledge:
    """Read ``knowledge/<dsl>.toml`` of the shipped configuration, or of ``folder``.

    Raises:
        UsageError: The file is missing, is no TOML, or holds unknown keys, bad values or two
            rules of one name.
    """
    path = (folder or config.shipped_config() / "knowledge") / f"{dsl}.toml"
    try:
        knowledge = Knowledge.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as exc:
        raise UsageError(f"the rules for {dsl} need {path}, which does not exist") from exc
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError) as exc:
        raise UsageError(f"{path} is no rule file: {exc}") from exc
    names = [rule.name for rule in knowledge.rule]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise UsageError(f"{path} defines rules twice: {', '.join(doubled)}")
    return knowledge
