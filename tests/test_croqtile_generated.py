"""What the harness changes in generated text."""

from __future__ import annotations

import re

import pytest
from croqtile_support import task

from croq_fsm.domain.ideas import Replace
from croq_fsm.errors import CompileFailed, UsageError
from croq_fsm.toolchain.croqtile_generated import glue, host_identity, prepare, repair

TEXT = """\
__global__ __launch_bounds__(384, 1) void __choreo_device_matmul(f16 * lhs) {
  full[(k) % 3].arrive_and_expect_tx(16384);
  choreo::tma_load_2d_shared_cta_global_mbarrier((void*)(a), &m0, &(full[(k) % 3]), 0, 0);
  full[(k) % 3].expect_transaction(32768);
  choreo::tma_load_2d_shared_cta_global_mbarrier((void*)(b), &m1, &(full[(k) % 3]), 0, 0);
  MMA_64x200x16_F32F16F16_SS::fma(acc);
}
void matmul() {
  choreo::runtime_check(true, "message, kernel.co:7.13");
  choreo::abend_true(cudaDeviceSynchronize());
}
"""


def test_synchronise_goes_and_bytes_are_announced_at_once() -> None:
    """Both repairs of the host harness are made and noted."""
    text, notes = repair(TEXT)
    assert "cudaDeviceSynchronize" not in text
    assert "arrive_and_expect_tx(49152);" in text
    assert "expect_transaction" not in text
    assert text.count("tma_load") == 2
    assert len(notes) == 2


def test_a_thread_elected_for_each_copy_is_no_hindrance() -> None:
    """The compiler may guard each copy of a producing warpgroup by itself."""
    again = "  }\n  if ((threadIdx.x == 0)) {\n  full[(k) % 3].expect_transaction"
    text, notes = repair(TEXT.replace("  full[(k) % 3].expect_transaction", again))
    assert "arrive_and_expect_tx(49152);" in text
    assert "expect_transaction" not in text
    assert len(notes) == 2


def test_repair_is_idempotent() -> None:
    """A repaired text is left alone."""
    once, _ = repair(TEXT)
    assert repair(once) == (once, ())


def test_announcements_for_other_barriers_are_left_alone() -> None:
    """Only bytes of the same barrier may be joined."""
    other = TEXT.replace("full[(k) % 3].expect_transaction", "other[(k) % 3].expect_transaction")
    text, _ = repair(other)
    assert "arrive_and_expect_tx(16384);" in text
    assert "expect_transaction(32768);" in text


def test_patches_apply_to_the_repaired_text_and_cannot_undo_it() -> None:
    """A patch sees what was repaired; a fault that it brings back is repaired again."""
    patch = Replace(
        search="expect_tx(49152);", replace="expect_tx(49152);\n  cudaDeviceSynchronize();"
    )
    made = prepare(TEXT, (patch,), task())
    assert "cudaDeviceSynchronize" not in made.text
    assert made.kernels == ("__choreo_device_matmul",)


def test_a_patch_that_does_not_match_is_the_candidates_fault() -> None:
    """An unmatched or ambiguous search text fails the compile, with its text."""
    with pytest.raises(CompileFailed, match="does not apply"):
        prepare(TEXT, (Replace(search="no such text", replace=""),), task())


def test_unusual_widths_ask_for_the_extended_shapes() -> None:
    """WGMMA widths outside the plain set are noticed."""
    assert prepare(TEXT, (), task()).extended
    assert not prepare(TEXT.replace("64x200", "64x256"), (), task()).extended


def test_glue_takes_the_element_type() -> None:
    """The entry point views memory as the task's type."""
    assert "choreo::bf16" in prepare(TEXT, (), task("bf16")).text
    softmax = task().model_copy(update={"operator": "softmax", "dtype": "f32", "shape": (8, 8)})
    with pytest.raises(UsageError):
        prepare(TEXT, (), softmax)


def test_comments_and_positions_are_no_identity() -> None:
    """Two texts that differ in comments and line numbers are the same code."""
    other = TEXT.replace("kernel.co:7.13", "kernel.co:9.99") + "// a comment\n"
    assert host_identity(other) == host_identity(TEXT)
    assert host_identity(TEXT.replace("384", "256")) != host_identity(TEXT)


def test_glue_has_all_operands_in_their_order_and_shape() -> None:
    """Scales and metadata are handed over as the operator's layout has them."""
    scaled = task().model_copy(update={"operator": "blockscale_gemm", "dtype": "e4m3f32"})
    text = glue(scaled)
    views = re.findall(r"make_spanview<choreo::(\w+), 2>\(.*?\), \{(.*?)\}\)", text)
    assert views == [
        ("f8_e4m3", "m, k"),
        ("f32", "m, (k + 127) / 128"),
        ("f8_e4m3", "n, k"),
        ("f32", "(n + 127) / 128, (k + 127) / 128"),
        ("f32", "m, n"),
    ]
    assert [f"inputs[{i}]" in text for i in range(5)] == [True] * 4 + [False]
    sparse = task().model_copy(update={"operator": "gemm_sp"})
    assert "choreo::u8" in glue(sparse)
    assert "(k + 7) / 8" in glue(sparse)
