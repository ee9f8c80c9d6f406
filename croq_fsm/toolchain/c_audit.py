"""What the outputs of timed C kernels are held against.

Each launch of a block has inputs of its own, and its output leaves a proof, a random projection
(``measure/fresh.py``), which the judge looks at: of every launch of a product, of a random
choice of the launches of other operators. Besides, one launch of one block has its whole output
compared; nobody knows which until it is over. So a kernel that is right only while it is
verified, or only in launches that it has not seen before, is found in the block in which it
first is not.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from croq_fsm.domain.task import Task
from croq_fsm.errors import CandidateRefused
from croq_fsm.measure import fresh
from croq_fsm.measure.interleave import Verdict
from croq_fsm.sandbox import files
from croq_fsm.toolchain.c_judge import Judge
from croq_fsm.toolchain.process import Conversation
from croq_fsm.toolchain.workbench import TimingPlan

_F32_BYTES: Final = 4
_F64_BYTES: Final = 8
_SEED_BITS: Final = 48
_DRAWN_MOST: Final = (1 << 64) - 1


@dataclass
class Bench:
    """A running benchmark program, and the files that it writes.

    Attributes:
        talk: The child.
        output: Where it writes outputs.
        proofs: Where it writes the proofs of a block.
        deadline_s: Seconds that one answer may take.
        answer: The last answer.
    """

    talk: Conversation
    output: Path
    proofs: Path
    deadline_s: float
    answer: Mapping[str, object] = field(default_factory=dict)

    def ask(self, request: dict[str, object], deadline_s: float) -> dict[str, object]:
        """See ``process.Conversation.ask``; the answer is remembered."""
        answer = self.talk.ask(request, deadline_s)
        self.answer = answer
        return answer

    def demand(self, request: dict[str, object]) -> dict[str, object]:
        """Ask, and turn a refusal into an error."""
        answer = self.ask(request, self.deadline_s)
        if answer.get("ok") is not True:
            raise CandidateRefused(str(answer.get("error", "the harness refused")))
        return answer

    def cpu_seconds(self) -> float | None:
        """See ``process.Conversation.cpu_seconds``."""
        return self.talk.cpu_seconds()

    def close(self) -> None:
        """See ``process.Conversation.close``."""
        self.talk.close()


@dataclass
class Audit:
    """Looks at the launches of each block once it is over.

    A block watch that finds no fault with the device.

    Attributes:
        benches: The candidates.
        judge: Knows the right answers.
        rng: Chooses contents, blocks and launches; its seed is unknown to candidates.
        plan: The measurement.
        task: Operator and shape.
    """

    benches: Mapping[str, Bench]
    judge: Judge
    rng: random.Random
    plan: TimingPlan
    task: Task
    _latest: dict[str, tuple[int, int]] = field(default_factory=dict)
    _chosen: dict[str, int] = field(default_factory=dict)
    _seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Choose the block of each candidate that has a whole output compared."""
        self._chosen = {name: self.rng.randrange(self.plan.pairs) for name in self.benches}

    def options(self, contestant: str, launches: int) -> dict[str, object]:
        """Fields of a request: where its contents come from, which output is kept."""
        seed, audit = self.rng.getrandbits(_SEED_BITS), self.rng.randrange(launches)
        self._latest[contestant] = (seed, audit)
        return {"seed": seed, "audit": audit}

    def before(self, contestant: str) -> Verdict:  # noqa: ARG002 - a watch without objections
        """Nothing to report."""
        return Verdict()

    def after(self, contestant: str) -> Verdict:
        """Look at all proofs, and at the kept output when the block is the chosen one."""
        if contestant in self.benches:
            contents = self._check_proofs(contestant)
            if self._seen[contestant] == self._chosen[contestant]:
                self._check_kept(contestant, contents)
            self._seen[contestant] += 1
        return Verdict()

    def _check_proofs(self, name: str) -> list[int]:
        """Contents of the block's launches, when their proofs are right."""
        bench, (seed, _) = self.benches[name], self._latest[name]
        drawn, vectors = (_numbers(bench.answer, key) for key in ("drawn", "vectors"))
        contents = [fresh.content(seed, i, number) for i, number in enumerate(drawn)]
        if len(set(contents)) != len(contents) or len(vectors) != len(contents):
            raise CandidateRefused(f"{name}: launches of a block do not have contents of their own")
        rows = self.task.precision.output.shape(self.task.sizes)[0]
        wanted = len(contents) * fresh.proof_length(rows) * _F64_BYTES
        kept = bench.proofs.with_suffix(".block")
        _copy_head(bench.proofs, kept, wanted)
        if problem := self.judge.problem(kept, contents, vectors):
            raise self._wrong(name, problem)
        return contents

    def _check_kept(self, name: str, contents: list[int]) -> None:
        bench, (_, number) = self.benches[name], self._latest[name]
        bench.demand({"cmd": "dump"})
        must_be_whole(bench.output, self.task)
        check = self.judge.check_fresh(f"timed-{name}", bench.output, contents[number])
        if not check.passed:
            raise self._wrong(name, check.detail)

    @staticmethod
    def _wrong(name: str, problem: str) -> CandidateRefused:
        return CandidateRefused(
            f"{name}: the output of a timed launch is wrong, though verification passed: {problem}"
        )


def must_be_whole(output: Path, task: Task) -> None:
    """An answer without its output came from the kernel; it is not the judge's failure."""
    rows, cols = task.precision.output.shape(task.sizes)
    files.must_be_plain(output)
    _must_hold(output.lstat().st_size, rows * cols * _F32_BYTES)


def _must_hold(found: int, wanted: int) -> None:
    if found != wanted:
        raise CandidateRefused(
            f"an answer came, but the output has {found} of {wanted} bytes: the harness did not "
            "write it"
        )


def _copy_head(source: Path, target: Path, length: int) -> None:
    """The proofs of the last block; longer blocks before it may have left a tail."""
    head = files.read_bytes(source.parent, source.name)[:length]
    _must_hold(len(head), length)
    files.write_bytes(target.parent, target.name, head)


def _numbers(answer: Mapping[str, object], key: str) -> list[int]:
    found = answer.get(key)
    if not isinstance(found, list) or not all(_is_word(value) for value in found):
        raise CandidateRefused(f"the harness did not say what was drawn: {str(found)[:200]}")
    return found


def _is_word(value: object) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole and 0 <= value <= _DRAWN_MOST  # type: ignore[operator]
