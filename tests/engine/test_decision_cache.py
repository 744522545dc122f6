"""A cached decision equals a new one: for copies, for other pods, and after the cluster changes."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import Json, PodMaker, make_namespace, make_pod
from tests.engine.invariants import POLICIES, SMALL, TRUSTED, VIEWS, any_pods, gpu_pods
from tests.example_cluster import NO_USAGE, NOW, codes, mig_node, policies_of, policy, request_of, view_of, whole_node
from tests.usage_builders import observed_usage, workload_usage
from webhook.engine.decide import decide
from webhook.engine.decision_cache import MAX_ENTRIES, MAX_KEY_BYTES, MAX_TOTAL_BYTES, DecisionCache, RecordingView
from webhook.model.capacity_view import CapacityView
from webhook.model.cluster_view import AssumedPod, ClusterView
from webhook.model.decisions import KeepReason, KeepRequest, OfferChoice
from webhook.model.filters.inter_pod_affinity import EXCLUDES_ALL
from webhook.model.objects import ResourceQuota, ResourceQuotaSpec
from webhook.model.workloads import INDEX_KEYS
from webhook.policy.policy_set import PolicySet

law = settings(max_examples=150)

EXEMPTING = policies_of(
    policy(
        """
mode: enforce
security: {deny: [privileged]}
exemptions:
  - name: debugging
    codes: [GPU-S201]
    match: {namespaces: [team]}
    reason: a test
    expirationTime: "2026-06-01T00:10:00Z"
"""
    )
)
CHOOSY = policies_of(
    policy(
        """
mode: enforce
match: {objectSelector: {matchLabels: {apps.kubernetes.io/pod-index: "1"}}}
rightSizing: {default: {memory: 8Gi}}
"""
    )
)
WHOLE_OBJECT = policies_of(
    policy(
        """
mode: enforce
match: {matchConditions: [{name: first, expression: "object.metadata.name != 'pod-1'"}]}
rightSizing: {default: {memory: 8Gi}}
"""
    )
)
EXEMPTING_THE_FIRST = policies_of(
    policy(
        """
mode: enforce
security: {deny: [privileged]}
exemptions:
  - name: first
    codes: [GPU-S201]
    match: {namespaces: [team], objectSelector: {matchLabels: {apps.kubernetes.io/pod-index: "0"}}}
    reason: a test
    expirationTime: "2026-06-01T00:10:00Z"
