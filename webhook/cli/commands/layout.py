"""`layout`: plan the MIG layouts of a cluster from what its pods need, and follow them while they are applied."""

from __future__ import annotations

import asyncio
import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from datetime import datetime
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import typer

from webhook import __version__
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.layout_demand import DemandCollector, enforced_policies
from webhook.audit.layout_quotas import QuotaCollector
from webhook.audit.layout_view import advertised_share_forms, view_with_slices
from webhook.cli import flags
from webhook.cli.audit_inputs import AuditFlags, PriceFile, run_audit
from webhook.cli.cluster_access import LIVE, ClusterFlags, call_api
from webhook.cli.inputs import SAVE_CLUSTER, parse_labels, parse_now
from webhook.cli.output import (
    EXIT_FINDINGS,
    EXIT_INVALID_INPUT,
    EXIT_OK,
    RowFlags,
    document_reports,
    exit_with_error,
    paint_for,
    parse_targets,
    print_note,
    print_result,
    write_reports,
)
from webhook.cli.selection import ObjectSelection, select_objects
from webhook.errors import SolverError, abbreviate_names
from webhook.installing.facts import list_all
from webhook.model.cluster_view import ClusterView
from webhook.model.fleet import FleetNode
from webhook.model.gpu_resources import MIG_PREFIX
from webhook.model.node_labels import parse_count
from webhook.placement.integer_program import SOLVER_REQUIREMENT
from webhook.placement.labeled_gpus import GPU_COUNT_LABEL
from webhook.placement.layout_parts import plan_layouts
from webhook.placement.layout_plan import SOLVER_SECONDS, STEP_SECONDS
from webhook.placement.node_layouts import (
    NO_DRAIN_LIMIT,
    UNKNOWN_DRAIN_LIMIT,
    DrainLimit,
    NodeChange,
    NodeLayout,
    UnplannedNode,
    assign_layouts,
    group_nodes,
    node_layouts,
    unplanned_nodes,
)
from webhook.report.layout import ChangeStep, ClusterLayout
from webhook.report.layout_demand import LayoutDemand
from webhook.report.layout_files import FILE_MARKS, SCRIPT_FILE, PlannedNode, layout_files, planned_nodes
from webhook.report.layout_status import FAILED, PROGRESS, SUCCESS, LayoutProgress, layout_progress
from webhook.report.layout_text import CHANGES, layout_document, layout_lines
from webhook.report.results import CheckResult
from webhook.report.text import sanitize

if TYPE_CHECKING:
    from webhook.kube.api import KubeClient
    from webhook.usage.record_file import UsageRecord

FORMATS = ("table", "wide", "name", "json", "yaml", "html")

LayoutOutput = Annotated[list[str] | None, flags.output_option(FORMATS)]
Headroom = Annotated[
    int,
    typer.Option(
        "--headroom",
        metavar="PERCENT",
        min=0,
        max=1000,
        help="Plan for this many percent more units of each need, rounded up. Cards that pods keep do not increase.",
    ),
]
Quantile = Annotated[
    float | None,
    typer.Option(
        "--quantile",
        metavar="SHARE",
        help="Plan for the demand that was not exceeded in this share of the time recorded in --usage, for example "
        "0.95. Default: the demand of today's pods.",
    ),
]
ByNamespace = Annotated[
    bool, typer.Option("--by-namespace", help="Count the needs of each namespace separately, also for --quantile.")
]
NeedsNamespace = Annotated[
    str | None,
    flags.namespace_option("Only the needs of this namespace in the report; cards are planned for all. Default: all."),
]
ChangesSelector = Annotated[str, flags.selector_option("changes of nodes")]
WriteFolder = Annotated[
    str | None,
    typer.Option(
        "--write",
        metavar="DIR",
        help="Also write the files that apply the plan: ConfigMaps for NVIDIA's GPU Operator, a script, and policies.",
    ),
]
MaxUnavailable = Annotated[
    int, typer.Option("--max-unavailable", metavar="N", min=1, help="With --write: nodes to change at the same time.")
]
AllowDrain = Annotated[
    bool,
    typer.Option(
        "--allow-drain",
        help="With --write: the script may evict pods. Without it, nodes that run pods with GPUs keep their layouts.",
    ),
]


