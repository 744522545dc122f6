"""What the commands that judge a whole cluster share: its pods, one after the other, and its head figures."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer

from webhook.audit.adjusted_view import with_namespace_labels
from webhook.audit.cluster_audit import ResultInterner
from webhook.audit.evaluate import EvaluationContext, written_namespace
from webhook.audit.object_files import SkippedDocument, SourceObject, read_content, read_objects
from webhook.audit.pod_audit import audit_pods, deduplicate_pods, is_active_pod
from webhook.audit.stored_pods import created_since, lacks_creation_time
from webhook.cache.bundled_files import bundled_folder
from webhook.cache.snapshot import DEMO, ClusterSnapshot, collect_snapshot
from webhook.cache.snapshot_objects import RawObject
from webhook.cli.inputs import (
    LIVE,
    ClusterFlags,
    load_cluster_policies,
    load_policy_set,
    note_snapshot,
    open_live_cluster,
    parse_timestamp,
    read_live_view,
    read_policies_and_view,
    read_usage_view,
    reject_access_flags,
    relative_path,
)
from webhook.cli.output import exit_with_error, print_note
from webhook.documents.decode import POLICY_BOUNDS
from webhook.errors import RightsliceError
from webhook.model.cluster_view import ClusterView
from webhook.model.fleet import Fleet
from webhook.model.pods import Pod
from webhook.model.prices import NodePrices, PriceTable, node_prices
from webhook.policy.price_list import load_price_list
from webhook.report.policy_reports import KINDS, NO_KIND, ReportApi
from webhook.report.results import CheckResult
from webhook.report.text import pluralize, sanitize

if TYPE_CHECKING:
    from webhook.placement.fragmentation.workload_mix import WorkloadMix
    from webhook.placement.nodes.snapshot import SchedulingSnapshot as Placed
    from webhook.report.capacity import NodeCapacity

NO_PRICES = "none"
T = TypeVar("T")

AuditPaths = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE|DIR|-]",
        help="The snapshot whose pods are judged. Default: the cluster that --cluster names.",
        show_default=False,
    ),
]
Since = Annotated[
    str,
    typer.Option(
        "--since",
        metavar="RFC3339|7d|24h",
        help="Only pods created at this moment or later, or so long ago. Default: all.",
    ),
]
PriceFile = Annotated[
    str,
    typer.Option(
        "--prices",
        metavar="FILE|none",
        help="Price table (kind GPUPriceList). Default: the bundled_folder example, which is not what your GPUs cost.",
    ),
]
_AGE = re.compile(r"([0-9]{1,5})([dhm])\Z", re.ASCII)
_AGE_UNITS = {"d": "days", "h": "hours", "m": "minutes"}


class ClusterAudit(msgspec.Struct):
    """What a run over a cluster came to.

    Attributes:
        cluster: What was judged: an address, or the names of files.
        stocks: What each node with GPUs has and gives.
        prices: What they cost; None where that is not wanted.
        report_apis: Which APIs report objects can be of, the preferred one first; none where a live cluster has none.
    """

    cluster: str
    results: list[CheckResult]
    context: EvaluationContext
    stocks: list[NodeCapacity]
    prices: NodePrices | None
    report_apis: Sequence[ReportApi] = (ReportApi.OPENREPORTS,)


class AuditOptions(msgspec.Struct, frozen=True):
    """The flags that say what is judged, by what, and when."""

    paths: Sequence[str] | None
    policies: Sequence[str] | None
    cluster: str | None
    access: ClusterFlags
    policy_namespace: str
    labels: Mapping[str, str]
    now: datetime
    since: datetime | None = None
    prices: str = ""
    usage: str | None = None
    verbose: bool = False
    write_reports: bool = False


def run_audit(wanted: AuditOptions) -> ClusterAudit:
    """Judge every pod. Stops the program where the input is wrong or the cluster does not answer."""
    return _audit_live_cluster(wanted) if wanted.cluster == LIVE and not wanted.paths else _audit_files(wanted)


def _audit_live_cluster(wanted: AuditOptions) -> ClusterAudit:
    from webhook.cache.placement_input import PodMixCounter
    from webhook.placement.nodes.snapshot import SchedulingSnapshot as Placed

    seen: list[PodMixCounter] = []

    def look(fleet: Fleet) -> Callable[[Pod], None]:
        seen.append(PodMixCounter(Placed(fleet, {})))
        return seen[0].add

    with open_live_cluster(wanted.access) as live:
        apis = [api for api, (_, plural) in KINDS.items() if live.serves_resource(api.value, plural)]
        if wanted.write_reports and not apis:
            exit_with_error(f"--write: {NO_KIND}")
        known = load_cluster_policies(live, wanted.policies, wanted.policy_namespace, verbose=wanted.verbose)
        view = read_live_view(live, wanted.labels, verbose=wanted.verbose, look=look)
        world = EvaluationContext(
            known, view, wanted.now, read_usage_view(wanted.usage, wanted.now, verbose=wanted.verbose)
        )
        results = _audit_listed_pods(live.pods(), world, wanted, live.active_pods)
        cluster = Placed(view.fleet, live.free_by_node)
    return ClusterAudit(
        live.server, results, world, _node_stocks(cluster, seen[0].mix()), _price_nodes(wanted.prices, view), apis
    )


def _audit_files(wanted: AuditOptions) -> ClusterAudit:
    from webhook.cache.placement_input import build_placement_input

    if wanted.cluster != LIVE:
        reject_access_flags(wanted.access)
    usage = read_usage_view(wanted.usage, wanted.now, verbose=wanted.verbose)
    found = list(read_objects(audit_sources(wanted.paths, wanted.cluster)))
    if wanted.paths and wanted.cluster and list(wanted.paths) != [wanted.cluster]:
        by = read_policies_and_view(
            wanted.cluster,
            wanted.policies,
            wanted.labels,
            wanted.access,
            wanted.policy_namespace,
            verbose=wanted.verbose,
        )
        world, stocks = EvaluationContext(by.policies, by.view, wanted.now, usage), []
    else:
        policies = load_policy_set(wanted.policies, verbose=wanted.verbose)
        snapshot = build_snapshot(found, verbose=wanted.verbose)
        world = EvaluationContext(policies, with_namespace_labels(snapshot.view, wanted.labels), wanted.now, usage)
        placing = build_placement_input(snapshot.view.fleet, snapshot.objects)
        stocks = _node_stocks(placing.cluster, placing.mix)
    pods = without_duplicate_pods(found)
    results = _audit_listed_pods(pods, world, wanted, len(pods))
    return ClusterAudit(
        ", ".join(wanted.paths or [wanted.cluster or ""]),
        results,
        world,
        stocks,
        _price_nodes(wanted.prices, world.view),
    )


def without_duplicate_pods(found: Sequence[SourceObject | SkippedDocument]) -> list[SourceObject | SkippedDocument]:
    """The same with each pod once, and a word where one is given more than once."""
    once = deduplicate_pods(found)
    if len(once) < len(found):
        print_note(f"note: {pluralize(len(found) - len(once), 'pod')} given again: of each pod the last one counts")
    return once


def _audit_listed_pods(
    found: Iterable[SourceObject | SkippedDocument], world: EvaluationContext, wanted: AuditOptions, length: int
) -> list[CheckResult]:
    keep, undated = ResultInterner(), list[str]()
    noted = found if wanted.since is None else _collect_undated_pods(found, undated)
    with show_progress(created_since(noted, wanted.since), length) as coming:
        results = [keep(each) for each in audit_pods(coming, world)]
    if undated:
        print_note(
            f"note: {pluralize(len(undated), 'pod')} without metadata.creationTimestamp: "
            f"--since leaves none of them out"
        )
    return results


def _collect_undated_pods(
    found: Iterable[SourceObject | SkippedDocument], undated: list[str]
) -> Iterator[SourceObject | SkippedDocument]:
    """The same; the namespaces of pods that do not say when they were created come into the list."""
    for each in found:
        if isinstance(each, SourceObject) and is_active_pod(each.data) and lacks_creation_time(each.data):
            undated.append(written_namespace(each.data))
        yield each


def _node_stocks(cluster: Placed, mix: WorkloadMix) -> list[NodeCapacity]:
    from webhook.report.capacity import node_capacities

    return node_capacities(cluster, mix) if cluster.fleet.nodes else []


def _price_nodes(name: str, view: ClusterView) -> NodePrices | None:
    if name == NO_PRICES:
        return None
    prices = node_prices(view.fleet.nodes, load_prices(name))
    for note in prices.notes:
        print_note(f"prices: {sanitize(note)}")
    return prices if view.fleet.nodes else None


def load_prices(name: str) -> PriceTable:
    """Read a price table, the shipped example where none is named. Stops the program where it cannot be used."""
    file = name or relative_path(bundled_folder("examples") / "prices" / "example.yaml")
    try:
        read = load_price_list(read_content(file, POLICY_BOUNDS.size + 1), file)
    except OSError as error:
        exit_with_error(f"{file}: cannot be read: {error.strerror or error}")
    if read.prices is None:
        for fault in read.errors:
            print_note(f"{fault.location}  error  {fault.message}")
        exit_with_error("the price table cannot be used")
    return read.prices


@contextmanager
def show_progress(coming: Iterable[T], length: int) -> Iterator[Iterable[T]]:
    """The same one after the other; with a bar on stderr where a person watches."""
    watched = sys.stderr.isatty() and not os.environ.get("CI")
    with typer.progressbar(coming, length=length, label="pods", file=sys.stderr, hidden=not watched) as bar:
        yield bar


def parse_since(text: str, now: datetime) -> datetime | None:
    """Read --since: a moment, or how long ago. Stops the program where it is neither."""
    if not text:
        return None
    ago = _AGE.match(text)
    if ago:
        try:
            return now - timedelta(**{_AGE_UNITS[ago[2]]: int(ago[1])})
        except OverflowError:
            exit_with_error(
                f"--since: must lie after the year 1, found {text} before {now:%Y-%m-%d}. Write a shorter age"
            )
    moment = parse_timestamp(text)
    if moment is None:
        exit_with_error(
            f"--since: must be a moment with its zone or an age, found {text!r}. Write 2026-06-01T00:00:00Z, or 7d"
        )
    return moment


def audit_sources(paths: Sequence[str] | None, cluster: str | None) -> list[str]:
    """The files whose pods are judged. Stops the program where none are named."""
    if paths:
        return list(paths)
    if cluster is None:
        exit_with_error(
            "which cluster? Name one: --cluster live, a snapshot (rightslice audit FILE), or --cluster demo"
        )
    return [relative_path(bundled_folder("examples") / "cluster") if cluster == DEMO else cluster]


def build_snapshot(found: Iterable[SourceObject | SkippedDocument], *, verbose: bool) -> ClusterSnapshot:
    """The cluster that these objects describe. Stops the program where they cannot."""
    try:
        snapshot = collect_snapshot(
            RawObject(each.data, each.place) for each in found if isinstance(each, SourceObject)
        )
    except RightsliceError as error:
        exit_with_error(str(error))
    if verbose:
        note_snapshot("the files given", snapshot)
    return snapshot


def note_missing_nodes(world: EvaluationContext) -> None:
    """A word where no node is known."""
    if not world.view.fleet.nodes:
        print_note("note: no nodes are known, so nvidia.com/gpu counts as whole cards and nothing is right-sized")
