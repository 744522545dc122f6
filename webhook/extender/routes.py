"""The routes: bytes in, bytes out. What cannot be answered is an HTTP error; the scheduler's `ignorable` decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from time import perf_counter

from webhook.errors import ReviewError
from webhook.extender.counts import ExtenderMetrics
from webhook.extender.standing import Clock, SchedulerState
from webhook.extender.verbs import VerbResult, handle_filter, handle_preempt, handle_prioritize
from webhook.web.replies import HttpRequest, HttpResponse, HttpRoute, busy_response, error_response

Verb = Callable[[SchedulerState, bytes, float], VerbResult]

VERBS: Mapping[str, Verb] = {"filter": handle_filter, "prioritize": handle_prioritize, "preempt": handle_preempt}
"""By the path that the scheduler's configuration names."""


def extender_routes(standing: SchedulerState, clock: Clock, counts: ExtenderMetrics) -> dict[str, HttpRoute]:
    """The paths that a scheduler asks."""
    return {f"/{name}": HttpRoute(name, True, _verb_handler(name, standing, clock, counts)) for name in VERBS}


def _verb_handler(name: str, standing: SchedulerState, clock: Clock, counts: ExtenderMetrics) -> Callable[[HttpRequest], HttpResponse]:
    verb = VERBS[name]

    def answer(call: HttpRequest) -> HttpResponse:
        start = perf_counter()
        if standing.ranking is None:
            counts.refused["not_ready"] += 1
            return busy_response("could not rank: the nodes are not known here yet")
        try:
            body, result = verb(standing, call.body, clock())
        except ReviewError as error:
            counts.refused["body"] += 1
            return error_response(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:
            counts.record_crash(name, "", error)
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault in this server; its log has the details")
        while standing.ranking.errors:
            counts.record_crash(name, "", standing.ranking.errors.pop())
        return HttpResponse(HTTPStatus.OK, body, after_send=lambda: counts.record_answer(name, result, perf_counter() - start))

    return answer
