"""Identity of a device and others on it, from what the driver's tool says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from croqtile_support import ScriptedRunner

from croq_fsm.errors import EnvironmentMissing
from croq_fsm.gpu.contention import Neighbours, Occupant, describe_foreign, own_tree
from croq_fsm.gpu.device import chosen_row, make_device, peaks_of, query_smi

SMI = Path("/usr/bin/nvidia-smi")
ROW = (
    "0, NVIDIA H200, GPU-1234, 580.159.04, 9.0, 143771, 700.00, 1980, 3201, Enabled, "
    "Enabled, Disabled\n"
)
INFO: dict[str, object] = {
    "name": "NVIDIA H200",
    "uuid": "GPU-1234",
    "capability": 90,
    "sms": 132,
    "smem_per_block": 232448,
    "registers_per_sm": 65536,
    "threads_per_block": 1024,
    "l2_bytes": 62914560,
    "max_sm_mhz": 1980,
}


def test_a_device_is_named_limited_and_bounded() -> None:
    """Key, limits and peaks come from the two programs' answers."""
    rows = query_smi(ScriptedRunner(("--query-gpu", ROW, 0)), SMI, Path(), 1.0)
    device = make_device(INFO, chosen_row(rows, "GPU-1234"))
    assert device.key == "sm90_NVIDIA_H200"
    assert device.limits["sms"] == 132
    assert device.limits["registers_per_thread"] == 255
    assert device.peak_bandwidth == 4.8e12
    assert device.peak_flops == 132 * 4096 * 1980e6
    assert device.facts["power_limit"] == "700.00"


def test_an_unknown_device_has_no_peaks_and_does_no_harm() -> None:
    """What is not known is absent."""
    device = make_device({}, {"name": "NVIDIA Next", "uuid": "GPU-9", "compute_cap": "12.0"})
    assert device.key == "sm120_NVIDIA_Next"
    assert device.peak_flops is None
    assert device.peak_bandwidth is None
    assert device.limits == {}


def test_values_that_the_driver_does_not_give_are_absent() -> None:
    """``[N/A]`` is no value."""
    text = ROW.replace("Enabled, Enabled", "[N/A], Enabled")
    rows = query_smi(ScriptedRunner(("--query-gpu", text, 0)), SMI, Path(), 1.0)
    assert "ecc.mode.current" not in rows[0]


@pytest.mark.parametrize(("output", "status"), [("", 0), ("NVIDIA-SMI has failed", 9)])
def test_no_device_is_said_to_be_missing(output: str, status: int) -> None:
    """An empty list and a failing driver are both EnvironmentMissing."""
    with pytest.raises(EnvironmentMissing):
        query_smi(ScriptedRunner(("--query-gpu", output, status)), SMI, Path(), 1.0)


def test_the_more_special_name_is_found_first() -> None:
    """H200 NVL is not H200, H100 PCIe is not H100, GH200 is none of them."""
    names = ("H200 NVL", "H200", "H100 PCIe", "H100 80GB HBM3", "GH200 480GB", "H20")
    peaks = [peaks_of(f"NVIDIA {name}") for name in names]
    assert None not in peaks
    assert len({(p.dense_flops, p.bandwidth) for p in peaks if p}) == len(names)
    assert peaks_of("Radeon") is None


def test_the_visible_device_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A UUID wins; else the first visible device; else the first."""
    rows = [{"index": "0", "uuid": "GPU-a"}, {"index": "1", "uuid": "GPU-b"}]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert chosen_row(rows)["uuid"] == "GPU-b"
    assert chosen_row(rows, "GPU-a")["uuid"] == "GPU-a"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert chosen_row(rows)["uuid"] == "GPU-a"


def neighbours(*script: tuple[str, str, int]) -> Neighbours:
    """Neighbours of device GPU-1234 by scripted answers."""
    return Neighbours(ScriptedRunner(*script), SMI, "GPU-1234", cwd=Path(), deadline_s=1.0)


def test_own_processes_are_no_strangers() -> None:
    """This process and its relatives on the device are ours; init is not."""
    assert describe_foreign([Occupant(os.getpid(), "bench", visible=True)], *own_tree()) == ""
    stranger = f"{os.getpid()}, GPU-1234, bench\n999999999, GPU-9999, elsewhere\n"
    assert neighbours(("--query-compute-apps", stranger, 0)).foreign() == ""


def test_a_visible_stranger_is_named() -> None:
    """A process of somebody else on this device is reported with its name."""
    text = describe_foreign([Occupant(4242, "train.py", visible=True)], frozenset({1}), 0)
    assert "train.py (pid 4242)" in text


def test_unseen_processes_count_only_beyond_our_own_children() -> None:
    """In a container ids may be the host's: as many as our children are taken for ours."""
    unseen = [Occupant(10**9 + i, "?", visible=False) for i in range(2)]
    assert describe_foreign(unseen, frozenset(), 2) == ""
    assert describe_foreign(unseen, frozenset(), 1) != ""


def test_load_without_our_processes_means_busy() -> None:
    """Utilisation above the threshold is somebody's, even if nobody is listed."""
    nobody = ("--query-compute-apps", "", 0)
    assert "37 % busy" in neighbours(nobody, ("utilization", "GPU-1234, 37\n", 0)).busy()
    assert neighbours(nobody, ("utilization", "GPU-1234, 0\n", 0)).busy() == ""
    assert neighbours(nobody, ("utilization", "GPU-1234, [N/A]\n", 0)).load() is None
