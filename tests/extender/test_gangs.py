"""Gangs, as a scheduler asks about one pod of them after the other, with other pods in between."""

from __future__ import annotations

import pytest

from tests.extender.standing import filter_, scores, stand, write
from tests.make import Json, PodMaker, make_pod
from tests.placement.kube import gpu_node, running
from webhook.extender.state import MAX_GANG_RESERVATIONS, RESERVATION_SECONDS, SchedulerState
from webhook.model.annotations import GANG_SIZE_ANNOTATION

GROUP = "scheduling.x-k8s.io/pod-group"
CLIQUE = "nvidia.com/gpu.clique"


def node(name: str, domain: str, gpus: int = 4, **labels: str) -> Json:
    return gpu_node(name, gpus, "NVIDIA-GB200", **{"nvidia.com__gpu.clique": domain}, **labels)


def two_domains() -> list[Json]:
    """In `a` is room for two pods of four GPUs, in `b` for four."""
    return [*(node(f"a{i}", "a") for i in range(2)), *(node(f"b{i}", "b") for i in range(4))]


def member(name: str, size: int = 4, group: str = "train") -> PodMaker:
    pod = make_pod(name).gpus(4).label(GROUP, group)
    return pod.annotate(GANG_SIZE_ANNOTATION, str(size)) if size else pod


def put(standing: SchedulerState, pod: PodMaker, now: float = 0.0, *, bind: bool = True) -> str:
    """Schedule it as a scheduler does: asked for all nodes, the highest score, and then it is there."""
    names = [each.name for each in standing.fleet.nodes]
    passed = filter_(standing, pod, *names, now=now)["NodeNames"]
    found = scores(standing, pod, *passed, now=now)
    best = max(found, key=lambda name: found[name])
    if bind:
        write(standing, pod.spec(nodeName=best).build())
    return best


@pytest.mark.parametrize("bind", [True, False], ids=["seen on their nodes", "promised"])
def test_a_gang_of_four_goes_whole_where_four_fit_with_others_in_between(*, bind: bool) -> None:
    standing = stand(*two_domains())

    places = []
    for i in range(4):
        places.append(put(standing, member(f"m{i}"), bind=bind))
        if i < 2:
            assert put(standing, make_pod(f"other{i}").gpus(4), bind=bind).startswith("a")

    assert sorted(places) == ["b0", "b1", "b2", "b3"]


def test_others_do_not_get_what_is_kept_for_the_rest_of_a_gang_until_its_time_is_up() -> None:
    standing = stand(*two_domains())
    put(standing, member("m0"))
    strict = make_pod("strict").gpus(4).annotate("rightslice.dev/topology", "nvlink=required")

    def let_in(now: float) -> int:
        return len(filter_(standing, strict, "a0", "a1", "b0", "b1", "b2", "b3", now=now)["NodeNames"])

    assert let_in(RESERVATION_SECONDS - 0.1) == 2
    assert let_in(RESERVATION_SECONDS) == 5


def test_a_member_is_let_in_where_its_gang_has_kept_a_place() -> None:
    standing = stand(*two_domains())
    strict = [member(f"m{i}").annotate("rightslice.dev/topology", "nvlink=required") for i in range(4)]

    assert sorted(put(standing, pod) for pod in strict) == ["b0", "b1", "b2", "b3"]
    assert len(standing.reservations) <= 1


def test_where_the_whole_gang_fits_nowhere_nothing_is_kept_for_it() -> None:
    standing = stand(*two_domains())

    assert put(standing, member("m0", size=5)).startswith("b")
    assert len(standing.reservations) == 1


def test_of_a_gang_that_says_no_number_the_later_ones_join_the_first() -> None:
    standing = stand(*two_domains())
    write(standing, member("m0", size=0).spec(nodeName="a0").build())

    assert put(standing, member("m1", size=0)) == "a1"


def test_those_that_wait_are_counted() -> None:
    standing = stand(*[node(f"a{i}", "a") for i in range(2)], *[node(f"b{i}", "b") for i in range(3)])
    write(standing, member("m0", size=0).spec(nodeName="a0").build())
    waiting = [member(f"m{i}", size=0) for i in range(1, 4)]
    write(standing, *(pod.build() for pod in waiting))

    assert {put(standing, pod) for pod in waiting} == {"b0", "b1", "b2"}


def test_two_gangs_that_come_at_once_have_a_domain_each() -> None:
    standing = stand(*[node(f"{domain}{i}", domain) for domain in "ab" for i in range(3)])

    places = [(group, put(standing, member(f"{group}{i}", 3, group), bind=False)) for i in range(3) for group in "xy"]

    assert len({(group, name[0]) for group, name in places}) == 2
    assert len({name for _, name in places}) == 6


def test_the_label_that_its_affinity_names_is_the_domain() -> None:
    racks = [node(f"a{i}", "same", rack="a") for i in range(2)] + [node(f"b{i}", "same", rack="b") for i in range(3)]
    term = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"job": "j"}}}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    standing = stand(*racks)

    pods = [
        make_pod(f"m{i}").gpus(4).label("job", "j").annotate(GANG_SIZE_ANNOTATION, "2").spec(affinity=affinity)
        for i in (0, 1)
    ]

    assert sorted(put(standing, pod) for pod in pods) == ["a0", "a1"]


def test_a_member_that_has_ended_or_left_its_gang_draws_nobody() -> None:
    standing = stand(*two_domains())
    first = member("m0", size=0).spec(nodeName="a0").build()
    write(standing, first)
    write(standing, first | {"status": {"phase": "Succeeded"}})
    assert put(standing, member("m1", size=0)).startswith("b")

    write(standing, first)
    write(standing, running("m0", "a0", count=4))
    assert not standing.inventory.gpu_pods.gang_members(f"team/{GROUP}=train").get("team/m0")


def test_after_a_new_list_only_those_in_it_are_members() -> None:
    standing = stand(*two_domains())
    write(standing, member("m0").spec(nodeName="a0").build(), member("m1").build())
    pods, gang = standing.inventory.pods, f"team/{GROUP}=train"
    assert standing.inventory.gpu_pods.gang_members(gang) == {"team/m0": "a0", "team/m1": ""}

    pods.begin()
    write(standing, member("m1").spec(nodeName="a1").build())
    pods.swap()

    assert standing.inventory.gpu_pods.gang_members(gang) == {"team/m1": "a1"}


def test_what_is_kept_for_a_gang_is_bounded() -> None:
    standing = stand(*[node(f"n{i}", "a", 8) for i in range(2 * MAX_GANG_RESERVATIONS)])

    put(standing, member("m0", size=2 * MAX_GANG_RESERVATIONS))

    assert len(standing.reservations) == 1 + MAX_GANG_RESERVATIONS
