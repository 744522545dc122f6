"""Whose fair share counts, of all that policies say."""

from __future__ import annotations

from webhook.cli.console import stop
from webhook.policy.compiled import PolicySet
from webhook.policy.fairness import FairShare
from webhook.report.words import shown


def rule_of(policies: PolicySet, name: str) -> FairShare:
    """The fair share that counts. Stops the program where it is not clear which."""
    having = {each.name: each.fair_share for each in policies.policies if each.fair_share is not None}
    if name:
        if name not in having:
            stop(f"--policy: no policy called {shown(name)!r} has a fairShare. Those that have: {names_of(having)}")
        return having[name]
    if len(having) > 1:
        stop(f"several policies have a fairShare: {names_of(having)}. Choose one with --policy NAME")
    return next(iter(having.values()), FairShare())


def only_rule(policies: PolicySet, where: str) -> FairShare:
    """The one fair share that there is. Stops the program where there is none, or more than one.

    Args:
        policies: All that were read.
        where: What to call where they were read from.
    """
    having = {each.name: each.fair_share for each in policies.policies if each.fair_share is not None}
    if len(having) != 1:
        stop(f"{where}: must have one policy with a fairShare, found {names_of(having)}. Name a file with one")
    return next(iter(having.values()))


def names_of(having: dict[str, FairShare]) -> str:
    """The names of policies, or that there are none."""
    return ", ".join(having) or "none"
