"""The accounting resource: what GPUs weigh, written by us alone, and checked where nothing can be written any more."""

from __future__ import annotations

import pytest

from tests.make import Json, PodMaker, make_node, make_pod
from tests.world import A100, ask, codes, mig_node, shaped, whole_node
from webhook.model.catalogue import _CARDS as CARDS
from webhook.model.resources import ACCOUNTING

GPU, SMALL, LARGE, SHARED = (
    "nvidia.com/gpu",
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/mig-3g.40gb",
    "nvidia.com/gpu.shared",
)
NATIVE = "mode: enforce\nlimits: {accounting: native}"
TURNS = make_node("turns", A100 | {"nvidia.com/gpu.replicas": "4"}, **{SHARED: 32})
MPS = make_node(
    "mps", A100 | {"nvidia.com/gpu.replicas": "3", "nvidia.com/gpu.sharing-strategy": "mps"}, **{SHARED: 24}
)

WEIGHTS: dict[str, tuple[PodMaker, Json, str]] = {
    "a whole GPU": (make_pod().gpus(2), whole_node(), "2000"),
    "a slice by compute, 1 of 7": (make_pod().asks(SMALL, "1"), mig_node(), "143"),
    "a slice by memory, 4 of 8": (make_pod().asks(LARGE, "1"), mig_node(), "500"),
    "a turn of four": (make_pod().asks(SHARED, "1"), TURNS, "250"),
    "a third by MPS, rounded up": (make_pod().asks(SHARED, "1"), MPS, "334"),
    "a slice that no node offers": (make_pod().asks(LARGE, "1"), whole_node(), "429"),
    "several kinds": (make_pod().asks(SMALL, "2").asks(LARGE, "1"), mig_node(), "786"),
}


@pytest.mark.parametrize(("pod", "node", "milli"), WEIGHTS.values(), ids=WEIGHTS)
def test_weights(pod: PodMaker, node: Json, milli: str) -> None:
    after = shaped(pod, ask(pod, NATIVE, nodes=(node,)))
    resources = after["spec"]["containers"][0]["resources"]
    assert (resources["limits"][ACCOUNTING], resources["requests"][ACCOUNTING]) == (milli, milli)


PROFILES = [(product, profile) for product, card in CARDS.items() for profile in card.shapes]


@pytest.mark.parametrize(("product", "profile"), PROFILES)
def test_every_profile_weighs_what_the_catalogue_says(product: str, profile: str) -> None:
    card, name = CARDS[product], f"nvidia.com/mig-{profile}"
    labels = {"nvidia.com/gpu.product": f"NVIDIA-{product.upper()}", "nvidia.com/mig.strategy": "mixed"}
    pod = make_pod().asks(name, "1")
    after = shaped(pod, ask(pod, NATIVE, nodes=(make_node("node", labels, **{name: 1}),)))

    milli = int(after["spec"]["containers"][0]["resources"]["limits"][ACCOUNTING])
    compute, memory = int(profile.partition("g")[0]), card.shapes[profile].memory_units
    parts, whole = max(
        (compute, card.compute_slices), (memory, card.memory_units), key=lambda share: share[0] / share[1]
    )
    assert 0 <= milli * whole - 1000 * parts < whole


def test_a_users_own_value_is_overwritten() -> None:
    pod = make_pod().gpus(1).asks(ACCOUNTING, "1").container("side", resources={"limits": {ACCOUNTING: "7"}})
    main, side = (each["resources"] for each in shaped(pod, ask(pod, NATIVE))["spec"]["containers"])
    assert main["limits"][ACCOUNTING] == main["requests"][ACCOUNTING] == "1000"
    assert side["limits"][ACCOUNTING] == side["requests"][ACCOUNTING] == "0"


def test_it_is_nothing_for_a_pod_without_gpus() -> None:
    pod = make_pod().asks(ACCOUNTING, "5")
    assert shaped(pod, ask(pod, NATIVE))["spec"]["containers"][0]["resources"]["limits"] == {ACCOUNTING: "0"}
    assert not ask(make_pod(), NATIVE).patch


def stored(pod: PodMaker) -> PodMaker:
    """The pod as /validate sees it: no webhook changes it any more."""
    pod.data["metadata"]["uid"] = "0a1b"
    return pod


FINAL: dict[str, tuple[PodMaker, list[str]]] = {
    "the right value": (stored(make_pod().gpus(1).asks(ACCOUNTING, "1000")), []),
    "the right value, written another way": (stored(make_pod().gpus(1).asks(ACCOUNTING, "1k")), []),
    "less": (stored(make_pod().gpus(1).asks(ACCOUNTING, "1")), ["enforce GPU-Q302"]),
    "none": (stored(make_pod().gpus(1)), ["enforce GPU-Q302"]),
    "none, and it will still be written": (make_pod().gpus(1), []),
    "less, and it will still be overwritten": (make_pod().gpus(1).asks(ACCOUNTING, "1"), []),
}


@pytest.mark.parametrize(("pod", "want"), FINAL.values(), ids=FINAL)
def test_a_pod_that_can_no_longer_be_changed_must_have_the_right_value(pod: PodMaker, want: list[str]) -> None:
    assert codes(ask(pod, NATIVE, nodes=(whole_node(),))) == want


def test_a_whole_gpu_never_passes_for_the_slice_that_it_could_have_become() -> None:
    """Found on a real plane: another webhook had put the GPU back, or ours was not asked."""
    pod = stored(make_pod().gpus(1).needs("8Gi").asks(ACCOUNTING, "143"))

    decision = ask(pod, NATIVE, "mode: enforce\nrightSizing: {}", nodes=(whole_node(), mig_node()))

    assert [found.message for found in decision.findings if found.code == "GPU-Q302"] == [
        "rightslice.dev/gpu-milli must be 1000, what its GPUs weigh (found 143)"
    ]


def test_what_one_call_writes_the_other_takes() -> None:
    """One name, two shapes: the affinity that right-sizing adds says which, so both calls see one weight."""
    smaller = A100 | {
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/mig-1g.10gb.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.10gb",
        "nvidia.com/mig-1g.10gb.memory": "9856",
    }
    nodes = (mig_node(), make_node("small", smaller, **{GPU: 1, SMALL: 4}))
    pod = make_pod().gpus(1).needs("8Gi")
    policies = (NATIVE, "mode: enforce\nrightSizing: {}")
    first = ask(pod, *policies, nodes=nodes)
    assert first.applied
    after = shaped(pod, first)
    after["metadata"]["uid"] = "0a1b"
    assert codes(ask(after, *policies, nodes=nodes)) == []