layout_group = typer.Typer(invoke_without_command=True, subcommand_metavar="[FILE|DIR|-]... | COMMAND [ARGS]...")

LayoutFolder = Annotated[
    str | None,
    typer.Argument(
        metavar="DIR",
        help="The folder that `layout --write` wrote. Default: all nodes with a configuration.",
        show_default=False,
    ),
]
Watch = Annotated[
    bool,
    typer.Option("-w", "--watch", help="Also print changes, until the layouts of all nodes are set or one fails."),
]
WatchTimeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0, help="With --watch: stop after this time. 0: no limit.")
]
NodeSelector = Annotated[str, flags.selector_option("nodes")]
STATUS_FORMATS = ("table", "wide", "name", "json", "yaml")
StatusOutput = Annotated[list[str] | None, flags.output_option(STATUS_FORMATS)]

UNOFFERED_RESOURCE = "GPU-T201"
"""The finding that no node advertises a resource."""

MAX_STEPS = 12
"""Different changes whose effects are computed each; what the others free is one sum."""

POLL_SECONDS = 2.0
"""Time between two reads of the nodes."""


@layout_group.callback()
def layout_command(
    called: typer.Context,
    filename: flags.ClusterFiles = None,
    policies: flags.PoliciesOrLive = None,
    cluster: flags.ReadCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = "",
    usage: flags.Usage = None,
    prometheus: flags.Prometheus = None,
    namespace_labels: flags.NamespaceLabels = None,
    now: flags.Now = "",
    prices: PriceFile = "",
    headroom: Headroom = 0,
    quantile: Quantile = None,
    by_namespace: ByNamespace = False,
    namespace: NeedsNamespace = None,
    all_namespaces: flags.AllNamespaces = False,
    selector: ChangesSelector = "",
    sort_by: flags.SortBy = "",
    no_headers: flags.NoHeaders = False,
    write: WriteFolder = None,
    max_unavailable: MaxUnavailable = 1,
    allow_drain: AllowDrain = False,
    output: LayoutOutput = None,
    no_color: flags.NoColor = False,
    verbose: flags.Verbose = False,
) -> None:
    """Plan MIG layouts for what pods need, with the fewest cards.

    The demand is what the policies would give the pods if they were created now and every slice were free, including
    right-sizing in audit and warn mode. Running pods that keep whole cards stay on their cards.

    The rows are the nodes that change: -l, --sort-by, --no-headers and -o name apply to them. Cards are planned for all
    nodes. Files describe the cluster, as with -f.

    Nothing is changed in the cluster. Needs HiGHS: pip install 'highspy>=1.12,<1.16'

    Exit code: 0, 2 invalid input, 3 the cluster did not answer.
    """
    if called.invoked_subcommand:
        return
    targets, folder = parse_targets(output, FORMATS), _parse_folder(write, "--write", "--write layout")
    if write is None and (allow_drain or max_unavailable != 1):
        exit_with_error("--allow-drain and --max-unavailable: apply to the files of --write. Write --write DIR")
    if write is not None and selector:
        exit_with_error("-l: selects nodes of the report, and --write writes the whole plan. Leave out -l")
    if quantile is not None and not 0 < quantile <= 1:
        exit_with_error(f"--quantile: must be above 0 and at most 1, found {quantile:g}. Write --quantile 0.95")
    files, selection = list(filename or ()), select_objects(namespace, all_namespaces, selector)
    audited = LayoutFlags(
        paths=files,
        policies=policies,
        cluster=flags.files_or_cluster(called, files, cluster),
        access=ClusterFlags(kubeconfig, context),
        policy_namespace=policy_namespace,
        labels=parse_labels(namespace_labels),
        now=parse_now(now),
        prices=prices,
        usage=usage,
        prometheus=prometheus,
        verbose=verbose,
    )
    try:
        idle_only = write is not None and not allow_drain
        shown = selection.namespace
        options = DemandOptions(headroom, quantile, by_namespace or bool(shown), idle_only, shown)
        layout, invalid = plan_cluster_layout(audited, options)
    except SolverError as error:
        exit_with_error(f"layout: {error}. Write {install_solver()}")
    paint, rows = paint_for(no_color=no_color), RowFlags(sort_by, no_headers)
    chosen = [each for each in layout.changes if selection.selects_labels(layout.node_labels[each.node.node])]
    if layout.changes and not chosen:
        print_note(f"note: no node that changes has labels {sanitize(selector)}")
    changes = rows.sort(CHANGES, chosen)
    reports = {
        **rows.reports(
            CHANGES,
            changes,
            lambda change: f"node/{change.node.node}",
            paint,
            around=lambda lines: layout_lines(layout, lines if changes else (), paint),
        ),
        "html": lambda: _render_html(layout, audited.now),
        **document_reports(lambda: layout_document(layout, changes)),
    }
    write_reports(targets, reports)
    if folder is not None:
        _write_files(folder, layout, max_unavailable)
    raise typer.Exit(EXIT_INVALID_INPUT if invalid else EXIT_OK)


