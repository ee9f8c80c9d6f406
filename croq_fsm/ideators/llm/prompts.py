"""What a model is told about its task; the rest of a prompt is the context pack."""

from __future__ import annotations

from typing import Final

from croq_fsm.ideators.quoting import NOTICE

_ROLE: Final = f"""\
You improve one compute kernel at a time. An engine compiles, verifies and measures what you \
propose, and decides by statistics; you supply the idea and the edit.

Propose exactly one testable idea that answers to the measured bottleneck: not "make it faster" \
but "reduce X by doing Y because metric Z is so". Change one thing. Do not repeat what was tried.

{NOTICE}
"""

_ANSWER: Final = """\
The answer is one JSON object:
- tag: short name, lower case letters, digits and underscores, 2 to 31 characters
- edits: list of {{"file": "{name}", "search": exact text, replace: new text}}; each search text \
must occur exactly once in the base, byte for byte; or source: the complete new kernel
- flags: complete list of extra compiler flags, only when they shall differ from the base's
- summary: what changes, in words, no command line
- hypothesis: why it should help; mention each metric by its exact name with what its value tells
- metrics: the names of those metrics
- category: tiling, pipeline, memory, compute or misc
- expected_gain: a fraction such as 0.05
- levers: names of what is turned
- research_basis: what outside the given text the idea rests on; needed when the rules ask for it
- give_up: a reason, and nothing else, when you have no idea left
"""

_TOOL: Final = "Give it by calling the tool {tool} once."
_TEXT: Final = "Give it in one code block that begins with ```json. Write no other code block."

#: Name of the tool by which an answer comes.
TOOL: Final = "propose"
TOOL_TEXT: Final = "Give the one idea, as an edit of the kernel."

PROPOSE: Final = "Propose the next idea."
REPAIR: Final = (
    "The attempt above failed. Realise the same idea in a genuinely different way that avoids the "
    "failure. The edit applies to the base as it is shown, not to what was tried."
)
AGAIN: Final = "Your last answer was refused: {reason}. Answer again."


def instructions(name: str, answer: str) -> str:
    """Instructions for one kernel file."""
    how = _TOOL.format(tool=TOOL) if answer == "tool" else _TEXT
    return f"{_ROLE}\n{_ANSWER.format(name=name)}\n{how}"
