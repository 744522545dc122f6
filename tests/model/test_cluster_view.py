"""ClusterView: free resources, and pods that were admitted a moment ago."""

from __future__ import annotations

from collections import Counter
from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.nodes import A100, GPU, SHARED, node
from webhook.model.assumed_pods import MAX_KINDS
from webhook.model.claims import DeviceClassSpec
from webhook.model.cluster_view import AssumedPod, ClusterView
from webhook.model.filters.node_ports import ALL_INTERFACES, HostPort
from webhook.model.filters.pod_ties import PendingPod
from webhook.model.fleet import Fleet
from webhook.model.free_resources import FreeResources
from webhook.model.limit_ranges import NO_LIMIT_RANGES
from webhook.model.objects import LimitRange, Namespace, ResourceQuota
from webhook.model.pod_resources import ResourceAmounts
from webhook.model.pod_summary import NodeConstraints
from webhook.model.pods import NodeSelectorRequirement, NodeSelectorTerm, ObjectMeta
from webhook.model.quantity import NANO
from webhook.model.waiting_pods import MAX_WAITING_KINDS, WaitingKind

CARD = {"gpu.product": A100}
FLEET = Fleet([node("a", CARD, **{GPU: "8"}), node("b", CARD, **{GPU: "4"}), node("cpu")])
ROOMS = {"a": FreeResources(4000, 8 << 30, {GPU: 2}), "b": FreeResources(64000, 512 << 30, {GPU: 1})}
GIB = 1 << 30
BOTH, A, B = 0b11, 0b01, 0b10


def _has_free_node(view: ClusterView, count: int, nodes: int = BOTH, cpu_milli: int = 0, memory: int = 0) -> bool:
    return view.has_free_node(GPU, count, nodes, cpu_milli=cpu_milli, memory=memory)


def _pod(uid: str, nodes: int = BOTH, count: int = 1, until: float = 10.0, resource: str = GPU) -> AssumedPod:
    return AssumedPod(uid, resource, nodes, count, until)


def test_one_node_must_have_everything() -> None:
    view = ClusterView(FLEET, free=ROOMS)
    assert _has_free_node(view, 2)
    assert not _has_free_node(view, 3), "three units are free, but on two nodes"
    assert not _has_free_node(view, 2, B)
    assert not _has_free_node(view, 1, 0)
    assert not view.has_free_node(SHARED, 1, BOTH, cpu_milli=0, memory=0), "no node offers it"


def test_cpu_and_memory_must_be_free_on_the_same_node() -> None:
    view = ClusterView(FLEET, free=ROOMS)
    assert _has_free_node(view, 2, cpu_milli=4000, memory=8 * GIB)
    assert not _has_free_node(view, 2, cpu_milli=4001)
    assert not _has_free_node(view, 2, memory=8 * GIB + 1)
    assert _has_free_node(view, 1, cpu_milli=4001, memory=9 * GIB)


def test_node_without_given_resources_is_empty() -> None:
    view = ClusterView(FLEET)
    assert _has_free_node(view, 8, cpu_milli=64000, memory=512 * GIB)
    assert not _has_free_node(view, 9)


def test_free_units_are_summed_over_the_mask() -> None:
    view = ClusterView(FLEET, free=ROOMS)
    (offer,) = FLEET.offers
    assert (view.free_units(offer, BOTH), view.free_units(offer, A), view.free_units(offer, 0b100)) == (3, 2, 0)


def test_assumed_pods_hold_their_units() -> None:
    view = ClusterView(FLEET, free=ROOMS)
    (offer,) = FLEET.offers
    once = view.with_assumed(_pod("1"), 0.0)
    assert (once.free_units(offer, BOTH), view.free_units(offer, BOTH)) == (2, 3), "the old view does not change"
    assert _has_free_node(once, 1), "three nodes fit, and one may be taken"
    assert not _has_free_node(once, 2), "the only node that fits two may be taken"
    full = once.with_assumed(_pod("2"), 0.0).with_assumed(_pod("3"), 0.0)
    assert not _has_free_node(full, 1)
    assert full.free_units(offer, BOTH) == 0


