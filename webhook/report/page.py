"""What the HTML report of an audit shows, before it is written."""

from __future__ import annotations

import msgspec

from webhook.report.audits import NamespaceTotals
from webhook.report.capacities import NodeCapacity
from webhook.report.figures import ClusterUtilization
from webhook.report.workloads import WorkloadReport


class ExemptionUsage(msgspec.Struct, frozen=True):
    """An exemption, and how many workloads it serves."""

    name: str
    policy: str
    codes: tuple[str, ...]
    reason: str
    expires: str
    expired: bool
    workloads: int


class AuditPage(msgspec.Struct, frozen=True):
    """What the report is about.

    Attributes:
        cluster: What was judged: an address, or a file.
        moment: When, for people.
        since: The moment from which on pods were taken; "" for all.
        policies: Names.
        digest: Of all policies.
        workloads: Those that have to do with GPUs, the one that saves most first.
        shares: By namespace.
        stocks: Every node with GPUs.
        figures: The head figures; None where no nodes are known.
        version: Of the program.
    """

    cluster: str
    moment: str
    since: str
    policies: tuple[str, ...]
    digest: str
    workloads: tuple[WorkloadReport, ...]
    namespaces: tuple[NamespaceTotals, ...]
    nodes: tuple[NodeCapacity, ...]
    utilization: ClusterUtilization | None
    exemptions: tuple[ExemptionUsage, ...]
    version: str