def _render_html(layout: ClusterLayout, moment: datetime) -> str:
    from webhook.report.layout_html import layout_page  # templates are slow to import

    return layout_page(layout, moment, __version__)


def _parse_folder(path: str | None, name: str, example: str) -> Path | None:
    """Return the folder of a flag or an argument. Exits if it is empty, as a shell variable that is not set is."""
    if path is not None and not path.strip():
        exit_with_error(f"{name}: must name a folder, found {path!r}. Write {example}")
    return None if path is None else Path(path)


def _write_files(folder: Path, layout: ClusterLayout, max_unavailable: int) -> None:
    """Write the files that apply a plan; they replace those of an earlier one. Exits if that fails."""
    files = layout_files(layout.changes, max_unavailable, layout.policies)
    try:
        older = _older_plan(folder, files)
        _replace_files(folder, files, older)
    except OSError as error:
        exit_with_error(f"--write {sanitize(str(folder))}: cannot be written: {error.strerror}")
    for name in older - files.keys():
        print_note(f"removed: {sanitize(str(folder / name))} of an earlier plan")
    for name in files:
        print_note(f"written: {sanitize(str(folder / name))}")
    if SCRIPT_FILE not in files:
        drained = layout.demand.nodes and any(node.fixed for node in layout.demand.nodes)
        hint = ", as nodes with GPU pods keep their layouts without --allow-drain" * bool(drained)
        print_note(f"note: no layout changes{hint}: {sanitize(str(folder))} has no {SCRIPT_FILE}")


def _older_plan(folder: Path, files: Collection[str]) -> set[str]:
    """Return the files that an earlier plan wrote. Exits if a file to be written is another's."""
    found = {name for name in FILE_MARKS if (folder / name).exists() or (folder / name).is_symlink()}
    older = {name for name in found if _has_mark(folder / name, FILE_MARKS[name])}
    for name in found - older & set(files):
        file = sanitize(str(folder / name))
        exit_with_error(f"{file}: must be a file of layout --write, found another. Move it, or write to another folder")
    return older


def _has_mark(file: Path, mark: str) -> bool:
    return file.is_file() and mark in file.read_text(encoding="utf-8", errors="replace")


def _replace_files(folder: Path, files: Mapping[str, str], older: Collection[str]) -> None:
    """Write files, and remove older ones.

    The old script is removed first and the new one is written last, so a script never belongs to files of another plan.
    """
    if files:
        folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".layout-", dir=folder) if files else nullcontext("") as temporary:
        for name, text in files.items():
            (Path(temporary) / name).write_text(text, encoding="utf-8")
        for name in sorted(older, key=lambda name: name != SCRIPT_FILE):
            if name == SCRIPT_FILE or name not in files:
                (folder / name).unlink()
        for name in sorted(files, key=lambda name: name == SCRIPT_FILE):
            (Path(temporary) / name).replace(folder / name)


class LayoutFlags(AuditFlags, frozen=True, kw_only=True):
    """The flags of an audit, which reads the recorded usage once."""

    records: list[UsageRecord | None] = msgspec.field(default_factory=list)

    def read_record(self) -> UsageRecord | None:
        """Read the recorded usage, the first time."""
        if not self.records:
            self.records.append(super().read_record())
        return self.records[0]


