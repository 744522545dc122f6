"""What the commands on placement share: their flags, and the snapshot that pods are placed in.

Apart from the other flags, because the numbers that placement works with take a moment to load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from webhook.audit.checking import World
from webhook.cache.placing import Placing, placing_of
from webhook.cache.snapshot import Snapshot, read_snapshot
from webhook.cli.console import stop
from webhook.cli.inputs import LIVE, moment_of, policies_of, tell_of
from webhook.errors import RightsliceError
from webhook.placement.fragmentation.policies import Policy
from webhook.placement.nodes.ranking import Fill
from webhook.report.words import shown

SnapshotName = Annotated[
    str,
    typer.Option("--cluster", metavar="SNAPSHOT|demo", help="A file or folder of `kubectl get -o yaml`, or demo."),
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
PlacementOutput = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FORMAT[=PATH]",
        help="table, json, yaml; capacity also wide; capacity NODE and simulate also svg. "
        "With =PATH into a file. May be given more than once, at most once without a path. Default: table.",
    ),
]


def placing_of_snapshot(name: str, *, verbose: bool = False) -> Placing:
    """What pods are placed in, from a snapshot. Stops the program where none is named, or it has no node."""
    return _placing(_snapshot(name, verbose=verbose))


def placing_and_world(
    name: str, policies: Sequence[str] | None, now: str, *, verbose: bool = False
) -> tuple[Placing, World]:
    """The same, with what pods are judged by first: the snapshot is read once for both."""
    snapshot = _snapshot(name, verbose=verbose)
    return _placing(snapshot), World(policies_of(policies, verbose=verbose), snapshot.view, moment_of(now))


def _placing(snapshot: Snapshot) -> Placing:
    return placing_of(snapshot.view.fleet, snapshot.kept)


def _snapshot(name: str, *, verbose: bool) -> Snapshot:
    if not name:
        stop("which cluster? Name a snapshot: --cluster FILE, or --cluster demo for the shipped example")
    if name == LIVE:
        stop(
            "live is not taken by this command yet. Save what there is, and name the file: "
            "kubectl get nodes,pods -A -o yaml > cluster.yaml"
        )
    try:
        snapshot = read_snapshot(name)
    except RightsliceError as error:
        stop(str(error))
    if verbose:
        tell_of(name, snapshot)
    if not snapshot.view.fleet.nodes:
        stop(f"{shown(name)}: no nodes here. Write what kubectl get nodes,pods -A -o yaml prints to it")
    return snapshot
