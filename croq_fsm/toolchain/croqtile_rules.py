"""Rules that a ``.co`` kernel must keep before anything is compiled, each with a name.

Each rule is a fact about the hardware, the copy engine or the memory model; one that cannot be
read from the text for certain says nothing. A finding begins with the rule's name, so that an
ideator can tell them apart, and says what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.operators import ELEMENT_BYTES
from croq_fsm.domain.task import Task
from croq_fsm.toolchain.croqtile_text import KernelText, Mma

_WARPGROUP: Final = 128
_THREADS_MAX, _THREADS_PER_SM = 1_024, 2_048
_REGISTERS_PER_SM: Final = 65_536
_SHARED_PER_SM, _SHARED_RESERVED = 233_472, 1_024
_K_BYTES: Final = 32
_SWIZZLES: Final = (32, 64, 128)
_BOX_MAX: Final = 256
_BARRIERS: Final = 16
_WARP: Final = 32
_ROWS: Final = 64
_WIDE: Final = 2
_SPARSE: Final = re.compile(r"\bmma\.\w+\.\w+\S*\.sp\b")

_COPY: Final = re.compile(
    r"\btma\.(?P<kind>load|copy)(?P<flags>[\w.<>]*)\s+(?P<from>[^;]*?)=>\s*(?P<to>[^;]+);"
)
_SWIZZLE: Final = re.compile(r"\.swiz<(?P<span>[^>]*)>")
_SPAN: Final = re.compile(
    r"^(?P<name>\w+)(?:\[(?P<slot>[^\]]*)\])?(?:\.subspan\((?P<extent>.*?)\)\.at)?"
)
_SETREG: Final = re.compile(r"\bsetreg_(?P<kind>inc|dec)\(")
_INTHREADS: Final = re.compile(r"\binthreads(?:\.async)?\s*\((?P<who>[^{]*)\)\s*\{")
_THREADS: Final = re.compile(r"\b(?P<name>\w+)\s+by\s+(?P<count>[^:{,]+?)\s*:\s*thread\b")
_BARRIER: Final = re.compile(r"\b__bar_sync\(\s*(?P<id>[^,()]+),\s*(?P<count>[^()]+)\)")
_EVENT: Final = re.compile(r"\bshared\s+event\s+(?P<names>[^;]+);")
_RING: Final = re.compile(r"\b(?P<name>\w+)\s*\[(?P<count>[^\]]+)\]")
_SLOT: Final = re.compile(r"\b(?P<slot>\w+)\s*=\s*(?P<order>\w+)\s*%\s*(?P<count>\w+)\s*;")
_BOUNDS: Final = re.compile(r"__launch_bounds__\(\s*(?P<threads>\d+)\s*,\s*(?P<blocks>\d+)\s*\)")
_QUOTIENT: Final = re.compile(r"(?<![\w%/])(?P<size>[A-Z]\w*)\s*/\s*(?P<tile>\w+)(?!\w)")
_LOOP: Final = re.compile(r"\bforeach\b[^\[;]*\bin\s*\[(?P<bounds>[^\]]*)\]")
_TRANSPOSED: Final = re.compile(r"\bmma\.store\.transp\S*\s+\w+\s*,\s*(?P<target>[^;]+);")
_MAXREG: Final = re.compile(r"^nvcc:-{1,2}maxrregcount=(\d+)$")


@dataclass(frozen=True)
class Text:
    """What a rule looks at.

    Attributes:
        kernel: The source, read.
        candidate: Flags and patches beside it.
        task: Operator and shape.
    """

    kernel: KernelText
    candidate: Candidate
    task: Task

    def value(self, expression: str) -> int | None:
        """Value of an expression of macros, or None."""
        return self.kernel.value(expression)

    @property
    def threads(self) -> int | None:
        """Threads of a block, when they are warpgroups."""
        groups = self.kernel.warpgroups
        return groups[1] * _WARPGROUP if groups else None

    @property
    def widest(self) -> int:
        """Registers of a thread that the largest accumulator takes; 0 when it is not known."""
        cols = (self.kernel.operand_rows(m.operands[1]) for m in self._products)
        return max((_ROWS * n // _WARPGROUP for n in cols if n is not None), default=0)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of all tiles that can be read."""
        return sum(tile.nbytes or 0 for tile in self.kernel.tiles.values())

    @property
    def _products(self) -> list[Mma]:
        return [m for m in self.kernel.mmas if len(m.operands) >= _WIDE]


