"""Writing a kernel of the family as ``.co`` text in the compiler's head dialect.

Numbers stand in macros at the top; the body depends on structure alone, so that two members
that differ in numbers differ in macros. Helpers are device functions in the same file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from croq_fsm.ideators.rules.croqtile_config import WGMMA_M, Gemm

_UNIFORM: Final = """\
// The same value in all lanes. Said this way, the compiler knows it and keeps what follows
// from it (operand descriptors) in uniform registers.
__device__ __forceinline__ int warp_uniform(int value) {
  return __shfl_sync(0xffffffffu, value, 0);
}
"""

_PACK: Final = {
    "f16": ("__half2", "__floats2half2_rn"),
    "bf16": ("__nv_bfloat162", "__floats2bfloat162_rn"),
}

#: Placeholders in angle brackets, for the text is full of braces.
_PANELS: Final = """\
__device__ __forceinline__ unsigned packed(float low, float high) {
  <pair> both = <convert>(low, high);
  return reinterpret_cast<unsigned &>(both);
}

// Stores STORE_N columns of a warpgroup's sums, from column `first` on, as panels of PANEL
// columns and `height` lines. The pieces of 16 bytes in a line are permuted by the address
// bits that the copy engine uses for its swizzle, so that eight lines meet in no bank twice.
__device__ __forceinline__ void store_panels(const float *sums, <element> *tile, int height,
                                             int line, int first) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned row = line + threadIdx.x / 32 % 4 * 16 + lane % 16;
  const unsigned at = __cvta_generic_to_shared(tile) + row * PANEL_BYTES;
  const unsigned turn = (at >> 7 & (PANEL_BYTES / 16 - 1)) * 16 ^ lane / 16 * 16;
#pragma unroll
  for (int column = 0; column < STORE_N; column += 16) {
    const float *v = sums + (first + column) / 2;
    const unsigned panel = column / PANEL * height * PANEL_BYTES;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(at + panel + (turn ^ column % PANEL * 2)), "r"(packed(v[0], v[1])),
                   "r"(packed(v[2], v[3])), "r"(packed(v[4], v[5])), "r"(packed(v[6], v[7]))
                 : "memory");
  }
}
"""


def render(config: Gemm) -> str:
    """Complete, readable source of a configuration; whether it can run is not looked at."""
    body = _kernel(config)
    parts = [
        "\n".join(_heading(config)),
        "\n".join(f"#define {name} {value}" for name, value in macros_of(config).items()) + "\n",
        *_helpers(config),
        "\n".join(body) + "\n",
    ]
    return "\n".join(parts)


def macros_of(config: Gemm) -> dict[str, int]:
    """Macros of the text, in their order."""
    low, high = config.registers or (0, 0)
    panels = config.layout == "panels"
    named = {
        "TILE_M": config.tile_m,
        "TILE_N": config.tile_n,
        "TILE_K": config.tile_k,
        "STAGES": config.stages,
        "CONSUMERS": config.consumers,
        "NUM_SMS": config.ctas,
        "PRODUCER_REGS": low,
        "CONSUMER_REGS": high,
        "GROUP": config.group,
        "PANEL": config.panel if panels else 0,
        "PANEL_BYTES": 2 * config.panel if panels else 0,
        "STORE_N": config.tile_n // config.turns if panels else 0,
        "UNROLL": config.unroll if config.unroll > 1 else 0,
    }
    return {name: value for name, value in named.items() if value}


def _heading(config: Gemm) -> list[str]:
    producer = "One thread" if config.elected else "One warpgroup"
    blocks = (
        "Persistent: each thread block walks over tiles, and the ring of stages runs on across"
        if config.ctas
        else "One thread block per tile"
    )
    return [
        f"// output[M, N] = lhs[M, K] . rhs[N, K]^T; {config.element} in and out, f32 sums.",
        f"// {blocks}" + (" them." if config.ctas else "."),
        f"// {producer} loads; each of CONSUMERS warpgroups owns {WGMMA_M * config.rows} rows.",
        "// The copy engine cuts remainders of M and N off, and fills those of K with zeros.",
    ]


def _helpers(config: Gemm) -> list[str]:
    helpers = [_UNIFORM] if config.uniform and config.consumers > 1 else []
    if config.layout == "panels":
        pair, convert = _PACK[config.element]
        text = _PANELS.replace("<pair>", pair).replace("<convert>", convert)
        helpers.append(text.replace("<element>", config.element))
    return helpers


def _kernel(config: Gemm) -> list[str]:
    element = config.element
    return [
        f"__co__ void matmul(global {element} [M, K] lhs, global {element} [N, K] rhs,",
        f"                   global {element} [M, N] output) {{",
        *_indent(_counts(config)),
        f"  {_grid(config)} : block {{",
        *_indent(_shared(config), 2),
        *_indent(_block_tile(config), 2),
        "    parallel wg by (CONSUMERS + 1) : group-4, t by 128 : thread {",
        *_indent(_producer(config), 3),
        *_indent(_consumer(config), 3),
        "    }",
        "  }",
        "}",
    ]


def _counts(config: Gemm) -> list[str]:
    if not config.ctas and not config.group:
        return []
    return [
        "int tiles_m = cdiv(M, TILE_M);",
        "int tiles_n = cdiv(N, TILE_N);",
        "int tiles = tiles_m * tiles_n;",
    ]


def _grid(config: Gemm) -> str:
    if config.ctas:
        return "parallel cta by NUM_SMS"
    if config.group:
        return "parallel tile by tiles"
    along_m, along_n = "cdiv(M, TILE_M)", "cdiv(N, TILE_N)"
    if config.order == "n":
        return f"parallel {{block_n, block_m}} by [{along_n}, {along_m}]"
    return f"parallel {{block_m, block_n}} by [{along_m}, {along_n}]"


def _shared(config: Gemm) -> list[str]:
    element = config.element
    lines = ["shared event full[STAGES], empty[STAGES] = ready;"]
    if config.guarded and config.guard == "event":
        lines.append("shared event drained[1] = ready;")
    lines += [
        f"shared {element} [TILE_M, TILE_K] lhs_s[STAGES];",
        f"shared {element} [TILE_N, TILE_K] rhs_s[STAGES];",
    ]
    if config.staging == "tile":
        width = "STORE_N" if config.turns > 1 else "TILE_N"
        lines.append(f"shared {element} [TILE_M, {width}] out_s;")
    return [*lines, ""]


def _block_tile(config: Gemm) -> list[str]:
    """Place of the block's only tile, where the grid does not give it."""
    return [*_place(config), ""] if config.group and not config.ctas else []


