"""The Grafana dashboards, written with Grafana's own types: admission; GPUs, fragmentation and reach; savings and risk.

Every panel has one unit and says in its description what it shows. `$__range` and `$__rate_interval` are Grafana's.
Thresholds are those of the alerts where an alert exists (manifests/monitoring/alerts.yaml).

A counter with labels does not exist before its first increment: `or vector(0)` makes a single number 0 instead of
nothing. Panels with a series for each label value are empty until then.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from grafana_foundation_sdk.builders import bargauge, common, stat, timeseries
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import StackingMode, VizOrientation
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    GridPos,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
REPLICAS = 'namespace=~"$namespace", instance=~"$replica"'
COLUMNS = 24
"""Columns of a dashboard."""

Panel = stat.Panel | timeseries.Panel | bargauge.Panel
Step = tuple[float, str]
"""From which value on a panel has a color."""

GREEN, ORANGE, RED = "green", "orange", "red"


class Query(NamedTuple):
    """An expression, and the name of its series."""

    expression: str
    legend: str = ""


def number(title: str, description: str, unit: str, expression: str, steps: Sequence[Step] = ()) -> stat.Panel:
    """Return a panel with one number."""
    panel = stat.Panel().title(title).description(description).unit(unit).datasource(SOURCE)
    return panel.with_target(_target(0, Query(expression)).instant()).thresholds(_thresholds(steps))


def lines(
    title: str,
    description: str,
    unit: str,
    queries: Sequence[Query],
    steps: Sequence[Step] = (),
    *,
    stack: bool = False,
) -> timeseries.Panel:
    """Return a panel with lines over time."""
    panel = timeseries.Panel().title(title).description(description).unit(unit).datasource(SOURCE)
    panel.min(0).line_width(1).fill_opacity(30 if stack else 0).thresholds(_thresholds(steps))
    if stack:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    for index, query in enumerate(queries):
        panel.with_target(_target(index, query).range())
    return panel


def bars(title: str, description: str, unit: str, query: Query, steps: Sequence[Step] = ()) -> bargauge.Panel:
    """Return a panel with a bar for each series."""
    panel = bargauge.Panel().title(title).description(description).unit(unit).datasource(SOURCE)
    panel.min(0).orientation(VizOrientation.HORIZONTAL).thresholds(_thresholds(steps))
    return panel.with_target(_target(0, query).instant())


def _target(index: int, query: Query) -> Dataquery:
    return Dataquery().ref_id(chr(ord("A") + index)).expr(query.expression).legend_format(query.legend)


def _thresholds(steps: Sequence[Step]) -> ThresholdsConfig:
    first, *rest = steps or ((0, GREEN),)
    levels = [Threshold(value=None, color=first[1]), *(Threshold(value=value, color=color) for value, color in rest)]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(levels)


def _start(uid: str, title: str, description: str) -> Dashboard:
    dashboard = (
        Dashboard(title).uid(uid).description(description).tags(["rightslice"]).refresh("1m").time("now-6h", "now")
    )
    dashboard.tooltip(DashboardCursorSync.CROSSHAIR)
    return dashboard.with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))


def _variable(name: str, label: str, query: str) -> QueryVariable:
    variable = (
        QueryVariable(name).label(label).query(query).datasource(SOURCE).refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )
    return variable.multi(True).include_all(True).all_value(".*")


def _with_rows(dashboard: Dashboard, rows: Sequence[tuple[str, Sequence[Panel]]]) -> Dashboard:
    """Add rows of panels, from left to right and from top to bottom."""
    panel_id, y = 0, 0
    for title, panels in rows:
        panel_id += 1
        dashboard.with_row(Row(title).id(panel_id).grid_pos(GridPos(h=1, w=COLUMNS, x=0, y=y)))
        positions = _positions([_size(panel) for panel in panels], y + 1)
        for panel, position in zip(panels, positions, strict=True):
            panel_id += 1
            dashboard.with_panel(panel.id(panel_id).grid_pos(position))
        y = positions[-1].y + positions[-1].h
    return dashboard


def _size(panel: Panel) -> tuple[int, int]:
    return (4, 4) if isinstance(panel, stat.Panel) else (12, 8)


def _positions(sizes: Sequence[tuple[int, int]], y: int) -> list[GridPos]:
    """Return the place of each panel; panels on one line have one height."""
    positions: list[GridPos] = []
    x, line_height = 0, sizes[0][1]
    for width, height in sizes:
        if x + width > COLUMNS or height != line_height:
            x, y, line_height = 0, y + line_height, height
        positions.append(GridPos(h=height, w=width, x=x, y=y))
        x += width
    return positions


def _with_replicas(dashboard: Dashboard) -> Dashboard:
    names = "rightslice_active_policies"
    dashboard.with_variable(_variable("namespace", "Namespace", f"label_values({names}, namespace)"))
    replicas = f'label_values({names}{{namespace=~"$namespace"}}, instance)'
    return dashboard.with_variable(_variable("replica", "Replica", replicas))


def _rate(metric: str, more: str = "") -> str:
    return f"rate({metric}{{{REPLICAS}{more}}}[$__rate_interval])"


def count_events(by: str, counter: str) -> str:
    """Return how many events a counter counted within the selected time.

    An increase leaves out the first sample of a series: the loads at the start of a replica, and the first finding of a
    code. So the first sample of a series that began within the time is added, with a further label, as `or` leaves out
    series with equal labels. A series is older if it has a sample in a time as long before the selected one: a scrape
    at the moment it begins may be missing. The sum is rounded, as Prometheus extrapolates an increase to the edges of
    the time.
    """
    first = f"min_over_time({counter}[$__range]) unless last_over_time({counter}[$__range] offset $__range)"
    increase = f"increase({counter}[$__range])"
    return f'round(sum{by}({increase} or label_replace({first}, "first", "true", "", "")))'


def _increase(metric: str, more: str = "") -> str:
    return f"increase({metric}{{{REPLICAS}{more}}}[$__range])"


def _series(metric: str) -> str:
    return f"{metric}{{{REPLICAS}}}"


DENIED, VALIDATED, RETRIED = ', result="denied"', ', route="validate"', ', result="retried"'
REQUESTS, DURATIONS = "rightslice_admission_requests_total", "rightslice_admission_duration_seconds_bucket"


def _duration(quantile: float) -> str:
    return f"histogram_quantile({quantile}, sum by (le, route) ({_rate(DURATIONS)}))"


def _of_replicas(metric: str) -> str:
    """Return a metric of each process, for the webhook's replicas only."""
    return f"{metric} and on (namespace, instance) {_series('rightslice_active_policies')}"


