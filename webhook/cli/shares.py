"""Whose fair share counts, of all that policies say."""

from __future__ import annotations

from webhook.cli.console import exit_with_error
from webhook.policy.compiled import PolicySet
from webhook.policy.fairness import FairShare
from webhook.report.words import sanitize


def choose_fair_share(policies: PolicySet, name: str) -> FairShare:
    """The fair share that counts. Stops the program where it is not clear which."""
    having = {each.name: each.fair_share for each in policies.policies if each.fair_share is not None}
    if name:
        if name not in having:
            exit_with_error(f"--policy: no policy called {sanitize(name)!r} has a fairShare. Those that have: {fair_share_policy_names(having)}")
        return having[name]
    if len(having) > 1:
        exit_with_error(f"several policies have a fairShare: {fair_share_policy_names(having)}. Choose one with --policy NAME")
    return next(iter(having.values()), FairShare())


def single_fair_share(policies: PolicySet, where: str) -> FairShare:
    """The one fair share that there is. Stops the program where there is none, or more than one.

    Args:
        policies: All that were read.
        where: What to call where they were read from.
    """
    having = {each.name: each.fair_share for each in policies.policies if each.fair_share is not None}
    if len(having) != 1:
        exit_with_error(f"{where}: must have one policy with a fairShare, found {fair_share_policy_names(having)}. Name a file with one")
    return next(iter(having.values()))


def fair_share_policy_names(having: dict[str, FairShare]) -> str:
    """The names of policies, or that there are none."""
    return ", ".join(having) or "none"
