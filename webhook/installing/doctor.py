"""Run all checks of `doctor` on the facts of an installation."""

from __future__ import annotations

from datetime import datetime

from webhook.installing import cluster_health, policies_health, scheduling_health, webhook_health
from webhook.installing.facts import ClusterFacts, DiagnosticResult
from webhook.policy.policy_set import PolicySet


def diagnose(facts: ClusterFacts, now: datetime) -> list[DiagnosticResult]:
    """Return the results of all checks, in the order of the output."""
    loaded = policies_health.load_installed_policies(facts)
    policies = (loaded.policies or PolicySet()).policies
    return [
        *webhook_health.check_version(facts),
        *webhook_health.check_registration(facts),
        *webhook_health.check_certificates(facts, now),
        *webhook_health.check_answers(facts),
        *webhook_health.check_backstop(facts),
        *webhook_health.check_replicas(facts),
        *webhook_health.check_replica_status(facts),
        *policies_health.check_policies(facts, loaded),
        *cluster_health.check_nodes(facts),
        *cluster_health.check_gpu_forms(facts, policies),
        *scheduling_health.check_accounting_resource(facts, policies),
        *scheduling_health.check_extender(facts),
        *scheduling_health.check_agents(facts, now),
        *cluster_health.check_limits_and_quotas(facts),
        *webhook_health.check_fail_open(facts),
    ]
