"""Policies on trial, all or some of a set: whatever they say, nothing is denied and nothing is changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from webhook.model.modes import PolicyMode
from webhook.policy.compiled import SECTIONS, Policy, PolicySet


def policies_as_audit(policies: PolicySet) -> PolicySet:
    """The same set with every mode `audit`; a match condition that fails denies nothing either."""
    return _replace_policies(policies, map(as_audit, policies.policies))


def halt_rollouts(policies: PolicySet, names: Collection[str]) -> PolicySet:
    """The same set with the named policies on trial, because their rollout was halted."""
    if not names:
        return policies
    return _replace_policies(policies, (as_audit(one) if one.name in names and one.rollout else one for one in policies.policies))


def _replace_policies(policies: PolicySet, changed: Iterable[Policy]) -> PolicySet:
    return PolicySet(changed, policies.exemptions, policies.template_paths, policies.sources)


def as_audit(policy: Policy) -> Policy:
    """One policy on trial, for everybody."""
    written = {name: getattr(policy, name) for name in SECTIONS}
    sections = {
        name: msgspec.structs.replace(section, mode=PolicyMode.AUDIT)
        for name, section in written.items()
        if section is not None
    }
    return msgspec.structs.replace(policy, mode=PolicyMode.AUDIT, rollout=None, **sections)
