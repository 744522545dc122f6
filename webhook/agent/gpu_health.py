"""Assess the health of a GPU from its errors. Pure.

Source: NVIDIA's XID catalog with its immediate actions, and NVML's recovery action (field 230). The device plugin
withdraws a GPU after almost every XID; here it stays healthy if NVIDIA's action is to restart the application.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

RESET_XIDS: Mapping[int, str] = {
    46: "the GPU stopped",
    48: "double-bit memory error",
    62: "microcontroller halted",
    64: "row remapping failed",
    79: "fallen off the bus",
    95: "uncontained memory error",
    109: "context switch timed out",
    110: "security fault",
    119: "GSP does not respond",
    120: "GSP failed",
    140: "unrecovered memory error",
    143: "initialization failed",
    155: "NVLink software error",
    156: "resource retired",
    158: "fatal timeout",
}
"""XIDs after which the GPU must not be used until it is reset."""

NVLINK_XIDS: Mapping[int, str] = {74: "NVLink error", 136: "NVLink training failed"} | dict.fromkeys(
    range(144, 151), "NVLink error"
)
"""XIDs after which the GPU must not communicate with other GPUs."""

NOTED_XIDS: Mapping[int, str] = {
    63: "row remapped",
    92: "many single-bit errors",
    94: "contained memory error",
    157: "resource retirement",
}
"""XIDs that are reported only."""

RECOVERY_ACTIONS = {
    1: "reset of the GPU",
    2: "reboot of the node",
    3: "drain of peers",
    4: "drain and reset of the GPU",
    5: "reset of the IMEX domain",
    6: "reset of the bus",
    7: "reboot of the system",
}
"""NVML's recovery actions."""

PEER_ACTIONS = frozenset({3, 5})
"""Recovery actions that concern the GPU's links and not the GPU."""


class GpuHealth(NamedTuple):
    """Health of one GPU; see `GpuDevice`."""

    healthy: bool
    nvlink_degraded: bool
    conditions: tuple[str, ...]


def assess_gpu(xids: Iterable[int], *, action: int = 0, remap_failed: bool = False, fabric: str = "") -> GpuHealth:
    """Assess one GPU.

    Args:
        xids: XIDs since the driver was loaded.
        action: NVML's recovery action; 0 for none.
        remap_failed: True if remapping a memory row failed.
        fabric: Problem of its NVLink fabric; "" for none.
    """
    codes = sorted(set(xids))
    known = {**RESET_XIDS, **NVLINK_XIDS, **NOTED_XIDS}
    conditions = [f"XID {xid}: {known[xid]}" for xid in codes if xid in known]
    if action in RECOVERY_ACTIONS:
        conditions.append(f"needs a {RECOVERY_ACTIONS[action]}")
    if remap_failed:
        conditions.append("row remapping failed")
    if fabric:
        conditions.append(fabric)
    own_action = action in RECOVERY_ACTIONS and action not in PEER_ACTIONS
    unhealthy = remap_failed or own_action or any(xid in RESET_XIDS for xid in codes)
    nvlink_degraded = bool(fabric) or action in PEER_ACTIONS or any(xid in NVLINK_XIDS for xid in codes)
    return GpuHealth(not unhealthy, nvlink_degraded, tuple(conditions))