"""
    )
)
SETS = {
    **POLICIES,
    "exempting": EXEMPTING,
    "exempting the first": EXEMPTING_THE_FIRST,
    "choosy": CHOOSY,
    "whole object": WHOLE_OBJECT,
}


def copies(pod: Json) -> st.SearchStrategy[Json]:
    """Generate the pod as a controller would create it again, with another name and other numbers."""

    def numbered(number: int) -> Json:
        copy: Json = json.loads(json.dumps(pod))
        metadata = copy["metadata"]
        metadata |= {"name": f"pod-{number}", "generateName": "pod-", "uid": f"uid-{number}"}
        for notes in ("labels", "annotations"):
            if metadata.get(notes) is not None or number > 1:
                metadata[notes] = {**(metadata.get(notes) or {}), **dict.fromkeys(INDEX_KEYS, str(number))}
        return copy

    return st.integers(0, 3).map(numbered)


@st.composite
def sequences(draw: st.DrawFn) -> list[Json]:
    """Generate sequences of few kinds of pods, each several times."""
    kinds = draw(st.lists(any_pods() | gpu_pods(), min_size=1, max_size=2))
    return draw(st.lists(st.sampled_from(kinds).flatmap(copies), min_size=2, max_size=6))


@st.composite
def cluster_states(draw: st.DrawFn) -> tuple[ClusterView, PolicySet, datetime]:
    """Generate a cluster with some capacity used, perhaps anti-affinity, policies, and a time."""
    view = VIEWS[draw(st.sampled_from(["free", "free", "counted", "demo"]))]
    taken = draw(st.sampled_from([0, 0, 6, 7, 100]))
    if taken:
        view = view.with_assumed(
            AssumedPod("", SMALL, view.fleet.all_nodes, taken, NOW.timestamp() + 1e6), NOW.timestamp()
        )
    if draw(st.booleans()):
        view = view.with_tie_counts({EXCLUDES_ALL: draw(st.sampled_from([{}, {"": 1}]))})
    return view, SETS[draw(st.sampled_from(sorted(SETS)))], NOW + timedelta(minutes=draw(st.sampled_from([0, 9, 10])))


@pytest.mark.no_cover
@law
@given(sequences(), st.lists(cluster_states(), min_size=1, max_size=2), st.data())
def test_cached_decisions_equal_uncached_ones(
    pods: list[Json], states: list[tuple[ClusterView, PolicySet, datetime]], data: st.DataObject
) -> None:
    cache = DecisionCache()
    for pod in pods:
        view, policies, now = data.draw(st.sampled_from(states))
        request = request_of(pod)
        assert cache.decide(request, policies, view, NO_USAGE, now) == decide(request, policies, view, NO_USAGE, now)


POD = make_pod().gpus(1).needs("8Gi").owned_by("Job", "train")
SIZING = policies_of(policy("mode: enforce\nrightSizing: {}"))
RAISED = {"privileged": True}
VIEW = view_of(TRUSTED, mig_node(), whole_node())


def renamed(number: int) -> Json:
    """Return a numbered copy of the pod."""
    pod = POD.build()
    pod["metadata"] |= {"name": f"train-{number}", "uid": f"uid-{number}"}
    pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] = str(number)
    name = f"kube-api-access-{number}"
    pod["spec"]["volumes"] = [{"name": name, "projected": {}}]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": name, "mountPath": "/var/run/secrets"}]
    return pod


def test_copies_of_a_pod_share_one_decision() -> None:
    cache = DecisionCache()
    first, second = (cache.decide(request_of(renamed(i)), SIZING, VIEW, NO_USAGE, NOW) for i in (1, 2))
    assert isinstance(first.outcome, OfferChoice)
    assert second is first


def test_capacity_used_since_then_invalidates_the_cache() -> None:
    cache = DecisionCache()
    assert isinstance(cache.decide(request_of(renamed(1)), SIZING, VIEW, NO_USAGE, NOW).outcome, OfferChoice)
    taken = [
        AssumedPod("", name, VIEW.fleet.all_nodes, 1, 1e12, times=100) for name in (SMALL, "nvidia.com/mig-3g.40gb")
    ]
    full = VIEW.with_assumed(taken[0], 0).with_assumed(taken[1], 0)
    outcome = cache.decide(request_of(renamed(2)), SIZING, full, NO_USAGE, NOW).outcome
    assert isinstance(outcome, KeepRequest)
    assert outcome.reason is KeepReason.NO_FREE_CAPACITY


def test_the_first_anti_affinity_of_a_cluster_invalidates_the_cache_and_so_does_its_end() -> None:
    cache, excluding = DecisionCache(), VIEW.with_tie_counts({EXCLUDES_ALL: {"": 1}})
    outcomes = [
        cache.decide(request_of(renamed(number)), SIZING, view, NO_USAGE, NOW).outcome
        for number, view in enumerate((VIEW, excluding, VIEW))
    ]
    reasons = [outcome.reason if isinstance(outcome, KeepRequest) else None for outcome in outcomes]
    assert reasons == [None, KeepReason.ANTI_AFFINITY, None]


DIFFERENT: dict[str, PodMaker] = {
    "another amount": make_pod().gpus(2).needs("8Gi").owned_by("Job", "train"),
    "another need": make_pod().gpus(1).needs("20Gi").owned_by("Job", "train"),
    "another label": make_pod().gpus(1).needs("8Gi").owned_by("Job", "train").label("kueue.x-k8s.io/queue-name", "q"),
    "another owner": make_pod().gpus(1).needs("8Gi").owned_by("DaemonSet", "train"),
    "another namespace": make_pod().gpus(1).needs("8Gi").owned_by("Job", "train").namespace("batch"),
}


@pytest.mark.parametrize("pod", DIFFERENT.values(), ids=DIFFERENT)
def test_a_pod_that_differs_is_decided_again(pod: PodMaker) -> None:
    cache = DecisionCache()
    cache.decide(request_of(POD.build()), SIZING, VIEW, NO_USAGE, NOW)
    request = request_of(pod.build())
    assert cache.decide(request, SIZING, VIEW, NO_USAGE, NOW) == decide(request, SIZING, VIEW, NO_USAGE, NOW)


def test_mutable_and_stored_pods_are_cached_separately() -> None:
    policies = policies_of(policy("mode: enforce\nlimits: {accounting: native, accountingScheduler: configured}"))
    cache, pod = DecisionCache(), make_pod().gpus(1).build()
    final = {**pod, "metadata": {**pod["metadata"], "uid": "0a1b"}}
    view = view_of(make_namespace("team"), whole_node())
    for data, want in ((pod, []), (final, ["enforce GPU-Q302"]), (pod, [])):
        assert codes(cache.decide(request_of(data), policies, view, NO_USAGE, NOW)) == want


NODE = {"user": "system:node:a", "groups": ("system:nodes",)}
SENDERS: dict[str, dict[str, Any]] = {
    "a condition on the user's groups": NODE | {"user": "alice"},
    "a condition on the user's name": NODE | {"groups": ("system:authenticated",)},
}


@pytest.mark.parametrize("other", SENDERS.values(), ids=SENDERS)
def test_node_permissions_are_not_cached_for_others(other: dict[str, Any]) -> None:
    policies = policies_of(policy("mode: enforce\nsecurity: {deny: [mirrorPod]}"))
    cache, pod = DecisionCache(), make_pod().annotate("kubernetes.io/config.mirror", "0a1b").build()
    for sender, denied in ((NODE, False), (other, True), (NODE, False)):
        assert bool(cache.decide(request_of(pod, **sender), policies, VIEW, NO_USAGE, NOW).denials) is denied


def test_an_owner_that_does_not_control_the_pod_counts() -> None:
    cache, owned = DecisionCache(), POD.build()
    owned["metadata"]["ownerReferences"] += [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "v"}]
    for pod, fits in ((POD.build(), True), (owned, False), (POD.build(), True)):
        assert isinstance(cache.decide(request_of(pod), SIZING, VIEW, NO_USAGE, NOW).outcome, OfferChoice) is fits


def test_a_stale_view_invalidates_the_cache() -> None:
    cache, request = DecisionCache(), request_of(renamed(1))
    for stale in (False, True, False):
        outcome = cache.decide(request, SIZING, VIEW.with_staleness(stale=stale), NO_USAGE, NOW).outcome
        assert outcome == KeepRequest(KeepReason.STALE_VIEW) if stale else isinstance(outcome, OfferChoice)


def test_an_exemption_ends_at_its_time() -> None:
    cache, request = DecisionCache(), request_of(make_pod().gpus(1).container("root", securityContext=RAISED).build())
    found = [cache.decide(request, EXEMPTING, VIEW, NO_USAGE, NOW + timedelta(minutes=after)) for after in (9, 10)]
    assert [bool(one.denials) for one in found] == [False, True]


@pytest.mark.parametrize(("policies", "shared"), [(EXEMPTING, True), (EXEMPTING_THE_FIRST, False)])
def test_index_labels_keep_copies_apart_only_where_an_exemption_selects_labels(
    policies: PolicySet, shared: bool
) -> None:
    cache, container = DecisionCache(), make_pod().gpus(1).container("root", securityContext=RAISED)
    pods = [container.label("apps.kubernetes.io/pod-index", str(index)).build() for index in range(2)]
    first, second = (cache.decide(request_of(pod), policies, VIEW, NO_USAGE, NOW) for pod in pods)
    assert (second is first) is shared
    assert bool(second.denials) is not shared


def test_a_filled_quota_invalidates_the_cache() -> None:
    cache, request = DecisionCache(), request_of(renamed(1))
    assert isinstance(cache.decide(request, SIZING, VIEW, NO_USAGE, NOW).outcome, OfferChoice)
    hard = ResourceQuota(spec=ResourceQuotaSpec(hard={"requests.nvidia.com/gpu": "4"}))
    counted = ClusterView(VIEW.fleet, quotas={"team": (hard,)})
    outcome = cache.decide(request, SIZING, counted, NO_USAGE, NOW).outcome
    assert outcome == KeepRequest(KeepReason.QUOTA_NOT_COVERING, SMALL)


def test_usage_observed_since_then_invalidates_the_cache() -> None:
    cache, request = DecisionCache(), request_of(make_pod("lone").gpus(1).build())
    before = cache.decide(request, SIZING, VIEW, NO_USAGE, NOW)
    assert before.outcome == KeepRequest(KeepReason.NO_EVIDENCE)
    use = workload_usage("Pod/lone", main=observed_usage(4096))
    assert isinstance(cache.decide(request, SIZING, VIEW, use, NOW).outcome, OfferChoice)


def test_usage_of_other_workloads_keeps_the_cached_decision() -> None:
    cache, request = DecisionCache(), request_of(make_pod("lone").gpus(1).build())
    use = workload_usage("Pod/lone", main=observed_usage(4096))
    before = cache.decide(request, SIZING, VIEW, use, NOW)
    others = msgspec.structs.replace(use, observed={**use.observed, ("team", "Pod/other", "main"): observed_usage(1)})
    assert cache.decide(request, SIZING, VIEW, others, NOW) is before
    dearer = msgspec.structs.replace(use, prices=((1, 2000),))
    assert cache.decide(request, SIZING, VIEW, dearer, NOW) is not before


def test_a_policy_that_requests_the_whole_object_gets_it() -> None:
    cache = DecisionCache()
    outcomes = [
        cache.decide(request_of(make_pod(f"pod-{i}").gpus(1).build()), WHOLE_OBJECT, VIEW, NO_USAGE, NOW).outcome
        for i in range(3)
    ]
    assert [isinstance(outcome, OfferChoice) for outcome in outcomes] == [True, False, True]


def stays_cached(cache: DecisionCache, pod: Json, change: Callable[[], Any]) -> bool:
    """Return whether a pod's decision is still cached after a change."""
    first = cache.decide(request_of(pod), SIZING, VIEW, NO_USAGE, NOW)
    change()
    return cache.decide(request_of(pod), SIZING, VIEW, NO_USAGE, NOW) is first


