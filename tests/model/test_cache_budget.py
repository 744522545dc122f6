"""Caches of parts of requests are cleared by the bytes of requests, whatever their keys are."""

from __future__ import annotations

import ast
import tracemalloc
from pathlib import Path

import pytest

from tests.builders import Json
from tests.device_builders import node_groups, partitionable_gpus
from tests.engine.test_claim_review import CLUSTER, claiming, request, template
from tests.engine.test_workload_review import workload
from tests.example_cluster import review, view_of
from webhook.model.bounded_cache import BoundedCache, CacheBudget, clear_request_caches, request_cache

PACKAGE = Path(__file__).parents[2] / "webhook"

UNREGISTERED = {
    "audit/layout_demand.py": "keyed by products and MIG profiles; the command line and the console use it",
    "certs/secret_state.py": "keyed by our own certificates",
    "cli/usage_inputs.py": "keyed by flags of a command; the last value only",
    "cli/usage_records.py": "keyed by flags of a command; the last value only",
    "engine/feasible_nodes.py": "keyed by the fleet",
    "engine/matched_policies.py": "keyed by masks over policies",
    "engine/node_fit.py": "keyed by the fleet",
    "placement": "keyed by nodes and policies; the extender and the command line use it",
    "policy/lint.py": "keyed by policies",
    "usage/history.py": "keyed by samples of usage",
    "web/limits.py": "keyed by the query of a URL, which is at most one line of a request",
    "model/cluster_view.py": "keyed by the fleet",
    "model/node_groups.py": "keyed by the fleet and by what is written about node groups",
    "model/bounded_cache.py": "registers its functions",
}
"""Where `lru_cache` may be used, and why no text of a request can fill it."""


@request_cache(8)
def doubled(text: str) -> str:
    return text * 2


def test_requests_beyond_the_budget_clear_every_cache() -> None:
    cache: BoundedCache[str, str] = BoundedCache(8)
    cache.store("a", doubled("a"))
    budget = CacheBudget(100)

    budget.spend(100)
    assert (doubled.cache_info().currsize, len(cache)) == (1, 1)
    budget.spend(1)
    assert (doubled.cache_info().currsize, len(cache)) == (0, 0)


def test_a_budget_starts_again_after_it_was_exceeded() -> None:
    budget = CacheBudget(100)
    budget.spend(101)
    doubled("b")
    budget.spend(100)
    assert doubled.cache_info().currsize == 1


def test_the_owner_of_a_cache_can_be_freed() -> None:
    cache: BoundedCache[str, str] = BoundedCache(8)
    del cache
    CacheBudget(0).spend(1)


def groups_of_eight_cards(count: int) -> Json:
    """Return settings with groups whose new nodes have eight cards each."""
    groups = [node_groups(*partitionable_gpus(f"new-{index}", 8), name=f"new-{index}") for index in range(count)]
    return groups[0] | {"nodeGroups": [each for one in groups for each in one["nodeGroups"]]}


MANY = [{**request(), "name": f"request-{index}"} for index in range(32)]
WORKLOADS: dict[str, tuple[list[Json], list[str]]] = {
    "groups with many devices": ([template(request(count=3)), groups_of_eight_cards(2)], ["a"]),
    "a large template that a pod names often": ([template(*MANY)], [f"claim-{index}" for index in range(100)]),
}
REVIEWS, MAX_HELD_BYTES = 5, 50_000
"""Workloads, and what each may hold in caches; its request has some kilobytes."""


@pytest.mark.parametrize(("objects", "claims"), WORKLOADS.values(), ids=WORKLOADS)
def test_small_workloads_hold_no_devices_or_stored_templates_in_caches(objects: list[Json], claims: list[str]) -> None:
    view = view_of(*CLUSTER, *objects)
    review(workload("Deployment", claiming(*claims), replicas=2), view=view)
    clear_request_caches()
    tracemalloc.start()
    try:
        for replicas in range(3, 3 + REVIEWS):
            review(workload("Deployment", claiming(*claims), replicas=replicas), view=view)
        held, _ = tracemalloc.get_traced_memory()
        clear_request_caches()
        assert held - tracemalloc.get_traced_memory()[0] < REVIEWS * MAX_HELD_BYTES
    finally:
        tracemalloc.stop()


def test_every_other_cache_of_a_function_is_keyed_by_no_text_of_a_request() -> None:
    using = {
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name) and node.id == "lru_cache"
    }
    unexplained = {name for name in using if not name.startswith(tuple(UNREGISTERED))}
    assert unexplained == set()
