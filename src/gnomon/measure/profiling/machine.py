"""What the measurements were made on: device, clocks, versions."""

from __future__ import annotations

import datetime
import platform
import subprocess
from typing import Any

import torch

QUERY = ("driver_version", "clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "clocks.max.sm")


def facts() -> dict[str, Any]:
    """Entries of the manifest about the machine."""
    state = gpu_state()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    try:
        import triton

        versions["triton"] = triton.__version__
    except ImportError:
        pass
    versions["driver"] = state.get("driver_version")
    return {
        "device_name": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor(),
        "versions": versions,
        "clocks": {
            "sm_mhz": _number(state.get("clocks.sm")),
            "memory_mhz": _number(state.get("clocks.mem")),
            "max_sm_mhz": _number(state.get("clocks.max.sm")),
            "locked": False,
        },
        "measured_at": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def gpu_state() -> dict[str, str]:
    """What nvidia-smi says now; empty where there is none."""
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(QUERY, (part.strip() for part in answer.split(",")), strict=False))


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
