"""Read the status conditions of policies and exceptions, for their current generation only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

READY, HALTED = "Ready", "RolloutHalted"


def find_condition(data: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """Return the condition of a type for the current generation; None if there is none."""
    generation = (data.get("metadata") or {}).get("generation", 0)
    conditions = (data.get("status") or {}).get("conditions") or []
    current = (one for one in conditions if one.get("type") == kind and one.get("observedGeneration") == generation)
    return next(current, None)


def is_ready_condition_true(data: Mapping[str, Any]) -> bool:
    """Has a server accepted the current generation of a policy or exception?"""
    return _is_condition_true(data, READY)


def is_rollout_halted(data: Mapping[str, Any]) -> bool:
    """Was the rollout of the current generation halted?"""
    return _is_condition_true(data, HALTED)


def _is_condition_true(data: Mapping[str, Any], kind: str) -> bool:
    condition = find_condition(data, kind)
    return condition is not None and condition.get("status") == "True"
