"""What an object's own status says of it, as it is written now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

READY, HALTED = "Ready", "RolloutHalted"


def find_condition(data: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """The condition of a kind that is about the spec as it is now; None: nothing was said of that yet."""
    generation = (data.get("metadata") or {}).get("generation", 0)
    conditions = (data.get("status") or {}).get("conditions") or []
    said = (one for one in conditions if one.get("type") == kind and one.get("observedGeneration") == generation)
    return next(said, None)


def is_ready_condition_true(data: Mapping[str, Any]) -> bool:
    """Does a server say that it uses this policy or exception, as it is written now?"""
    return _is_condition_true(data, READY)


def is_rollout_halted(data: Mapping[str, Any]) -> bool:
    """Was the rollout of this policy, as it is written now, halted?"""
    return _is_condition_true(data, HALTED)


def _is_condition_true(data: Mapping[str, Any], kind: str) -> bool:
    condition = find_condition(data, kind)
    return condition is not None and condition.get("status") == "True"