def _place(config: Gemm) -> list[str]:
    """From a tile's number to its place in the output."""
    if config.order == "m":
        return ["block_m = tile % tiles_m;", "block_n = tile / tiles_m;"]
    if config.order == "n":
        return ["block_m = tile / tiles_n;", "block_n = tile % tiles_n;"]
    along, across = ("m", "n") if config.order == "gm" else ("n", "m")
    return [
        "// Bands of GROUP tiles; the last one is as high as what is left.",
        f"first = tile / (GROUP * tiles_{across}) * GROUP;",
        f"height = tiles_{along} - first < GROUP ? tiles_{along} - first : GROUP;",
        f"inner = tile - first * tiles_{across};",
        f"block_{along} = first + inner % height;",
        f"block_{across} = inner / height;",
    ]


def _producer(config: Gemm) -> list[str]:
    work = ["mutable u32 order = 0;", *_over_tiles(config, _loads(config))]
    if not config.registers:
        who = "wg == 0 && t == 0" if config.elected else "wg == 0"
        return [f"inthreads.async ({who}) {{", *_indent(work), "}"]
    if config.elected:
        work = ["inthreads (t == 0) {", *_indent(work), "}"]
    give = "call croq::cuda::setreg_dec(PRODUCER_REGS);"
    return ["inthreads.async (wg == 0) {", *_indent([give, *work]), "}"]


def _consumer(config: Gemm) -> list[str]:
    take = ["call croq::cuda::setreg_inc(CONSUMER_REGS);"] if config.registers else []
    work = [
        *take,
        *_strips(config),
        "mutable u32 order = 0;",
        *_over_tiles(config, _tile(config)),
    ]
    return ["inthreads.async (wg > 0) {", *_indent(work), "}"]


def _strips(config: Gemm) -> list[str]:
    """Names, one per accumulator, of the block of 64 rows that it is in the tile.

    They are mutable on purpose: the compiler would otherwise share sub-expressions of an
    immutable one between scopes, and name them where they do not exist.
    """
    if config.consumers == 1:
        return []
    lines = []
    for i, name in enumerate(_strip_names(config)):
        index = "wg - 1" if config.rows == 1 else f"{config.rows} * (wg - 1) + {i}"
        value = f"call warp_uniform({index})" if config.uniform else index
        lines.append(f"mutable int {name} = {value};")
    return lines


def _strip_names(config: Gemm) -> list[str]:
    if config.consumers == 1:
        return [str(i) for i in range(config.rows)]
    return ["strip"] if config.rows == 1 else [f"strip{i}" for i in range(config.rows)]


def _over_tiles(config: Gemm, work: list[str]) -> list[str]:
    """The work for each tile of a block."""
    if not config.ctas:
        return work
    return [
        "foreach {round} in [cdiv(tiles, NUM_SMS)] {",
        "  tile = round * NUM_SMS + cta;",
        "  if (tile < tiles) {",
        *_indent([*_place(config), *work], 2),
        "  }",
        "}",
    ]


