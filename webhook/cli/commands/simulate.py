"""`simulate_command`: play a trace, or a folder of pods, into a cluster, and tell how full it gets."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from webhook.audit.admission import admitted_pods, arriving_replicas, reject_unplaceable
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SourceObject, read_objects
from webhook.audit.simulation import ArrivingPod, SimulationProgress, simulate_pods, simulate_trace
from webhook.cache.traces import read_trace_nodes, read_trace_pods
from webhook.cli import flags
from webhook.cli.inputs import DEFAULT_ACCESS, LIVE, ClusterFlags, reject_access_flags, reject_broken_files
from webhook.cli.output import exit_with_error, join_lines, paint_for, parse_targets, print_note, write_reports
from webhook.cli.placement_inputs import FillBy, PolicyOptions, RankBy, SimulateOutput, read_placement_and_context
from webhook.errors import RightsliceError
from webhook.model.fleet import Fleet
from webhook.placement.capacity import ClusterCapacity, PodDemand
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.nodes.pod_requirements import pod_requirements
from webhook.placement.nodes.ranking import FillOrder
from webhook.placement.nodes.stock_filters import unsimulated_constraints
from webhook.report.serialization import json_text, yaml_text
from webhook.report.simulation import SimulationResult, simulation_document, simulation_svg, simulation_table
from webhook.report.text import pluralize, sanitize
from webhook.well_known import SYSTEM_NAMESPACE

FORMATS = ("table", "json", "yaml", "svg")
SimulationNodes = Annotated[
    str,
    typer.Option(
        "--nodes",
        metavar="FILE|DIR|live|demo",
        help="SimulationNodes in the openb format (CSV, also gzipped), a snapshot, or live for a cluster as it stands.",
    ),
]
SimulationPods = Annotated[
    str, typer.Option("--pods", metavar="FILE|DIR", help="SimulationPods in the openb format, or Kubernetes YAML.")
]
Seed = Annotated[int, typer.Option("--seed", help="Shuffles the pods of a trace, and chooses among equal nodes.")]
InOrder = Annotated[bool, typer.Option("--in-order", help="SimulationPods of a trace come in the order of the file.")]
LearnMix = Annotated[
    bool, typer.Option("--learn", help="LearnMix what pods ask for as they come, instead of knowing it.")
]
SimulationPolicies = Annotated[
    list[str] | None,
    typer.Option(
        "--policies",
        metavar="FILE|DIR",
        help="Policies that shape Kubernetes pods; may be given more than once. Default: with --nodes live those in "
        "force there, else the library that comes with Rightslice.",
    ),
]
SimulationPolicyNamespace = Annotated[
    str,
    typer.Option(
        "--policy-namespace",
        metavar="NAME",
        help="With --nodes live: where exceptions pluralize, and the ConfigMap rightslice-policies is.",
    ),
]
MAX_PODS = 1_000_000
"""Kubernetes pods of one simulation, replicas included."""
MAX_UNITS = 1 << 16
"""Units of a GPU resource that one pod may ask for: far more than any node has."""


def simulate_command(
    nodes: SimulationNodes,
    pods: SimulationPods,
    policy: RankBy = ScoringStrategy.TAB,
    seed: Seed = 42,
    in_order: InOrder = False,
    learn: LearnMix = False,
    policies: SimulationPolicies = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: SimulationPolicyNamespace = SYSTEM_NAMESPACE,
    fill: FillBy = FillOrder.PACK,
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
    wanted = parse_targets(output, FORMATS)
    if _is_trace(nodes) != _is_trace(pods):
        exit_with_error("--nodes and --pods must both be traces (.csv, .csv.gz), or both Kubernetes YAML")
    reach = ClusterFlags(kubeconfig, context)
    if _is_trace(nodes):
        if policies or reach != DEFAULT_ACCESS:
            exit_with_error(
                "--policies, --kubeconfig and --context are for Kubernetes pods: a trace is played without them"
            )
        site, needs = _read_trace(nodes, pods)
        rng = np.random.default_rng(seed)
        order = needs if in_order else [needs[i] for i in rng.permutation(len(needs))]
        steps: Iterator[SimulationProgress] = simulate_trace(site, order, policy, rng, learnt=learn)
        expected = len(needs)
    else:
        if nodes != LIVE:
            reject_access_flags(reach, "--nodes")
        by = PolicyOptions(policies, policy_namespace, now)
        placing, world = read_placement_and_context(nodes, reach, by, verbose=verbose)
        asked = _read_arriving_pods(pods, world, placing.cluster.fleet)
        steps = simulate_pods(placing, asked, policy, fill)
        expected = len(asked)
    result = _final_result(_with_progress(steps, expected), pods)
    paint = paint_for(no_color=no_color)
    write_reports(
        wanted,
        {
            "table": lambda: join_lines(simulation_table(result, paint)),
            "json": lambda: json_text(simulation_document(result)),
            "yaml": lambda: yaml_text(simulation_document(result)),
            "svg": lambda: simulation_svg(result),
        },
    )


def _is_trace(path: str) -> bool:
    return path.removesuffix(".gz").endswith(".csv")


def _read_trace(nodes: str, pods: str) -> tuple[ClusterCapacity, list[PodDemand]]:
    try:
        return ClusterCapacity(read_trace_nodes(Path(nodes))), read_trace_pods(Path(pods))
    except RightsliceError as error:
        exit_with_error(str(error))


def _read_arriving_pods(path: str, world: EvaluationContext, fleet: Fleet) -> list[ArrivingPod]:
    """What the pods of some files ask for, each as often as it is replicated. Stops where a file is broken."""
    found = list(reject_unplaceable(read_objects([path]), world))
    reject_broken_files(found)
    shaped = ((each, pod) for each in found if isinstance(each, SourceObject) for pod in admitted_pods(each, world))
    coming: list[ArrivingPod] = []
    left_out: Counter[str] = Counter()
    for entry, each in shaped:
        wanted = pod_requirements(each.pod, fleet)
        if wanted.count > MAX_UNITS:
            asked = f"{each.checked.title} asks for {wanted.count} of {wanted.resource}"
            exit_with_error(
                f"{sanitize(str(entry.place()))}: {asked}, which no node has: must be at most {MAX_UNITS}. Write fewer"
            )
        if len(coming) + each.replicas > MAX_PODS:
            exit_with_error(f"{sanitize(path)}: must come to at most {MAX_PODS} pods, found more. Write fewer replicas")
        coming += arriving_replicas(each, wanted, fleet)
        left_out.update(dict.fromkeys(unsimulated_constraints(each.pod), each.replicas))
    for what, many in (+left_out).items():
        print_note(
            f"note: not looked at: {sanitize(what)} ({pluralize(many, 'pod')}). A scheduler may place fewer of them"
        )
    return coming


def _with_progress(steps: Iterable[SimulationProgress], expected: int) -> Iterator[SimulationProgress]:
    """The same steps, with a progress bar where somebody watches."""
    if not sys.stderr.isatty():
        yield from steps
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(steps, description="placing", total=expected, console=Console(stderr=True), transient=True)


def _final_result(steps: Iterable[SimulationProgress], pods: str) -> SimulationResult:
    last = deque(steps, maxlen=1)
    if not last:
        exit_with_error(f"{sanitize(pods)}: no pods here. Name a trace, or files with Pods or Deployments")
    return last[0].result()
