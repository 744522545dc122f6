"""How a policy that is an object says that its rollout was halted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONDITION = "RolloutHalted"


def is_halted(data: Mapping[str, Any]) -> bool:
    """Was the rollout of this policy, as it is written now, halted?"""
    generation = (data.get("metadata") or {}).get("generation", 0)
    conditions = (data.get("status") or {}).get("conditions") or []
    return any(
        one.get("type") == CONDITION and one.get("status") == "True" and one.get("observedGeneration") == generation
        for one in conditions
    )
