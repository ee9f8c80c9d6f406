"""The report for the person who comes in at eight in the morning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from croq_fsm import __version__
from croq_fsm.domain import own_host
from croq_fsm.domain.measurement import Verification
from croq_fsm.domain.records import Iteration, Round
from croq_fsm.domain.states import Status
from croq_fsm.report import advice, calls, finals, gains, summary, words
from croq_fsm.report.facts import Facts
from croq_fsm.report.gains import Gain
from croq_fsm.report.provenance import files, measured, reproduce
from croq_fsm.report.standing import library_ratio, same_window

_LABEL: Final = 15
_WIDTH: Final = 98
_LEVERS: Final = 15
_LONGEST_MESSAGE: Final = 300
_LONGEST_TEXT: Final = 400

Lines = list[str]


def render(facts: Facts) -> str:
    """The whole report as text; each number is read or computed from the database."""
    title = f"croq-fsm report: session {facts.session.id}"
    parts = [title, "=" * len(title), *_banners(facts)]
    for heading, section in SECTIONS:
        lines = section(facts)
        if lines:
            parts += ["", heading, *(f"  {line}".rstrip() for line in lines)]
    return "\n".join(parts) + "\n"


def pairs(rows: Sequence[tuple[str, str]]) -> Lines:
    """Labels and texts in two columns; rows without text are left out."""
    return [f"{label:<{_LABEL}}{text}" for label, text in rows if text]


def _banners(facts: Facts) -> Lines:
    """What a reader must know before any number."""
    found = []
    if facts.session.task.simulated or facts.session.device.simulated:
        found.append("SIMULATED: every number below comes from a model and is no measurement.")
    degraded = sum(p.profile.degraded for p in facts.profiles)
    if degraded:
        found.append(
            f"DEGRADED: {degraded} of the {words.count(len(facts.profiles), 'profile')} "
            "taken rest on timing alone, without counters."
        )
    if any(it.self_reported for it in facts.iterations.values()):
        found.append("SELF-REPORTED: marked results come from the kernel's own host program.")
    return ["", *found] if found else []


def _asked(facts: Facts) -> Lines:
    task, session = facts.session.task, facts.session
    rounds = f"{task.rounds} rounds" if task.rounds else ""
    until = f"until {words.moment(task.deadline * 1e6)}" if task.deadline else ""
    return pairs(
        (
            ("task", f"{task.dsl} {task.operator} {task.dtype} {_shape(facts)}"),
            ("start kernel", task.kernel),
            ("ideas by", task.model),
            ("work", _work(facts)),
            ("limits", " or ".join(filter(None, (rounds, until))) or "none"),
            ("begun", f"{words.moment(session.created_at)} (local time)"),
            ("last step", words.moment(facts.standing.since)),
            ("starts", f"{facts.resumptions} of the daemon" if facts.resumptions > 1 else ""),
            *((("hints" if n == 0 else ""), words.one_line(h)) for n, h in enumerate(facts.hints)),
            ("program", f"croq-fsm {__version__}"),
        )
    )


def _work(facts: Facts) -> str:
    """Operations of a call of an unknown operator; nothing for a known one."""
    task = facts.session.task
    if not task.own_host:
        return ""
    if task.work is None:
        return "unknown; judged by time"
    who = "given by the user" if task.work_from == "given" else "as the program reports it"
    return f"{task.work:.6g} operations a call, {who}"


def _shape(facts: Facts) -> str:
    return ", ".join(f"{name}={size}" for name, size in facts.session.task.sizes.items())


def _result(facts: Facts) -> Lines:
    best, start = facts.best, facts.start
    if best is None or start is None:
        return ["nothing was measured"]
    rows = [_kernel("best", best, facts), _kernel("start", start, facts)]
    if facts.library is not None:
        rows.append(_kernel("library", facts.library, facts))
    return [
        *pairs(rows),
        *pairs(
            (
                *_of_record(facts),
                ("to library", _to_library(facts, best)),
                ("to start", _to_start(facts, start, best)),
                ("confirmed", _confirmation(facts, best)),
                (
                    "regime",
                    f"{facts.record.regime}, where no other is named" if facts.record else "",
                ),
                ("right", _rightness(facts)),
                ("rounds", summary.counts(facts.session)),
            )
        ),
    ]


def _of_record(facts: Facts) -> Sequence[tuple[str, str]]:
    """What the session came to: measured at its end, all in one window a regime."""
    found = finals.rows(facts.standing.finals, facts.session.task)
    if not facts.standing.finals.regimes:
        return found
    own = facts.session.task.own_host
    who = "best and iter001 [self-reported]" if own else "best, library and iter001"
    return [("of record", f"{who}, measured together at the end:"), *found]


def _kernel(label: str, it: Iteration, facts: Facts) -> tuple[str, str]:
    task = facts.session.task
    text = (
        f"{it.name:<28} {_rate(facts, task.tflops(it.seconds)):>10} TFLOPS"
        f"  {words.call_time(it.seconds):>10}"
    )
    if task.op.judged_by_time:
        text += f"  {task.gbps(it.seconds):.2f} GB/s"
    return label, text + marks(facts, it)


def marks(facts: Facts, it: Iteration | None) -> str:
    """What has to stand beside a number that is no ordinary measurement."""
    found = " [self-reported]" if it is not None and it.self_reported else ""
    return found + (" [simulated]" if facts.session.task.simulated else "")


def _to_library(facts: Facts, best: Iteration) -> str:
    where = "of one measurement" if same_window(best) else "of two measurements, no interval"
    if facts.session.task.own_host:
        return f"{words.ABSENT} (no library for an unknown operator)"
    text = f"{words.times(library_ratio(best, facts.session))} (times {where})"
    ratio = facts.against_library()
    if ratio is None:
        return text
    return (
        f"{text}; in {ratio.pairs} pairs {words.times(ratio.ratio)}, "
        f"99 % interval {words.interval(ratio)}"
    )


def _to_start(facts: Facts, start: Iteration, best: Iteration) -> str:
    if best.number == start.number:
        return "nothing faster than the start kernel was found"
    text = f"{words.times(start.seconds / best.seconds)} (times of two measurements)"
    return (
        f"{text}; the ratios of {words.count(len(facts.kept), 'confirmed gain')} "
        f"multiply to {words.times(gains.product(facts.rounds))}"
    )


def _confirmation(facts: Facts, best: Iteration) -> str:
    estimate = best.estimate
    if estimate is None or facts.record is None:
        return ""
    how = "in a fresh process" if facts.record.purpose == "confirm" else facts.record.purpose
    return (
        f"{words.times(estimate.ratio)} {words.interval(estimate)} to the best before it, "
        f"{estimate.pairs} pairs, {how}"
    )


def _rightness(facts: Facts) -> str:
    checks = facts.checks
    if checks is None:
        return "no verification is recorded"
    if facts.session.task.own_host:
        return _own_checks(checks)
    whole = [c for c in checks.checks if c.rung != "sanitizer"]
    beside = [c for c in checks.checks if c.rung == "sanitizer"]
    passed = sum(c.passed for c in whole)
    told = "".join(f"; {c.name} {'clean' if c.passed else c.skipped or c.detail}" for c in beside)
    errors = [c.rel_error for c in checks.checks if c.rel_error is not None]
    worst = f", largest relative error {max(errors):.2e}" if errors else ""
    return f"{passed} of {len(whole)} checks of the whole output passed{worst}{told}"


def _own_checks(checks: Verification) -> str:
    """What a program's own check said, and what nobody looked at."""
    own = [c for c in checks.checks if c.rung == own_host.LABEL]
    missing = ", ".join(c.name for c in checks.checks if c.skipped)
    return (
        f"the program's own check passed in {sum(c.passed for c in own)} of {len(own)} fresh "
        f"processes [{own_host.LABEL}]; not run: {missing}"
    )