def admission() -> Dashboard:
    """Return the dashboard of reviews, policies and replicas."""
    dashboard = _start(
        "rightslice-admission",
        "Rightslice / Admission",
        "Admission reviews, the policies that decide them, and the replicas of the webhook.",
    )
    reviews: list[Panel] = [
        number("Reviews per second", "Admission reviews answered by all replicas.", "reqps", f"sum({_rate(REQUESTS)})"),
        number(
            "Denied reviews",
            "Denied reviews as a share of the reviews on the validating route.",
            "percentunit",
            f"(sum({_rate(REQUESTS, DENIED)}) or vector(0)) / sum({_rate(REQUESTS, VALIDATED)})",
        ),
        number(
            "99th percentile of the duration",
            "Time to decode, evaluate and answer one review, without the network, on the slowest route.",
            "s",
            f"max({_duration(0.99)})",
            ((0, GREEN), (0.05, ORANGE), (0.1, RED)),
        ),
        number(
            "Rejected requests per second",
            "Requests and connections rejected before evaluation, for example because of overload.",
            "reqps",
            f"sum({_rate('rightslice_http_rejections_total')}) or vector(0)",
            ((0, GREEN), (1, ORANGE)),
        ),
        number(
            "Internal errors",
            "Unexpected exceptions within the selected time. The log has the stack traces.",
            "short",
            f"{count_events('', _series('rightslice_internal_errors_total'))} or vector(0)",
            ((0, GREEN), (0.5, RED)),
        ),
        number(
            "Replicas",
            "Webhook replicas that Prometheus scrapes.",
            "short",
            f"count({_series('rightslice_active_policies')})",
            ((0, RED), (1, ORANGE), (2, GREEN)),
        ),
        lines(
            "Reviews by result",
            "Allowed, warned, patched, denied, or retried (the client sends the request again).",
            "reqps",
            [Query(f"sum by (result) ({_rate(REQUESTS)})", "{{result}}")],
            stack=True,
        ),
        lines(
            "Reviews by route and operation",
            "Reviews by webhook route and by operation of the API server.",
            "reqps",
            [Query(f"sum by (route, operation) ({_rate(REQUESTS)})", "{{route}} {{operation}}")],
            stack=True,
        ),
        lines(
            "Duration by route",
            "Median and 99th percentile of the time to answer one review, without the network.",
            "s",
            [Query(_duration(0.5), "{{route}} median"), Query(_duration(0.99), "{{route}} 99th percentile")],
            ((0, GREEN), (0.1, RED)),
        ),
        lines(
            "Rejections by reason",
            "Requests and connections rejected before evaluation.",
            "reqps",
            [Query(f"sum by (reason) ({_rate('rightslice_http_rejections_total')})", "{{reason}}")],
            ((0, GREEN), (1, ORANGE)),
        ),
    ]
    policies: list[Panel] = [
        lines(
            "Denials by policy",
            "Denied reviews, once per denying policy. After 100 policies, others are counted as (others).",
            "reqps",
            [Query(f"sum by (policy) ({_rate('rightslice_policy_denials_total')})", "{{policy}}")],
        ),
        lines(
            "Matched reviews by policy",
            "Reviews of objects that a policy matched.",
            "reqps",
            [Query(f"sum by (policy) ({_rate('rightslice_policy_matches_total')})", "{{policy}}")],
        ),
        bars(
            "Findings by code and mode",
            "Findings within the selected time. `rightslice explain CODE` describes a code.",
            "short",
            Query(f"sort_desc({count_events(' by (code, mode) ', _series('rightslice_findings_total'))})",
                  "{{code}} {{mode}}"),
        ),
        lines(
            "Active policies by replica",
            "With 0, a replica admits everything.",
            "short",
            [Query(f"max by (instance) ({_series('rightslice_active_policies')})", "{{instance}}")],
        ),
        lines(
            "Age of the active policies",
            "Time since each replica loaded the policies that it uses. It grows until a policy changes.",
            "s",
            [Query(f"time() - max by (instance) ({_series('rightslice_policies_last_load_timestamp_seconds')})",
                   "{{instance}}")],
        ),
        bars(
            "Loads of policies",
            "Attempts to load policies within the selected time, by result.",
            "short",
            Query(count_events(" by (result) ", _series("rightslice_policy_loads_total")), "{{result}}"),
        ),
    ]  # fmt: skip
    replicas: list[Panel] = [
        lines(
            "Age of the cluster view",
            "Time since the API server last confirmed the least recently confirmed resource.",
            "s",
            [Query(f"max by (instance) ({_series('rightslice_cluster_view_age_seconds')})", "{{instance}}")],
            ((0, GREEN), (60, RED)),
        ),
        lines(
            "Open connections and requests in flight",
            "Connections of API servers and probes, and requests whose body is being received.",
            "short",
            [
                Query(f"sum by (instance) ({_series('rightslice_open_connections')})", "{{instance}} connections"),
                Query(f"sum by (instance) ({_series('rightslice_requests_in_flight')})", "{{instance}} requests"),
            ],
        ),
        lines(
            "CPU",
            "CPU time of each replica, in cores.",
            "short",
            [Query(f"rate(process_cpu_seconds_total{{{REPLICAS}}}[$__rate_interval])"
                   f" and on (namespace, instance) {_series('rightslice_active_policies')}", "{{instance}}")],
        ),
        lines(
            "Memory",
            "Resident memory of each replica.",
            "bytes",
            [Query(_of_replicas(_series("process_resident_memory_bytes")), "{{instance}}")],
        ),
        lines(
            "Watched objects",
            "Watch events, complete lists, and lists and watches that failed.",
            "ops",
            [
                Query(f"sum({_rate('rightslice_watch_events_total')}) or vector(0)", "events"),
                Query(f"sum({_rate('rightslice_watch_lists_total')}) or vector(0)", "lists"),
                Query(f"sum({_rate('rightslice_watch_errors_total')}) or vector(0)", "errors"),
            ],
        ),
        lines(
            "Events for the owners of pods",
            "Events written, failed, or dropped because too many were pending.",
            "ops",
            [Query(f"sum by (result) ({_rate('rightslice_events_total')})", "{{result}}")],
        ),
        number(
            "Certificate expires in",
            "Time until the first serving certificate expires.",
            "s",
            f"min({_series('rightslice_certificate_expiration_timestamp_seconds')}) - time()",
            ((0, RED), (7 * 86400, ORANGE), (14 * 86400, GREEN)),
        ),
        number(
            "Leaders",
            "Replicas that hold the lease. One of them writes statuses and renews certificates.",
            "short",
            f"sum({_series('rightslice_leader')})",
            ((0, ORANGE), (1, GREEN), (2, RED)),
        ),
    ]  # fmt: skip
    return _with_rows(_with_replicas(dashboard), [("Reviews", reviews), ("Policies", policies), ("Replicas", replicas)])


