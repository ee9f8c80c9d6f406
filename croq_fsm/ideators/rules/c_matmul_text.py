"""The text of the C matmul family: rendering a configuration, and knowing our own texts again.

Ragged rows go one at a time when a is read in place, and are padded with zeros when it is
packed; a ragged panel of b is always copied into a padded one. So no vector ever reaches
beyond an operand, and only whole tiles are stored with vectors.
"""

from __future__ import annotations

from functools import lru_cache

from croq_fsm.ideators.rules import c_family
from croq_fsm.ideators.rules.c_matmul_family import Config, Loops, Tiles
from croq_fsm.ideators.rules.c_text import fill


@lru_cache(maxsize=256)
def render(config: Config) -> str:
    """Complete source of a configuration; right for any m, n and k."""
    body = _render_loops(config) if isinstance(config, Loops) else _render_tiles(config)
    return c_family.marked(body, config)


def recognise(source: str) -> Config | None:
    """The configuration of a source of this family, or None."""
    return c_family.recognise(source, _model_of, render)


def _model_of(fields: dict[str, object]) -> type[Config]:
    return Loops if fields.get("style") == "loops" else Tiles


def _render_tiles(config: Tiles) -> str:
    switches = {
        "blocked": config.blocked,
        "pack_a": config.pack_a,
        "pack_b": config.pack_b,
        "whole_b": config.blocked and config.pack_b,
        "unrolled": config.unroll > 1,
        "prefetch_c": "c" in config.prefetch,
        "prefetch_b": "b" in config.prefetch,
        "sweep_i": config.sweep == "i",
        "order_jpi": config.order == "jpi",
    }
    from_a = "" if config.pack_a else "from_a, k, "
    from_b = "" if config.pack_b else "from_b, n, "
    values = config.model_dump() | {"operands": from_a + from_b}
    return fill("c_matmul_tiles.c", switches, values)


def _render_loops(config: Loops) -> str:
    promise = "restrict " if config.restrict else ""
    values = config.model_dump() | {"promise": promise, "fused": _fused(config, promise)}
    return fill("c_matmul_loops.c", {"blocked": config.blocked}, values)


def _fused(config: Loops, promise: str) -> str:
    """The loop that adds several rows of b to a row of c in one pass."""
    if config.fuse == 1:
        return ""
    pad = " " * (16 if config.blocked else 8)
    end, left, right = ("end", "left", "right") if config.blocked else ("k", "0", "n")
    ways = range(config.fuse)
    lines = [f"for (; p + {config.fuse} <= {end}; p += {config.fuse}) {{"]
    lines += [f"    const float x{w} = a[i * k + p + {w}];" for w in ways]
    lines += [f"    const float *{promise}b{w} = b + (ptrdiff_t)(p + {w}) * n;" for w in ways]
    lines += [f"    for (int j = {left}; j < {right}; ++j)", "        row[j] +="]
    lines += [f"            x{w} * b{w}[j]{' +' if w + 1 < config.fuse else ';'}" for w in ways]
    lines.append("}")
    return "\n".join(pad + line for line in lines)
