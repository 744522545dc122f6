"""What cannot be said where no node is known: that a cluster has nothing smaller for a pod."""

from __future__ import annotations

import msgspec

from webhook.model.decisions import NEEDS_NODES, Decision

KEEP_CODE = "GPU-R103"
"""The code of "stays as it is", whatever the reason."""

_REASONS = tuple(f"stays as it is: {why}" for why in NEEDS_NODES)


def without_node_findings(decision: Decision) -> Decision:
    """The decision without findings that blame a cluster of which no node is known."""
    findings = tuple(f for f in decision.findings if f.code != KEEP_CODE or not f.message.startswith(_REASONS))
    return msgspec.structs.replace(decision, findings=findings)
