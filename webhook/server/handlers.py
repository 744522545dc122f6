"""The routes: bytes in, bytes out, and nothing decided here.

Two ways of saying no, kept apart:

* HTTP 4xx or 5xx: we could not judge. The cluster admin's `failurePolicy` decides.
* HTTP 200 with `allowed: false`: we judged, and the answer is no.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from time import monotonic, perf_counter

from webhook.engine.object_limits import deny_oversized_pod, find_exceeded_limit
from webhook.errors import ReviewError
from webhook.model.admission import AdmissionRequest
from webhook.model.decisions import Decision
from webhook.policy.policy_set import PolicySet
from webhook.report.text import pluralize
from webhook.server.admission_request import parse_api_server_review, parse_review
from webhook.server.admission_response import (
    Renderer,
    is_self_probe,
    render_mutation,
    render_self_probe,
    render_validation,
)
from webhook.server.admission_state import AdmissionState, Clock, Decide, WatchedKind
from webhook.server.policy_admission import ROUTE_NAME as POLICIES
from webhook.server.policy_admission import PolicyAdmissionHandler
from webhook.telemetry.telemetry import Telemetry
from webhook.web.health import HealthCheck, HealthChecks, health_routes
from webhook.web.http_messages import (
    HttpRequest,
    HttpResponse,
    HttpRoute,
    busy_response,
    error_response,
    strip_control_characters,
)
from webhook.web.limits import request_deadline


class AdmissionHealth:
    """Ready means: policies, a view of the cluster and a certificate are there, and nobody told the process to end."""

    def __init__(self, world: AdmissionState, draining: Callable[[], bool], more: HealthChecks = tuple) -> None:
        self._state = world
        self._draining = draining
        self._extra_checks = more

    def checks(self) -> list[HealthCheck]:
        """The lines of `/readyz?verbose`."""
        world, status = self._state, self._state.policy_load
        policies = world.policies
        digest = f"{pluralize(len(policies.policies), 'policy', 'policies')}, digest {policies.digest}"
        in_use = (
            f"{digest}, read {status.loaded_at:%Y-%m-%dT%H:%M:%SZ}" if status.loaded_at else "none could be read yet"
        )
        faults = [
            HealthCheck("policy files", ok=False, message=strip_control_characters(fault), required=False)
            for fault in status.errors[:20]
        ]
        return [
            HealthCheck("policies", ok=status.loaded_at is not None, message=in_use),
            *(faults or [HealthCheck("policy files", ok=True, message="as in use", required=False)]),
            *self._cluster_checks(),
            *self._extra_checks(),
            HealthCheck("serving", not self._draining(), "told to end" if self._draining() else "ok"),
        ]

    def _cluster_checks(self) -> list[HealthCheck]:
        """The view; of a live cluster also each kind that is watched. One that is old is still a view."""
        view, followed = self._state.view, self._state.cluster
        nodes = pluralize(len(view.fleet.nodes), "node")
        if followed is None:
            return [HealthCheck("cluster", ok=True, message=nodes)]
        if not followed.ready:
            return [HealthCheck("cluster", ok=False, message="not known yet"), *map(watch_check, followed.states)]
        old = "" if view.current else ": too old to shrink anything"
        says = f"{nodes}, confirmed {followed.age:.0f} s ago{old}"
        return [HealthCheck("cluster", ok=True, message=says), *map(watch_check, followed.states)]


API_SERVER = "kube-apiserver-admission"
"""What an API server calls itself in User-Agent when it calls a webhook."""

SMALL_BODY = 16 * 1024
"""Bytes. However they are filled, judging what they hold takes no time to speak of."""


class AdmissionHandler:
    """One admission route. `face` says which side of the decision it shows."""

    def __init__(
        self,
        name: str,
        face: Renderer,
        world: AdmissionState,
        clock: Clock,
        decide: Decide,
        telemetry: Telemetry,
        budget: float,
    ) -> None:
        self._name = name
        self._render = face
        self._state = world
        self._clock = clock
        self._decide = decide
        self._telemetry = telemetry
        self._budget = budget

    def handle(self, call: HttpRequest) -> HttpResponse:
        """Judge one review."""
        start = perf_counter()
        try:
            request = parse_api_server_review(call.body) if call.user_agent == API_SERVER else parse_review(call.body)
        except ReviewError as error:
            return self._invalid_review(error)
        except Exception as error:
            return self._internal_error("", error)
        if call.elapsed > request_deadline(call.query, self._budget):
            self._telemetry.record_rejected_request("late")
            return busy_response("the request came too slowly for its timeout", uid=request.uid)
        if not self._state.ready:
            self._telemetry.record_rejected_request("not_ready")
            return busy_response("could not judge: policies and cluster are not known here yet", uid=request.uid)
        if not self._state.knows_namespace(request.namespace):
            self._telemetry.record_rejected_request("namespace")
            return busy_response("could not judge: its namespace is not known here yet", uid=request.uid)
        try:
            return self._reject_oversized(request, len(call.body), start) or self._evaluate(request, start)
        except ReviewError as error:
            return self._invalid_review(error)
        except Exception as error:
            return self._internal_error(request.uid, error)

    def _reject_oversized(self, request: AdmissionRequest, size: int, start: float) -> HttpResponse | None:
        """Refuse an object that would take too long; nobody else is answered while one is judged."""
        policies = self._state.policies
        most = find_exceeded_limit(request, policies) if size > SMALL_BODY else ""
        if not most:
            return None
        if self._render is render_validation:
            decision = deny_oversized_pod(request, most, policies, self._clock())
            if decision.denials:
                return self._respond(request, decision, policies, start)
        self._telemetry.record_rejected_request("too_much")
        sentence = f"could not judge: request.object must have at most {most}"
        return error_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence, uid=request.uid)

    def _evaluate(self, request: AdmissionRequest, start: float) -> HttpResponse:
        if is_self_probe(request):
            return HttpResponse(HTTPStatus.OK, render_self_probe(self._name, request))
        world = self._state
        policies = world.policies
        now = self._clock()
        world.expire_assumed(now)
        decision = self._decide(request, policies, world.view, world.usage, now)
        reply = self._respond(request, decision, policies, start)
        if self._render is render_mutation:
            world.assume_fit(request, decision, now)
        else:
            world.reserve(request, decision, monotonic())
            world.assume_requested(request, decision, now)
        return reply

    def _respond(
        self, request: AdmissionRequest, decision: Decision, policies: PolicySet, start: float
    ) -> HttpResponse:
        content = self._render(request, decision, policies.digest)
        return HttpResponse(HTTPStatus.OK, content, after_send=partial(self._record, request, decision, start))

    def _record(self, request: AdmissionRequest, decision: Decision, start: float) -> None:
        self._telemetry.record_decision(self._name, request, decision, perf_counter() - start)

    def _invalid_review(self, error: ReviewError) -> HttpResponse:
        self._telemetry.record_rejected_request("review")
        return error_response(HTTPStatus.BAD_REQUEST, str(error))

    def _internal_error(self, uid: str, error: Exception) -> HttpResponse:
        """A fault of ours: say so, keep the stack, go on with the next request."""
        self._telemetry.record_crash(self._name, uid, error)
        return error_response(
            HTTPStatus.INTERNAL_SERVER_ERROR, "a fault in this server; its log has the details", uid=uid
        )


def admission_routes(
    world: AdmissionState, clock: Clock, decide: Decide, telemetry: Telemetry, health: AdmissionHealth, budget: float
) -> Mapping[str, HttpRoute]:
    """Every path of the server. `budget` is the most seconds that a request may take to come in."""

    def admission(name: str, face: Renderer) -> HttpRoute:
        return HttpRoute(name, True, AdmissionHandler(name, face, world, clock, decide, telemetry, budget).handle)

    return {
        "/mutate": admission("mutate", render_mutation),
        "/validate": admission("validate", render_validation),
        "/policies": HttpRoute(
            POLICIES, True, PolicyAdmissionHandler(lambda: world.policies.sources, telemetry).handle
        ),
        **health_routes(health.checks, telemetry.metrics_text, telemetry.metrics_content_type),
    }


def watch_check(state: WatchedKind) -> HealthCheck:
    says = "not on this server" if state.absent else "synced" if state.synced else "not synced yet"
    if state.error:
        says = f"{says}; {strip_control_characters(state.error)}"
    return HealthCheck(state.name, ok=state.synced and not state.error, message=says, required=False)