def _loads(config: Gemm) -> list[str]:
    lhs_hint = ".evict_last" if config.keep == "lhs" else ""
    rhs_hint = ".evict_last" if config.keep == "rhs" else ""
    return [
        "foreach {step} in [cdiv(K, TILE_K)] {",
        "  slot = order % STAGES;",
        "  wait empty.at(order);",
        f"  a = tma.load.async{lhs_hint}.swiz<128>",
        "      lhs.subspan(TILE_M, TILE_K).at(block_m, step) => lhs_s[slot];",
        f"  b = tma.load.async{rhs_hint}.swiz<128>",
        "      rhs.subspan(TILE_N, TILE_K).at(block_n, step) => rhs_s[slot];",
        "  trigger full.at(order) after a, b;",
        "  order = order + 1;",
        "}",
    ]


def _tile(config: Gemm) -> list[str]:
    unroll = " : unroll(UNROLL)" if config.unroll > 1 else ""
    names = _sums(config)
    futures = [f"op{i}" if len(names) > 1 else "op" for i in range(len(names))]
    multiply = [
        f"{future} = mma.row.row.async {name}, "
        f"lhs_s[slot].subspan(64, TILE_K).at({strip}, 0), rhs_s[slot];"
        for future, name, strip in zip(futures, names, _strip_names(config), strict=True)
    ]
    return [
        *(f"{name} = mma.fill.f32 0.0f;" for name in names),
        f"foreach {{step}} in [cdiv(K, TILE_K)]{unroll} {{",
        "  slot = order % STAGES;",
        "  wait full.at(order);",
        *_indent(multiply),
        "  // The tensor cores read the slot until here; only then may it be filled again.",
        f"  wait {', '.join(futures)};",
        f"  {_released(config)}",
        "  order = order + 1;",
        "}",
        *_epilogue(config),
    ]


def _released(config: Gemm) -> str:
    trigger = "trigger empty.at(order);"
    who = {"warp": "t % 32 == 0", "group": "t == 0"}.get(config.release)
    return f"inthreads ({who}) {{ {trigger} }}" if who else trigger


def _sums(config: Gemm) -> list[str]:
    return ["sums"] if config.rows == 1 else [f"sums{i}" for i in range(config.rows)]


def _epilogue(config: Gemm) -> list[str]:
    if config.staging == "stage":
        return _through_stages(config)
    lines: list[str] = []
    for turn in range(config.turns):
        lines += _turn(config, turn)
    return lines


def _turn(config: Gemm, turn: int) -> list[str]:
    """One pass of the output, or of a part of it, through the staging tile."""
    column = "block_n" if config.turns == 1 else _plus(f"{config.turns} * block_n", turn)
    width = "TILE_N" if config.turns == 1 else "STORE_N"
    lines = [*_guard(config, turn)]
    for name, strip in zip(_sums(config), _strip_names(config), strict=True):
        if config.layout == "panels":
            first = "0" if turn == 0 else f"{turn} * STORE_N"
            lines.append(f"call store_panels({name}, out_s, TILE_M, {strip} * 64, {first});")
        else:
            lines.append(f"mma.store {name}, out_s.subspan(64, TILE_N).at({strip}, 0);")
    target = f"output.subspan(TILE_M, {width}).at(block_m, {column})"
    lines.append(f"tma.copy{_swizzle(config)} out_s => {target};")
    if config.guarded and config.guard == "event":
        lines.append(f"trigger drained.at({_pass(config, turn)});")
    return lines


def _guard(config: Gemm, turn: int) -> list[str]:
    """Before the staging tile is written again, the copy engine must have read it."""
    if not config.guarded:
        return []
    if config.guard == "event":
        return [f"wait drained.at({_pass(config, turn)});"]
    return [
        "// The thread that waited for the copy of what lies in out_s meets the others here.",
        "__bar_sync(1, CONSUMERS * 128);",
    ]


def _pass(config: Gemm, turn: int) -> str:
    """Ordinal of a pass through the staging tile."""
    if not config.ctas:
        return str(turn)
    return "round" if config.turns == 1 else _plus(f"{config.turns} * round", turn)


def _plus(text: str, number: int) -> str:
    return f"{text} + {number}" if number else text


def _through_stages(config: Gemm) -> list[str]:
    """The output leaves through the ring, whose operands nobody needs any more."""
    lines = [
        "// All consumers have done with the ring; its first stages now hold the output.",
        "__bar_sync(1, CONSUMERS * 128);",
    ]
    for name, strip in zip(_sums(config), _strip_names(config), strict=True):
        if config.layout == "panels":
            lines.append(f"call store_panels({name}, rhs_s[{strip}], 64, 0, 0);")
        else:
            lines.append(f"mma.store {name}, rhs_s[{strip}].span_as(64, TILE_N);")
    parts = "TILE_M / 64"
    return [
        *lines,
        f"foreach {{part}} in [{parts}] {{",
        f"  tma.copy{_swizzle(config)} rhs_s[part].span_as(64, TILE_N)",
        f"      => output.subspan(64, TILE_N).at(block_m * ({parts}) + part, block_n);",
        "}",
    ]


def _swizzle(config: Gemm) -> str:
    return ".swiz<PANEL_BYTES>" if config.layout == "panels" else ""


def _indent(lines: Iterable[str], levels: int = 1) -> list[str]:
    return ["  " * levels + line if line else "" for line in lines]
