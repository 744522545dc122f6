"""What the commands on placement share: their flags, and the cluster that pods are placed in.

Apart from the other flags, because the numbers that placement works with take a moment to load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from webhook.audit.evaluate import EvaluationContext
from webhook.cache.placement_input import PlacementInput, build_placement_input
from webhook.cache.snapshot import ClusterSnapshot, read_snapshot
from webhook.cli import flags
from webhook.cli.inputs import (
    LIVE,
    ClusterFlags,
    load_cluster_policies,
    load_policy_set,
    note_snapshot,
    open_live_cluster,
    parse_now,
    reject_access_flags,
)
from webhook.cli.output import FINDINGS, exit_with_error, print_note
from webhook.errors import RightsliceError
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.nodes.ranking import FillOrder
from webhook.report.text import pluralize, sanitize

if TYPE_CHECKING:
    from webhook.audit.cluster_reader import ClusterReader

ClusterName = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="live|SNAPSHOT|demo",
        help="live, a file or folder of `kubectl get -o yaml`, or demo for the shipped example.",
    ),
]
RankBy = Annotated[
    ScoringStrategy,
    typer.Option(
        "--policy",
        help="What ranks nodes: tab (what pods to come would fill), fgd (fragmentation gradient descent), "
        "most-allocated, or default (the stock scheduler's).",
    ),
]
FillBy = Annotated[FillOrder, typer.Option("--fill", help="Among equal nodes, the fuller or the emptier ones first.")]


CapacityOutput = Annotated[
    list[str] | None, flags.output_option("table, wide, json, yaml; with NODE or --links also svg")
]
PlaceOutput = Annotated[list[str] | None, flags.output_option("table, json or yaml")]
SimulateOutput = Annotated[list[str] | None, flags.output_option("table, json, yaml or svg")]


class PolicyOptions(NamedTuple):
    """What pods are judged by before they are placed.

    Attributes:
        policies: What --policies says.
        namespace: Where a live cluster keeps exceptions and policy files.
        now: What --now says.
    """

    policies: Sequence[str] | None
    namespace: str
    now: str


def read_placement_input(name: str, reach: ClusterFlags, *, verbose: bool = False) -> PlacementInput:
    """What pods are placed in. Stops the program where no cluster is named, or it has no node."""
    if name == LIVE:
        with open_live_cluster(reach) as cluster:
            return _placement_of_cluster(cluster, verbose=verbose)
    return _placement_of_snapshot(_read_placement_snapshot(name, reach, verbose=verbose))


def read_placement_and_context(
    name: str, reach: ClusterFlags, by: PolicyOptions, *, verbose: bool = False
) -> tuple[PlacementInput, EvaluationContext]:
    """The same, with what pods are judged by first."""
    moment = parse_now(by.now)
    if name == LIVE:
        with open_live_cluster(reach) as cluster:
            policies = load_cluster_policies(cluster, by.policies, by.namespace, verbose=verbose)
            return _placement_of_cluster(cluster, verbose=verbose), EvaluationContext(policies, cluster.view(), moment)
    snapshot = _read_placement_snapshot(name, reach, verbose=verbose)
    return _placement_of_snapshot(snapshot), EvaluationContext(
        load_policy_set(by.policies, verbose=verbose), snapshot.view, moment
    )


def _placement_of_snapshot(snapshot: ClusterSnapshot) -> PlacementInput:
    return build_placement_input(snapshot.view.fleet, snapshot.objects)


def _placement_of_cluster(cluster: ClusterReader, *, verbose: bool) -> PlacementInput:
    stock = cluster.placement_objects()
    if stock.unread_reason:
        print_note(f"note: which GPUs of a node are free is not known: {sanitize(stock.unread_reason)}")
    if verbose:
        nodes, offers = pluralize(len(stock.fleet.nodes), "node"), pluralize(len(stock.fleet.offers), "offer")
        print_note(f"cluster: {sanitize(cluster.server)} ({nodes}, {offers})")
    if not stock.fleet.nodes:
        exit_with_error(f"{sanitize(cluster.server)}: no nodes in this cluster", FINDINGS)
    return build_placement_input(stock.fleet, stock.objects)


def _read_placement_snapshot(name: str, reach: ClusterFlags, *, verbose: bool) -> ClusterSnapshot:
    if not name:
        exit_with_error("which cluster? Name one: --cluster live, a snapshot (--cluster FILE), or --cluster demo")
    reject_access_flags(reach)
    try:
        snapshot = read_snapshot(name)
    except RightsliceError as error:
        exit_with_error(str(error))
    if verbose:
        note_snapshot(name, snapshot)
    if not snapshot.view.fleet.nodes:
        exit_with_error(f"{sanitize(name)}: no nodes here. Write what kubectl get nodes,pods -A -o yaml prints to it")
    return snapshot