def test_assumed_pods_elsewhere_hold_nothing_here() -> None:
    view = ClusterView(FLEET, free=ROOMS).with_assumed(_pod("1", B), 0.0)
    assert _has_free_node(view, 2, A)
    assert not _has_free_node(view, 1, B)
    assert _has_free_node(view.with_assumed(_pod("2", BOTH, resource=SHARED), 0.0), 2, A)


def test_each_assumed_pod_with_the_same_host_port_takes_a_node_whatever_is_free_there() -> None:
    ports = (HostPort(80, "TCP", ALL_INTERFACES),)
    fleet = Fleet([node(name, CARD, **{GPU: "8"}) for name in "abc"])
    view = ClusterView(fleet)

    def has_free_node(view: ClusterView, *, holds: tuple[HostPort, ...] = ports) -> bool:
        return view.has_free_node(GPU, 1, 0b111, 0, 0, (), holds)

    for uid, expected in (("1", True), ("2", False)):  # one node may be taken by its port, and one by its unit
        view = view.with_assumed(
            msgspec.structs.replace(_pod(uid, 0b111), pending=PendingPod("team", (), (), ports)), 0.0
        )
        assert has_free_node(view) is expected
    assert has_free_node(view, holds=())
    assert has_free_node(view, holds=(HostPort(81, "TCP", ALL_INTERFACES),))


def test_known_uid_counts_once_and_no_uid_each_time() -> None:
    view = ClusterView(FLEET, free=ROOMS).with_assumed(_pod("1"), 0.0)
    assert view.with_assumed(_pod("1"), 0.0) is view
    assert len(view.with_assumed(_pod(""), 0.0).with_assumed(_pod(""), 0.0).assumed_pods) == 3


def test_assumed_pods_expire_in_any_order() -> None:
    view = ClusterView(FLEET, free=ROOMS)
    for uid, until in (("late", 30.0), ("soon", 10.0), ("next", 20.0)):
        view = view.with_assumed(_pod(uid, until=until), 0.0)
    assert [pod.key for pod in view.assumed_pods] == ["soon", "next", "late"]
    later = view.with_assumed(_pod("new", until=40.0), 10.0)
    assert [pod.key for pod in later.assumed_pods] == ["next", "late", "new"]
    assert [pod.key for pod in later.with_assumed(_pod("soon", until=50.0), 30.0).assumed_pods] == ["new", "soon"]


def test_view_may_have_two_successors() -> None:
    view = ClusterView(FLEET, free=ROOMS, assumed=[_pod("0")])
    left, right = view.with_assumed(_pod("left"), 0.0), view.with_assumed(_pod("right"), 0.0)
    assert [pod.key for pod in view.assumed_pods] == ["0"]
    assert [pod.key for pod in left.assumed_pods] == ["0", "left"]
    assert [pod.key for pod in right.assumed_pods] == ["0", "right"]
    assert [pod.key for pod in left.with_assumed(_pod("right"), 0.0).assumed_pods] == ["0", "left", "right"]


def test_long_day_of_admissions_keeps_only_current_pods() -> None:
    view = ClusterView(FLEET)
    for second in range(5000):
        view = view.with_assumed(_pod(str(second), until=second + 30.0), float(second))
    assert len(view.assumed_pods) == 30
    assert len(view._assumed._log) < 5000
    (offer,) = FLEET.offers
    assert view.free_units(offer, BOTH) == 0
    assert view.with_assumed(_pod("", until=9999.0), 6000.0).free_units(offer, BOTH) == 11


Amounts = tuple[int, int, int, int]
"""Units of a GPU resource, units of another, CPU, memory."""


