"""What the commands on placement share: their flags, and the cluster that pods are placed in.

Apart from the other flags, because the numbers that placement works with take a moment to load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from webhook.audit.checking import World
from webhook.cache.placing import Placing, placing_of
from webhook.cache.snapshot import Snapshot, read_snapshot
from webhook.cli import flags
from webhook.cli.console import FINDINGS, stop, tell
from webhook.cli.inputs import (
    LIVE,
    Reach,
    live_cluster,
    moment_of,
    policies_in_force,
    policies_of,
    refuse_reach,
    tell_of,
)
from webhook.errors import RightsliceError
from webhook.placement.fragmentation.policies import Policy
from webhook.placement.nodes.ranking import Fill
from webhook.report.words import count, shown

if TYPE_CHECKING:
    from webhook.audit.cluster import Cluster

ClusterName = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="live|SNAPSHOT|demo",
        help="live, a file or folder of `kubectl get -o yaml`, or demo for the shipped example.",
    ),
]
RankBy = Annotated[
    Policy,
    typer.Option(
        "--policy",
        help="What ranks nodes: tab (what pods to come would fill), fgd (fragmentation gradient descent), "
        "most-allocated, or default (the stock scheduler's).",
    ),
]
FillBy = Annotated[Fill, typer.Option("--fill", help="Among equal nodes, the fuller or the emptier ones first.")]


CapacityOutput = Annotated[list[str] | None, flags.output("table, wide, json, yaml; with NODE or --links also svg")]
PlaceOutput = Annotated[list[str] | None, flags.output("table, json or yaml")]
SimulateOutput = Annotated[list[str] | None, flags.output("table, json, yaml or svg")]


class By(NamedTuple):
    """What pods are judged by before they are placed.

    Attributes:
        policies: What --policies says.
        namespace: Where a live cluster keeps exceptions and policy files.
        now: What --now says.
    """

    policies: Sequence[str] | None
    namespace: str
    now: str


def placing_in(name: str, reach: Reach, *, verbose: bool = False) -> Placing:
    """What pods are placed in. Stops the program where no cluster is named, or it has no node."""
    if name == LIVE:
        with live_cluster(reach) as cluster:
            return _live_placing(cluster, verbose=verbose)
    return _placing(_snapshot(name, reach, verbose=verbose))


def placing_and_world(name: str, reach: Reach, by: By, *, verbose: bool = False) -> tuple[Placing, World]:
    """The same, with what pods are judged by first."""
    moment = moment_of(by.now)
    if name == LIVE:
        with live_cluster(reach) as cluster:
            policies = policies_in_force(cluster, by.policies, by.namespace, verbose=verbose)
            return _live_placing(cluster, verbose=verbose), World(policies, cluster.view(), moment)
    snapshot = _snapshot(name, reach, verbose=verbose)
    return _placing(snapshot), World(policies_of(by.policies, verbose=verbose), snapshot.view, moment)


def _placing(snapshot: Snapshot) -> Placing:
    return placing_of(snapshot.view.fleet, snapshot.kept)


def _live_placing(cluster: Cluster, *, verbose: bool) -> Placing:
    stock = cluster.stock()
    if stock.unread:
        tell(f"note: which GPUs of a node are free is not known: {shown(stock.unread)}")
    if verbose:
        nodes, offers = count(len(stock.fleet.nodes), "node"), count(len(stock.fleet.offers), "offer")
        tell(f"cluster: {shown(cluster.server)} ({nodes}, {offers})")
    if not stock.fleet.nodes:
        stop(f"{shown(cluster.server)}: no nodes in this cluster", FINDINGS)
    return placing_of(stock.fleet, stock.kept)


def _snapshot(name: str, reach: Reach, *, verbose: bool) -> Snapshot:
    if not name:
        stop("which cluster? Name one: --cluster live, a snapshot (--cluster FILE), or --cluster demo")
    refuse_reach(reach)
    try:
        snapshot = read_snapshot(name)
    except RightsliceError as error:
        stop(str(error))
    if verbose:
        tell_of(name, snapshot)
    if not snapshot.view.fleet.nodes:
        stop(f"{shown(name)}: no nodes here. Write what kubectl get nodes,pods -A -o yaml prints to it")
    return snapshot
