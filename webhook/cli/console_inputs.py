"""Reads the cluster that the console shows: an audit, the GPUs of the nodes, and recorded usage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import typer
from msgspec.structs import asdict, replace

from webhook.audit.adjusted_view import with_namespace_labels
from webhook.audit.cluster_audit import ClusterAudit, audit_live_cluster, audit_snapshot
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SourceObject, read_objects
from webhook.audit.pod_audit import audit_claims
from webhook.cache.placement_input import GpuPods
from webhook.cli.audit_inputs import (
    AuditFlags,
    audit_sources,
    build_snapshot,
    exit_without_objects,
    note_duplicate_pods,
    price_nodes,
)
from webhook.cli.cluster_access import LIVE, open_live_cluster, reject_access_flags
from webhook.cli.commands.check import policies_source_text
from webhook.cli.commands.layout import DemandOptions, LayoutFlags, plan_cluster_layout
from webhook.cli.inputs import load_cluster_policies, load_policy_set
from webhook.cli.output import show_progress
from webhook.cli.usage_inputs import estimate_view
from webhook.console.compact_documents import CompactDocuments
from webhook.console.limits import describe_limits
from webhook.console.reading import ClusterReading
from webhook.console.trial import PodSamples
from webhook.errors import RightsliceError
from webhook.model.usage import UsageView
from webhook.report.console.findings import group_console_findings
from webhook.report.console.policies import reach_of_policies
from webhook.report.console.state import WorkloadKey, build_console_state
from webhook.report.layout import ClusterLayout
from webhook.report.node_topology import NodePodGpus
from webhook.usage.history import UsageHistory
from webhook.usage.record_file import UsageRecord

USAGE_SECONDS = 3600
"""A live cluster's usage is read again after this time: a reading of Prometheus takes up to minutes."""


class AuditedCluster(NamedTuple):
    """An audit, and objects with the quotas and ranges."""

    audit: ClusterAudit
    objects: Sequence[SourceObject]


class ConsoleReader:
    """Reads and evaluates the cluster that the flags select, and keeps its usage for an hour."""

    def __init__(self, flags: AuditFlags) -> None:
        self._flags = flags
        self._record: UsageRecord | None = None
        self._record_at = datetime.min.replace(tzinfo=UTC)

    def read(self) -> ClusterReading:
        """Read the cluster. Exits if the input is invalid or the cluster does not answer."""
        flags = self._flags
        if (flags.now - self._record_at).total_seconds() >= USAGE_SECONDS:
            self._record, self._record_at = flags.read_record(), flags.now
        usage = estimate_view(self._record, verbose=flags.verbose) if self._record is not None else UsageView()
        samples = PodSamples()
        read_audit = _audit_live if flags.cluster == LIVE else _audit_files
        audit, limits = read_audit(flags, usage, samples)
        audit.prices = price_nodes(flags.prices, audit.context.view)
        state = build_console_state(
            audit.results,
            audit.capacities,
            audit.prices,
            cluster=audit.cluster,
            moment=f"{flags.now.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC",
        )
        return ClusterReading(
            state,
            audit.context,
            audit.snapshot,
            _pods_by_node(audit.gpu_pods),
            _histories_by_workload(self._record),
            group_console_findings(state.workloads, audit_claims(audit.context.view)),
            reach_of_policies(audit.context.policies, audit.results),
            describe_limits(limits),
            policies_source_text(flags.policies, flags.cluster),
            samples,
            partial(_plan_layouts, flags, self._record),
        )

    def read_again(self) -> ClusterReading:
        """Read the cluster as of now. Raises RightsliceError instead of an exit."""
        self._flags = replace(self._flags, now=datetime.now(UTC), verbose=False)
        try:
            return self.read()
        except typer.Exit as error:
            raise RightsliceError("the cluster could not be read again; the terminal shows why") from error


def _plan_layouts(flags: AuditFlags, record: UsageRecord | None) -> ClusterLayout:
    """Plan layouts as `rightslice layout` does; the pods are evaluated again, with every slice free.

    Raises:
        RightsliceError: The solver is not installed, or the cluster cannot be read.
    """
    fields = asdict(flags) | {"paths": None, "verbose": False, "records": [record]}
    try:
        return plan_cluster_layout(LayoutFlags(**fields), DemandOptions(0, None, by_namespace=False, idle_only=False))[
            0
        ]
    except typer.Exit as error:
        raise RightsliceError("the cluster could not be read for the plan; the terminal shows why") from error


def _audit_live(flags: AuditFlags, usage: UsageView, samples: PodSamples) -> AuditedCluster:
    with open_live_cluster(flags.access) as cluster:
        policies = load_cluster_policies(cluster, flags.policies, flags.policy_namespace, verbose=flags.verbose)
        audit = audit_live_cluster(
            cluster, policies, flags.labels, flags.now, usage, None, show_progress, choose=samples.observe
        )
        return AuditedCluster(audit, [*cluster.limit_objects(), *cluster.device_classes()])


def _audit_files(flags: AuditFlags, usage: UsageView, samples: PodSamples) -> AuditedCluster:
    reject_access_flags(flags.access)
    policies = load_policy_set(flags.policies, verbose=flags.verbose)
    documents = CompactDocuments(str(flags.cluster))
    read = documents.observe(read_objects(audit_sources(None, flags.cluster)))
    snapshot = build_snapshot(str(flags.cluster), read, verbose=flags.verbose)
    if len(documents) == len(documents.skipped):
        exit_without_objects(str(flags.cluster), documents.skipped)
    note_duplicate_pods(documents.observed - len(documents))
    context = EvaluationContext(policies, with_namespace_labels(snapshot.view, flags.labels), flags.now, usage)
    audit = audit_snapshot(documents, snapshot, context, None, show_progress, choose=samples.observe)
    audit.cluster = str(flags.cluster)
    return AuditedCluster(audit, documents.objects)


def _pods_by_node(gpu_pods: GpuPods) -> dict[str, list[NodePodGpus]]:
    def holder(key: str, units: Mapping[str, int]) -> NodePodGpus:
        namespace, _, name = key.partition("/")
        return NodePodGpus(namespace, name, units)

    found = gpu_pods.by_node()
    return {node: [holder(key, each.units) for key, each in pods.items()] for node, pods in found.items()}


def _histories_by_workload(record: UsageRecord | None) -> Mapping[WorkloadKey, Sequence[UsageHistory]]:
    found: defaultdict[WorkloadKey, list[UsageHistory]] = defaultdict(list)
    for each in record.histories if record is not None else ():
        found[each.namespace, each.workload].append(each)
    return found
