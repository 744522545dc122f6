"""The pages Policies: the list with what each matches, and one policy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from webhook.model.enums import PolicyMode
from webhook.policy.loader import PolicySource
from webhook.policy.policy_set import Exemption, Policy, PolicySet
from webhook.policy.written.kinds import GPUPolicy
from webhook.report.console.page import POLICIES_ENTRY, render_console_page
from webhook.report.console.query import FilterField, PageQuery, page_address
from webhook.report.console.rows import sort_keys, table_markup, table_page
from webhook.report.console.state import ConsoleState, WorkloadKey
from webhook.report.console.trials import trial_address
from webhook.report.policies import policy_mode_text, policy_sections_text, section_modes
from webhook.report.results import CheckResult
from webhook.report.serialization import yaml_text
from webhook.report.tables import Column, Table
from webhook.report.workloads import pod_touches_gpus

POLICY_KEY = (FilterField("name", "Name"),)
"""The parameter of the page of a policy, and of the trial of one."""


class PolicyReach(NamedTuple):
    """A policy and what it matches in the cluster.

    Attributes:
        pods, workloads: What it applies to, of those with GPUs.
        outside: Workloads that it only audits, because its rollout does not include them yet.
        halted: Whether its rollout was halted: it is in audit mode for all workloads.
    """

    policy: Policy
    pods: int
    workloads: int
    outside: int
    halted: bool

    @property
    def rollout_text(self) -> str:
        """The state of its rollout; "" without one."""
        if self.halted:
            return "halted: in audit mode for all workloads"
        if self.policy.rollout is None:
            return ""
        return f"{self.policy.rollout.percent}% of the workloads; {self.outside} not included yet"


def reach_of_policies(
    policies: PolicySet, results: Iterable[CheckResult], listed: Container[WorkloadKey]
) -> tuple[PolicyReach, ...]:
    """Return what each policy matches among the audited pods with GPUs of the workloads that are listed, by name."""
    pods: Counter[str] = Counter()
    workloads: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    outside: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for each in results:
        key = each.namespace, each.workload
        if key not in listed or not pod_touches_gpus(each):
            continue
        for name in each.decision.policies:
            pods[name] += 1
            workloads[name].add(key)
        for name in each.decision.audit_policies:
            outside[name].add(key)
    gradual = {source.name for source in policies.sources if _has_rollout(source)}
    return tuple(
        PolicyReach(
            each,
            pods[each.name],
            len(workloads[each.name]),
            len(outside[each.name]),
            each.rollout is None and each.name in gradual,
        )
        for each in policies.policies
    )


def _has_rollout(source: PolicySource) -> bool:
    return isinstance(source.model, GPUPolicy) and source.model.spec.rollout is not None


POLICY_REACH = Table[PolicyReach](
    (
        Column("", lambda row: row.policy.name, "Policy"),
        Column("", lambda row: policy_mode_text(row.policy), "Mode"),
        Column("", lambda row: policy_sections_text(row.policy).replace(",", ", "), "Sections"),
        Column("", lambda row: row.workloads, "Workloads", numeric=True),
        Column("", lambda row: row.pods, "Pods", numeric=True),
        Column("", lambda row: row.rollout_text, "Rollout", empty="all workloads"),
        Column("", lambda row: row.policy.description, "Description", empty=""),
        Column("", lambda _: "Try a change", "Trial", sortable=False),
    )
)
POLICY_COLUMNS = sort_keys(POLICY_REACH)

SECTION_MODES = Table[tuple[str, PolicyMode]](
    (Column("", lambda row: row[0], "Section"), Column("", lambda row: str(row[1]), "Mode"))
)
POLICY_EXEMPTIONS = Table[Exemption](
    (
        Column("", lambda each: each.name, "Exemption"),
        Column("", lambda each: ", ".join(sorted(each.codes)), "Codes"),
        Column("", lambda each: each.reason, "Reason"),
        Column("", lambda each: f"{each.expires:%Y-%m-%d %H:%M} UTC", "Ends"),
    )
)


def policy_address(name: str) -> str:
    """Return the address of the page of a policy."""
    return page_address("/policy", name=name)


def policies_page(state: ConsoleState, policies: Sequence[PolicyReach], query: PageQuery, problem: str = "") -> str:
    """Return the list as HTML."""
    links = {
        "Policy": lambda row: policy_address(row.policy.name),
        "Trial": lambda row: trial_address(row.policy.name),
    }
    page = table_page(POLICY_REACH, policies, query, POLICIES_ENTRY.path, "policy", links)
    context = {"page": page, "query": query}
    return render_console_page("policies.html", state, POLICIES_ENTRY, context, problem=problem)


def policy_page(state: ConsoleState, row: PolicyReach, policies: PolicySet, problem: str = "") -> str:
    """Return the page of one policy as HTML."""
    name = row.policy.name
    exemptions = [each for each in policies.exemptions if each.policy == name]
    context = {
        "row": row,
        "mode": policy_mode_text(row.policy),
        "workloads": page_address("/workloads", policy=name),
        "sections": table_markup(SECTION_MODES, list(section_modes(row.policy)), "section"),
        "exemptions": table_markup(POLICY_EXEMPTIONS, exemptions, "exemption") if exemptions else "",
        "text": written_policy(policies, name),
        "trial": trial_address(name),
    }
    return render_console_page("policy.html", state, POLICIES_ENTRY, context, problem=problem)


def written_policy(policies: PolicySet, name: str) -> str:
    """Return a policy as YAML; "" if its source is not known."""
    found = (each for each in policies.sources if isinstance(each.model, GPUPolicy) and each.name == name)
    return next((yaml_text(each.document.data) for each in found), "")
