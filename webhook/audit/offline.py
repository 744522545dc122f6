"""What cannot be said where no node is known: that a cluster has nothing smaller for a pod."""

from __future__ import annotations

import msgspec

from webhook.model.decisions import NEEDS_NODES, Decision

STAYS = "GPU-R103"
"""The code of "stays as it is", whatever the reason."""

_REASONS = tuple(f"stays as it is: {why}" for why in NEEDS_NODES)


def without_guesses(decision: Decision) -> Decision:
    """The decision without findings that blame a cluster of which no node is known."""
    findings = tuple(f for f in decision.findings if f.code != STAYS or not f.message.startswith(_REASONS))
    return msgspec.structs.replace(decision, findings=findings)
