"""Static checks of a ``.co`` kernel before anything is compiled, and its structure.

Each finding is certain: it names a rule of the hardware, of the copy engine or of the memory
model that the text breaks. What the text does not show is left to the compiler and to
verification.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.operators import ELEMENT_BYTES
from croq_fsm.domain.task import Task
from croq_fsm.toolchain import croqtile_rules, croqtile_sparse
from croq_fsm.toolchain.croqtile_text import KernelText

#: Opt-in shared memory of a block on SM90, bytes, less what barriers and alignment take.
SHARED_LIMIT: Final = 232_448
_SHARED_MARGIN: Final = 1_024
_WGMMA_M, _WGMMA_N_STEP, _WGMMA_N_MAX = 64, 8, 256
_TMA_BOX_MAX, _TMA_ROW_STEP = 256, 16
_REGISTERS_PER_SM: Final = 65_536
_WARPGROUP_THREADS: Final = 128
_SETREG: Final = re.compile(r"\bsetreg_(inc|dec)\(([^()]*)\)")
_REGISTER_STEP, _REGISTER_MIN, _REGISTER_MAX = 8, 24, 256
_FOREACH_OF_TILES: Final = re.compile(r"\bforeach\b[^{]*\{[^}]*\}\s*in\s*\[[^\]]*\bNUM_SMS\b")
_FORBIDDEN: Final = {
    r"\bcudaMallocManaged\b": "managed memory can hang the device",
    r"\bcudaStream\w+|\bcudaEvent\w+|\bcudaGraph\w+": "streams and events are the harness's",
    r"\bstd::(?:thread|async|jthread)\b|\bpthread_\w+|\bfork\s*\(": "a kernel needs no host thread",
    r"\b(?:cublas|cudnn|cusparse)\w*|\bcutlass::(?:gemm|conv)\b": "library calls are not tuning",
    r"\b(?:dlopen|system|popen|getenv|fopen|syscall)\s*\(": "a kernel needs nothing of the system",
    r"#\s*include\s*[<\"]\s*(?:/|\.\.)": "only the toolchain's own headers may be included",
    r"\.incbin|\.include": "files cannot be embedded",
    r"#\s*pragma\s+(?!unroll|croq)\w+": "only unroll and croq pragmas are allowed",
}
_TRIGGER: Final = re.compile(r"\btrigger\s+(?P<event>\w+)(?P<at>\.at\([^;]*?\)|\[[^;]*?\])?\s*;")
_WAIT: Final = re.compile(r"\bwait\s+(?P<what>[^;]+);")
_ORDER: Final = re.compile(r"^\s*\w+\s*(?:\.at\((?P<order>.*)\)|\[(?P<slot>.*)\])\s*$")


def lint(candidate: Candidate, task: Task, shared_limit: int = SHARED_LIMIT) -> list[str]:
    """Problems of a candidate, each a sentence; empty means that none can be seen.

    Args:
        candidate: Source, flags and patches.
        task: Operator and shape.
        shared_limit: Shared memory that a block may ask for, bytes.
    """
    kernel = KernelText(candidate.source)
    return [
        *_entry(kernel, task),
        *_forbidden(kernel, candidate),
        *_wgmma(kernel),
        *_copies(kernel),
        *([] if "choreo:--mem-reuse" in candidate.flags else _shared(kernel, shared_limit)),
        *_registers(kernel),
        *croqtile_rules.problems(kernel, candidate, task),
        *_coverage(kernel),
        *_early_release(kernel),
        *_store_race(kernel, task),
        *croqtile_sparse.problems(kernel, task),
    ]


def structure(candidate: Candidate) -> dict[str, str]:
    """Structural features; what cannot be read is absent."""
    kernel = KernelText(candidate.source)
    consumers = kernel.consumer_ids
    features = {
        "tile": _tile(kernel),
        "topology": _topology(kernel, consumers),
        "schedule": "persistent" if _is_persistent(kernel) else "one tile per block",
        "order": _order(kernel),
        "memory": _memory(kernel),
        "accumulators": str(len(kernel.accumulators) or ""),
        "registers": "reassigned" if _SETREG.search(kernel.text) else "uniform",
    }
    return {name: value for name, value in features.items() if value}


def _entry(kernel: KernelText, task: Task) -> Iterator[str]:
    if not re.search(rf"__co__\s+void\s+{task.operator}\s*\(", kernel.text):
        yield f"the source has no function `__co__ void {task.operator}(…)`"


def _forbidden(kernel: KernelText, candidate: Candidate) -> Iterator[str]:
    texts = [kernel.text, *(patch.replace for patch in candidate.patches)]
    for pattern, why in _FORBIDDEN.items():
        found = next((m for text in texts if (m := re.search(pattern, text))), None)
        if found:
            yield f"`{found[0].strip()}` is forbidden: {why}"


def _wgmma(kernel: KernelText) -> Iterator[str]:
    for mma in kernel.mmas:
        if len(mma.operands) < 2:  # noqa: PLR2004 - A and B; scaled and sparse forms have more
            continue
        rows, cols = (kernel.operand_rows(operand) for operand in mma.operands[:2])
        if cols is not None and (cols % _WGMMA_N_STEP or not 0 < cols <= _WGMMA_N_MAX):
            yield f"wgmma-n: WGMMA N is {cols}; it must be a multiple of 8 and at most 256"
        if rows is not None and rows != _WGMMA_M:
            yield f"wgmma-m: the A operand of a WGMMA has {rows} rows; it must have 64"


def _copies(kernel: KernelText) -> Iterator[str]:
    """Limits of the copy engine on the tiles that it fills or empties."""
    for tile in kernel.tiles.values():
        element = ELEMENT_BYTES.get(tile.element)
        if element is None or len(tile.dims) != 2 or None in tile.dims:  # noqa: PLR2004
            continue
        rows, cols = (size or 0 for size in tile.dims)
        if rows > _TMA_BOX_MAX:
            yield f"copy-box: tile {tile.name} has {rows} rows; a copy moves at most 256"
        if cols * element % _TMA_ROW_STEP:
            nbytes = cols * element
            yield f"copy-box: rows of tile {tile.name} have {nbytes} bytes, no multiple of 16"
        if rows % _WGMMA_N_STEP:
            yield f"copy-box: tile {tile.name} has {rows} rows; swizzled ones need a multiple of 8"


def _shared(kernel: KernelText, limit: int) -> Iterator[str]:
    sizes = [tile.nbytes for tile in kernel.tiles.values()]
    known = sum(size for size in sizes if size is not None)
    if known > limit - _SHARED_MARGIN:
        room = limit - _SHARED_MARGIN
        yield f"shared-memory: shared tiles need {known} bytes; a block has {room}"


def _registers(kernel: KernelText) -> Iterator[str]:
    if kernel.warpgroups is None:
        return
    threads = kernel.warpgroups[1] * _WARPGROUP_THREADS
    cap = _REGISTERS_PER_SM // threads // _REGISTER_STEP * _REGISTER_STEP if threads else 0
    widest = max(
        (n for m in kernel.mmas if (n := _accumulator_registers(kernel, m.operands))), default=0
    )
    if widest >= cap:
        yield (
            f"registers: one accumulator takes {widest} registers of a thread; with {threads} "
            f"threads a thread has {cap} at the start of the kernel"
        )
    yield from _register_trade(kernel)


def _register_trade(kernel: KernelText) -> Iterator[str]:
    """setmaxnreg: legal values, and a sum that the register file can hold."""
    values = {kind: kernel.value(text) for kind, text in _SETREG.findall(kernel.text)}
    for value in values.values():
        if value is not None and (
            value % _REGISTER_STEP or not _REGISTER_MIN <= value <= _REGISTER_MAX
        ):
            yield f"setmaxnreg: setmaxnreg {value} is illegal: a multiple of 8 from 24 to 256"
    consumers, groups = kernel.consumer_ids, kernel.warpgroups
    low, high = values.get("dec"), values.get("inc")
    if consumers and groups and low and high:
        total = high * len(consumers) + low * (groups[1] - len(consumers))
        asked = total * _WARPGROUP_THREADS
        if asked > _REGISTERS_PER_SM:
            total_text = f"{asked} registers of {_REGISTERS_PER_SM}"
            yield f"setmaxnreg: setmaxnreg asks for {total_text}: it would hang"


def _coverage(kernel: KernelText) -> Iterator[str]:
    """H1: each row of the output tile is written by exactly the consumers that there are."""
    copy, consumers, groups = kernel.output_copy, kernel.consumer_ids, kernel.warpgroups
    if copy is None or not consumers or groups is None or not kernel.stores:
        return
    height = kernel.tiles[copy[0]].dims[0]
    written: set[int] = set()
    for target in kernel.stores:
        for consumer in consumers:
            span = kernel.rows_written(target, (groups[0], consumer))
            if span is None or span[0] != copy[0] or height is None:
                return
            written.update(range(span[1], span[1] + span[2]))
    if height is not None and written != set(range(height)):
        inside = len(written & set(range(height)))
        yield (
            f"H1: {len(consumers)} consumer(s) write {inside} of the {height} rows of "
            f"{copy[0]}" + (", and rows outside of it" if inside < len(written) else "")
        )


def _early_release(kernel: KernelText) -> Iterator[str]:
    """H2: a stage is given back while an asynchronous WGMMA that reads it is in flight."""
    for mma in kernel.mmas:
        if not mma.future:
            continue
        order = _order_waited_for(kernel.text[: mma.at])
        after = kernel.text[mma.at :]
        waits = [m for m in _WAIT.finditer(after) if mma.future in re.split(r"[,\s]+", m["what"])]
        flight = after[: waits[0].start()] if waits else after
        for trigger in _TRIGGER.finditer(flight):
            if order and _order_of(trigger["event"] + (trigger["at"] or "")) == order:
                yield (
                    f"H2: `{trigger[0].strip()}` gives a stage back while `{mma.future}` may "
                    "still read it; wait for it first"
                )


def _store_race(kernel: KernelText, task: Task) -> Iterator[str]:
    """H3: a persistent loop writes its staging tile again before the last copy has read it."""
    copy = kernel.output_copy
    if copy is None or not _is_persistent(kernel) or "__bar_sync" in kernel.text:
        return
    inside = kernel.predicate_before(kernel.text.find(f"tma.copy {copy[0]}"))
    step, stages = kernel.value("TILE_K"), _stages(kernel)
    if inside is None or not step or not stages or "k" not in task.sizes:
        return
    steps = -(-task.sizes["k"] // step)
    if steps <= stages:
        yield (
            f"H3: with {steps} steps per tile and {stages} stages nothing keeps a consumer from "
            f"writing {copy[0]} before the copy engine has read it; put a __bar_sync of all "
            "consumers before mma.store"
        )


def _accumulator_registers(kernel: KernelText, operands: tuple[str, ...]) -> int | None:
    cols = kernel.operand_rows(operands[1]) if len(operands) > 1 else None
    return None if cols is None else _WGMMA_M * cols // _WARPGROUP_THREADS


def _order_waited_for(before: str) -> str:
    waits = list(_WAIT.finditer(before))
    return _order_of(waits[-1]["what"]) if waits else ""


def _order_of(event: str) -> str:
    """What follows the event's name: the order of ``.at(order)`` or the slot of ``[slot]``."""
    match = _ORDER.match(event)
    return re.sub(r"\s+", "", (match["order"] or match["slot"] or "")) if match else ""