def _rounds(facts: Facts) -> Lines:
    if not facts.rounds:
        return []
    head = (
        f"{'round':>5}  {'decision':<12}  {'TFLOPS':>10}  {'ratio':>7}  {'99 % interval':<16}  "
        f"{'library':>8}  {'cost':>8}  {'bottleneck':<13}  kernel"
    )
    lines = [head]
    for record in facts.rounds:
        lines += _round(facts, record)
    return [*lines, "", "ratio: best time then / time of this kernel; ~ library of BASELINE"]


def _round(facts: Facts, record: Round) -> Lines:
    it = facts.iterations.get(record.iteration) if record.iteration is not None else None
    library = words.ABSENT
    if it is not None:
        ratio = library_ratio(it, facts.session)
        mark = "" if same_window(it) or ratio is None else "~"
        library = mark + words.times(ratio)
    row = (
        f"{record.round:>5}  {record.decision.name:<12}  {_rate(facts, record.tflops):>10}  "
        f"{words.times(record.ratio):>7}  {words.interval(it.estimate if it else None):<16}  "
        f"{library:>8}  {words.duration(record.wall_s):>8}  {record.bottleneck!s:<13}  "
        f"{record.kernel}{marks(facts, it)}"
    )
    idea = words.cut(words.one_line(record.summary), _LONGEST_TEXT)
    reason = words.cut(words.one_line(record.reason), _LONGEST_TEXT)
    return [
        row,
        *words.wrapped(f"{'':>7}", f"idea: {idea} (from iter{record.base:03d})", _WIDTH),
        *words.wrapped(f"{'':>7}", f"why:  {reason}", _WIDTH),
    ]