CAPACITY = 'max by (product, state) (rightslice_extender_gpu_milli{product=~"$product"%s})'
"""Each replica of the extender reports the whole cluster."""

FRAGMENTED = 'max by (product) (rightslice_extender_fragmented_gpu_milli{product=~"$product"})'
OUTCOMES = count_events(" by (outcome) ", "rightslice_right_sizing_outcomes_total")
NEEDS = "sum by (slice) (increase(rightslice_right_sizable_need_bytes_total[$__range]))"


def gpus() -> Dashboard:
    """Return the dashboard of GPU capacity, fragmentation, health, and the reach of right-sizing."""
    dashboard = _start(
        "rightslice-gpus",
        "Rightslice / GPUs, fragmentation and reach",
        "Allocated and fragmented GPUs (from the scheduler extender), their health (from the node agents), and how "
        "many pods right-sizing reaches (from the webhook).",
    )
    product = "label_values(rightslice_extender_gpu_milli, product)"
    dashboard.with_variable(_variable("product", "GPU product", product))
    allocated, free = CAPACITY % ', state="allocated"', CAPACITY % ', state="free"'
    capacity: list[Panel] = [
        number("GPUs", "Capacity of all nodes, in GPUs. Needs the scheduler extender.", "short",
               f"sum({CAPACITY % ''}) / 1000"),
        number("Allocated", "Share of the capacity that is allocated to pods.", "percentunit",
               f"sum({allocated}) / clamp_min(sum({CAPACITY % ''}), 1)"),
        number("Fragmented", "Share of the free capacity that a pod of the recent mix cannot use, on average.",
               "percentunit", f"sum({FRAGMENTED}) / clamp_min(sum({free}), 1)",
               ((0, GREEN), (0.25, ORANGE), (0.5, RED))),
        number("Reservations", "Reservations for pods that are not bound to a node yet.", "short",
               "max(rightslice_extender_reservations)"),
        number("Ranked nodes", "Nodes that the extender ranks.", "short", "max(rightslice_extender_nodes)"),
        number("Groups over their share", "Namespaces or queues above their fair share; 0 without fair shares.",
               "short", "max(rightslice_extender_over_share) or vector(0)"),
        lines("GPUs by state", "Allocated, free, and unallocated on nodes that take no pods.", "short",
              [Query(f"sum by (state) ({CAPACITY % ''}) / 1000", "{{state}}")], stack=True),
        lines("Fragmented GPUs by product", "Free GPUs that a pod of the recent mix cannot use, on average.", "short",
              [Query(f"{FRAGMENTED} / 1000", "{{product}}")]),
        bars("Allocated by product", "Share of the capacity of each product that is allocated.", "percentunit",
             Query(f"sum by (product) ({allocated}) / clamp_min(sum by (product) ({CAPACITY % ''}), 1)",
                   "{{product}}")),
        lines("Scheduler requests", "Requests of kube-scheduler, by verb and result.", "reqps",
              [Query("sum by (verb, result) (rate(rightslice_extender_requests_total[$__rate_interval]))",
                     "{{verb}} {{result}}")]),
        lines("Duration of scheduler requests", "99th percentile of the time to answer one request, by verb.", "s",
              [Query("histogram_quantile(0.99, sum by (le, verb) "
                     "(rate(rightslice_extender_duration_seconds_bucket[$__rate_interval])))", "{{verb}}")]),
    ]  # fmt: skip
    health: list[Panel] = [
        number("GPUs of agents", "GPUs that the node agents report.", "short", "sum(rightslice_agent_gpus)"),
        number("Allocated GPUs of agents", "GPUs that are allocated to a pod, completely or in part.", "short",
               "sum(rightslice_agent_gpus_allocated)"),
        number("Unhealthy GPUs", "GPUs that a node agent reports as unhealthy.", "short",
               "sum(rightslice_agent_gpus_unhealthy)", ((0, GREEN), (1, RED))),
        number("NVLinks that are down", "Links between GPUs that should be up.", "short",
               "sum(rightslice_agent_nvlinks_down)", ((0, GREEN), (1, ORANGE))),
        lines("Unhealthy GPUs by node", "The ten nodes with the most unhealthy GPUs.", "short",
              [Query("topk(10, sum by (instance) (rightslice_agent_gpus_unhealthy))", "{{instance}}")]),
        lines("GPUNode writes", "Writes of the agents' reports, by result.", "ops",
              [Query("sum by (result) (rate(rightslice_agent_gpunode_writes_total[$__rate_interval]))",
                     "{{result}}")]),
        lines("Kubelet calls", "Calls of the kubelet's PodResources API, by result.", "ops",
              [Query("sum by (result) (rate(rightslice_agent_kubelet_calls_total[$__rate_interval]))",
                     "{{result}}")]),
        lines("GPU discovery", "Duration of the slowest last discovery of GPUs.", "s",
              [Query("max(rightslice_agent_discovery_duration_seconds)", "slowest node")]),
    ]  # fmt: skip
    reach: list[Panel] = [
        number("Right-sized pods", "Share of the created pods with GPUs that were right-sized, without denied pods.",
               "percentunit",
               '(sum(increase(rightslice_right_sizing_outcomes_total{outcome="RightSized"}[$__range])) or vector(0))'
               " / sum(increase(rightslice_right_sizing_outcomes_total[$__range]))"),
        number("Need without a slice", "Share of the need for slices for which no card is partitioned. "
               "`rightslice layout` shows whether other MIG layouts would serve it.", "percentunit",
               'sum(increase(rightslice_right_sizable_need_bytes_total{slice="missing"}[$__range]))'
               " / sum(increase(rightslice_right_sizable_need_bytes_total[$__range]))",
               ((0, GREEN), (0.25, ORANGE))),
        bars("Outcomes of right-sizing", "Created pods with GPUs: right-sized, in audit mode, or why they keep their "
             "request.", "short", Query(f"sort_desc({OUTCOMES})", "{{outcome}}")),
        bars("Need by state of slices", "GPU memory that created pods need and a slice would cover: free, full (all "
             "are allocated) or missing (no card is partitioned into one).", "bytes", Query(NEEDS, "{{slice}}")),
    ]  # fmt: skip
    return _with_rows(
        dashboard, [("Capacity and fragmentation", capacity), ("Health", health), ("Reach of right-sizing", reach)]
    )


