"""A fair share of GPU time: who is entitled to how much of it, and how fast what was used is forgotten."""

from __future__ import annotations

import msgspec

BY_NAMESPACE = "namespace"


class FairShare(msgspec.Struct, frozen=True):
    """What use is held against.

    Attributes:
        policy: Whose it is; "" where no policy says anything.
        by: "namespace", or the label of pods that names a queue.
        half_life_hours: After so long, an hour of use counts half.
        shares: Weights by name.
        others: The weight of each that is not named.
    """

    policy: str = ""
    by: str = BY_NAMESPACE
    half_life_hours: int = 168
    shares: tuple[tuple[str, int], ...] = ()
    default_weight: int = 1

    def weight_of(self, name: str) -> int:
        """What one is entitled to, beside the others."""
        return dict(self.shares).get(name, self.default_weight)
