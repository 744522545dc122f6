"""The routes: bytes in, bytes out, and nothing decided here.

Two ways of saying no, kept apart:

* HTTP 4xx or 5xx: we could not judge. The cluster admin's `failurePolicy` decides.
* HTTP 200 with `allowed: false`: we judged, and the answer is no.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from time import monotonic, perf_counter

from webhook.engine.bounds import refuse, surplus
from webhook.errors import ReviewError
from webhook.model.decisions import Decision
from webhook.model.requests import Request
from webhook.policy.compiled import PolicySet
from webhook.server.answering import Face, mutation, verdict
from webhook.server.health import Health
from webhook.server.policyreviews import NAME as POLICIES
from webhook.server.policyreviews import PolicyAdmission
from webhook.server.probing import is_probe, probe_answer
from webhook.server.reading import read, read_sent
from webhook.server.world import Clock, Decide, World
from webhook.telemetry.telemetry import Telemetry
from webhook.web.limits import deadline
from webhook.web.probes import probes
from webhook.web.replies import Call, Reply, Route, busy, refusal

API_SERVER = "kube-apiserver-admission"
"""What an API server calls itself in User-Agent when it calls a webhook."""

SMALL_BODY = 16 * 1024
"""Bytes. However they are filled, judging what they hold takes no time to speak of."""


class Admission:
    """One admission route. `face` says which side of the decision it shows."""

    def __init__(
        self, name: str, face: Face, world: World, clock: Clock, decide: Decide, telemetry: Telemetry, budget: float
    ) -> None:
        self._name = name
        self._face = face
        self._world = world
        self._clock = clock
        self._decide = decide
        self._telemetry = telemetry
        self._budget = budget

    def answer(self, call: Call) -> Reply:
        """Judge one review."""
        start = perf_counter()
        try:
            request = read_sent(call.body) if call.sender == API_SERVER else read(call.body)
        except ReviewError as error:
            return self._refused(error)
        except Exception as error:
            return self._crashed("", error)
        if call.waited > deadline(call.query, self._budget):
            self._telemetry.refused("late")
            return busy("the request came too slowly for its timeout", uid=request.uid)
        if not self._world.judges:
            self._telemetry.refused("not_ready")
            return busy("could not judge: policies and cluster are not known here yet", uid=request.uid)
        if not self._world.knows_namespace(request.namespace):
            self._telemetry.refused("namespace")
            return busy("could not judge: its namespace is not known here yet", uid=request.uid)
        try:
            return self._too_much(request, len(call.body), start) or self._judge(request, start)
        except ReviewError as error:
            return self._refused(error)
        except Exception as error:
            return self._crashed(request.uid, error)

    def _too_much(self, request: Request, size: int, start: float) -> Reply | None:
        """Refuse an object that would take too long; nobody else is answered while one is judged."""
        policies = self._world.policies
        most = surplus(request, policies) if size > SMALL_BODY else ""
        if not most:
            return None
        if self._face is verdict:
            decision = refuse(request, most, policies, self._clock())
            if decision.denials:
                return self._reply(request, decision, policies, start)
        self._telemetry.refused("too_much")
        sentence = f"could not judge: request.object must have at most {most}"
        return refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence, uid=request.uid)

    def _judge(self, request: Request, start: float) -> Reply:
        if is_probe(request):
            return Reply(HTTPStatus.OK, probe_answer(self._name, request))
        world = self._world
        policies = world.policies
        now = self._clock()
        world.forget(now)
        decision = self._decide(request, policies, world.view, world.usage, now)
        reply = self._reply(request, decision, policies, start)
        if self._face is mutation:
            world.assume(request, decision, now)
        else:
            world.reserve(request, decision, monotonic())
            world.assume_asked(request, decision, now)
        return reply

    def _reply(self, request: Request, decision: Decision, policies: PolicySet, start: float) -> Reply:
        content = self._face(request, decision, policies.digest)
        return Reply(HTTPStatus.OK, content, then=partial(self._observe, request, decision, start))

    def _observe(self, request: Request, decision: Decision, start: float) -> None:
        self._telemetry.observe(self._name, request, decision, perf_counter() - start)

    def _refused(self, error: ReviewError) -> Reply:
        self._telemetry.refused("review")
        return refusal(HTTPStatus.BAD_REQUEST, str(error))

    def _crashed(self, uid: str, error: Exception) -> Reply:
        """A fault of ours: say so, keep the stack, go on with the next request."""
        self._telemetry.crashed(self._name, uid, error)
        return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault in this server; its log has the details", uid=uid)


def routes(
    world: World, clock: Clock, decide: Decide, telemetry: Telemetry, health: Health, budget: float
) -> Mapping[str, Route]:
    """Every path of the server. `budget` is the most seconds that a request may take to come in."""

    def admission(name: str, face: Face) -> Route:
        return Route(name, True, Admission(name, face, world, clock, decide, telemetry, budget).answer)

    return {
        "/mutate": admission("mutate", mutation),
        "/validate": admission("validate", verdict),
        "/policies": Route(POLICIES, True, PolicyAdmission(lambda: world.policies.written, telemetry).answer),
        **probes(health.checks, telemetry.page, telemetry.page_type),
    }
