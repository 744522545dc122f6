"""What a GPU's errors mean for who would use it. Pure.

Source: NVIDIA's XID catalogue and its immediate actions; NVML's recovery action (field 230). The device plugin
takes a GPU away for every XID but a few, for good; here one stays where NVIDIA says restart the application.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

RESET_XIDS: Mapping[int, str] = {
    46: "the GPU stopped",
    48: "double-bit error of memory",
    62: "micro-controller halted",
    64: "row remapping failed",
    79: "fallen off the bus",
    95: "uncontained error of memory",
    109: "context switch timed out",
    110: "security fault",
    119: "GSP does not answer",
    120: "GSP failed",
    140: "unrecovered error of memory",
    143: "initialisation failed",
    155: "NVLink software error",
    156: "resource retired",
    158: "fatal timeout",
}
"""XIDs after which nothing should be placed on the GPU until it is reset."""

NVLINK_XIDS: Mapping[int, str] = {74: "NVLink error", 136: "NVLink training failed"} | dict.fromkeys(
    range(144, 151), "NVLink error"
)
"""XIDs after which the GPU must not be one of several."""

NOTED_XIDS: Mapping[int, str] = {
    63: "row remapped",
    92: "many single-bit errors",
    94: "contained error of memory",
    157: "resource retirement",
}
"""XIDs that are told and change nothing."""

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
"""Those that concern what the GPU shares with others, and not the GPU."""


class GpuHealth(NamedTuple):
    """A verdict about one GPU; see `GpuDevice`."""

    healthy: bool
    nvlink_degraded: bool
    conditions: tuple[str, ...]


def assess_gpu(xids: Iterable[int], *, action: int = 0, remap_failed: bool = False, fabric: str = "") -> GpuHealth:
    """What the errors of one GPU come to.

    Args:
        xids: Those seen since the driver was loaded.
        action: NVML's recovery action; 0 for none.
        remap_failed: Did the remapping of a row of memory fail?
        fabric: What is wrong with its NVLink fabric; "" for nothing.
    """
    seen = sorted(set(xids))
    known = {**RESET_XIDS, **NVLINK_XIDS, **NOTED_XIDS}
    said = [f"XID {xid}: {known[xid]}" for xid in seen if xid in known]
    said += [f"needs a {RECOVERY_ACTIONS[action]}"] if action in RECOVERY_ACTIONS else []
    said += ["row remapping failed"] if remap_failed else []
    said += [fabric] if fabric else []
    sick = (
        any(xid in RESET_XIDS for xid in seen)
        or remap_failed
        or (action in RECOVERY_ACTIONS and action not in PEER_ACTIONS)
    )
    alone = any(xid in NVLINK_XIDS for xid in seen) or action in PEER_ACTIONS or bool(fabric)
    return GpuHealth(not sick, alone, tuple(said))
