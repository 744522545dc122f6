"""Flags and inputs of the commands on placement: the cluster that pods are placed in.

Separate from the other flags and inputs, because numpy is slow to import.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from webhook.audit.evaluate import EvaluationContext
from webhook.cache.placement_input import PlacementInput, build_placement_input
from webhook.cache.snapshot import ClusterSnapshot, read_snapshot
from webhook.cli.audit_inputs import read_files_snapshot
from webhook.cli.cluster_access import LIVE, ClusterFlags, open_live_cluster, reject_access_flags
from webhook.cli.inputs import (
    SAVE_CLUSTER,
    load_cluster_policies,
    load_policy_set,
    note_cluster,
    read_scheduler_config,
)
from webhook.cli.output import EXIT_FINDINGS, exit_with_error, print_note
from webhook.errors import RightsliceError
from webhook.model.pods import DEFAULT_NAMESPACE
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.nodes.ranking import FillOrder
from webhook.report.text import sanitize

if TYPE_CHECKING:
    from webhook.audit.cluster_reader import ClusterReader

RankBy = Annotated[
    ScoringStrategy,
    typer.Option(
        "--strategy",
        metavar="|".join(ScoringStrategy),
        help="How nodes are scored: tab (by the pods that are expected to arrive), fgd (fragmentation gradient "
        "descent), most-allocated, or default (as the stock scheduler does).",
    ),
]
FillBy = Annotated[
    FillOrder,
    typer.Option(
        "--fill",
        metavar="|".join(FillOrder),
        help="Among equal nodes, prefer the fullest (pack) or the emptiest (spread).",
    ),
]


def read_placement_input(
    name: str | None, access: ClusterFlags, files: Sequence[str] = (), *, verbose: bool = False
) -> PlacementInput:
    """Read the cluster to place pods in, or files that describe it. Exits if it has no nodes."""
    if name == LIVE:
        with open_live_cluster(access) as cluster:
            return _placement_of_cluster(cluster, verbose=verbose)
    snapshot = _read_placement_snapshot(str(name), access, files, verbose=verbose)
    return build_placement_input(snapshot.view.fleet, snapshot.objects, snapshot.view.devices)


def read_placement_and_context(
    name: str,
    access: ClusterFlags,
    policy_paths: Sequence[str] | None,
    policy_namespace: str,
    now: datetime,
    scheduler_config: Path | None = None,
    *,
    namespace: str = DEFAULT_NAMESPACE,
    verbose: bool = False,
) -> tuple[PlacementInput, EvaluationContext]:
    """Read the cluster to place pods in, and the policies that the pods are evaluated against first.

    Args:
        namespace: That of pods that do not set one.
    """
    if name == LIVE:
        with open_live_cluster(access) as cluster:
            policies = load_cluster_policies(cluster, policy_paths, policy_namespace, verbose=verbose)
            placement = _placement_of_cluster(cluster, verbose=verbose)
            view = cluster.view(schedulers=read_scheduler_config(scheduler_config))
    else:
        snapshot = _read_placement_snapshot(name, access, verbose=verbose)
        policies = load_policy_set(policy_paths, verbose=verbose)
        view = snapshot.view
        placement = build_placement_input(view.fleet, snapshot.objects, view.devices)
        view = view.with_schedulers(read_scheduler_config(scheduler_config, view.schedulers))
    evaluation = EvaluationContext(policies, view, now, namespace=namespace)
    return replace(placement, schedulers=view.schedulers, peers=view.peers), evaluation


def _placement_of_cluster(cluster: ClusterReader, *, verbose: bool) -> PlacementInput:
    found = cluster.placement_objects()
    if found.unread_reason:
        print_note(f"note: which GPUs of a node are free is unknown: {sanitize(found.unread_reason)}")
    if verbose:
        note_cluster(cluster.server, found.fleet)
    if not found.fleet.nodes:
        exit_with_error(f"{sanitize(cluster.server)}: no nodes in this cluster", EXIT_FINDINGS)
    return build_placement_input(found.fleet, found.objects, found.devices)


def _read_placement_snapshot(
    name: str, access: ClusterFlags, files: Sequence[str] = (), *, verbose: bool
) -> ClusterSnapshot:
    reject_access_flags(access)
    try:
        snapshot = read_files_snapshot(files) if files else read_snapshot(name)
    except RightsliceError as error:
        exit_with_error(str(error))
    name = ", ".join(files) or name
    if verbose:
        note_cluster(name, snapshot.view.fleet, snapshot.skipped)
    if not snapshot.view.fleet.nodes:
        exit_with_error(f"{sanitize(name)}: no nodes here. {SAVE_CLUSTER}")
    return snapshot
