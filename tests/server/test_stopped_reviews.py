"""A review that takes too much CPU is stopped, and others are answered meanwhile."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import uvloop

from benchmarks.hostile_reviews import hostile_review
from tests.server.site import NOW, PAIR, POLICY, Answer, TlsConnection, encoded, make_state, nothing, post, review
from webhook.engine.decision_cache import DecisionCache
from webhook.model import object_bounds
from webhook.model.admission import AdmissionRequest
from webhook.model.decisions import Decision
from webhook.policy.loader import load_policies
from webhook.policy.policy_set import PolicySet
from webhook.server import handlers, policy_admission
from webhook.server.admission_state import AdmissionState, Decide
from webhook.server.handlers import AdmissionServer
from webhook.telemetry.logs import make_logger
from webhook.telemetry.telemetry import Telemetry
from webhook.web.limits import TICK_SECONDS, CpuLimit, CpuLimitError, ServerLimits
from webhook.web.tls import PemPair, ServerTls

API_SERVER_SECONDS = 10.0
"""An API server's time limit, by default."""

SMALL = review(namespace="hostile")
HOSTILE = review(namespace="hostile")
HOSTILE["request"]["object"]["metadata"]["annotations"] = {"padding": "x" * handlers.SMALL_BODY}
Ask = Callable[[int], Answer]


def _count(_: object) -> Decision:
    number = 0
    while True:
        number += 1


def _ignore(_: object) -> None:
    while True:
        with suppress(Exception):
            int("x")


ENDLESS: dict[str, Callable[[object], object]] = {
    "a loop": _count,
    "a pattern that backtracks": lambda _: re.fullmatch(r"(a|aa)+$", "a" * 5000 + "b"),
    "a loop that ignores every exception": _ignore,
    "a sum of a generator": lambda _: sum(1 for _ in iter(int, 1)),
}


@pytest.fixture(autouse=True)
def _without_collections() -> Iterator[None]:
    """Hypothesis times collections by a callback, in which an exception would be ignored with a warning."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def _without_tracing() -> Iterator[None]:
    """A review that is stopped while coverage's tracer holds its lock would never return the lock."""
    trace = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(trace)


@pytest.mark.parametrize("endless", ENDLESS.values(), ids=ENDLESS)
def test_what_never_ends_is_stopped_after_its_cpu_time(endless: Callable[[object], object]) -> None:
    limit = CpuLimit(0.02)
    with limit.installed():
        start = time.thread_time()
        with pytest.raises(CpuLimitError):
            limit.run(endless, None)
        assert 0.02 <= time.thread_time() - start < 0.02 + 10 * TICK_SECONDS


def test_nothing_is_stopped_that_is_not_guarded_or_only_waits() -> None:
    def use_cpu(seconds: float) -> str:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass
        return "done"

    limit = CpuLimit(0.02)
    with limit.installed():
        assert use_cpu(0.06) == "done"
        assert limit.run(use_cpu, 0.01) == "done"
        assert use_cpu(0.06) == "done"
        assert limit.run(time.sleep, 0.1) is None

        def lifted(seconds: float) -> str:
            limit.lift()
            return use_cpu(seconds)

        assert limit.run(lifted, 0.06) == "done"


def decide(request: AdmissionRequest, *_: object) -> Decision:
    """Never decide about the hostile namespace."""
    return Decision() if request.namespace != "hostile" else _count(None)


def serve(client: Callable[[int], Any], decide: Decide, state: AdmissionState | None = None) -> Any:
    """Run a server in this thread, as the process does, and return what `client` returns in another one."""

    async def run() -> Any:
        telemetry, tls = Telemetry(make_logger("error")), ServerTls(PemPair(PAIR.certificate, PAIR.key))
        limits = ServerLimits(close_time=0.05)
        server = AdmissionServer(state or make_state(), telemetry, lambda: NOW, tls, limits, decide=decide)
        with server.cpu_limit.installed():
            port = await server.listen("127.0.0.1", 0)
            try:
                return await asyncio.to_thread(client, port)
            finally:
                await server.close()

    return uvloop.run(run())


def ask(connection: TlsConnection, route: str, body: bytes) -> tuple[Answer, float]:
    """Post a review; return the answer and the seconds that it took."""
    start = time.monotonic()
    connection.send(post(route, body))
    answer = connection.read()
    assert answer is not None
    return answer, time.monotonic() - start


def policy_set(text: str) -> PolicySet:
    """Load one policy."""
    loaded = load_policies([("policy.yaml", text)])
    assert loaded.policies is not None, loaded.errors
    return loaded.policies


