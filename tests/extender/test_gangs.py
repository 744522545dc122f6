"""Gangs in the extender: pods arrive one by one, with other pods in between."""

from __future__ import annotations

import pytest

from tests.builders import Json, PodMaker, make_pod
from tests.extender.harness import apply_watch_events, filter_nodes, prioritize, scheduler_state
from tests.placement.clusters import gpu_node, running_gpu_pod
from webhook.extender.state import MAX_GANG_RESERVATIONS, RESERVATION_SECONDS, SchedulerState
from webhook.model.annotations import GANG_SIZE_ANNOTATION

GROUP = "scheduling.x-k8s.io/pod-group"
CLIQUE = "nvidia.com/gpu.clique"


def node(name: str, domain: str, gpus: int = 4, **labels: str) -> Json:
    return gpu_node(name, gpus, "NVIDIA-GB200", **{"nvidia.com__gpu.clique": domain}, **labels)


def two_domains() -> list[Json]:
    """Domain `a` has capacity for two pods of four GPUs, domain `b` for four."""
    return [*(node(f"a{i}", "a") for i in range(2)), *(node(f"b{i}", "b") for i in range(4))]


def member(name: str, size: int = 4, group: str = "train") -> PodMaker:
    pod = make_pod(name).gpus(4).label(GROUP, group)
    return pod.annotate(GANG_SIZE_ANNOTATION, str(size)) if size else pod


def put(state: SchedulerState, pod: PodMaker, now: float = 0.0, *, bind: bool = True) -> str:
    """Schedule as kube-scheduler does: send all nodes, take the highest score, and bind the pod there."""
    names = [each.name for each in state.fleet.nodes]
    passed = filter_nodes(state, pod, *names, now=now)["NodeNames"]
    found = prioritize(state, pod, *passed, now=now)
    best = max(found, key=lambda name: found[name])
    if bind:
        apply_watch_events(state, pod.spec(nodeName=best).build())
    return best


@pytest.mark.parametrize("bind", [True, False], ids=["bound", "reserved"])
def test_gang_of_four_stays_in_a_domain_with_other_pods_in_between(*, bind: bool) -> None:
    state = scheduler_state(*two_domains())

    places = []
    for i in range(4):
        places.append(put(state, member(f"m{i}"), bind=bind))
        if i < 2:
            assert put(state, make_pod(f"other{i}").gpus(4), bind=bind).startswith("a")

    assert sorted(places) == ["b0", "b1", "b2", "b3"]


def test_nodes_reserved_for_a_gang_are_blocked_until_expiry() -> None:
    state = scheduler_state(*two_domains())
    put(state, member("m0"))
    strict = make_pod("strict").gpus(4).annotate("rightslice.dev/topology", "nvlink=required")

    def let_in(now: float) -> int:
        return len(filter_nodes(state, strict, "a0", "a1", "b0", "b1", "b2", "b3", now=now)["NodeNames"])

    assert let_in(RESERVATION_SECONDS - 0.1) == 2
    assert let_in(RESERVATION_SECONDS) == 5


def test_member_uses_a_node_reserved_for_its_gang() -> None:
    state = scheduler_state(*two_domains())
    strict = [member(f"m{i}").annotate("rightslice.dev/topology", "nvlink=required") for i in range(4)]

    assert sorted(put(state, pod) for pod in strict) == ["b0", "b1", "b2", "b3"]
    assert len(state.reservations) <= 1


def test_nothing_is_reserved_if_the_gang_fits_nowhere() -> None:
    state = scheduler_state(*two_domains())

    assert put(state, member("m0", size=5)).startswith("b")
    assert len(state.reservations) == 1


def test_later_pods_of_a_gang_of_unknown_size_join_the_first() -> None:
    state = scheduler_state(*two_domains())
    apply_watch_events(state, member("m0", size=0).spec(nodeName="a0").build())

    assert put(state, member("m1", size=0)) == "a1"


def test_waiting_pods_count() -> None:
    state = scheduler_state(*[node(f"a{i}", "a") for i in range(2)], *[node(f"b{i}", "b") for i in range(3)])
    apply_watch_events(state, member("m0", size=0).spec(nodeName="a0").build())
    waiting = [member(f"m{i}", size=0) for i in range(1, 4)]
    apply_watch_events(state, *(pod.build() for pod in waiting))

    assert {put(state, pod) for pod in waiting} == {"b0", "b1", "b2"}


def test_two_gangs_get_separate_domains() -> None:
    state = scheduler_state(*[node(f"{domain}{i}", domain) for domain in "ab" for i in range(3)])

    places = [(group, put(state, member(f"{group}{i}", 3, group), bind=False)) for i in range(3) for group in "xy"]

    assert len({(group, name[0]) for group, name in places}) == 2
    assert len({name for _, name in places}) == 6


def test_affinity_names_the_domain_label() -> None:
    racks = [node(f"a{i}", "same", rack="a") for i in range(2)] + [node(f"b{i}", "same", rack="b") for i in range(3)]
    term = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"job": "j"}}}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    state = scheduler_state(*racks)

    pods = [
        make_pod(f"m{i}").gpus(4).label("job", "j").annotate(GANG_SIZE_ANNOTATION, "2").spec(affinity=affinity)
        for i in (0, 1)
    ]

    assert sorted(put(state, pod) for pod in pods) == ["a0", "a1"]


def test_former_members_do_not_attract_pods() -> None:
    state = scheduler_state(*two_domains())
    first = member("m0", size=0).spec(nodeName="a0").build()
    apply_watch_events(state, first)
    apply_watch_events(state, first | {"status": {"phase": "Succeeded"}})
    assert put(state, member("m1", size=0)).startswith("b")

    apply_watch_events(state, first)
    apply_watch_events(state, running_gpu_pod("m0", "a0", count=4))
    assert not state.inventory.gpu_pods.gang_members(f"team/{GROUP}=train").get("team/m0")


def test_members_are_those_of_the_last_list() -> None:
    state = scheduler_state(*two_domains())
    apply_watch_events(state, member("m0").spec(nodeName="a0").build(), member("m1").build())
    pods, gang = state.inventory.pods, f"team/{GROUP}=train"
    assert state.inventory.gpu_pods.gang_members(gang) == {"team/m0": "a0", "team/m1": ""}

    pods.begin()
    apply_watch_events(state, member("m1").spec(nodeName="a1").build())
    pods.swap()

    assert state.inventory.gpu_pods.gang_members(gang) == {"team/m1": "a1"}


def test_reservations_for_a_gang_are_bounded() -> None:
    state = scheduler_state(*[node(f"n{i}", "a", 8) for i in range(2 * MAX_GANG_RESERVATIONS)])

    put(state, member("m0", size=2 * MAX_GANG_RESERVATIONS))

    assert len(state.reservations) == 1 + MAX_GANG_RESERVATIONS
