"""Find the policies that may match one pod together: how many there are decides how long its review takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from webhook.policy.lint import may_overlap
from webhook.policy.policy_set import Policy, PolicySet
from webhook.policy.written.kinds import GPUPolicy
from webhook.policy.written.match import MatchSpec

MAX_STARTS = 4
"""The commonest matches, from each of which one group of policies is built."""

MAX_COMPARED = 16
"""Matches of a group that further ones are compared with."""


class SameMatch(NamedTuple):
    """Policies that match alike."""

    match: MatchSpec
    policies: list[Policy]


def busiest_policies(policies: PolicySet) -> PolicySet:
    """Return policies that may match one pod, the most that are found, as a set that matches every pod that is created.

    Their match conditions stay: they are evaluated whatever they return.
    """
    groups = sorted(_by_match(policies).values(), key=lambda group: -len(group.policies))
    found = (_matching_together(start.match, groups) for start in groups[:MAX_STARTS])
    busiest = max(found, key=len, default=[])
    return PolicySet(map(_match_every_pod, busiest), policies.exemptions, policies.workload_kinds, policies.sources)


def _by_match(policies: PolicySet) -> Mapping[str, SameMatch]:
    """Return the policies by their match without its conditions."""
    models = [source.model for source in policies.sources if isinstance(source.model, GPUPolicy)]
    matches = {model.metadata.name: model.spec.match for model in models}
    groups: dict[str, SameMatch] = {}
    for policy in policies.policies:
        match = matches[policy.name].model_copy(update={"match_conditions": ()})
        groups.setdefault(repr(match), SameMatch(match, [])).policies.append(policy)
    return groups


def _matching_together(start: MatchSpec, groups: Sequence[SameMatch]) -> list[Policy]:
    """Return the policies that may match a pod that one of them matches, the commonest matches first."""
    together, found = [start], list[Policy]()
    for match, policies in groups:
        if all(may_overlap(match, other) for other in together[:MAX_COMPARED]):
            together.append(match)
            found += policies
    return found


def _match_every_pod(policy: Policy) -> Policy:
    match = msgspec.structs.replace(
        policy.match,
        operations=frozenset({"CREATE"}),
        resource=None,
        namespace=lambda _name, _labels: True,
        labels=None,
    )
    return msgspec.structs.replace(policy, match=match)