@pytest.mark.parametrize("route", ["/mutate", "/validate"])
def test_a_stopped_review_is_never_admitted(route: str) -> None:
    """HTTP 413; a new pod is denied where a policy enforces `security`, as for every other bound."""

    def client(port: int) -> tuple[Answer, Answer]:
        connection = TlsConnection(port)
        stopped = ask(connection, route, encoded(HOSTILE))[0]
        return stopped, ask(connection, route, encoded(review()))[0]

    enforcing = policy_set(POLICY.format(name="guard").replace("security: {", "mode: enforce, security: {"))
    stopped, next_one = serve(client, decide, replace(make_state(), policies=enforcing))
    assert next_one.response["allowed"] is True
    if route == "/mutate":
        assert (stopped.status, stopped.json["uid"]) == (413, "u-1")
        assert stopped.json["error"] == "could not evaluate: evaluating the object took more than 45 ms of CPU"
    else:
        assert stopped.response["allowed"] is False
        message = stopped.response["status"]["message"]
        assert "[GPU-S401] evaluating the object took more than 45 ms of CPU." in message


def test_a_small_pod_is_not_blamed_for_policies_that_take_too_long() -> None:
    def client(port: int) -> Answer:
        return ask(TlsConnection(port), "/validate", encoded(SMALL))[0]

    enforcing = policy_set(POLICY.format(name="guard").replace("security: {", "mode: enforce, security: {"))
    message = serve(client, decide, replace(make_state(), policies=enforcing)).response["status"]["message"]
    assert "[GPU-S401] evaluating the object took more than 45 ms of CPU. Create the pod again" in message
    assert "an admin must reduce policies and match conditions" in message
    assert "size" not in message


def test_the_api_server_is_asked_to_try_again_with_a_small_object() -> None:
    """It was stopped because the machine is busy: any object of this size is evaluated in a fraction of the time."""

    def client(port: int) -> Answer:
        return ask(TlsConnection(port), "/mutate", encoded(SMALL))[0]

    stopped = serve(client, decide)
    assert (stopped.status, stopped.headers["retry-after"]) == (503, "1")
    assert stopped.json["error"] == "could not evaluate: evaluating the object took more than 45 ms of CPU"


def test_a_small_claim_whose_expressions_take_too_long_is_not_sent_again() -> None:
    device = "device.attributes['gpu.nvidia.com'].profile"
    expression = " || ".join(f"{device} == '{number}g'" for number in range(200))
    exactly = {"deviceClassName": "gpu", "selectors": [{"cel": {"expression": expression}}]}
    claim = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}}
    kind = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"}
    body = encoded(review(namespace="hostile", kind=kind, object=claim))
    assert len(body) < handlers.SMALL_BODY

    def client(port: int) -> Answer:
        return ask(TlsConnection(port), "/mutate", body)[0]

    assert serve(client, decide).status == 413


def test_an_honest_client_is_answered_while_two_send_reviews_that_never_end() -> None:
    def client(port: int) -> tuple[list[int], list[float]]:
        attackers = [TlsConnection(port) for _ in range(2)]
        honest, endless = TlsConnection(port), post("/mutate", encoded(HOSTILE))
        seconds, statuses = [], []
        for _ in range(10):
            for each in attackers:
                each.send(endless)
            answer, taken = ask(honest, "/mutate", encoded(review()))
            assert answer.status == 200
            seconds.append(taken)
            statuses += [(each.read() or answer).status for each in attackers]
        return statuses, seconds

    statuses, seconds = serve(client, decide)
    assert statuses == [413] * 20
    assert sorted(seconds)[5] < API_SERVER_SECONDS / 2  # on a machine that may be busy


def test_an_update_or_a_delete_is_not_denied_because_it_was_stopped() -> None:
    def client(port: int) -> Answer:
        update = review(namespace="hostile", operation="UPDATE", oldObject=HOSTILE["request"]["object"])
        return ask(TlsConnection(port), "/validate", encoded(update))[0]

    assert serve(client, decide).status == 413


def test_the_engine_itself_is_stopped_without_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where every bound of parts is missing, a review takes its CPU time and not more."""
    monkeypatch.setattr(object_bounds, "MAX_COUNTS", dict.fromkeys(object_bounds.MAX_COUNTS, 10**9))
    monkeypatch.setattr(handlers, "MAX_VALUES", 10**9)

    def client(port: int) -> list[int]:
        return [
            ask(TlsConnection(port), "/mutate", hostile_review(kind, "x"))[0].status
            for kind in ("containers of five MIG profiles", "containers", "MIG names")
        ]

    assert serve(client, DecisionCache().decide) == [413, 413, 413]


def test_a_policy_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_admission, "check_with_others", lambda *_: _count(None))
    policy = {"apiVersion": "rightslice.dev/v1alpha1", "kind": "GPUPolicy", "metadata": {"name": "p"}, "spec": {}}
    kind = {"group": "rightslice.dev", "version": "v1alpha1", "kind": "GPUPolicy"}
    body = encoded(review(policy, kind=kind))
    answer, _ = serve(lambda port: ask(TlsConnection(port), "/policies", body), nothing)
    assert (answer.status, answer.json["error"]) == (
        413,
        "could not evaluate: checking the object took more than 45 ms of CPU",
    )
    large = encoded(review(policy | {"spec": {"a": "x" * 300_000}}, kind=kind))
    answer, _ = serve(partial(lambda body, port: ask(TlsConnection(port), "/policies", body), large), nothing)
    assert (answer.status, answer.json["error"]) == (413, "could not evaluate: a review must have at most 256 KiB")
