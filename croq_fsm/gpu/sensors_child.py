"""A child that reads the sensors of a device through NVML; never imported by the daemon.

Started as ``python sensors_child.py UUID [LIBRARY]``. Needs nothing but the standard library, so
that it runs isolated (``-I -S``). Each line on stdin is a request, each answer a line on
descriptor 3:

``{"cmd": "look"}`` → ``{"ok": true, "reading": {…}}``
``{"cmd": "begin", "every_s": s}`` → ``{"ok": true}``: reads from now on, every s seconds
``{"cmd": "end"}`` → ``{"ok": true, "readings": [{…}, …]}``: what was read since, and once more now

A reading is ``{"at": seconds, "sm_mhz": …}``; what the device does not tell is absent.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from typing import Any, Final

_ANSWERS: Final = 3
_LIBRARY: Final = "libnvidia-ml.so.1"
_OK: Final = 0
#: Values of NVIDIA's public C interface.
_CLOCK_SM, _CLOCK_MEMORY, _TEMPERATURE_CHIP = 1, 2, 0
_POWER_INSTANT: Final = 186
_MOST_READINGS: Final = 20000


class _Memory(ctypes.Structure):
    """``nvmlMemory_t``."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Value(ctypes.Union):
    """``nvmlValue_t``."""

    _fields_ = (
        ("real", ctypes.c_double),
        ("word", ctypes.c_uint),
        ("wide", ctypes.c_ulonglong),
    )


class _Field(ctypes.Structure):
    """``nvmlFieldValue_t``."""

    _fields_ = (
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("at", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("kind", ctypes.c_int),
        ("status", ctypes.c_int),
        ("value", _Value),
    )


class Device:
    """One device through NVML.

    Args:
        uuid: Which one.
        path: The library.

    Raises:
        OSError: The library is not there, or does not know the device.
    """

    def __init__(self, uuid: str, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._handle = ctypes.c_void_p()
        self._must("nvmlInit_v2")
        self._must("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._handle))

    def read(self) -> dict[str, float]:
        """All that the device tells now."""
        found: dict[str, float | None] = {
            "at": time.monotonic(),
            "sm_mhz": self._word("nvmlDeviceGetClockInfo", _CLOCK_SM),
            "memory_mhz": self._word("nvmlDeviceGetClockInfo", _CLOCK_MEMORY),
            "temperature_c": self._word("nvmlDeviceGetTemperature", _TEMPERATURE_CHIP),
            "power_w": self._power(),
            "reasons": self._reasons(),
            "memory_mb": self._memory(),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _call(self, name: str, *arguments: Any) -> int:
        try:
            return int(getattr(self._library, name)(*arguments))
        except AttributeError:  # an older library
            return -1

    def _must(self, name: str, *arguments: Any) -> None:
        status = self._call(name, *arguments)
        if status != _OK:
            raise OSError(f"{name} says {status}")

    def _word(self, name: str, *arguments: int) -> int | None:
        value = ctypes.c_uint()
        status = self._call(name, self._handle, *arguments, ctypes.byref(value))
        return int(value.value) if status == _OK else None

    def _power(self) -> float | None:
        """Watts at this instant; older drivers give a mean over a second."""
        field = _Field(field=_POWER_INSTANT)
        status = self._call("nvmlDeviceGetFieldValues", self._handle, 1, ctypes.byref(field))
        if status == _OK and field.status == _OK and field.value.word:
            return float(field.value.word) / 1e3
        milliwatts = self._word("nvmlDeviceGetPowerUsage")
        return None if milliwatts is None else milliwatts / 1e3

    def _reasons(self) -> int | None:
        value = ctypes.c_ulonglong()
        for name in (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        ):
            if self._call(name, self._handle, ctypes.byref(value)) == _OK:
                return int(value.value)
        return None

    def _memory(self) -> float | None:
        memory = _Memory()
        status = self._call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(memory))
        return float(memory.used) / 2**20 if status == _OK else None


class Recorder:
    """Reads in the background between ``begin`` and ``end``."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._readings: list[dict[str, float]] = []

    def serve(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one request."""
        command = request.get("cmd")
        if command == "look":
            return {"ok": True, "reading": self._device.read()}
        if command == "begin":
            self._end()
            self._begin(max(0.001, float(request.get("every_s", 0.01))))
            return {"ok": True}
        if command == "end":
            self._end()
            return {"ok": True, "readings": [*self._readings, self._device.read()]}
        return {"ok": False, "error": f"unknown request: {command}"}

    def _begin(self, every_s: float) -> None:
        self._readings = [self._device.read()]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, args=(every_s,), daemon=True)
        self._thread.start()

    def _loop(self, every_s: float) -> None:
        while not self._over.wait(every_s) and len(self._readings) < _MOST_READINGS:
            self._readings.append(self._device.read())

    def _end(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def main(arguments: list[str]) -> int:
    """Serve requests until stdin ends."""
    answers = os.fdopen(_ANSWERS, "w", buffering=1)
    recorder: Recorder | None = None
    problem = ""
    try:
        recorder = Recorder(Device(arguments[0], (arguments[1:] or [_LIBRARY])[0]))
    except OSError as exc:
        problem = str(exc)
    for line in sys.stdin:
        if recorder is None:
            answer: dict[str, Any] = {"ok": False, "error": f"NVML: {problem}"}
        else:
            answer = recorder.serve(json.loads(line))
        answers.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
