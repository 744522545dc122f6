"""How a policy that is an object says that its rollout was halted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONDITION = "RolloutHalted"


def condition_in(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What is said of the rollout of this policy as it is written now; None: nothing yet."""
    generation = (data.get("metadata") or {}).get("generation", 0)
    conditions = (data.get("status") or {}).get("conditions") or []
    said = (one for one in conditions if one.get("type") == CONDITION and one.get("observedGeneration") == generation)
    return next(said, None)


def is_halted(data: Mapping[str, Any]) -> bool:
    """Was the rollout of this policy, as it is written now, halted?"""
    condition = condition_in(data)
    return condition is not None and condition.get("status") == "True"
