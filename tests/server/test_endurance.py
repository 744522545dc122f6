"""What hours of reviews would show, on a clock that is moved: nothing is left behind, and no review is slow."""

from __future__ import annotations

import asyncio
import gc
import io
import sys
import time
from datetime import datetime, timedelta
from itertools import islice, pairwise
from pathlib import Path

import pytest

from benchmarks.soak import pods
from tests.conftest import ROOT
from tests.cpu_timer import slowness
from tests.server.site import NOW, POLICY, make_state, post, serve_site
from webhook.cache.snapshot import read_snapshot
from webhook.engine.decision_cache import DecisionCache
from webhook.model.bounded_cache import clear_request_caches
from webhook.model.fleet import Fleet
from webhook.model.usage import UsageView
from webhook.policy.loader import load_policies
from webhook.policy.policy_set import PolicySet
from webhook.server import handlers
from webhook.server.admission_state import AdmissionState, PolicyLoadStatus
from webhook.server.handlers import API_SERVER, AdmissionHandler, AdmissionServer
from webhook.server.policy_reload import PolicyReloader
from webhook.server.policy_sources import PolicyFiles
from webhook.telemetry.logs import make_logger
from webhook.telemetry.telemetry import Telemetry
from webhook.web.http_messages import HttpRequest
from webhook.web.limits import CpuLimit
from webhook.web.listener import Poll, freeze_and_tune_gc

pytestmark = pytest.mark.no_cover

POLICIES = [(str(file), file.read_text()) for file in sorted((ROOT / "policies").glob("*.yaml"))]
STEP = 0.05
"""Seconds between two creates."""

MOST_REVIEW_CPU = 0.05
"""Seconds of CPU that block the event loop."""

RELOADS = 2


def shipped() -> PolicySet:
    """Load the shipped policies."""
    loaded = load_policies(POLICIES)
    assert loaded.policies is not None, loaded.errors
    return loaded.policies


class Replica:
    """Both routes of a server with the shipped policies and the demo cluster, whose clocks move with each review."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds, self.bodies = 0.0, pods()
        monkeypatch.setattr(handlers, "monotonic", lambda: self.seconds)
        self.state = AdmissionState(shipped(), read_snapshot("demo").view, UsageView(), PolicyLoadStatus(NOW))
        telemetry, self.cache = Telemetry(make_logger("error", io.StringIO())), DecisionCache()
        self.routes = [
            AdmissionHandler(route, self.state, self._now, self.cache.decide, telemetry, 5.0, CpuLimit())
            for route in ("mutate", "validate")
        ]

    def _now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds)

    def create(self, count: int) -> list[float]:
        """Review creates of pods, nine in ten of them new; return the CPU seconds of each review."""
        spent = []
        for body in islice(self.bodies, count):
            self.seconds += STEP
            for route in self.routes:
                start = time.thread_time()
                response = route.handle(HttpRequest(body, "", 0.0, {"User-Agent": API_SERVER}))
                assert response.status == 200
                assert response.after_send is not None
                response.after_send()
                spent.append(time.thread_time() - start)
        return spent

    def blocks_after_an_hour(self) -> int:
        """Move the clocks by an hour, empty the bounded caches, and return how many blocks of memory remain."""
        self.seconds += 3600
        self.create(10)
        self.cache.clear()
        clear_request_caches()
        gc.collect()
        return sys.getallocatedblocks()


def open_files() -> int:
    """Return the number of files and sockets that this process holds."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_reviews_leave_neither_memory_nor_files_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of the heap, once everything has expired: what grows by one entry with each pod would show."""
    replica = Replica(monkeypatch)
    replica.create(500)
    files, blocks = open_files(), [replica.blocks_after_an_hour()]
    for _ in range(3):
        replica.create(1500)
        blocks.append(replica.blocks_after_an_hour())

    assert min(after - before for before, after in pairwise(blocks)) < 1500, "one for each pod, every time"
    assert open_files() < files + 100, "tests before this one may still close or open a few"


def test_replaced_policies_and_nodes_are_freed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a later garbage collection, and not kept by any cache: they are the largest objects of a server."""
    replica = Replica(monkeypatch)

    def replace_both() -> int:
        replica.state.activate_policies(shipped())
        replica.state.view = read_snapshot("demo").view
        replica.create(60)
        return sum(isinstance(each, PolicySet | Fleet) for each in gc.get_objects())

    replace_both()
    gc.collect()
    before = replace_both()
    gc.disable()
    try:
        assert [replace_both() for _ in range(4)] == [before] * 4
    finally:
        gc.enable()


def longest_of_a_burst(replica: Replica) -> float:
    """Return the CPU seconds of the longest review after an idle hour, as an idle machine would take them."""
    replica.create(600)
    assert len(replica.state.view.assumed_pods) > 100, "the first review has something to expire"
    replica.seconds += 3600
    gc.disable()  # the heap of thousands of tests is no server's
    try:
        return max(replica.create(1000)) / slowness()
    finally:
        gc.enable()


def test_a_burst_after_an_idle_hour_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica(monkeypatch)
    assert min(longest_of_a_burst(replica) for _ in range(2)) < MOST_REVIEW_CPU


def test_no_iteration_of_the_event_loop_is_long(tmp_path: Path) -> None:
    """Reviews and reloads of policies, in CPU time of the loop's thread: other work of the machine does not count.

    Each reload would prolong one; a single one may be long because the machine was slow for a moment.
    """
    file, long = tmp_path / "policies.yaml", list[float]()
    text = "---\n".join(text for _, text in POLICIES)
    file.write_text(text)

    async def measure() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            if (spent := time.thread_time() - last) > MOST_REVIEW_CPU:
                long.append(spent / slowness())
            last = time.thread_time()

    def reload(state: AdmissionState, telemetry: Telemetry) -> list[Poll]:
        return [PolicyReloader(PolicyFiles((file,)), load_policies, state, lambda: NOW, telemetry).reload_if_changed]

    def prepare(server: AdmissionServer) -> None:
        server.tasks = [*server.tasks, measure]

    digests, replaced, thresholds = set[str](), "", gc.get_threshold()
    freeze_and_tune_gc()  # as the server does
    with serve_site(
        DecisionCache().decide, state=make_state(read_snapshot("demo").view), make_polls=reload, prepare=prepare
    ) as site:
        connection = site.connect()
        for number, body in enumerate(islice(pods(), 50_000)):
            if number >= 1500 and len(digests) > RELOADS:  # a busy machine loads policies late
                break
            active = site.server.state.policies.digest
            if number % 300 == 0 and active != replaced:  # a file that keeps changing is not loaded
                file.write_text(f"{text}---\n{POLICY.format(name=f'guard-{number}')}")
                replaced = active
            connection.send(post("/mutate", body))
            answer = connection.read()
            assert answer is not None
            assert answer.status == 200
            digests.add(active)
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    assert len(digests) > RELOADS, "policies were loaded meanwhile"
    assert sum(seconds > MOST_REVIEW_CPU for seconds in long) < RELOADS, long
