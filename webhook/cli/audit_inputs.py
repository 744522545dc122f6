"""Flags and inputs of the commands that evaluate a whole cluster: its pods, their prices, and the audit of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from webhook.audit.adjusted_view import with_namespace_labels
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SkippedDocument, SourceObject, read_content, read_objects
from webhook.audit.pod_audit import deduplicate_pods
from webhook.cache.snapshot import ClusterSnapshot, collect_snapshot
from webhook.cache.snapshot_objects import RawObject
from webhook.cli import flags
from webhook.cli.cluster_access import LIVE, open_live_cluster, reject_access_flags
from webhook.cli.inputs import (
    SAVE_CLUSTER,
    EvaluationFlags,
    load_cluster_policies,
    load_policy_set,
    note_cluster,
    parse_timestamp,
    read_evaluation_context,
    reject_broken_files,
    shipped_path,
    snapshot_path,
)
from webhook.cli.output import exit_with_error, print_note, show_progress
from webhook.cli.selection import EVERYTHING, ObjectSelection
from webhook.documents.document import POLICY_BOUNDS
from webhook.errors import RightsliceError, abbreviate_names, read_problem
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.pool_kinds import product_by_node
from webhook.model.prices import NodePrices, PriceTable, node_prices
from webhook.policy.price_list import load_price_list
from webhook.report.policy_reports import KINDS, NO_KIND
from webhook.report.text import pluralize, sanitize

if TYPE_CHECKING:
    from webhook.audit.cluster_audit import AdjustView, ClusterAudit
    from webhook.cli.usage_records import ClusterUsage
    from webhook.usage.record_file import UsageRecord

NO_PRICES = "none"
NO_PROMETHEUS = "none"

AuditPaths = Annotated[
    list[str] | None,
    flags.paths_argument("A snapshot whose pods are evaluated. Default: the cluster that --cluster names."),
]
Since = Annotated[
    str,
    typer.Option(
        "--since",
        metavar="RFC3339|7d|24h",
        help="Only pods created since this time, or within this period. Default: all.",
    ),
]
PriceFile = Annotated[
    str,
    typer.Option(
        "--prices",
        metavar="FILE|none",
        help="Price table (kind GPUPriceList). Default: the shipped example, which does not match your costs.",
    ),
]
_AGE = re.compile(r"([0-9]{1,5})([dhm])\Z", re.ASCII)
_AGE_UNITS = {"d": "days", "h": "hours", "m": "minutes"}


class AuditFlags(EvaluationFlags, frozen=True, kw_only=True):
    """Flags of an audit: also its pods, and their prices."""

    paths: Sequence[str] | None
    since: datetime | None = None
    prices: str
    prometheus: str | None = None
    write_reports: bool = False
    selection: ObjectSelection = EVERYTHING

    def read_record(self) -> UsageRecord | None:
        """Return the record that `find_usage` finds."""
        return self.find_usage().record

    def find_usage(self) -> ClusterUsage:
        """Read recorded usage, else that of the named Prometheus, else that of a live cluster's own."""
        from webhook.cli.usage_records import ClusterUsage  # numpy is slow to import

        if self.usage is not None and self.prometheus is not None:
            exit_with_error("--usage and --prometheus: must not be used together, found both. Leave one out")
        if self.prometheus is not None and self.prometheus != NO_PROMETHEUS:
            from webhook.cli.usage_inputs import read_prometheus  # the HTTP client is slow to import

            return ClusterUsage(read_prometheus(self.prometheus, self.now))
        if self.usage is None and self.prometheus is None and self.cluster == LIVE and not self.paths:
            from webhook.cli.usage_inputs import read_cluster_prometheus

            return read_cluster_prometheus(self.access, self.now)
        return ClusterUsage(super().read_record())


def run_audit(flags: AuditFlags, adjust_view: AdjustView | None = None) -> ClusterAudit:
    """Audit a cluster. Exits if the input is invalid or the cluster does not answer.

    Args:
        adjust_view: Changes the cluster that pods are evaluated in; the result has the cluster as it is.
    """
    live = flags.cluster == LIVE and not flags.paths
    audit = _audit_live_cluster(flags, adjust_view) if live else _audit_files(flags, adjust_view)
    audit.prices = price_nodes(flags.prices, audit.context.view)
    if flags.selection.is_partial and not audit.results:
        flags.selection.note_nothing("active pods", audit.context.view.all_namespaces())
    if audit.undated_pods:
        pods = pluralize(audit.undated_pods, "pod")
        print_note(f"note: {pods} without metadata.creationTimestamp: --since does not exclude them")
    if not audit.context.view.fleet.nodes:
        print_note("note: no nodes are known, so nvidia.com/gpu counts as whole cards and nothing is right-sized")
    return audit


def _audit_live_cluster(flags: AuditFlags, adjust_view: AdjustView | None) -> ClusterAudit:
    from webhook.audit.cluster_audit import audit_live_cluster  # numpy is slow to import

    with open_live_cluster(flags.access) as cluster:
        apis = [api for api, (_, plural) in KINDS.items() if cluster.serves_resource(api.value, plural)]
        if flags.write_reports and not apis:
            exit_with_error(f"--write: {NO_KIND}")
        policies = load_cluster_policies(cluster, flags.policies, flags.policy_namespace, verbose=flags.verbose)
        inputs = (policies, flags.labels, flags.now, flags.read_usage(), flags.since)
        audit = audit_live_cluster(cluster, *inputs, show_progress, adjust_view, flags.selection.choose)
    if flags.verbose:
        note_cluster(audit.cluster, audit.context.view.fleet)
    audit.report_apis = apis
    return audit


