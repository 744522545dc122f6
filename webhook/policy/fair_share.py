"""Fair shares of GPU time: weights, and the half-life of past usage."""

from __future__ import annotations

import msgspec

BY_NAMESPACE = "namespace"


class FairShare(msgspec.Struct, frozen=True):
    """Compiled `spec.fairShare`.

    Attributes:
        policy: Name of the policy; "" for the default.
        by: "namespace", or the pod label that names a queue.
        half_life_hours: Half-life of past usage.
        shares: Weights by name.
        default_weight: Weight of every other name.
    """

    policy: str = ""
    by: str = BY_NAMESPACE
    half_life_hours: int = 168
    shares: tuple[tuple[str, int], ...] = ()
    default_weight: int = 1

    def weight_of(self, name: str) -> int:
        """Return the weight of a namespace or queue."""
        return dict(self.shares).get(name, self.default_weight)