REQUESTED, ADMITTED = "rightslice_gpu_milli_requested_total", "rightslice_gpu_milli_admitted_total"
FAIL_OPEN = 'apiserver_admission_webhook_fail_open_count{name=~".+[.]rightslice[.]dev"}'


def savings() -> Dashboard:
    """Return the dashboard of saved capacity and of what may go wrong with it."""
    dashboard = _start(
        "rightslice-savings",
        "Rightslice / Savings and risk",
        "GPU capacity that right-sizing saved, the evidence for it, and conditions under which pods are not checked or "
        "not right-sized.",
    )
    saved: list[Panel] = [
        number("Saved share", "Share of the GPU capacity requested by created pods that right-sizing saved. Denied "
               "pods do not count, unless something other than Rightslice denies them, such as a ResourceQuota.",
               "percentunit", f"1 - sum({_increase(ADMITTED)}) / sum({_increase(REQUESTED)})"),
        number("Saved GPUs", "GPUs that created pods requested and did not need, within the selected time.", "short",
               f"(sum({_increase(REQUESTED)}) - sum({_increase(ADMITTED)})) / 1000"),
        number("By observed usage", "Share of the right-sized pods whose need was measured: the risk of policies "
               "(`risk`) applies to them.", "percentunit",
               f"""sum({_increase('rightslice_right_sized_pods_total', ', evidence="observed"')})"""
               f" / sum({_increase('rightslice_right_sized_pods_total')})"),
        lines("Requested and admitted GPUs per hour", "GPUs of created pods, before and after right-sizing, without "
              "those of denied pods.", "short",
              [Query(f"sum({_rate(REQUESTED)}) * 3600 / 1000", "requested"),
               Query(f"sum({_rate(ADMITTED)}) * 3600 / 1000", "admitted")]),
        bars("Right-sized pods by evidence", "Declared by the pod, observed usage, or the default of the policy.",
             "short",
             Query(count_events(" by (evidence) ", _series("rightslice_right_sized_pods_total")), "{{evidence}}")),
    ]  # fmt: skip
    usage: list[Panel] = [
        number("Age of the usage data", "Usage older than a day is not used. Empty if no usage is read.", "s",
               f"max({_series('rightslice_usage_age_seconds')})", ((0, GREEN), (21600, ORANGE), (86400, RED))),
        number("Containers with known usage", "Empty if no usage is read.", "short",
               f"max({_series('rightslice_usage_containers')})"),
        bars("Loads of usage", "Attempts to load GPU usage within the selected time, by result. Empty if no usage is "
             "read.", "short",
             Query(count_events(" by (result) ", _series("rightslice_usage_loads_total")), "{{result}}")),
    ]  # fmt: skip
    risk: list[Panel] = [
        number("Failed open", "Calls of webhooks within the selected time that failed and that the API server "
               "ignored. A pod that no replica reviewed counts twice: for /mutate and for /validate. Needs metrics of "
               "the API servers.", "short",
               f"{count_events('', FAIL_OPEN)} or vector(0)", ((0, GREEN), (0.5, ORANGE))),
        number("Replicas with old policies", "Replicas that could not load the current policies and use the last set "
               "that loaded.", "short",
               f"count({_series('rightslice_policies_last_load_successful')} == 0) or vector(0)",
               ((0, GREEN), (1, ORANGE))),
        number("Halted rollouts", "Policies in audit mode because their rollout was halted.", "short",
               f"sum(max by (policy) ({_series('rightslice_rollout_halted')})) or vector(0)",
               ((0, GREEN), (1, ORANGE))),
        number("Oldest cluster view", "Right-sizing pauses if the view is older than a minute.", "s",
               f"max({_series('rightslice_cluster_view_age_seconds')})", ((0, GREEN), (60, RED))),
        number("Certificate rotation failing", "1 while a replica cannot maintain managed certificates.", "short",
               f"max({_series('rightslice_certificate_rotation_failing')})", ((0, GREEN), (1, RED))),
        number("Retried reviews", "Reviews per second answered with 429, which the client sends again.", "reqps",
               f"sum({_rate(REQUESTS, RETRIED)}) or vector(0)"),
    ]  # fmt: skip
    return _with_rows(_with_replicas(dashboard), [("Savings", saved), ("Usage data", usage), ("Risk", risk)])


DASHBOARDS = {"admission": admission, "gpus": gpus, "savings": savings}
"""The dashboards by the names of their files."""


def dashboard_json(name: str) -> str:
    """Return the content of a file."""
    return json.dumps(DASHBOARDS[name]().build(), cls=JSONEncoder, indent=1) + "\n"
