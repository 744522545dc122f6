"""`doctor`: what the facts about an installation come to, line by line, and what to do about each."""

from __future__ import annotations

from datetime import datetime

from webhook.installing import backstop_health, cluster_health, hooks_health, policies_health, scheduling_health
from webhook.installing.facts import Facts
from webhook.installing.lines import Line
from webhook.policy.compiled import PolicySet


def diagnose(facts: Facts, now: datetime) -> list[Line]:
    """Everything there is to say about an installation."""
    loaded = policies_health.loaded_from(facts)
    policies = (loaded.policies or PolicySet()).policies
    return [
        *hooks_health.version(facts),
        *hooks_health.hooks(facts),
        *hooks_health.certificates(facts, now),
        *hooks_health.answers(facts),
        *backstop_health.backstop(facts),
        *hooks_health.replicas(facts),
        *hooks_health.replica(facts),
        *policies_health.policies(facts, loaded),
        *cluster_health.nodes(facts),
        *cluster_health.forms(facts, policies),
        *scheduling_health.accounting(facts, policies),
        *scheduling_health.extender(facts),
        *scheduling_health.agents(facts, now),
        *cluster_health.namespaces(facts),
        *hooks_health.passed_by(facts),
    ]
