"""`simulate`: play a trace, or a folder of pods, into a cluster, and tell how full it gets."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from webhook.audit.checking import World
from webhook.audit.manifests import Entry, objects_in
from webhook.audit.shaping import coming_of, placeable, shaped_pods
from webhook.audit.simulating import Coming, Simulation, play_pods, play_trace
from webhook.cache.traces import read_machines, read_needs
from webhook.cli import flags
from webhook.cli.console import paint_for, stop, tell
from webhook.cli.faults import refuse_faults
from webhook.cli.inputs import HERE, LIVE, Reach, refuse_reach
from webhook.cli.output import lines, targets, write
from webhook.cli.placing import By, FillBy, RankBy, SimulateOutput, placing_and_world
from webhook.errors import RightsliceError
from webhook.model.fleet import Fleet
from webhook.placement.fragmentation.policies import Policy
from webhook.placement.needs import Need
from webhook.placement.nodes.asking import wanted_of
from webhook.placement.nodes.ranking import Fill
from webhook.placement.nodes.unseen import unplayed
from webhook.placement.rooms import Site
from webhook.report.data import as_json, as_yaml
from webhook.report.simulated import Simulated, simulated_document, simulated_svg, simulated_table
from webhook.report.words import count, shown

FORMATS = ("table", "json", "yaml", "svg")
Nodes = Annotated[
    str,
    typer.Option(
        "--nodes",
        metavar="FILE|DIR|live|demo",
        help="Nodes in the openb format (CSV, also gzipped), a snapshot, or live for a cluster as it stands.",
    ),
]
Pods = Annotated[str, typer.Option("--pods", metavar="FILE|DIR", help="Pods in the openb format, or Kubernetes YAML.")]
Seed = Annotated[int, typer.Option("--seed", help="Shuffles the pods of a trace, and chooses among equal nodes.")]
InOrder = Annotated[bool, typer.Option("--in-order", help="Pods of a trace come in the order of the file.")]
Learn = Annotated[bool, typer.Option("--learn", help="Learn what pods ask for as they come, instead of knowing it.")]
JudgedBy = Annotated[
    list[str] | None,
    typer.Option(
        "--policies",
        metavar="FILE|DIR",
        help="Policies that shape Kubernetes pods; may be given more than once. Default: with --nodes live those in "
        "force there, else the library that comes with Rightslice.",
    ),
]
KeptIn = Annotated[
    str,
    typer.Option(
        "--policy-namespace",
        metavar="NAME",
        help="With --nodes live: where exceptions count, and the ConfigMap rightslice-policies is.",
    ),
]
MOST_PODS = 1_000_000
"""Kubernetes pods of one simulation, replicas included."""
MOST_UNITS = 1 << 16
"""Units of a GPU resource that one pod may ask for: far more than any node has."""


def simulate(
    nodes: Nodes,
    pods: Pods,
    policy: RankBy = Policy.TAB,
    seed: Seed = 42,
    in_order: InOrder = False,
    learn: Learn = False,
    policies: JudgedBy = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: KeptIn = flags.OUR_NAMESPACE,
    fill: FillBy = Fill.PACK,
    now: flags.Now = "",
    output: SimulateOutput = None,
    no_color: flags.NoColor = False,
    verbose: flags.Verbose = False,
) -> None:
    """Play pods into a cluster, one after the other, and tell how full it gets, and who finds no place.

    A trace in the openb format starts on empty nodes. Kubernetes pods are shaped by the policies first, as the
    webhook would, and come to the cluster as it stands; a live one is listed and not changed. Nobody leaves. ASKED,
    ALLOCATED and SPLIT-UP are parts of all GPUs, what pods there hold before included, and a slice or a share counts
    as the part of a GPU that it is; SPLIT-UP is free, and of no use to a pod like those that come, on average.

    Exit code: 0, 2 where a file, flag or policy is wrong, or 3 where the cluster does not answer.
    """
    wanted = targets(output, FORMATS)
    if _is_trace(nodes) != _is_trace(pods):
        stop("--nodes and --pods must both be traces (.csv, .csv.gz), or both Kubernetes YAML")
    reach = Reach(kubeconfig, context)
    if _is_trace(nodes):
        if policies or reach != HERE:
            stop("--policies, --kubeconfig and --context are for Kubernetes pods: a trace is played without them")
        site, needs = _trace(nodes, pods)
        rng = np.random.default_rng(seed)
        order = needs if in_order else [needs[i] for i in rng.permutation(len(needs))]
        steps: Iterator[Simulation] = play_trace(site, order, policy, rng, learnt=learn)
        expected = len(needs)
    else:
        if nodes != LIVE:
            refuse_reach(reach, "--nodes")
        by = By(policies, policy_namespace, now)
        placing, world = placing_and_world(nodes, reach, by, verbose=verbose)
        asked = _asked(pods, world, placing.cluster.fleet)
        steps = play_pods(placing, asked, policy, fill)
        expected = len(asked)
    result = _last(_watched(steps, expected), pods)
    paint = paint_for(no_color=no_color)
    write(
        wanted,
        {
            "table": lambda: lines(simulated_table(result, paint)),
            "json": lambda: as_json(simulated_document(result)),
            "yaml": lambda: as_yaml(simulated_document(result)),
            "svg": lambda: simulated_svg(result),
        },
    )


def _is_trace(path: str) -> bool:
    return path.removesuffix(".gz").endswith(".csv")


def _trace(nodes: str, pods: str) -> tuple[Site, list[Need]]:
    try:
        return Site(read_machines(Path(nodes))), read_needs(Path(pods))
    except RightsliceError as error:
        stop(str(error))


def _asked(path: str, world: World, fleet: Fleet) -> list[Coming]:
    """What the pods of some files ask for, each as often as it is replicated. Stops where a file is broken."""
    found = list(placeable(objects_in([path]), world))
    refuse_faults(found)
    shaped = ((each, pod) for each in found if isinstance(each, Entry) for pod in shaped_pods(each, world))
    coming: list[Coming] = []
    left_out: Counter[str] = Counter()
    for entry, each in shaped:
        wanted = wanted_of(each.pod, fleet)
        if wanted.count > MOST_UNITS:
            asked = f"{each.checked.title} asks for {wanted.count} of {wanted.resource}"
            stop(f"{shown(str(entry.place()))}: {asked}, which no node has: must be at most {MOST_UNITS}. Write fewer")
        if len(coming) + each.replicas > MOST_PODS:
            stop(f"{shown(path)}: must come to at most {MOST_PODS} pods, found more. Write fewer replicas")
        coming += coming_of(each, wanted, fleet)
        left_out.update(dict.fromkeys(unplayed(each.pod), each.replicas))
    for what, many in (+left_out).items():
        tell(f"note: not looked at: {shown(what)} ({count(many, 'pod')}). A scheduler may place fewer of them")
    return coming


def _watched(steps: Iterable[Simulation], expected: int) -> Iterator[Simulation]:
    """The same steps, with a progress bar where somebody watches."""
    if not sys.stderr.isatty():
        yield from steps
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(steps, description="placing", total=expected, console=Console(stderr=True), transient=True)


def _last(steps: Iterable[Simulation], pods: str) -> Simulated:
    last = deque(steps, maxlen=1)
    if not last:
        stop(f"{shown(pods)}: no pods here. Name a trace, or files with Pods or Deployments")
    return last[0].result()