@pytest.mark.parametrize(("others", "kept"), [(MAX_ENTRIES - 1, True), (MAX_ENTRIES, False)])
def test_the_oldest_entry_is_evicted_when_the_cache_is_full(others: int, kept: bool) -> None:
    cache = DecisionCache()

    def decide_others() -> None:
        for number in range(others):
            cache.decide(request_of(make_pod(f"other-{number}").build()), SIZING, VIEW, NO_USAGE, NOW)

    assert stays_cached(cache, POD.build(), decide_others) is kept


@pytest.mark.parametrize(("size", "kept"), [(100, True), (MAX_KEY_BYTES - 2_000, False)])
def test_the_oldest_entry_is_evicted_when_the_keys_take_too_much_memory(size: int, kept: bool) -> None:
    cache = DecisionCache()

    def decide_others() -> None:
        for number in range(MAX_TOTAL_BYTES // MAX_KEY_BYTES * 3 // 2):
            pod = make_pod(f"other-{number}").env("BIG", "x" * size).build()
            cache.decide(request_of(pod), SIZING, VIEW, NO_USAGE, NOW)

    assert stays_cached(cache, POD.build(), decide_others) is kept


def test_a_pod_that_cannot_be_serialized_is_still_decided() -> None:
    request = request_of(POD.build() | {"metadata": {"name": "p", "labels": {"odd": "\ud800"}}})
    assert DecisionCache().decide(request, SIZING, VIEW, NO_USAGE, NOW) == decide(request, SIZING, VIEW, NO_USAGE, NOW)


@pytest.mark.parametrize("key", sorted(INDEX_KEYS))
def test_a_number_longer_than_any_name_is_kept_in_the_key(key: str) -> None:
    """The API server counts the bytes of the name: too little may remain for annotations."""
    request = request_of(make_pod().gpus(1).needs("8Gi").annotate(key, "x" * (256 * 1024 - 60)).build())
    assert DecisionCache().decide(request, SIZING, VIEW, NO_USAGE, NOW) == decide(request, SIZING, VIEW, NO_USAGE, NOW)


def test_a_too_large_pod_is_not_cached() -> None:
    assert not stays_cached(DecisionCache(), make_pod().gpus(1).env("BIG", "x" * MAX_KEY_BYTES).build(), lambda: None)


NO_PART_OF_A_DECISION = {"pool_in_flight", "has_pod", "has_reserved", "assumed_pods", "precompute_weights"}
"""What servers, reports and other queries read."""


def test_every_query_that_reads_pods_is_recorded() -> None:
    """Otherwise a kept decision outlives its reason: the slices that a quota has left, for example."""
    members = [*vars(CapacityView).items(), *vars(ClusterView).items()]
    queries = {name: getattr(each, "fget", each) for name, each in members if not name.startswith(("_", "with"))}
    reads_pods = re.compile(r"self\._(usage|assumed|waiting)\b")
    reading = {name for name, each in queries.items() if reads_pods.search(inspect.getsource(each))}

    assert reading - vars(RecordingView).keys() == NO_PART_OF_A_DECISION
