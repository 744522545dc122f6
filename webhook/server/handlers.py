"""The HTTP routes of the webhook, and the admission of pods and workloads. Decisions are made in `webhook.engine`.

* HTTP 4xx or 5xx: the request could not be evaluated. The webhook's `failurePolicy` decides.
* HTTP 200 with `allowed: false`: the request was evaluated and denied.

The webhook server: connects its parts, listens, and runs the tasks that keep its state up to date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic, perf_counter, time_ns

from webhook.engine.decision_cache import DecisionCache
from webhook.engine.object_limits import (
    MAX_SKIPPED_VALUES,
    MAX_VALUES,
    REDUCE_POD,
    VALUES_LIMIT,
    count_values,
    deny_oversized_pod,
    find_exceeded_limit,
)
from webhook.errors import ReviewError
from webhook.model.admission import AdmissionRequest
from webhook.model.bounded_cache import CacheBudget, clear_request_caches
from webhook.model.claims import CLAIM_KINDS
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision
from webhook.model.dra.published_devices import MANY_SLICES, MAX_SLICES
from webhook.model.fleet import largest_slice_mib
from webhook.policy.policy_set import PolicySet
from webhook.report.text import pluralize
from webhook.server.admission_request import (
    parse_api_server_review,
    parse_large_review,
    parse_review,
)
from webhook.server.admission_response import (
    is_self_probe,
    render_mutation,
    render_self_probe,
    render_validation,
)
from webhook.server.admission_state import AdmissionState, Clock, Decide
from webhook.server.policy_admission import ROUTE_NAME, PolicyAdmissionHandler
from webhook.server.review_cost import ReviewCostCheck
from webhook.telemetry.telemetry import Telemetry
from webhook.telemetry.tracing import ReviewTracer, TracedReview
from webhook.web.connection import ConnectionRegistry
from webhook.web.health import HealthCheck, HealthChecks, health_routes, watch_check
from webhook.web.http_messages import (
    HttpRequest,
    HttpResponse,
    HttpRoute,
    busy_response,
    error_response,
)
from webhook.web.limits import CpuLimit, CpuLimitError, ServerLimits, request_deadline
from webhook.web.listener import POLL_SECONDS, SWEEP_SECONDS, HttpListener, Poll
from webhook.web.tls import ServerTls

API_SERVER = "kube-apiserver-admission"
"""The User-Agent of an API server that calls a webhook."""

MUTATE, VALIDATE = "mutate", "validate"

SMALL_BODY = 16 * 1024
"""Bytes. Any object of this size is evaluated quickly, but for the expressions of a ResourceClaim."""

SIMPLIFY_POLICIES = (
    "Create the pod again: it is small, so the machine was busy. "
    "If it is denied each time, the policies take too long: an admin must reduce policies and match conditions."
)


def admission_routes(
    state: AdmissionState,
    clock: Clock,
    decide: Decide,
    telemetry: Telemetry,
    checks: HealthChecks,
    receive_timeout: float,
    cpu_limit: CpuLimit,
) -> Mapping[str, HttpRoute]:
    """Return all routes; a request must arrive within `receive_timeout` seconds."""
    telemetry.metrics.largest_slice_mib = lambda: largest_slice_mib(state.view.fleet)
    handlers = [
        AdmissionHandler(each, state, clock, decide, telemetry, receive_timeout, cpu_limit)
        for each in (MUTATE, VALIDATE)
    ]
    return {
        **{f"/{handler.route}": HttpRoute(handler.route, True, handler.handle) for handler in handlers},
        "/policies": HttpRoute(ROUTE_NAME, True, PolicyAdmissionHandler(state, telemetry, cpu_limit).handle),
        **health_routes(checks, telemetry.metrics_text),
    }


@dataclass(slots=True)
class AdmissionHandler:
    """Handles one admission route, `MUTATE` or `VALIDATE`."""

    route: str
    state: AdmissionState
    clock: Clock
    decide: Decide
    telemetry: Telemetry
    receive_timeout: float
    cpu_limit: CpuLimit
    cache_budget: CacheBudget = field(default_factory=CacheBudget)
    _request: AdmissionRequest | None = field(init=False, default=None)
    _decision: Decision | None = field(init=False, default=None)

    def handle(self, http_request: HttpRequest) -> HttpResponse:
        """Evaluate one review, or stop it."""
        try:
            if self.telemetry.tracer is None:
                return self._answer(http_request)
            return self._answer_traced(http_request, self.telemetry.tracer)
        finally:
            self._request = self._decision = None

    def _answer_traced(self, http_request: HttpRequest, tracer: ReviewTracer) -> HttpResponse:
        begun = time_ns()
        response = self._answer(http_request)
        parent = http_request.headers.get("traceparent", "")
        review = TracedReview(self.route, parent, response.status, self._request, self._decision, begun, time_ns())

        def record() -> None:
            tracer.record(review)
            if response.after_send is not None:
                response.after_send()

        return response._replace(after_send=record)

    def _answer(self, http_request: HttpRequest) -> HttpResponse:
        try:
            return self.cpu_limit.run(self._review, http_request)
        except CpuLimitError:
            has_expressions = self._request is not None and self._request.kind in CLAIM_KINDS
            is_quick = len(http_request.body) <= SMALL_BODY and not has_expressions
            return self._reject_stopped(self._request, is_quick=is_quick)

    def _review(self, http_request: HttpRequest) -> HttpResponse:
        start = perf_counter()
        body = http_request.body
        self.cache_budget.spend(len(body))
        values = count_values(body) if len(body) > SMALL_BODY else 0
        if values > MAX_SKIPPED_VALUES:
            return self._reject_large(f"could not evaluate: a review must have at most {VALUES_LIMIT}")
        is_large = values > MAX_VALUES
        try:
            request = parse_large_review(body) if is_large else parse_body(http_request)
        except ReviewError as error:
            return self._invalid_review(error)
        except Exception as error:
            return self._internal_error("", error)
        self._request = request
        if http_request.elapsed > request_deadline(http_request.query, self.receive_timeout):
            self.telemetry.record_rejection("deadline")
            return busy_response("the request arrived after its timeout", uid=request.uid)
        if not self.state.ready:
            self.telemetry.record_rejection("not_ready")
            return busy_response("could not evaluate: policies and cluster are not loaded yet", uid=request.uid)
        namespace, view = request.namespace, self.state.view
        if view.complete and namespace and view.namespace(namespace) is None:  # so its labels are unknown
            self.telemetry.record_rejection("unknown_namespace")
            return busy_response("could not evaluate: the namespace is not known yet", uid=request.uid)
        try:
            limit = VALUES_LIMIT if is_large else ""
            if not limit and len(body) > SMALL_BODY:
                limit = find_exceeded_limit(request, self.state.policies)
            return self._reject_oversized(request, limit, start) if limit else self._evaluate(request, start)
        except ReviewError as error:
            return self._invalid_review(error)
        except Exception as error:
            return self._internal_error(request.uid, error)

    def _reject_oversized(self, request: AdmissionRequest, limit: str, start: float) -> HttpResponse:
        """Reject an object that would take too long, because evaluation blocks all other requests."""
        denial = self._deny_oversized(request, f"a pod must have at most {limit} to be evaluated, found more", start)
        message = f"could not evaluate: request.object must have at most {limit}"
        return denial or self._reject_large(message, request.uid)

    def _reject_stopped(self, request: AdmissionRequest | None, *, is_quick: bool) -> HttpResponse:
        """Reject a review that was stopped. Its caches may be halfway through a change, so they are cleared.

        If the object is quickly evaluated, the machine's load is at fault, and the API server is asked to try again.
        """
        clear_request_caches()
        self._decision = None
        self.telemetry.record_rejection("cpu_limit")
        message, denial = f"evaluating the object took more than {self.cpu_limit}", None
        if request is not None and request.operation == "CREATE":
            start, fix = perf_counter() - self.cpu_limit.seconds, SIMPLIFY_POLICIES if is_quick else REDUCE_POD
            denial = self._deny_oversized(request, message, start, fix)
        if denial is not None:
            return denial
        uid, message = request.uid if request is not None else "", f"could not evaluate: {message}"
        if is_quick:
            return busy_response(message, uid=uid)
        return error_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, uid=uid)

    def _deny_oversized(
        self, request: AdmissionRequest, message: str, start: float, fix: str = REDUCE_POD
    ) -> HttpResponse | None:
        """Return the denial of a pod that is not evaluated, if a policy enforces `security`."""
        policies = self.state.policies
        if self.route != VALIDATE:
            return None
        decision = deny_oversized_pod(request, message, policies, self.clock(), fix)
        return self._respond(request, decision, policies, start) if decision.denials else None

    def _reject_large(self, message: str, uid: str = "") -> HttpResponse:
        self.telemetry.record_rejection("object_too_large")
        return error_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, uid=uid)

    def _evaluate(self, request: AdmissionRequest, start: float) -> HttpResponse:
        if is_self_probe(request):
            return HttpResponse(HTTPStatus.OK, render_self_probe(self.route, request))
        state = self.state
        policies = state.policies
        now, seconds = self.clock(), monotonic()  # a clock that may be set, and that of the watches, which is not
        state.view = state.view.without_expired(seconds)  # assumed pods that did not appear in time
        is_final = self.route == VALIDATE
        view = state.view_with_escrows(request, seconds) if is_final else state.view
        decision = self.decide(request, policies, view, state.usage, now)
        response = self._respond(request, decision, policies, start)
        self.cpu_limit.lift()
        if is_final:
            state.reserve_quota(request, decision, seconds)
        state.assume_pod(request, decision, now, seconds, is_final=is_final)
        return response

    def _respond(
        self, request: AdmissionRequest, decision: Decision, policies: PolicySet, start: float
    ) -> HttpResponse:
        self._decision = decision
        render = render_mutation if self.route == MUTATE else render_validation
        content = render(request, decision, policies.digest)

        def record() -> None:
            self.telemetry.record_decision(self.route, request, decision, perf_counter() - start)

        return HttpResponse(HTTPStatus.OK, content, after_send=record)

    def _invalid_review(self, error: ReviewError) -> HttpResponse:
        self.telemetry.record_rejection("invalid_review")
        return error_response(HTTPStatus.BAD_REQUEST, str(error))

    def _internal_error(self, uid: str, error: Exception) -> HttpResponse:
        self.telemetry.record_internal_error(self.route, error, uid)
        return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; see the log", uid=uid)


def parse_body(http_request: HttpRequest) -> AdmissionRequest:
    """Parse the review of a request, by the fast way if an API server sent it.

    Raises:
        ReviewError: the body is not a review.
    """
    body = http_request.body
    return parse_api_server_review(body) if http_request.headers.get("User-Agent") == API_SERVER else parse_review(body)


def admission_checks(state: AdmissionState, extra: Sequence[HealthCheck], *, draining: bool) -> list[HealthCheck]:
    """Return the lines of `/readyz?verbose`: ready with policies and a cluster view, until the server shuts down."""
    policies, load = state.policies, state.policy_load
    active = f"{pluralize(len(policies.policies), 'policy', 'policies')}, digest {policies.digest}"
    message = f"{active}, loaded {load.loaded_at:%Y-%m-%dT%H:%M:%SZ}" if load.loaded_at else "not loaded yet"
    errors = [HealthCheck("policy files", ok=False, message=each, required=False) for each in load.errors[:20]]
    return [
        HealthCheck("policies", ok=load.loaded_at is not None, message=message),
        *(errors or [HealthCheck("policy files", ok=True, message="in use", required=False)]),
        *_cluster_checks(state),
        *extra,
        HealthCheck("serving", not draining, "shutting down" if draining else "ok"),
    ]


def _cluster_checks(state: AdmissionState) -> list[HealthCheck]:
    view, cluster = state.view, state.live_cluster
    nodes = pluralize(len(view.fleet.nodes), "node")
    if cluster is None:
        return [HealthCheck("cluster", ok=True, message=nodes)]
    stale = ": stale, right-sizing is off" if view.is_stale else ""
    message = f"{nodes}, confirmed {cluster.age:.0f} s ago{stale}" if cluster.ready else "not known yet"
    ready = HealthCheck("cluster", ok=cluster.ready, message=message)
    return [ready, *_device_checks(view), *map(watch_check, cluster.states)]


def _device_checks(view: ClusterView) -> list[HealthCheck]:
    """Return the line about ResourceSlices, if there are any."""
    count = view.devices.pools.slice_count
    more = f": {MANY_SLICES}" if count > MAX_SLICES else ""
    text = f"{pluralize(count, 'ResourceSlice')}{more}"
    return [HealthCheck("devices", ok=True, message=text, required=False)] if count else []


class AdmissionServer(HttpListener):
    """The webhook server; call `listen` to start.

    Attributes:
        health_checks: Further lines of `/readyz?verbose`.
        cpu_limit: Stops reviews once it is installed.
    """

    tls: ServerTls

    def __init__(
        self,
        state: AdmissionState,
        telemetry: Telemetry,
        clock: Clock,
        tls: ServerTls,
        limits: ServerLimits,
        polls: Sequence[Poll] = (),
        poll_seconds: float = POLL_SECONDS,
        sweep_seconds: float = SWEEP_SECONDS,
        decide: Decide | None = None,
        health_checks: Sequence[HealthChecks] = (),
    ) -> None:
        """Prepare the routes.

        Args:
            decide: For tests; None for the engine's `decide` with a cache.
        """
        self.state, self.telemetry, self.clock, self.health_checks = state, telemetry, clock, health_checks
        decide = decide or DecisionCache().decide
        self.cpu_limit = CpuLimit()
        routes = admission_routes(state, clock, decide, telemetry, self._checks, limits.request_time, self.cpu_limit)
        registry = ConnectionRegistry(routes, limits, telemetry.record_rejection, tls.clients)
        telemetry.connections = lambda: len(registry.connections)
        telemetry.metrics.in_flight = lambda: registry.load.reading

        def on_crash(error: Exception) -> None:
            telemetry.record_internal_error("task", error)

        cost = ReviewCostCheck(state, telemetry, clock, self.cpu_limit)
        super().__init__(registry, tls, on_crash, [*polls, cost.measure_if_changed], (), poll_seconds, sweep_seconds)

    def _checks(self) -> list[HealthCheck]:
        extra_checks = [each for checks in self.health_checks for each in checks()]
        return admission_checks(self.state, extra_checks, draining=self.registry.draining)
