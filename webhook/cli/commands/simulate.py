"""`simulate`: simulate scheduling of a trace or of pods, and report allocation and unschedulable pods."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from msgspec import structs

from webhook.audit.admission import admitted_pods, arriving_replicas, reject_unplaceable
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SourceObject, read_objects
from webhook.audit.pod_placement import with_claims_of_files
from webhook.audit.simulation import (
    ArrivingReplicas,
    SimulationProgress,
    simulate_pods,
    simulate_trace,
    unsimulated_constraints,
)
from webhook.cache.placement_input import PlacementInput
from webhook.cache.traces import read_trace_nodes, read_trace_pods
from webhook.cli import flags
from webhook.cli.cluster_access import DEFAULT_ACCESS, LIVE, ClusterFlags, reject_access_flags
from webhook.cli.inputs import note_demo, parse_now, reject_broken_files
from webhook.cli.output import (
    document_reports,
    exit_with_error,
    join_lines,
    paint_for,
    parse_targets,
    print_note,
    show_progress,
    text_reports,
    write_reports,
)
from webhook.cli.placement_inputs import FillBy, RankBy, read_placement_and_context
from webhook.cli.selection import select_objects
from webhook.errors import RightsliceError
from webhook.model.pods import DEFAULT_NAMESPACE
from webhook.placement.capacity import ClusterCapacity
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.nodes.pod_requirements import pod_requirements
from webhook.placement.nodes.ranking import FillOrder
from webhook.report.simulation import (
    SimulatedObject,
    simulation_document,
    simulation_svg,
    simulation_table,
    unplaced_names,
)
from webhook.report.text import pluralize, sanitize

FORMATS = ("table", "wide", "name", "json", "yaml", "svg")
SimulateOutput = Annotated[list[str] | None, flags.output_option(FORMATS)]
MAX_PODS = 1_000_000
"""Kubernetes pods per simulation, replicas included."""
MAX_UNITS = 1 << 16
"""Units of a GPU resource that a pod may request: far more than any node has."""

SimulationNodes = Annotated[
    str,
    typer.Option(
        "--nodes",
        "--cluster",
        metavar="FILE|DIR|live|demo",
        help="Nodes in the openb format (CSV, also gzipped), a snapshot, live for a cluster in its current state, or "
        "demo.",
    ),
]
PodPaths = Annotated[list[str] | None, flags.paths_argument("Pods in the openb format, or Kubernetes YAML.")]
PodFiles = Annotated[list[str] | None, flags.filename_option("The same as an argument. Repeatable.", "--pods")]
Seed = Annotated[
    int,
    typer.Option("--seed", metavar="N", help="Seed for the order of a trace's pods and the choice among equal nodes."),
]
InOrder = Annotated[bool, typer.Option("--in-order", help="Keep the order of the pods in the trace.")]
LearnMix = Annotated[
    bool,
    typer.Option("--learn", help="Learn the mix of requests from arriving pods, instead of reading it in advance."),
]
SimulationSelector = Annotated[str, flags.selector_option("objects")]
SimulationPolicies = Annotated[
    list[str] | None, flags.policies_or_live_option("--nodes", "Policies for Kubernetes pods.")
]
SimulationPolicyNamespace = Annotated[str, flags.policy_namespace_option("--nodes")]


def simulate_command(
    called: typer.Context,
    nodes: SimulationNodes,
    paths: PodPaths = None,
    filename: PodFiles = None,
    strategy: RankBy = ScoringStrategy.TAB,
    seed: Seed = 42,
    in_order: InOrder = False,
    learn: LearnMix = False,
    policies: SimulationPolicies = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: SimulationPolicyNamespace = "",
    namespace: flags.NamespaceFlag = DEFAULT_NAMESPACE,
    all_namespaces: flags.AllNamespaces = False,
    selector: SimulationSelector = "",
    fill: FillBy = FillOrder.PACK,
    scheduler_config: flags.SchedulerConfig = None,
    now: flags.Now = "",
    output: SimulateOutput = None,
    no_color: flags.NoColor = False,
    verbose: flags.InputVerbose = False,
) -> None:
    """Simulate scheduling; report allocation and unschedulable pods.

    A trace in the openb format starts on empty nodes. Kubernetes pods are first admitted by the policies, as in the
    webhook, and then scheduled on the cluster in its current state; a live cluster is not changed. Pods never end.
    REQUESTED, ALLOCATED and FRAGMENTED are fractions of all GPUs, including what running pods hold; slices and shares
    count as fractions of a GPU, GPUs of ResourceSlices as whole cards. FRAGMENTED is free but unusable by a typical
    arriving pod.

    -o name prints the objects with pods that are not placed.

    Exit code: 0, 2 invalid input, 3 the cluster did not answer.
    """
    targets, pods = parse_targets(output, FORMATS), flags.require_paths(paths, filename)
    if [_is_trace(nodes)] != list({_is_trace(each) for each in pods}) or (_is_trace(nodes) and len(pods) > 1):
        exit_with_error("--nodes and the pods must both be one trace (.csv, .csv.gz), or both Kubernetes YAML")
    namespace, shown_pods = DEFAULT_NAMESPACE if all_namespaces else namespace, sanitize(", ".join(pods))
    access = ClusterFlags(kubeconfig, context)
    if _is_trace(nodes):
        if flags.is_written(called, "policies") or scheduler_config or access != DEFAULT_ACCESS:
            exit_with_error(
                "--policies, --scheduler-config, --kubeconfig and --context: must be used with Kubernetes pods, found "
                "a trace. Leave them out"
            )
        if selector or namespace != DEFAULT_NAMESPACE:
            exit_with_error("-n and -l: must be used with Kubernetes pods, found a trace. Leave them out")
        if any(target.form == "name" for target in targets):
            exit_with_error("-o name: must be used with Kubernetes pods, found a trace. Write -o json")
        try:
            site, demands = ClusterCapacity(read_trace_nodes(Path(nodes))), read_trace_pods(Path(pods[0]))
        except RightsliceError as error:
            exit_with_error(str(error))
        rng = np.random.default_rng(seed)
        order = demands if in_order else [demands[i] for i in rng.permutation(len(demands))]
        steps: Iterator[SimulationProgress] = simulate_trace(site, order, strategy, rng, learned=learn)
        expected = len(demands)
    else:
        if nodes != LIVE:
            reject_access_flags(access, "--nodes")
        placement, evaluation = read_placement_and_context(
            nodes,
            access,
            policies,
            policy_namespace,
            parse_now(now),
            scheduler_config,
            namespace=namespace,
            verbose=verbose,
        )
        sources = _read_sources(pods, evaluation)
        note_demo(nodes)
        placement, evaluation = with_claims_of_files(sources, placement, evaluation)
        selection = select_objects(selector=selector)
        selection.note_none_of(sources)
        chosen = [each for each in sources if selection.selects(each.data)]
        arriving = _read_arriving_pods(shown_pods, chosen, evaluation, placement)
        if not arriving and (chosen or not sources):
            exit_with_error(f"{shown_pods}: no pods here. Name a trace, or files with Pods or Deployments")
        steps = simulate_pods(placement, arriving, strategy, fill, evaluation.view)
        expected = sum(each.replicas for each in arriving)
    with show_progress(steps, expected) as shown:
        last = deque(shown, maxlen=1)
    if not last:
        exit_with_error(f"{shown_pods}: no pods here. Name a trace, or files with Pods or Deployments")
    result = last[0].result()
    paint = paint_for(no_color=no_color)
    reports = {
        **text_reports(lambda: simulation_table(result, paint)),
        "name": lambda: join_lines(unplaced_names(result)),
        **document_reports(lambda: simulation_document(result)),
        "svg": lambda: simulation_svg(result),
    }
    write_reports(targets, reports)


def _is_trace(path: str) -> bool:
    return path.removesuffix(".gz").endswith(".csv")


def _read_sources(paths: Sequence[str], evaluation: EvaluationContext) -> list[SourceObject]:
    """Return the objects of some files. Exits if a file is broken."""
    documents = list(reject_unplaceable(read_objects(paths), evaluation))
    reject_broken_files(documents)
    return [each for each in documents if isinstance(each, SourceObject)]


def _simulated_object(source: SourceObject, namespace: str) -> SimulatedObject:
    data = source.data
    metadata = data.get("metadata") or {}
    namespace = str(metadata.get("namespace") or namespace)
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    return SimulatedObject(str(data.get("apiVersion")), str(data.get("kind")), namespace, name)


def _read_arriving_pods(
    name: str, sources: Sequence[SourceObject], evaluation: EvaluationContext, placement: PlacementInput
) -> list[ArrivingReplicas]:
    """Return the pods of the named files, replicas included."""
    arriving: list[ArrivingReplicas] = []
    pods = 0
    unsimulated: Counter[str] = Counter()
    for source in sources:
        for admitted in admitted_pods(source, evaluation):
            required = pod_requirements(admitted.pod, placement.snapshot.fleet)
            if required.count > MAX_UNITS:
                requests = f"{admitted.checked.title} requests {required.count} of {required.resource}"
                must = f"no node has that many: must be at most {MAX_UNITS}. Write fewer"
                exit_with_error(f"{sanitize(str(source.locate()))}: {requests}; {must}")
            pods += admitted.replicas
            if pods > MAX_PODS:
                must = f"must have at most {MAX_PODS} pods in all, found more. Write fewer replicas"
                exit_with_error(f"{name}: {must}")
            arriving.append(arriving_replicas(admitted)._replace(owner=_simulated_object(source, evaluation.namespace)))
            evaluation = structs.replace(evaluation, view=admitted.view)
            unsimulated.update(dict.fromkeys(unsimulated_constraints(admitted.pod, placement), admitted.replicas))
    for constraint, count in (+unsimulated).items():
        affected = f"{sanitize(constraint)} ({pluralize(count, 'pod')})"
        print_note(f"note: not evaluated: {affected}. A scheduler may place fewer of them")
    return arriving