def _audit_files(flags: AuditFlags, adjust_view: AdjustView | None) -> ClusterAudit:
    from webhook.audit.cluster_audit import audit_documents, audit_snapshot  # numpy is slow to import
    from webhook.audit.disruption_budgets import drain_limits

    if flags.cluster != LIVE:
        reject_access_flags(flags.access)
    usage = flags.read_usage()
    documents = list(read_objects(audit_sources(flags.paths, flags.cluster)))
    name = ", ".join(flags.paths or [flags.cluster or ""])
    if not any(isinstance(each, SourceObject) for each in documents):
        exit_without_objects(name, documents)
    pods = list(flags.selection.choose(without_duplicate_pods(documents)))
    if flags.paths and flags.cluster and list(flags.paths) != [flags.cluster]:
        context = read_evaluation_context(flags, usage)
        audit = audit_documents(pods, len(pods), context, flags.since, show_progress, adjust_view)
    else:
        policies = load_policy_set(flags.policies, verbose=flags.verbose)
        snapshot = build_snapshot(name, documents, verbose=flags.verbose)
        view = with_namespace_labels(snapshot.view, flags.labels)
        context = EvaluationContext(policies, view, flags.now, usage)
        audit = audit_snapshot(pods, snapshot, context, flags.since, show_progress, adjust_view)
    audit.cluster = name
    if adjust_view is not None:
        audit.drain_limits = drain_limits(documents)
    return audit


def exit_without_objects(name: str, documents: Sequence[SourceObject | SkippedDocument]) -> NoReturn:
    """Exit because documents have no object, after printing those that cannot be read."""
    reject_broken_files(documents)
    exit_with_error(f"{sanitize(name)}: must contain Kubernetes objects, found none. {SAVE_CLUSTER}")


def price_nodes(name: str, view: ClusterView) -> NodePrices | None:
    """Price the nodes by a table; None without one, or without nodes. Exits if it cannot be used."""
    if name == NO_PRICES:
        return None
    prices = node_prices(view.fleet.nodes, load_prices(name), product_by_node(view.devices, view.fleet))
    for note in prices.notes:
        print_note(f"prices: {sanitize(note)}")
    return prices if view.fleet.nodes else None


def load_prices(name: str) -> PriceTable:
    """Load a price table, by default the shipped example. Exits if it cannot be used."""
    file = name or shipped_path("examples", "prices", "example.yaml")
    try:
        loaded = load_price_list(read_content(file, POLICY_BOUNDS.size + 1), file)
    except OSError as error:
        exit_with_error(f"--prices {file}: {read_problem(error)}")
    if loaded.prices is None:
        *others, last = loaded.errors
        for each in others:
            print_note(f"error: --prices {each.location}: {each.message}")
        exit_with_error(f"--prices {last.location}: {last.message}")
    return loaded.prices


def audit_sources(paths: Sequence[str] | None, cluster: str | None) -> list[str]:
    """Return the files with the pods to evaluate: those that are named, else those of a snapshot."""
    return list(paths) if paths else [snapshot_path(str(cluster))]


def build_snapshot(name: str, documents: Iterable[SourceObject | SkippedDocument], *, verbose: bool) -> ClusterSnapshot:
    """Build the cluster that these objects describe. Exits if they cannot be used."""
    objects = (RawObject(each.data, each.locate) for each in documents if isinstance(each, SourceObject))
    try:
        snapshot = collect_snapshot(objects)
    except RightsliceError as error:
        exit_with_error(str(error))
    if snapshot.duplicate_nodes:
        nodes = pluralize(len(snapshot.duplicate_nodes), "duplicate node")
        names = sanitize(abbreviate_names(snapshot.duplicate_nodes))
        print_note(f"note: {nodes}: the last copy of each is used: {names}")
    if verbose:
        note_cluster(name, snapshot.view.fleet, snapshot.skipped)
    return snapshot


def read_files_snapshot(files: Sequence[str]) -> ClusterSnapshot:
    """Read the cluster that files describe. Exits if one cannot be read, or none has an object."""
    name, documents = ", ".join(files), list(read_objects(files))
    reject_broken_files(documents)
    if not documents:
        exit_without_objects(name, documents)
    return build_snapshot(name, documents, verbose=False)


def without_duplicate_pods(
    documents: Sequence[SourceObject | SkippedDocument],
) -> list[SourceObject | SkippedDocument]:
    """Return the documents with each pod once, and print a note if there were duplicates."""
    unique = deduplicate_pods(documents)
    note_duplicate_pods(len(documents) - len(unique))
    return unique


def note_duplicate_pods(number: int) -> None:
    """Print a note if there were duplicates."""
    if number:
        print_note(f"note: {pluralize(number, 'duplicate pod')}: the last copy of each is evaluated")


def parse_since(text: str, now: datetime) -> datetime | None:
    """Parse --since: a time or an age. Exits if it is neither."""
    if not text:
        return None
    age = _AGE.match(text)
    if age:
        try:
            return now - timedelta(**{_AGE_UNITS[age[2]]: int(age[1])})
        except OverflowError:
            exit_with_error(f"--since: must be after the year 1, found {text} before {now:%Y-%m-%d}. Write less")
    moment = parse_timestamp(text)
    if moment is None:
        must = "must be a time with its zone, or an age"
        exit_with_error(f"--since: {must}, found {text!r}. Write 2026-06-01T00:00:00Z, or 7d")
    return moment