class DemandOptions(NamedTuple):
    """The flags that change a demand.

    Attributes:
        headroom: Percent by which the requests are increased.
        quantile: The share of the recorded time that is served; None for today's pods.
        idle_only: Whether nodes that run pods with GPUs keep their layouts.
        namespace: The only one whose needs are shown; "" for all.
    """

    headroom: int
    quantile: float | None
    by_namespace: bool
    idle_only: bool
    namespace: str = ""


def install_solver(environment: Path = Path(sys.prefix)) -> str:
    """Return the command that installs HiGHS; environments that pipx made, with a file of its own, have no pip."""
    command = f"pipx inject {environment.name}" if (environment / "pipx_metadata.json").exists() else "pip install"
    return f"{command} '{SOLVER_REQUIREMENT}'"


def plan_cluster_layout(audited: AuditFlags, options: DemandOptions) -> tuple[ClusterLayout, bool]:
    """Return the plan for a cluster, and whether an object could not be read.

    Raises:
        SolverError: The solver is not installed.
    """
    nodes: dict[int, NodeLayout] = {}
    evaluated: list[ClusterView] = []
    unplanned: list[UnplannedNode] = []

    def offer_slices(context: EvaluationContext) -> ClusterView:
        share_forms, fleet = advertised_share_forms(context.policies), context.view.fleet
        if not fleet.nodes and audited.cluster != LIVE:
            name = ", ".join(audited.paths or [str(audited.cluster)])
            exit_with_error(f"{sanitize(name)}: no nodes here. {SAVE_CLUSTER}")
        found = node_layouts(fleet, sharing=bool(share_forms))
        reasons = {each.node: _implausible_reason(fleet.nodes[index], each) for index, each in found.items()}
        nodes.update({index: each for index, each in found.items() if not reasons[each.node]})
        others = unplanned_nodes(fleet, nodes)
        unplanned.extend(each._replace(reason=reasons.get(each.node) or each.reason) for each in others)
        evaluated.append(view_with_slices(context.view, nodes, share_forms))
        return evaluated[0]

    audit = run_audit(audited, offer_slices)
    _report_invalid(audit.results)
    policies = audit.context.policies
    quotas = QuotaCollector(audit.context.view, policies)
    collector = DemandCollector(evaluated[0].fleet, nodes, policies, quotas, by_namespace=options.by_namespace)
    for result in audit.results:
        collector.add(result)
    context = msgspec.structs.replace(audit.context, view=evaluated[0])
    demand = _with_drain_limits(_demand(audited, collector, context, options), audit.drain_limits)
    linked = (node._replace(nvlinks=audit.nvlinks.get(node.node)) for node in demand.nodes)
    demand = demand._replace(nodes=tuple(linked))
    layout = _plan_demand(demand)._replace(
        prices=audit.prices,
        policies=enforced_policies(audit.results, policies),
        cluster=audit.cluster,
        unplanned=unplanned,
        node_labels={each.name: each.labels for each in evaluated[0].fleet.nodes},
        unplanned_pods=list(_unplanned_pods(audit.results)),
    )
    if options.quantile is None and (record := audited.read_record()) and record.histories:
        from webhook.audit.recorded_demand import serve_record  # numpy is slow to import

        recorded = serve_record(layout.plan.used_nodes, collector.demand(), collector, record, context)
        layout = layout._replace(recorded=recorded)
    layout = layout._replace(steps=list(_change_steps(layout)), namespace=options.namespace)
    if layout.namespace and not layout.shown_needs():
        selection, kind = ObjectSelection(layout.namespace), "needs besides whole cards that running pods keep"
        selection.note_nothing(kind, audit.context.view.all_namespaces())
    if any(change.node.pods for change in layout.changes):
        idle = _plan_demand(_with_fixed_nodes(demand))._replace(prices=audit.prices)
        layout = layout._replace(without_drains=idle)
    return layout, any(each.invalid for each in audit.results)


def _report_invalid(results: Iterable[CheckResult]) -> None:
    """Print what cannot be read. Exits if that is more than a pod: the plan would be of a part of the cluster."""
    invalid = [each for each in results if each.invalid]
    for each in invalid:
        print_note(sanitize(f"error: {each.location}: {each.reason}"))
    if not all(each.kind for each in invalid):
        raise typer.Exit(EXIT_INVALID_INPUT)