Check = Callable[[Text], Iterator[str]]


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: Begins each of its findings.
        check: Yields what is wrong.
    """

    name: str
    check: Check


def problems(kernel: KernelText, candidate: Candidate, task: Task) -> list[str]:
    """Findings of all rules; empty means that none can be seen."""
    text = Text(kernel, candidate, task)
    return [f"{rule.name}: {finding}" for rule in RULES for finding in rule.check(text)]


def _depth(text: Text) -> Iterator[str]:
    """WGMMA takes 32 bytes of K at a time, of both operands the same K."""
    for mma in text.kernel.mmas:
        if len(mma.operands) < _WIDE:
            continue
        deep = [_columns(text, operand) for operand in mma.operands[:_WIDE]]
        for found in deep:
            if found and found[0] * found[1] % _K_BYTES:
                step = _K_BYTES // found[1]
                yield f"an operand is {found[0]} deep; it must be a multiple of {step} elements"
        is_sparse = _SPARSE.search(text.kernel.text[mma.at :].partition(";")[0])
        left, right = deep
        if left and right and right[0] != left[0] * (_WIDE if is_sparse else 1):
            yield f"operands are {left[0]} and {right[0]} deep; they must have the same K"


def _columns(text: Text, operand: str) -> tuple[int, int] | None:
    """Columns of an operand in shared memory, and the bytes of its elements."""
    match = _SPAN.match(operand)
    tile = text.kernel.tiles.get(match["name"]) if match else None
    if match is None or tile is None or ".chunkat" in operand:
        return None
    element = ELEMENT_BYTES.get(tile.element)
    if match["extent"] is not None:
        parts = match["extent"].split(",")
        cols = text.value(parts[1]) if len(parts) == _WIDE else None
    else:
        cols = tile.dims[-1]
    return (cols, element) if cols is not None and element is not None else None


def _swizzle(text: Text) -> Iterator[str]:
    """A swizzle spans 32, 64 or 128 bytes, and the rows of its tile consist of whole spans."""
    for copy in _COPY.finditer(text.kernel.text):
        swizzle = _SWIZZLE.search(copy["flags"])
        if swizzle is None:
            continue
        span = text.value(swizzle["span"])
        if span is not None and span not in _SWIZZLES:
            yield f"swiz<{span}> does not exist; a swizzle spans 32, 64 or 128 bytes"
            continue
        end = copy["to"] if copy["kind"] == "load" else copy["from"]
        found = _columns(text, end.strip())
        if span and found and found[0] * found[1] % span:
            yield (
                f"rows of {found[0] * found[1]} bytes are no multiple of the {span} bytes of "
                f"swiz<{span}>; make the tile deeper or the swizzle narrower"
            )


def _boxes(text: Text) -> Iterator[str]:
    """What is copied and where it goes must have the same shape, at most 256 along each side."""
    for copy in _COPY.finditer(text.kernel.text):
        ends = [_extent(text, copy[side].strip()) for side in ("from", "to")]
        known = [end for end in ends if end is not None and None not in end]
        if len(known) == _WIDE and known[0] != known[1]:
            sides = " and ".join("x".join(map(str, end)) for end in known)
            yield f"a copy goes between {sides} elements; both sides must have one shape"
        if known and not _SWIZZLE.search(copy["flags"]) and (known[0][-1] or 0) > _BOX_MAX:
            yield f"a copy is {known[0][-1]} elements wide; without a swizzle 256 are the most"


def _extent(text: Text, end: str) -> tuple[int | None, ...] | None:
    match = _SPAN.match(end)
    if match is None:
        return None
    if match["extent"] is not None:
        return tuple(text.value(part) for part in match["extent"].split(","))
    tile = text.kernel.tiles.get(match["name"])
    return tile.dims if tile and end == match[0] else None


def _threads(text: Text) -> Iterator[str]:
    """A block has at most 1024 threads, and a warpgroup 128."""
    if text.threads is not None and not 0 < text.threads <= _THREADS_MAX:
        yield f"a block would have {text.threads} threads; at most 1024, that is 8 warpgroups"
    match = _THREADS.search(text.kernel.text)
    count = text.value(match["count"]) if match and text.kernel.warpgroups else None
    if count is not None and count != _WARPGROUP:
        yield f"a warpgroup is given {count} threads; it has 128"


def _rings(text: Text) -> Iterator[str]:
    """A slot must exist, and its events must not let it be filled before it was emptied."""
    events = {
        ring["name"]: text.value(ring["count"])
        for match in _EVENT.finditer(text.kernel.text)
        for ring in _RING.finditer(match["names"])
    }
    for slot in {(m["slot"], m["count"]) for m in _SLOT.finditer(text.kernel.text)}:
        depth = text.value(slot[1])
        if depth is None:
            continue
        for tile in text.kernel.tiles.values():
            is_used = re.search(rf"\b{tile.name}\[{slot[0]}\]", text.kernel.text)
            if is_used and tile.count is not None and depth > tile.count:
                yield f"slots go up to {depth - 1}, but {tile.name} has {tile.count} of them"
        for name, count in events.items():
            if count is not None and count > depth > 0 and _is_of_ring(text, name):
                yield (
                    f"event {name} has {count} generations in flight for {depth} slots: a slot "
                    "would be filled while it is still read"
                )


def _is_of_ring(text: Text, event: str) -> bool:
    """Whether a producer waits for the event before it fills a slot."""
    return bool(re.search(rf"\bwait\s+{event}\b[^;]*;\s*\w+\s*=\s*tma\.", text.kernel.text))


def _trade(text: Text) -> Iterator[str]:
    """setmaxnreg: somebody gives what others take, and whole warpgroups do it."""
    source = text.kernel.text
    kinds = {match["kind"] for match in _SETREG.finditer(source)}
    if "inc" in kinds and "dec" not in kinds:
        yield "setreg_inc waits for registers that nobody gives; the producer needs a setreg_dec"
    name = _THREADS.search(source)
    for match in _SETREG.finditer(source):
        who = _innermost(source, match.start())
        if name and re.search(rf"\b{name['name']}\b", who):
            yield f"setreg_{match['kind']} must be reached by a whole warpgroup, not by ({who})"


def _innermost(source: str, at: int) -> str:
    """Condition of the innermost ``inthreads`` block around a position, or ""."""
    found = ""
    for match in _INTHREADS.finditer(source, 0, at):
        depth = source.count("{", match.end() - 1, at) - source.count("}", match.end() - 1, at)
        inner = source[match.end() - 1 : at]
        if depth > 0 and _stays_open(inner):
            found = match["who"].strip()
    return found


def _stays_open(text: str) -> bool:
    depth = 0
    for i, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if i and depth == 0:
            return False
    return depth > 0


def _residents(text: Text) -> Iterator[str]:
    """Several blocks on one SM share its registers, threads and shared memory."""
    for patch in text.candidate.patches:
        for match in _BOUNDS.finditer(patch.replace):
            threads, blocks = int(match["threads"]), int(match["blocks"])
            if blocks > 1:
                yield from _shares(text, threads, blocks)


def _shares(text: Text, threads: int, blocks: int) -> Iterator[str]:
    registers = _REGISTERS_PER_SM // max(1, threads * blocks)
    room = _SHARED_PER_SM // blocks - _SHARED_RESERVED
    if threads * blocks > _THREADS_PER_SM:
        yield f"{blocks} blocks of {threads} threads; an SM has 2048"
    if text.widest >= registers:
        yield (
            f"{blocks} blocks of {threads} threads leave {registers} registers to each; one "
            f"accumulator takes {text.widest}"
        )
    if text.shared_bytes > room:
        need = text.shared_bytes
        yield f"{blocks} blocks per SM have {room} bytes of shared memory each, not {need}"
    if _SETREG.search(text.kernel.text):
        yield "setmaxnreg with more than one block per SM deadlocks"


def _register_cap(text: Text) -> Iterator[str]:
    """An accumulator must fit below the cap that a flag sets."""
    for flag in text.candidate.flags:
        match = _MAXREG.match(flag)
        if match and text.widest >= int(match[1]):
            yield f"{match[1]} registers at most, but one accumulator takes {text.widest}"


def _remainders(text: Text) -> Iterator[str]:
    """A size that a tile does not divide needs ``cdiv``, or its rest is never computed."""
    sizes = {name.upper(): size for name, size in text.task.sizes.items()}
    grid = text.kernel.block_grid
    bounds = [grid[1]] if grid else []
    bounds += [match["bounds"] for match in _LOOP.finditer(text.kernel.text)]
    for bound in bounds:
        for match in _QUOTIENT.finditer(bound):
            size, tile = sizes.get(match["size"]), text.value(match["tile"])
            if size is not None and tile and size % tile:
                yield (
                    f"`{match[0]}` leaves out the last {size % tile} of {size}; write "
                    f"cdiv({match['size']}, {match['tile']})"
                )


def _barriers(text: Text) -> Iterator[str]:
    """Named barriers: 16 of them, for whole warps of the block."""
    for match in _BARRIER.finditer(text.kernel.text):
        number, count = text.value(match["id"]), text.value(match["count"])
        if number is not None and not 0 <= number < _BARRIERS:
            yield f"barrier {number} does not exist; there are 0 to 15"
        if count is not None and (count % _WARP or count <= 0):
            yield f"a barrier for {count} threads; it must be a multiple of 32"
        if count is not None and text.threads is not None and count > text.threads:
            yield f"a barrier waits for {count} threads; the block has {text.threads}"


def _stores(text: Text) -> Iterator[str]:
    """A transposed store needs a transposed tile."""
    for match in _TRANSPOSED.finditer(text.kernel.text):
        extent = _extent(text, match["target"].strip())
        if extent and extent[0] == _ROWS and extent[-1] not in (None, _ROWS):
            yield f"mma.store.transp writes {extent[-1]}x64 elements into a tile of 64x{extent[-1]}"


#: All rules. H1, H2, H3, the shapes of WGMMA, boxes and shared memory are in ``croqtile_lint``.
RULES: Final = (
    Rule("wgmma-k", _depth),
    Rule("swizzle", _swizzle),
    Rule("copy-shape", _boxes),
    Rule("threads", _threads),
    Rule("ring", _rings),
    Rule("setmaxnreg", _trade),
    Rule("resident-blocks", _residents),
    Rule("register-cap", _register_cap),
    Rule("remainder", _remainders),
    Rule("named-barrier", _barriers),
    Rule("transposed-store", _stores),
)
