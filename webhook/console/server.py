"""The console's server: routes from addresses to pages. It reads, and changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus

from aiohttp import web

from webhook.console.guard import (
    HOSTS,
    MAX_BODY_BYTES,
    READ_METHODS,
    Handler,
    add_headers,
    check_request,
    read_form,
)
from webhook.console.planning import LayoutPlanner
from webhook.console.reading import ClusterReading, NewestReading
from webhook.console.trial import TrialCluster, evaluate_trial
from webhook.console.trial_runner import KEPT_TRIALS, TrialRunner
from webhook.console.usage_bands import usage_bands
from webhook.errors import PageQueryError, quote_text
from webhook.model.dra.device_allocations import allocated_for_pods, allocated_in_pools
from webhook.model.dra.pool_kinds import cards_on_node
from webhook.report.console.findings import FINDING_COLUMNS, FINDING_FILTERS, findings_page
from webhook.report.console.layout import layout_plan_page
from webhook.report.console.nodes import NODE_COLUMNS, NODE_FILTERS, NODE_KEY, node_page, nodes_page
from webhook.report.console.overview import overview_page
from webhook.report.console.page import (
    FINDINGS_ENTRY,
    LAYOUT_ENTRY,
    NODES_ENTRY,
    OVERVIEW,
    POLICIES_ENTRY,
    QUOTAS_ENTRY,
    SCRIPT_PATH,
    STYLE_PATH,
    TRIAL_ENTRY,
    WORKLOADS_ENTRY,
    console_script,
    console_style,
    render_console_page,
)
from webhook.report.console.policies import (
    POLICY_COLUMNS,
    POLICY_KEY,
    PolicyReach,
    policies_page,
    policy_page,
    written_policy,
)
from webhook.report.console.query import FilterField, PageQuery, parse_page_query
from webhook.report.console.quotas import LIMIT_COLUMNS, QUOTA_FILTERS, QUOTA_KEY, quota_page, quotas_page
from webhook.report.console.trials import (
    TRIAL_KEY,
    TRIAL_PARAMETER,
    TrialReport,
    trial_page,
    trial_result_address,
)
from webhook.report.console.workloads import (
    WORKLOAD_COLUMNS,
    WORKLOAD_FILTERS,
    WORKLOAD_KEY,
    workload_page,
    workloads_page,
)

READING: web.AppKey[NewestReading] = web.AppKey("reading")
PLANNER: web.AppKey[LayoutPlanner] = web.AppKey("planner")

TRIALS: web.AppKey[TrialRunner] = web.AppKey("trials")
TRIAL_FIELDS = ("objects", "policies")
TRIAL_PATIENCE = 0.5
"""Seconds in which most trials of small clusters end; the page of one that takes longer says how far it is."""

TOO_LARGE = (
    f"A trial must be at most {MAX_BODY_BYTES // 1024} KiB as a browser encodes it: a line end takes six bytes, a "
    "quote three. Go back in the browser to what was pasted and remove objects, or use rightslice check."
)

PageRenderer = Callable[[web.Request, NewestReading], str]
"""Renders a page. Raises PageQueryError or an HTTP error."""


class _MissingObjectError(PageQueryError):
    """The reading has no such workload or node."""


def build_console(reading: NewestReading, hosts: frozenset[str]) -> web.Application:
    """Return the console as an application that is not listening yet.

    Args:
        hosts: What the header Host may be.
    """
    app = web.Application(middlewares=[check_request], client_max_size=MAX_BODY_BYTES)
    app.on_response_prepare.append(add_headers)
    app[READING], app[HOSTS], app[PLANNER], app[TRIALS] = reading, hosts, LayoutPlanner(), TrialRunner()
    app.cleanup_ctx.append(_close_trials)
    for path, render in PAGES.items():
        app.router.add_get(path, _page_handler(render))
    app.router.add_post(TRIAL_ENTRY.path, start_pasted_trial)
    app.router.add_get(STYLE_PATH, _file_handler(console_style(), "text/css"))
    app.router.add_get(SCRIPT_PATH, _file_handler(console_script(), "text/javascript"))
    app.router.add_route("*", "/{path:.*}", _missing_page)
    return app


def _page_handler(render: PageRenderer) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        reading, trials = request.app[READING], request.app[TRIALS]
        trial = trials.find(request.query.get(TRIAL_PARAMETER, ""))
        tag = f'"{reading.tag}-{request.app[PLANNER].version}-{trial.version if trial is not None else ""}"'
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
        try:
            with trials.paused():
                text = render(request, reading)
        except _MissingObjectError as error:
            return _message_response(reading, "Not found", str(error), HTTPStatus.NOT_FOUND)
        except PageQueryError as error:
            return _message_response(reading, "This address is invalid", str(error), HTTPStatus.BAD_REQUEST)
        return web.Response(text=text, content_type="text/html", headers={"ETag": tag})

    return handle


async def _close_trials(app: web.Application) -> AsyncIterator[None]:
    yield
    app[TRIALS].close()


async def start_pasted_trial(request: web.Request) -> web.Response:
    """Start to evaluate what was pasted, and redirect to the page of its result."""
    reading = request.app[READING]
    try:
        form = await read_form(request)
    except web.HTTPRequestEntityTooLarge:
        return _message_response(reading, "Too much was pasted", TOO_LARGE, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    values = {name: form.get(name, "") for name in TRIAL_FIELDS}
    texts = {name: value.replace("\r\n", "\n") for name, value in values.items() if isinstance(value, str)}
    if len(form) > len(TRIAL_FIELDS) or len(texts) < len(TRIAL_FIELDS):
        raise web.HTTPBadRequest(text=f"the form must have the fields {' and '.join(TRIAL_FIELDS)}, found others\n")
    current = reading.current
    cluster = TrialCluster(current.state, current.context, current.samples)
    steps = partial(evaluate_trial, cluster, texts["objects"], texts["policies"], current.policy_source)
    trial = request.app[TRIALS].start(texts, steps)
    await trial.wait(TRIAL_PATIENCE)
    if trial.report.error:
        text = trial_page(reading.current.state, TrialReport(texts=texts, error=trial.report.error), reading.problem)
        return web.Response(status=HTTPStatus.BAD_REQUEST, text=text, content_type="text/html")
    address = f"{trial_result_address(trial.key)}#result"
    return web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": address})


def _message_response(reading: NewestReading, heading: str, message: str, status: HTTPStatus) -> web.Response:
    context = {"heading": heading, "message": message}
    text = render_console_page("message.html", reading.current.state, None, context, problem=reading.problem)
    return web.Response(status=status, text=text, content_type="text/html")


def _file_handler(text: str, content_type: str) -> Handler:
    async def handle(_request: web.Request) -> web.Response:
        return web.Response(text=text, content_type=content_type)

    return handle


async def _missing_page(request: web.Request) -> web.Response:
    if request.method not in READ_METHODS:
        raise web.HTTPMethodNotAllowed(request.method, sorted(READ_METHODS))
    message = "This console has no page with this address."
    return _message_response(request.app[READING], "Not found", message, HTTPStatus.NOT_FOUND)


def _query(request: web.Request, fields: Sequence[FilterField] = (), columns: Sequence[str] = ()) -> PageQuery:
    return parse_page_query(request.query.items(), fields, columns)


def _overview(request: web.Request, reading: NewestReading) -> str:
    _query(request)
    return overview_page(reading.current.state, request.app[PLANNER].outcome, reading.problem)


def _workloads(request: web.Request, reading: NewestReading) -> str:
    query = _query(request, WORKLOAD_FILTERS, WORKLOAD_COLUMNS)
    return workloads_page(reading.current.state, query, reading.problem)


def _workload(request: web.Request, reading: NewestReading) -> str:
    query, current = _query(request, WORKLOAD_KEY), reading.current
    key = query.value("namespace"), query.value("name")
    row = current.state.by_workload.get(key)
    if row is None:
        raise _MissingObjectError(
            f"This reading has no workload {quote_text('/'.join(key))} with GPUs. It may have ended."
        )
    pods = {pod.name for pod in current.state.pods[key]}
    allocated = allocated_for_pods(current.context.view.devices, row.namespace, pods)
    bands = usage_bands(current.histories.get(key, ()))
    return workload_page(current.state, row, bands, allocated, reading.problem)


def _nodes(request: web.Request, reading: NewestReading) -> str:
    return nodes_page(reading.current.state, _query(request, NODE_FILTERS, NODE_COLUMNS), reading.problem)


def _node(request: web.Request, reading: NewestReading) -> str:
    name, current = _query(request, NODE_KEY).value("name"), reading.current
    snapshot = current.snapshot
    position = snapshot.fleet.by_name.get(name) if snapshot is not None else None
    if snapshot is None or position is None:
        raise _MissingObjectError(f"This reading has no node {quote_text(name)}. It may have been removed.")
    pods, cards = current.pods_by_node.get(name, ()), cards_on_node(current.context.view.devices, position)
    allocated = allocated_in_pools(current.context.view.devices, {card.pool for card in cards})
    return node_page(current.state, snapshot, position, pods, cards, allocated, reading.problem)


def _layout(request: web.Request, reading: NewestReading) -> str:
    _query(request)
    planner = request.app[PLANNER]
    planner.request(reading.current)
    return layout_plan_page(
        reading.current.state, planner.outcome, is_planning=planner.is_planning, problem=reading.problem
    )


def _findings(request: web.Request, reading: NewestReading) -> str:
    query, current = _query(request, FINDING_FILTERS, FINDING_COLUMNS), reading.current
    return findings_page(current.state, current.findings, query, reading.problem)


def _policies(request: web.Request, reading: NewestReading) -> str:
    query, current = _query(request, (), POLICY_COLUMNS), reading.current
    return policies_page(current.state, current.policies, query, reading.problem)


def _policy(request: web.Request, reading: NewestReading) -> str:
    name, current = _query(request, POLICY_KEY).value("name"), reading.current
    row = _find_policy(current, name)
    return policy_page(current.state, row, current.context.policies, reading.problem)


def _trial(request: web.Request, reading: NewestReading) -> str:
    """Return a trial, the empty form, or the form with a policy of the cluster."""
    query, current = _query(request, TRIAL_KEY), reading.current
    name, key = query.value("name"), query.value(TRIAL_PARAMETER)
    if key:
        return trial_page(current.state, _find_trial(request.app[TRIALS], key), reading.problem)
    if not name:
        return trial_page(current.state, TrialReport(), reading.problem)
    texts = {"policies": written_policy(current.context.policies, _find_policy(current, name).policy.name)}
    return trial_page(current.state, TrialReport(texts=texts), reading.problem)


def _find_trial(trials: TrialRunner, key: str) -> TrialReport:
    trial = trials.find(key)
    if trial is None:
        raise _MissingObjectError(
            f"This console keeps no trial {quote_text(key)}; it keeps {KEPT_TRIALS}. Evaluate it again."
        )
    return trial.report


def _find_policy(current: ClusterReading, name: str) -> PolicyReach:
    row = next((each for each in current.policies if each.policy.name == name), None)
    if row is None:
        raise _MissingObjectError(f"This reading has no policy {quote_text(name)}. It may have been removed.")
    return row


def _quotas(request: web.Request, reading: NewestReading) -> str:
    query, current = _query(request, QUOTA_FILTERS, LIMIT_COLUMNS), reading.current
    return quotas_page(current.state, current.limits, query, reading.problem)


def _quota(request: web.Request, reading: NewestReading) -> str:
    query, current = _query(request, QUOTA_KEY), reading.current
    key = tuple(query.value(field.name) for field in QUOTA_KEY)
    row = next((each for each in current.limits if (each.namespace, each.kind, each.name) == key), None)
    if row is None:
        raise _MissingObjectError(
            f"This reading has no quota or range {quote_text('/'.join(key))}. It may have been removed."
        )
    return quota_page(current.state, row, reading.problem)


PAGES: Mapping[str, PageRenderer] = {
    OVERVIEW.path: _overview,
    WORKLOADS_ENTRY.path: _workloads,
    "/workload": _workload,
    NODES_ENTRY.path: _nodes,
    "/node": _node,
    LAYOUT_ENTRY.path: _layout,
    FINDINGS_ENTRY.path: _findings,
    POLICIES_ENTRY.path: _policies,
    "/policy": _policy,
    QUOTAS_ENTRY.path: _quotas,
    "/quota": _quota,
    TRIAL_ENTRY.path: _trial,
}
"""By path."""