def _implausible_reason(node: FleetNode, layout: NodeLayout) -> str:
    """Return why the cards of a node cannot be as it advertises them; "" if they can."""
    cards = parse_count(node.labels.get(GPU_COUNT_LABEL))
    unknown = [name for name in node.others if name.startswith(MIG_PREFIX)]
    if unknown:
        return f"advertises {abbreviate_names(sorted(unknown))}, which is no MIG profile"
    if cards and len(layout.layouts) > cards:
        return f"advertises the GPUs of {len(layout.layouts)} cards, and {GPU_COUNT_LABEL} is {cards}"
    return ""


def _unplanned_pods(results: Iterable[CheckResult]) -> Iterator[str]:
    """Yield the pods that request GPUs, but no cards, slices or shares of the device plugin."""
    for each in results:
        codes = {found.code for found in each.decision.findings}
        if each.decision.involves_gpus and not each.decision.requested_units and codes <= {UNOFFERED_RESOURCE}:
            yield f"{each.namespace}/{each.name}"


def _plan_demand(demand: LayoutDemand, seconds: float = SOLVER_SECONDS) -> ClusterLayout:
    wanted = [need.demand(requests) for need, requests in demand.needs.items()]
    groups = group_nodes(demand.nodes, wanted)
    plan = plan_layouts([group for group, _ in groups], wanted, seconds, limits=demand.limits())
    return ClusterLayout(demand, plan, assign_layouts(groups, plan), None)


def _change_steps(layout: ClusterLayout) -> Iterator[ChangeStep]:
    """Yield what each change frees, when those before are done; equal ones that follow each other together."""
    alike = [list(some) for _, some in groupby(layout.changes, _change_kind)]
    groups = [*alike[:MAX_STEPS], [each for some in alike[MAX_STEPS:] for each in some]] if layout.changes else []
    nodes = {node.node: node._replace(fixed=True) for node in layout.demand.nodes}
    used = Counter({use.product: use.today for use in layout.product_uses()})
    steps = [[], *filter(None, groups)] if groups else []
    for number, changes in enumerate(steps):
        nodes |= {each.node.node: each.node._replace(layouts=each.layouts, fixed=True) for each in changes}
        step = layout  # after the last change, the same cards serve the same pods as in the other tables
        if number < len(steps) - 1:
            step = _plan_demand(layout.demand._replace(nodes=tuple(nodes.values())), STEP_SECONDS)
        before, used = used, step.used_by_product()
        freed = layout.cost_of({product: before[product] - used[product] for product in before | used})
        pods = sum(each.node.pods for each in changes)
        yield ChangeStep(number, [each.node.node for each in changes], pods, freed, step.plan.unserved.value)


def _change_kind(change: NodeChange) -> tuple[object, ...]:
    return change.node.product, bool(change.node.pods), Counter(change.node.layouts), Counter(change.layouts)


def _with_drain_limits(demand: LayoutDemand, limits: Mapping[str, DrainLimit] | None) -> LayoutDemand:
    """Return the demand with the layouts of nodes fixed whose drain would not free all GPUs, or might not."""
    if limits is None:
        print_note(
            "warning: PodDisruptionBudgets: listing them in all namespaces is not permitted. Nodes that run pods with "
            "GPUs keep their layouts, as it is not known whether their pods may be evicted"
        )
    nodes = (node._replace(drain=_drain_limit(node, limits)) for node in demand.nodes)
    return demand._replace(nodes=tuple(node._replace(fixed=node.fixed or node.is_blocked) for node in nodes))


def _drain_limit(node: NodeLayout, limits: Mapping[str, DrainLimit] | None) -> DrainLimit:
    if node.drain.forbidden:
        return node.drain
    return UNKNOWN_DRAIN_LIMIT if limits is None else limits.get(node.node, NO_DRAIN_LIMIT)