def _attempts(facts: Facts) -> Lines:
    lines: Lines = []
    for attempt in facts.attempts:
        message = words.cut(words.one_line(attempt.message), _LONGEST_MESSAGE)
        head = f"round {attempt.round} attempt {attempt.number}  {attempt.kind.name}  "
        lines.append(f"{head}{attempt.name}")
        lines += words.wrapped(f"{'':>7}", message, _WIDTH)
    return lines


def _profiles(facts: Facts) -> Lines:
    numbers = dict.fromkeys(
        it.number for it in (facts.start, facts.best) if it is not None and it.number > 0
    )
    lines: Lines = []
    for number in numbers:
        taken = facts.profile_of(number)
        name = facts.iterations[number].name
        if taken is None:
            lines.append(f"{name}: not profiled")
            continue
        profile = taken.profile
        degraded = " DEGRADED" if profile.degraded else ""
        lines.append(
            f"{name}: {profile.bottleneck}, confidence {profile.confidence}, by {profile.tool}"
            f"{degraded} (round {taken.round})"
        )
        for sentence in (*profile.evidence, *profile.remarks):
            lines += words.wrapped("  - ", words.one_line(sentence), _WIDTH)
    return lines


def _gains(facts: Facts) -> Lines:
    if not facts.rounds:
        return []
    levers = gains.by_lever(facts.rounds)
    hidden = len(levers) - _LEVERS
    more = [f"… and {hidden} more levers"] if hidden > 0 else []
    ideators = gains.by_ideator(facts.rounds)
    return [
        *_gain_table("category", gains.by_category(facts.rounds)),
        "",
        *_gain_table("lever", levers[:_LEVERS]),
        *more,
        *(["", *_gain_table("ideator", ideators)] if len(ideators) > 1 else []),
    ]


def _calls(facts: Facts) -> Lines:
    return [line for text in calls.lines(facts.calls) for line in words.wrapped("", text, _WIDTH)]


def _gain_table(kind: str, rows: Sequence[Gain]) -> Lines:
    width = max([len(kind), *(len(row.name) for row in rows)])
    head = f"{kind:<{width}}  {'rounds':>6}  {'kept':>4}  {'gain':>9}  {'cost':>10}"
    return [
        head,
        *(
            f"{words.one_line(row.name):<{width}}  {row.rounds:>6}  {row.kept:>4}  "
            f"{words.gain(row.gain) if row.kept else words.ABSENT:>9}  "
            f"{words.duration(row.seconds):>10}"
            for row in rows
        ),
    ]


def _ended(facts: Facts) -> Lines:
    session = facts.session
    if session.state.is_final:
        return words.wrapped("", f"{session.state.name}: {words.one_line(session.reason)}", _WIDTH)
    status = "paused" if session.status is Status.PAUSED else "not ended"
    worked = "a daemon works on it" if facts.standing.is_worked_on else "no daemon works on it"
    return [f"{status}: it stands in {session.state.name}, and {worked}"]


def _next(facts: Facts) -> Lines:
    lines: Lines = []
    for text in advice.of(facts):
        lines += words.wrapped("- ", text, _WIDTH)
    return lines


def _rate(facts: Facts, tflops: float | None) -> str:
    return words.rate(tflops, words.decimals(facts.standing.library_tflops))


#: Headings and sections, in order; a section without lines is left out.
SECTIONS: Final[tuple[tuple[str, Callable[[Facts], Lines]], ...]] = (
    ("RESULT", _result),
    ("WHY IT ENDED", _ended),
    ("WHAT TO DO NEXT", _next),
    ("WHAT WAS ASKED", _asked),
    ("HOW IT WAS MEASURED", lambda facts: pairs(measured(facts))),
    ("ROUNDS", _rounds),
    ("FAILED ATTEMPTS", _attempts),
    ("PROFILES", _profiles),
    ("WHAT GAVE WHAT", _gains),
    ("MODELS AND AGENTS", _calls),
    ("FILES", lambda facts: pairs(files(facts))),
    ("HOW TO REPRODUCE", reproduce),
)
