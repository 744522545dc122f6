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

from webhook.audit.auditing import audit_all, given_once, holds
from webhook.audit.checking import World, namespace_of
from webhook.audit.files import content_of
from webhook.audit.keeping import Keeping
from webhook.audit.manifests import Entry, Passed, objects_in
from webhook.audit.standing import created_since, is_undated
from webhook.audit.views import with_labels
from webhook.cache.objects import Found
from webhook.cache.shipped import shipped
from webhook.cache.snapshot import DEMO, Snapshot, gather
from webhook.cli.console import stop, tell
from webhook.cli.inputs import (
    LIVE,
    Reach,
    judged_by,
    live_cluster,
    live_view,
    nearby,
    policies_in_force,
    policies_of,
    refuse_reach,
    tell_of,
    usage_of,
    zoned,
)
from webhook.documents.bounds import POLICY
from webhook.errors import RightsliceError
from webhook.model.cluster import ClusterView
from webhook.model.fleet import Fleet
from webhook.model.pods import Pod
from webhook.model.prices import NodePrices, Prices, node_prices
from webhook.policy.prices import read_prices
from webhook.report.policyreports import KINDS, NO_KIND, ReportApi
from webhook.report.results import Checked
from webhook.report.words import count, shown

if TYPE_CHECKING:
    from webhook.placement.fragmentation.mixes import Mix
    from webhook.placement.nodes.cluster import Cluster as Placed
    from webhook.report.capacities import Stock

NONE = "none"
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
        help="Price table (kind GPUPriceList). Default: the shipped example, which is not what your GPUs cost.",
    ),
]
_AGO = re.compile(r"([0-9]{1,5})([dhm])\Z", re.ASCII)
_UNITS = {"d": "days", "h": "hours", "m": "minutes"}


class Run(msgspec.Struct):
    """What a run over a cluster came to.

    Attributes:
        cluster: What was judged: an address, or the names of files.
        stocks: What each node with GPUs has and gives.
        prices: What they cost; None where that is not wanted.
        report_apis: Which APIs report objects can be of, the preferred one first; none where a live cluster has none.
    """

    cluster: str
    results: list[Checked]
    world: World
    stocks: list[Stock]
    prices: NodePrices | None
    report_apis: Sequence[ReportApi] = (ReportApi.OPENREPORTS,)


class Wanted(msgspec.Struct, frozen=True):
    """The flags that say what is judged, by what, and when."""

    paths: Sequence[str] | None
    policies: Sequence[str] | None
    cluster: str | None
    reach: Reach
    policy_namespace: str
    labels: Mapping[str, str]
    moment: datetime
    since: datetime | None = None
    prices: str = ""
    usage: str | None = None
    verbose: bool = False
    to_write: bool = False


def run(wanted: Wanted) -> Run:
    """Judge every pod. Stops the program where the input is wrong or the cluster does not answer."""
    return _of_cluster(wanted) if wanted.cluster == LIVE and not wanted.paths else _of_files(wanted)


def _of_cluster(wanted: Wanted) -> Run:
    from webhook.cache.placing import Learning  # numbers take their time to load: only who needs them pays
    from webhook.placement.nodes.cluster import Cluster as Placed

    seen: list[Learning] = []

    def look(fleet: Fleet) -> Callable[[Pod], None]:
        seen.append(Learning(Placed(fleet, {})))
        return seen[0].see

    with live_cluster(wanted.reach) as live:
        apis = [api for api, (_, plural) in KINDS.items() if live.serves(api.value, plural)]
        if wanted.to_write and not apis:
            stop(f"--write: {NO_KIND}")
        known = policies_in_force(live, wanted.policies, wanted.policy_namespace, verbose=wanted.verbose)
        view = live_view(live, wanted.labels, verbose=wanted.verbose, look=look)
        world = World(known, view, wanted.moment, usage_of(wanted.usage, wanted.moment, verbose=wanted.verbose))
        results = _judged(live.pods(), world, wanted, live.pods_unended)
        cluster = Placed(view.fleet, live.rooms)
    return Run(live.server, results, world, _stocks(cluster, seen[0].mix()), _prices(wanted.prices, view), apis)