def _with_fixed_nodes(demand: LayoutDemand) -> LayoutDemand:
    """Return the demand with the layouts of nodes fixed that run pods with GPUs."""
    return demand._replace(nodes=tuple(node._replace(fixed=node.pods > 0) for node in demand.nodes))


def _demand(
    audited: AuditFlags, collector: DemandCollector, context: EvaluationContext, options: DemandOptions
) -> LayoutDemand:
    """Return the demand of today's pods, or of the recorded ones."""
    demand = collector.demand()
    if options.idle_only:
        demand = _with_fixed_nodes(demand)
    if options.quantile is None:
        return demand.increased_by(options.headroom)
    record = audited.read_record()
    if record is None or not record.histories:
        exit_with_error("--quantile: is a share of recorded time, found no recorded pods. Write --usage FILE")
    from webhook.audit.recorded_demand import record_demand  # numpy is slow to import

    return record_demand(demand, collector, record, context, options.quantile, options.headroom)


@layout_group.command("status")
def show_status(
    folder: LayoutFolder = None,
    watch: Watch = False,
    timeout: WatchTimeout = 0.0,
    selector: NodeSelector = "",
    sort_by: flags.SortBy = "",
    no_headers: flags.NoHeaders = False,
    output: StatusOutput = None,
    no_color: flags.NoColor = False,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
) -> None:
    """Show which nodes have their planned layout.

    Shows what the MIG manager reports in nvidia.com/mig.config.state, and whether the device plugin advertises the
    planned shares.

    Exit code: 0 all have it, 1 some do not (yet), 2 invalid input, 3 the cluster did not answer.
    """
    targets, ordered = parse_targets(output, STATUS_FORMATS), RowFlags(sort_by, no_headers)
    selection = select_objects(selector=selector)
    follows = watch and [target.form for target in targets] == ["table"]
    written = _parse_folder(folder, "DIR", "layout status layout")
    planned = None if written is None else _read_planned_nodes(written)
    paint, shown = paint_for(no_color=no_color), set[LayoutProgress]()

    def print_changes(rows: list[LayoutProgress]) -> None:
        changed = [row for row in ordered.sort(PROGRESS, rows) if row not in shown]
        if changed and follows:
            print_result(PROGRESS.to_lines(changed, paint)[bool(shown) or no_headers :])
        shown.update(changed)

    async def follow(api: KubeClient) -> list[LayoutProgress]:
        clock = asyncio.get_running_loop().time
        end = clock() + timeout if timeout else math.inf
        while True:
            nodes = await list_all(api, "/api/v1/nodes")
            rows = layout_progress(list(filter(selection.selects, nodes)), planned)
            print_changes(rows)
            states = {row.state for row in rows}
            if not watch or states <= {SUCCESS} or FAILED in states or clock() >= end:
                return rows
            await asyncio.sleep(min(POLL_SECONDS, end - clock()))

    rows = call_api(ClusterFlags(kubeconfig, context), follow)
    found = ordered.sort(PROGRESS, rows)
    reports = ordered.reports(PROGRESS, found, lambda row: f"node/{row.node}", paint)
    reports |= document_reports(lambda: list(map(PROGRESS.to_document, found)))
    if not rows:
        print_note("no node has the label nvidia.com/mig.config or nvidia.com/device-plugin.config")
    if not follows and (rows or [target.form for target in targets] != ["table"]):
        write_reports(targets, reports)
    if failed := [row.node for row in rows if row.state == FAILED]:
        names = sanitize(abbreviate_names(failed))
        print_note(f"note: the MIG manager failed on {names}. Read its log, then run apply.sh again: it retries")
    raise typer.Exit(EXIT_OK if all(row.state == SUCCESS for row in rows) else EXIT_FINDINGS)


def _read_planned_nodes(folder: Path) -> dict[str, PlannedNode]:
    """Return the configurations of each planned node. Exits if the folder has no plan."""
    file = folder / SCRIPT_FILE
    try:
        planned = planned_nodes(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason, fix = getattr(error, "strerror", error), "Name the folder of layout --write"
        exit_with_error(f"{sanitize(str(file))}: cannot be read: {reason}. {fix}")
    if not planned:
        exit_with_error(f"{sanitize(str(file))}: must be a script of layout --write that changes nodes. Write it again")
    return planned
