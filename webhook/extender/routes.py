"""The routes: bytes in, bytes out. What cannot be answered is an HTTP error; the scheduler's `ignorable` decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from time import perf_counter

from webhook.errors import ReviewError
from webhook.extender.counts import Counts
from webhook.extender.standing import Clock, Standing
from webhook.extender.verbs import Answer, filtered, preempted, prioritized
from webhook.web.replies import Call, Reply, Route, busy, refusal

Verb = Callable[[Standing, bytes, float], Answer]

VERBS: Mapping[str, Verb] = {"filter": filtered, "prioritize": prioritized, "preempt": preempted}
"""By the path that the scheduler's configuration names."""


def routes(standing: Standing, clock: Clock, counts: Counts) -> dict[str, Route]:
    """The paths that a scheduler asks."""
    return {f"/{name}": Route(name, True, _answering(name, standing, clock, counts)) for name in VERBS}


def _answering(name: str, standing: Standing, clock: Clock, counts: Counts) -> Callable[[Call], Reply]:
    verb = VERBS[name]

    def answer(call: Call) -> Reply:
        start = perf_counter()
        if standing.ranking is None:
            counts.refused["not_ready"] += 1
            return busy("could not rank: the nodes are not known here yet")
        try:
            body, result = verb(standing, call.body, clock())
        except ReviewError as error:
            counts.refused["body"] += 1
            return refusal(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:
            counts.crashed(name, "", error)
            return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault in this server; its log has the details")
        while standing.ranking.faults:
            counts.crashed(name, "", standing.ranking.faults.pop())
        return Reply(HTTPStatus.OK, body, then=lambda: counts.answered(name, result, perf_counter() - start))

    return answer
