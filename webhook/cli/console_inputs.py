"""Reads the cluster that the console shows: an audit, the GPUs of the nodes, and recorded usage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
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
from webhook.cli.commands.layout import DemandOptions, LayoutFlags, install_solver, plan_cluster_layout
from webhook.cli.inputs import load_cluster_policies, load_policy_set
from webhook.cli.output import ErrorExit, print_note, show_progress
from webhook.cli.usage_records import estimate_view
from webhook.console.compact_documents import CompactDocuments
from webhook.console.limits import describe_limits
from webhook.console.pod_samples import PodSamples
from webhook.console.reading import ClusterReading
from webhook.errors import RightsliceError, SolverError
from webhook.model.fleet import largest_part_mib
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

RETRY_SECONDS = 120
"""Time after which usage is read again that could not be read; twice as long after each further failure."""


WITHOUT_USAGE = "no usage was read. Start rightslice ui with --usage FILE or --prometheus URL"


class AuditedCluster(NamedTuple):
    """An audit, and objects with the quotas and ranges."""

    audit: ClusterAudit
    objects: Sequence[SourceObject]


class UsageSchedule:
    """Says when usage is read again: an hour after a reading, and sooner after one that failed."""

    def __init__(self) -> None:
        self._due = datetime.min.replace(tzinfo=UTC)
        self._retry = RETRY_SECONDS

    def is_due(self, now: datetime) -> bool:
        """Return whether to read it now."""
        return now >= self._due

    def record_reading(self, now: datetime, *, failed: bool) -> None:
        """Plan the next reading."""
        self._due = now + timedelta(seconds=self._retry if failed else USAGE_SECONDS)
        self._retry = min(2 * self._retry, USAGE_SECONDS) if failed else RETRY_SECONDS


class NewNotes:
    """Prints the notes of each reading that the reading before did not have."""

    def __init__(self) -> None:
        self._before, self._now = frozenset[str](), set[str]()

    def start_reading(self) -> None:
        """Begin with the notes of the next reading."""
        self._before, self._now = frozenset(self._now), set()

    def print(self, line: str) -> None:
        """Print a note of this reading, once."""
        if line not in self._before | self._now:
            print_note(line)
        self._now.add(line)


class ConsoleReader:
    """Reads and evaluates the cluster that the flags select, and keeps its usage for an hour."""

    def __init__(self, flags: AuditFlags) -> None:
        self._flags = flags
        self._record: UsageRecord | None = None
        self._schedule = UsageSchedule()
        self._notes = NewNotes()
        self._usage_problem = ""

    def read(self) -> ClusterReading:
        """Read the cluster. Exits if the input is invalid or the cluster does not answer."""
        flags = self._flags
        if self._schedule.is_due(flags.now):
            self._read_usage()
        usage = estimate_view(self._record, verbose=flags.verbose) if self._record is not None else UsageView()
        samples = PodSamples()
        self._notes.start_reading()
        read_audit = partial(_audit_live, self._notes.print) if flags.cluster == LIVE else _audit_files
        audit, limits = read_audit(flags, usage, samples)
        audit.prices = price_nodes(flags.prices, audit.context.view)
        state = build_console_state(
            audit.results,
            audit.capacities,
            audit.prices,
            usage_problem=self._usage_problem,
            largest_part_mib=largest_part_mib(audit.context.view.fleet),
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
            reach_of_policies(audit.context.policies, audit.results, state.by_workload),
            describe_limits(limits),
            policies_source_text(flags.policies, flags.cluster),
            samples,
            partial(_plan_layouts, flags, self._record),
        )

    def _read_usage(self) -> None:
        self._record, problem = self._flags.find_usage()
        self._usage_problem = (problem or WITHOUT_USAGE) if self._record is None else ""
        self._schedule.record_reading(self._flags.now, failed=bool(problem))

    def read_again(self) -> ClusterReading:
        """Read the cluster as of now. Raises RightsliceError instead of an exit."""
        self._flags = replace(self._flags, now=datetime.now(UTC), verbose=False)
        try:
            return self.read()
        except typer.Exit as error:
            raise RightsliceError(f"the cluster could not be read again: {_exit_reason(error)}") from error


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
    except SolverError as error:
        raise RightsliceError(f"{error}. Write {install_solver()}, then start rightslice ui again") from error
    except typer.Exit as error:
        raise RightsliceError(f"the cluster could not be read for the plan: {_exit_reason(error)}") from error


def _exit_reason(error: typer.Exit) -> str:
    return error.message if isinstance(error, ErrorExit) else "its objects are invalid; the terminal shows which"


def _audit_live(
    note: Callable[[str], None], flags: AuditFlags, usage: UsageView, samples: PodSamples
) -> AuditedCluster:
    with open_live_cluster(flags.access) as cluster:
        policies = load_cluster_policies(
            cluster, flags.policies, flags.policy_namespace, verbose=flags.verbose, note=note
        )
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