@st.composite
def assumed_amounts(draw: st.DrawFn) -> tuple[int, Amounts]:
    """Return an assumed pod that may be on the nodes of a mask, and its resources."""
    units, other = draw(st.integers(1, 2)), draw(st.booleans())
    taken = (0, units) if other else (units, 0)
    return draw(st.integers(1, 7)), (*taken, draw(st.integers(0, 3)), draw(st.integers(0, 2)))


@settings(max_examples=300)
@given(
    st.lists(st.tuples(*[st.integers(0, 3)] * 2, *[st.integers(0, 6)] * 2), min_size=1, max_size=3),
    st.lists(assumed_amounts(), max_size=3),
    st.tuples(st.integers(1, 3), st.just(0), st.integers(0, 3), st.integers(0, 2)),
    st.integers(1, 7),
    st.integers(0, 3),
    st.tuples(*[st.integers(1, 4)] * 3),
)
def test_capacity_that_pending_pods_may_have_taken_is_not_free(
    free: list[Amounts],
    pods: list[tuple[int, Amounts]],
    wanted: Amounts,
    nodes: int,
    waiting: int,
    limits: tuple[int, int, int],
) -> None:
    """Compare with every possible placement of the assumed pods and those that wait."""
    fleet = Fleet([node(f"n{i}", CARD, **{GPU: "3", SHARED: "3"}) for i in range(len(free))])
    free_by_name = {
        f"n{i}": FreeResources(cpu, memory, {GPU: a, SHARED: b}, pods=limits[i])
        for i, (a, b, cpu, memory) in enumerate(free)
    }
    kinds = Counter(_waiting_kind(mask, amounts, len(free)) for mask, amounts in pods[:waiting])
    view = ClusterView(fleet, free=free_by_name, waiting=kinds)
    for number, (mask, (units, others, cpu, memory)) in enumerate(pods[waiting:]):
        count = units or others
        each = (-(-cpu // count), -(-memory // count))
        one = AssumedPod(str(number), GPU if units else SHARED, mask, count, 10.0, ("", ""), *each)
        view = view.with_assumed(one, 0.0)
    if not view.has_free_node(GPU, wanted[0], nodes & fleet.all_nodes, cpu_milli=wanted[2], memory=wanted[3]):
        return
    for placement in product(range(len(free)), repeat=len(pods)):
        left = [[*amounts, limits[i]] for i, amounts in enumerate(free)]
        for position, (_, amounts) in zip(placement, pods, strict=True):
            left[position] = [have - taken for have, taken in zip(left[position], (*amounts, 1), strict=True)]
        allowed = all(mask >> position & 1 for position, (mask, _) in zip(placement, pods, strict=True))
        if allowed and min(map(min, left)) >= 0:
            fits = [all(have >= need for have, need in zip(each, (*wanted, 1), strict=True)) for each in left]
            assert any(fit for position, fit in enumerate(fits) if nodes >> position & 1)


def _on_nodes(mask: int, names: list[str]) -> NodeConstraints:
    """Return the constraints of a pod that may run on the nodes of a mask."""
    fields = [NodeSelectorRequirement("metadata.name", "In", (name,)) for i, name in enumerate(names) if mask >> i & 1]
    return NodeConstraints(terms=tuple(NodeSelectorTerm(match_fields=(field,)) for field in fields))


def _waiting_kind(mask: int, amounts: Amounts, nodes: int) -> WaitingKind:
    """Return what a pod waits for that may run on the nodes of a mask."""
    units, others, cpu, memory = amounts
    count, where = units or others, _on_nodes(mask, [f"n{i}" for i in range(nodes)])
    return WaitingKind(GPU if units else SHARED, count, where, -(-cpu // count), -(-memory // count))


def test_pods_that_wait_for_very_different_amounts_count_like_the_largest() -> None:
    fleet = Fleet([node("n", CARD, **{GPU: "8"})])
    kinds = [WaitingKind(GPU, 1, NodeConstraints(), cpu, 0) for cpu in range(MAX_WAITING_KINDS + 1)]
    few = ClusterView(fleet, waiting=dict.fromkeys(kinds[:7], 1))
    assert few.has_free_node(GPU, 1, 1, cpu_milli=64000 - 7 * 6, memory=0)
    assert not few.has_free_node(GPU, 1, 1, cpu_milli=64000 - 7 * 6 + 1, memory=0)
    many = ClusterView(fleet, waiting=dict.fromkeys(kinds, 1))
    assert not many.has_free_node(GPU, 1, 1, cpu_milli=0, memory=0)
    back = many.with_waiting(dict.fromkeys(kinds[7:], 0))
    assert back.has_free_node(GPU, 1, 1, cpu_milli=64000 - 7 * 6, memory=0)


BURST = [(4000, 3000, 1), (6000, 3000, 2), (6000, 2000, 3), (9000, 3000, 3), (4000, 0, 5)]


@pytest.mark.parametrize(("cpu", "each", "fit"), BURST)
def test_copies_fit_one_after_the_other(cpu: int, each: int, fit: int) -> None:
    view, found = ClusterView(Fleet([node("n", CARD, **{GPU: "5"})]), free={"n": FreeResources(cpu, GIB, {GPU: 5})}), 0
    while found < 9 and view.has_free_node(GPU, 1, 1, cpu_milli=each, memory=0):
        view = view.with_assumed(AssumedPod(str(found), GPU, 1, 1, 10.0, ("", ""), each), 0.0)
        found += 1
    assert found == fit


@pytest.mark.parametrize(
    ("free", "replicas", "fit"),
    [
        pytest.param(1, 0, 1, id="a node that accepts one more pod takes one"),
        pytest.param(3, 0, 3, id="one that accepts three takes three"),
        pytest.param(9, 0, 5, id="one that accepts more takes as many as it has slices"),
        pytest.param(1, 1, 0, id="another pod may be stored first, which takes the last"),
        pytest.param(3, 1, 2, id="with one replica the last is not given"),
    ],
)
def test_no_more_pods_are_right_sized_than_the_pod_limit_of_the_node_accepts(
    free: int, replicas: int, fit: int
) -> None:
    view = ClusterView(Fleet([node("n", CARD, **{GPU: "5"})]), free={"n": FreeResources(1, 1, {GPU: 5}, pods=free)})
    view, found = view.with_replicas(replicas), 0
    while found < 9 and view.has_free_node(GPU, 1, 1, cpu_milli=0, memory=0):
        view = view.with_assumed(AssumedPod(str(found), GPU, 1, 1, 10.0), 0.0)
        found += 1
    assert found == fit


def test_pods_that_wait_for_other_gpus_of_the_node_count_against_its_pod_limit() -> None:
    fleet, waiting = (
        Fleet([node("n", CARD, **{GPU: "5", SHARED: "5"})]),
        WaitingKind(SHARED, 1, NodeConstraints(), 0, 0),
    )
    view = ClusterView(fleet, free={"n": FreeResources(1, 1, {GPU: 5, SHARED: 5}, pods=3)}, waiting={waiting: 2})
    assert view.has_free_node(GPU, 1, 1, 0, 0)
    assert not view.with_waiting({waiting: 3}).has_free_node(GPU, 1, 1, 0, 0)


HCA, NIC = "rdma/hca", "vpc.amazonaws.com/efa"
OtherAmounts = dict[str, int]
others_drawn = st.dictionaries(st.sampled_from((HCA, NIC)), st.integers(1, 3), max_size=2)
pending_drawn = st.tuples(st.integers(1, 3), others_drawn, st.booleans())


def _sorted_amounts(amounts: OtherAmounts) -> ResourceAmounts:
    return tuple((name, amount * NANO) for name, amount in sorted(amounts.items()))


@given(
    st.lists(others_drawn, min_size=1, max_size=2), st.lists(pending_drawn, max_size=3), others_drawn, st.integers(0, 2)
)
def test_other_resources_that_pending_pods_may_have_taken_are_not_free(
    free: list[OtherAmounts], pods: list[tuple[int, OtherAmounts, bool]], wanted: OtherAmounts, replicas: int
) -> None:
    """Compare with pending pods that are all on one node, and with the pods that other replicas may admit there."""
    names = [f"n{i}" for i in range(len(free))]
    fleet = Fleet([node(name, CARD, **{GPU: "9", HCA: "3", NIC: "3"}) for name in names])
    given = {
        name: FreeResources(1, 1, {GPU: 9}, others=dict(_sorted_amounts(amounts)))
        for name, amounts in zip(names, free, strict=True)
    }
    waiting = Counter(
        WaitingKind(GPU, 1, _on_nodes(mask, names), 0, 0, _sorted_amounts(amounts))
        for mask, amounts, waits in pods
        if waits
    )
    view = ClusterView(fleet, free=given, waiting=waiting).with_replicas(replicas)
    for number, (mask, amounts, waits) in enumerate(pods):
        if not waits:
            others = _sorted_amounts(amounts)
            view = view.with_assumed(AssumedPod(str(number), GPU, mask, 1, 10.0, others=others), 0.0)
    unseen = max(1, 2 * replicas)
    taken = {name: sum(amounts.get(name, 0) for mask, amounts, _ in pods if mask & fleet.all_nodes) for name in wanted}
    fits = any(
        all(each.get(name, 0) >= taken[name] + unseen * amount for name, amount in wanted.items()) for each in free
    )

    assert view.has_free_node(GPU, 1, fleet.all_nodes, 0, 0, _sorted_amounts(wanted)) == (fits or not wanted)


def test_pods_that_count_together_may_take_any_amount_of_other_resources() -> None:
    fleet = Fleet([node("n", CARD, pods="512", **{GPU: "512", HCA: "3"})])
    view, wanted = ClusterView(fleet), ((HCA, NANO),)
    assert view.has_free_node(GPU, 1, 1, 0, 0, wanted)
    for number in range(MAX_KINDS + 1):
        more = ((NIC, NANO),) if number == MAX_KINDS else ()
        view = view.with_assumed(AssumedPod(str(number), GPU, 1, 1, 10.0, cpu_milli=number, others=more), 0.0)
    assert view.has_free_node(GPU, 1, 1, 0, 0)
    assert not view.has_free_node(GPU, 1, 1, 0, 0, wanted)


def test_pod_without_cpu_request_needs_none() -> None:
    one = AssumedPod("1", GPU, 1, 1, 10.0, ("", ""), 4000, GIB)
    view = ClusterView(Fleet([node("n", CARD, **{GPU: "2"})]), free={"n": FreeResources(4000, GIB, {GPU: 2})})
    view = view.with_assumed(one, 0.0)
    assert view.has_free_node(GPU, 1, 1, cpu_milli=0, memory=0)
    assert not view.has_free_node(GPU, 1, 1, cpu_milli=1, memory=0)
    assert not view.has_free_node(GPU, 1, 1, cpu_milli=0, memory=1)


def test_snapshot_may_lack_a_namespace_but_a_live_view_may_not() -> None:
    team = {"team": Namespace(ObjectMeta(name="team", labels={"tier": "research"}))}
    known = ClusterView(FLEET, namespaces=team, complete=True)
    found = known.namespace("team")
    assert found is not None
    assert found.metadata.labels == {"tier": "research", "kubernetes.io/metadata.name": "team"}
    assert known.namespace("other") is None
    guessed = ClusterView(FLEET, namespaces=team).namespace("other")
    assert guessed is not None
    assert (guessed.metadata.name, guessed.metadata.labels) == ("other", {"kubernetes.io/metadata.name": "other"})


def test_limit_ranges_and_quotas_are_sorted_by_name() -> None:
    ranges = tuple(LimitRange(ObjectMeta(name=name)) for name in "ba")
    quotas = tuple(ResourceQuota(ObjectMeta(name=name)) for name in "dc")
    view = ClusterView(FLEET, limit_ranges={"team": ranges}, quotas={"team": quotas})
    assert [item.metadata.name for item in view.limit_ranges("team")] == ["a", "b"]
    assert [item.metadata.name for item in view.quotas("team")] == ["c", "d"]
    assert (view.limit_ranges("other"), view.quotas("other")) == ((), ())


def test_cached_limits_and_quotas_are_replaced() -> None:
    def objects(most: str) -> tuple[LimitRange, ResourceQuota]:
        limits = {"metadata": {"name": "lr"}, "spec": {"limits": [{"type": "Pod", "max": {"cpu": most}}]}}
        counted = {"hard": {"pods": most}, "used": {"pods": "0"}}
        quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": most}}, "status": counted}
        return msgspec.convert(limits, LimitRange), msgspec.convert(quota, ResourceQuota)

    before, after = objects("1"), objects("2")
    view = ClusterView(Fleet(()), limit_ranges={"team": (before[0],)}, quotas={"team": (before[1],)})
    assert _first_amounts(view) == (1, 1000)

    later = view.with_objects({}, {"team": [after[0]]}, {"team": [after[1]]})
    assert _first_amounts(later) == (2, 2000)
    assert view.ranges("team")[0].bounds[0].amount.unscaled == 1
    assert later.ranges("other") == NO_LIMIT_RANGES


def test_what_is_known_about_a_namespace_follows_its_labels_and_the_device_classes() -> None:
    view = ClusterView(Fleet(()), namespaces={"team": Namespace(ObjectMeta(labels={"tier": "a"}))})
    assert view.view_namespace("team").labels["tier"] == "a"
    assert view.view_namespace("other").labels == {"kubernetes.io/metadata.name": "other"}

    classes = {"big": DeviceClassSpec(extended_resource_name="example.com/gpu")}
    later = view.with_objects({"team": Namespace(ObjectMeta(labels={"tier": "b"}))}, {}, {}).with_classes(classes)
    assert later.view_namespace("team").labels["tier"] == "b"
    assert later.view_namespace("team").claims.classes == classes
    assert later.claimable_names == {"example.com/gpu"}
    assert view.view_namespace("team").labels["tier"] == "a"


def _first_amounts(view: ClusterView) -> tuple[int, int]:
    namespace = view.view_namespace("team")
    ranges, quotas = namespace.ranges, namespace.remaining_quotas
    return ranges[0].bounds[0].amount.unscaled, quotas[0].remaining[0][1]


SIZES = st.integers(0, 6)
FREE_NODES = st.lists(st.builds(FreeResources, SIZES, SIZES, st.builds(lambda units: {GPU: units}, SIZES)), min_size=1)


@settings(max_examples=300)
@given(FREE_NODES, st.integers(0, 40), st.integers(1, 3), SIZES, SIZES, SIZES, SIZES)
def test_every_slot_that_assumed_pods_may_take_counts(
    free: list[FreeResources], pods: int, count: int, cpu: int, memory: int, of_others: int, memory_of_others: int
) -> None:
    """The assumed pods may stack on nodes, one more in each round: the pod needs a slot that none of them can take."""
    names = [f"n{i}" for i in range(len(free))]
    fleet = Fleet([node(name, CARD, **{GPU: "8"}) for name in names])
    view = ClusterView(fleet, free=dict(zip(names, free, strict=True)))
    for number in range(pods):
        other = AssumedPod(f"u{number}", GPU, fleet.all_nodes, 1, 10.0, cpu_milli=of_others, memory=memory_of_others)
        view = view.with_assumed(other, 0.0)

    slots = sum(
        one.gpus[GPU] >= count + times
        and (not cpu or one.cpu_milli >= cpu + times * of_others)
        and (not memory or one.memory >= memory + times * memory_of_others)
        for one in free
        for times in range(pods + 1)
    )
    fits_now = any(one.gpus[GPU] >= 1 for one in free)  # else the others take nothing
    assert view.has_free_node(GPU, count, fleet.all_nodes, cpu, memory) is (slots > (pods if fits_now else 0))