def _is_persistent(kernel: KernelText) -> bool:
    grid = kernel.block_grid
    if grid is None:
        return False
    return kernel.value(grid[1]) is not None or bool(_FOREACH_OF_TILES.search(kernel.text))


def _stages(kernel: KernelText) -> int | None:
    """Largest number of copies of a tile: the depth of the ring."""
    counts = [tile.count for tile in kernel.tiles.values() if tile.count is not None]
    return max(counts, default=None)


def _tile(kernel: KernelText) -> str:
    for mma in kernel.mmas:
        cols = kernel.operand_rows(mma.operands[1]) if len(mma.operands) > 1 else None
        name = re.match(r"\w+", mma.operands[0])
        tile = kernel.tiles.get(name[0]) if name else None
        if cols is not None and tile is not None and None not in tile.dims:
            return f"{tile.dims[0]}x{cols}x{tile.dims[-1]}"
    return ""


def _topology(kernel: KernelText, consumers: tuple[int, ...] | None) -> str:
    if consumers is None or kernel.warpgroups is None:
        return ""
    return f"{kernel.warpgroups[1] - len(consumers)}p{len(consumers)}c"


def _order(kernel: KernelText) -> str:
    """How thread blocks and tiles follow each other, as the text says it."""
    grid = kernel.block_grid
    if grid is None:
        return ""
    if not _is_persistent(kernel):
        return re.sub(r"\s+", "", grid[0])
    lines = re.findall(r"\b(\w+)\s*=\s*([^=;]*\b(?:tile|tile_id)\b[^;]*);", kernel.text)
    return "; ".join(dict.fromkeys(re.sub(r"\s+", "", f"{a}={b}") for a, b in lines))


def _memory(kernel: KernelText) -> str:
    parts = ["tma" if "tma." in kernel.text else "dma"]
    parts += ["multicast"] if ".multicast" in kernel.text else []
    parts += ["staged output" if kernel.output_copy else "direct output"]
    return ", ".join(parts)