def _of_files(wanted: Wanted) -> Run:
    from webhook.cache.placing import placing_of

    if wanted.cluster != LIVE:
        refuse_reach(wanted.reach)
    usage = usage_of(wanted.usage, wanted.moment, verbose=wanted.verbose)
    found = list(objects_in(sources(wanted.paths, wanted.cluster)))
    if wanted.paths and wanted.cluster and list(wanted.paths) != [wanted.cluster]:
        by = judged_by(
            wanted.cluster,
            wanted.policies,
            wanted.labels,
            wanted.reach,
            wanted.policy_namespace,
            verbose=wanted.verbose,
        )
        world, stocks = World(by.policies, by.view, wanted.moment, usage), []
    else:
        policies = policies_of(wanted.policies, verbose=wanted.verbose)
        snapshot = snapshot_of(found, verbose=wanted.verbose)
        world = World(policies, with_labels(snapshot.view, wanted.labels), wanted.moment, usage)
        placing = placing_of(snapshot.view.fleet, snapshot.kept)
        stocks = _stocks(placing.cluster, placing.mix)
    pods = pods_once(found)
    results = _judged(pods, world, wanted, len(pods))
    return Run(
        ", ".join(wanted.paths or [wanted.cluster or ""]), results, world, stocks, _prices(wanted.prices, world.view)
    )


def pods_once(found: Sequence[Entry | Passed]) -> list[Entry | Passed]:
    """The same with each pod once, and a word where one is given more than once."""
    once = given_once(found)
    if len(once) < len(found):
        tell(f"note: {count(len(found) - len(once), 'pod')} given again: of each pod the last one counts")
    return once


def _judged(found: Iterable[Entry | Passed], world: World, wanted: Wanted, length: int) -> list[Checked]:
    keep, undated = Keeping(), list[str]()
    noted = found if wanted.since is None else _noting_undated(found, undated)
    with progress(created_since(noted, wanted.since), length) as coming:
        results = [keep(each) for each in audit_all(coming, world)]
    if undated:
        tell(f"note: {count(len(undated), 'pod')} without metadata.creationTimestamp: --since leaves none of them out")
    return results


def _noting_undated(found: Iterable[Entry | Passed], undated: list[str]) -> Iterator[Entry | Passed]:
    """The same; the namespaces of pods that do not say when they were created come into the list."""
    for each in found:
        if isinstance(each, Entry) and holds(each.data) and is_undated(each.data):
            undated.append(namespace_of(each.data))
        yield each


def _stocks(cluster: Placed, mix: Mix) -> list[Stock]:
    from webhook.report.capacities import stocks

    return stocks(cluster, mix) if cluster.fleet.nodes else []


def _prices(name: str, view: ClusterView) -> NodePrices | None:
    if name == NONE:
        return None
    prices = node_prices(view.fleet.nodes, prices_of(name))
    for note in prices.notes:
        tell(f"prices: {shown(note)}")
    return prices if view.fleet.nodes else None


def prices_of(name: str) -> Prices:
    """Read a price table, the shipped example where none is named. Stops the program where it cannot be used."""
    file = name or nearby(shipped("examples") / "prices" / "example.yaml")
    try:
        read = read_prices(content_of(file, POLICY.size + 1), file)
    except OSError as error:
        stop(f"{file}: cannot be read: {error.strerror or error}")
    if read.prices is None:
        for fault in read.errors:
            tell(f"{fault.place}  error  {fault.sentence}")
        stop("the price table cannot be used")
    return read.prices


@contextmanager
def progress(coming: Iterable[T], length: int) -> Iterator[Iterable[T]]:
    """The same one after the other; with a bar on stderr where a person watches."""
    watched = sys.stderr.isatty() and not os.environ.get("CI")
    with typer.progressbar(coming, length=length, label="pods", file=sys.stderr, hidden=not watched) as bar:
        yield bar


def since_of(text: str, now: datetime) -> datetime | None:
    """Read --since: a moment, or how long ago. Stops the program where it is neither."""
    if not text:
        return None
    ago = _AGO.match(text)
    if ago:
        try:
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        except OverflowError:
            stop(f"--since: must lie after the year 1, found {text} before {now:%Y-%m-%d}. Write a shorter age")
    moment = zoned(text)
    if moment is None:
        stop(f"--since: must be a moment with its zone or an age, found {text!r}. Write 2026-06-01T00:00:00Z, or 7d")
    return moment


def sources(paths: Sequence[str] | None, cluster: str | None) -> list[str]:
    """The files whose pods are judged. Stops the program where none are named."""
    if paths:
        return list(paths)
    if cluster is None:
        stop("which cluster? Name one: --cluster live, a snapshot (rightslice audit FILE), or --cluster demo")
    return [nearby(shipped("examples") / "cluster") if cluster == DEMO else cluster]


def snapshot_of(found: Iterable[Entry | Passed], *, verbose: bool) -> Snapshot:
    """The cluster that these objects describe. Stops the program where they cannot."""
    try:
        snapshot = gather(Found(each.data, each.place) for each in found if isinstance(each, Entry))
    except RightsliceError as error:
        stop(str(error))
    if verbose:
        tell_of("the files given", snapshot)
    return snapshot


def say_if_nodeless(world: World) -> None:
    """A word where no node is known."""
    if not world.view.fleet.nodes:
        tell("note: no nodes are known, so nvidia.com/gpu counts as whole cards and nothing is right-sized")
