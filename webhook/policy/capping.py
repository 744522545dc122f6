"""Policies on trial, all or some of a set: whatever they say, nothing is denied and nothing is changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from webhook.model.modes import Mode
from webhook.policy.compiled import SECTIONS, Policy, PolicySet


def on_trial(policies: PolicySet) -> PolicySet:
    """The same set with every mode `audit`; a match condition that fails denies nothing either."""
    return _with(policies, map(tried, policies.policies))


def halted(policies: PolicySet, names: Collection[str]) -> PolicySet:
    """The same set with the named policies on trial, because their rollout was halted."""
    if not names:
        return policies
    return _with(policies, (tried(one) if one.name in names and one.rollout else one for one in policies.policies))


def _with(policies: PolicySet, changed: Iterable[Policy]) -> PolicySet:
    return PolicySet(changed, policies.exemptions, policies.templates, policies.written)


def tried(policy: Policy) -> Policy:
    """One policy on trial, for everybody."""
    written = {name: getattr(policy, name) for name in SECTIONS}
    sections = {
        name: msgspec.structs.replace(section, mode=Mode.AUDIT)
        for name, section in written.items()
        if section is not None
    }
    return msgspec.structs.replace(policy, mode=Mode.AUDIT, rollout=None, **sections)
