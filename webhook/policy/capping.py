"""A whole set of policies on trial: whatever they say, nothing is denied and nothing is changed."""

from __future__ import annotations

import msgspec

from webhook.model.modes import Mode
from webhook.policy.compiled import Policy, PolicySet

SECTIONS = ("right_sizing", "limits", "quotas", "injection", "topology", "cuda", "security")


def on_trial(policies: PolicySet) -> PolicySet:
    """The same set with every mode `audit`; a match condition that fails denies nothing either."""
    return PolicySet(map(_on_trial, policies.policies), policies.exemptions, policies.templates, policies.written)


def _on_trial(policy: Policy) -> Policy:
    written = {name: getattr(policy, name) for name in SECTIONS}
    sections = {
        name: msgspec.structs.replace(section, mode=Mode.AUDIT)
        for name, section in written.items()
        if section is not None
    }
    match = msgspec.structs.replace(policy.match, fail=False)
    return msgspec.structs.replace(policy, mode=Mode.AUDIT, match=match, **sections)
