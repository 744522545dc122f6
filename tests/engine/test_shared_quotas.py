"""Shared quotas: usage, messages, and cached decisions."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.device_builders import NVIDIA, card, device_class, resource_claim, resource_slice
from tests.example_cluster import (
    A100,
    NO_USAGE,
    NOW,
    codes,
    mig_node,
    policies_of,
    policy,
    request_of,
    review,
    view_of,
    whole_node,
)
from webhook.engine.decide import decide
from webhook.engine.decision_cache import DecisionCache
from webhook.model.cluster_view import ClusterView
from webhook.model.pods import Pod
from webhook.model.pools import QuotaReservation

SMALL, SHARED = "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"
H100 = A100 | {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
RESEARCH = [make_namespace(name, tier="research") for name in ("team", "other")]
NODES = [whole_node("a"), make_node("h", H100, **{"nvidia.com/gpu": 8}), mig_node("cut", small=7)]
WORLD = [*RESEARCH, make_namespace("sales", tier="sales"), *NODES]


def shared(milli: int, product: str = "", mode: str = "enforce") -> str:
    """Return a policy with one quota for the research namespaces."""
    about = f", product: '{product}'" if product else ""
    selector = "namespaceSelector: {matchLabels: {tier: research}}"
    return f"mode: {mode}\nquotas: {{shared: [{{name: lab, gpuMilli: {milli}, {selector}{about}}}]}}"


def running(name: str, space: str = "other", on: str = "a", pod: PodMaker | None = None) -> Json:
    """Return a pod of the cluster; it has no node if `on` is ""."""
    made = (pod or make_pod().gpus(1)).namespace(space)
    made.data["metadata"]["name"] = name
    return made.spec(nodeName=on).build() if on else made.build()


def evaluate(pod: PodMaker, *texts: str, pods: list[Json]) -> list[str]:
    """Return the findings of a pod, with other pods in the cluster."""
    return codes(review(pod, *texts, view=view_of(*WORLD, *pods)))


TWO = make_pod().gpus(2)
OVER = ["enforce GPU-Q303"]
COUNTED: dict[str, tuple[PodMaker, str, list[Json], list[str]]] = {
    "it just fits": (TWO, shared(2000), [], []),
    "it exceeds the quota alone": (TWO, shared(1999), [], OVER),
    "another namespace uses the rest": (TWO, shared(2999), [running("p")], OVER),
    "usage of another tier does not count": (TWO, shared(2000), [running("p", "sales")], []),
    "a pending pod counts": (TWO, shared(2999), [running("p", on="")], OVER),
    "an ended pod does not count": (TWO, shared(2000), [running("p") | {"status": {"phase": "Failed"}}], []),
    "a slice counts as its share": (
        TWO,
        shared(2143),
        [running("p", on="cut", pod=make_pod().requests(SMALL, "1"))],
        [],
    ),
    "a slice counts as no less": (
        TWO,
        shared(2142),
        [running("p", on="cut", pod=make_pod().requests(SMALL, "1"))],
        OVER,
    ),
    "a pod of another namespace": (make_pod().gpus(2).namespace("sales"), shared(0), [], []),
    "a pod without GPUs": (make_pod(), shared(0), [running("p")], []),
    "GPUs with a limit of zero": (make_pod().gpus(1), shared(0), [], OVER),
    "warned": (TWO, shared(0, mode="warn"), [], ["warn GPU-Q303"]),
    "noted": (TWO, shared(0, mode="audit"), [], ["audit GPU-Q303"]),
    "the product that it selects is full": (
        make_pod().gpus(1).spec(nodeSelector={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}),
        shared(1000, "NVIDIA-H100-*"),
        [running("p", on="h")],
        OVER,
    ),
    "another product than the one that is full": (
        make_pod().gpus(1).spec(nodeSelector={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}),
        shared(0, "NVIDIA-H100-*"),
        [],
        [],
    ),
    "on a node of another product than the one that is full": (
        make_pod().gpus(1).spec(nodeName="a"),
        shared(0, "NVIDIA-H100-*"),
        [],
        [],
    ),
    "on a node of the product that is full": (
        make_pod().gpus(1).spec(nodeName="h"),
        shared(0, "NVIDIA-H100-*"),
        [],
        OVER,
    ),
    "on an unknown node": (make_pod().gpus(1).spec(nodeName="x"), shared(0, "NVIDIA-H100-*"), [], OVER),
    "it may run on the product that is full": (make_pod().gpus(1), shared(0, "NVIDIA-H100-*"), [], OVER),
    "it selects a product that no node has yet": (
        make_pod().gpus(1).spec(nodeSelector={"nvidia.com/gpu.product": "NVIDIA-L4"}),
        shared(0, "NVIDIA-H100-*"),
        [],
        ["warn GPU-T203"],
    ),
}


@pytest.mark.parametrize(("pod", "text", "pods", "want"), COUNTED.values(), ids=COUNTED)
def test_counted_usage(pod: PodMaker, text: str, pods: list[Json], want: list[str]) -> None:
    assert evaluate(pod, text, pods=pods) == want


def test_the_message_has_usage_remaining_amount_and_consumers() -> None:
    pods = [running("small"), running("large", pod=make_pod().gpus(3)), running("mine", "team", on="")]
    (found,) = review(TWO, shared(6500), view=view_of(*WORLD, *pods)).findings
    assert found.message == (
        "exceeded quota: lab, requested: 2000, used: 5000, limited: 6500 thousandths of a GPU; 1500 would fit; "
        "used in other (4000), team (1000), most by other/large (3000), other/small (1000), team/mine (1000)"
    )
    assert found.fix == FITS


FITS = "Request at most what would fit, or wait until another pod ends."
ADVICE = {
    "some would fit": (
        shared(2500),
        2,
        [running("p")],
        "Request at most what would fit, or wait until another pod ends.",
    ),
    "none would fit": (shared(2000), 1, [running("p"), running("q")], "Wait until another pod ends."),
    "more than the limit": (shared(2000), 3, [], "Request at most what would fit, or ask for a higher quota."),
    "a limit of zero": (shared(0), 1, [], "Ending other pods is not enough: ask for a higher quota."),
}


@pytest.mark.parametrize(("text", "gpus", "pods", "want"), ADVICE.values(), ids=ADVICE)
def test_the_fix_suggests_waiting_only_if_it_can_help(text: str, gpus: int, pods: list[Json], want: str) -> None:
    (found,) = review(make_pod().gpus(gpus), text, view=view_of(*WORLD, *pods)).findings
    assert found.fix == want


@pytest.mark.parametrize(
    ("pods", "says"),
    [
        (
            [],
            "used: 6000, limited: 7000 thousandths of a GPU; 1000 would fit; 6000 admitted moments ago",
        ),
        (
            [running("p")],
            "used: 7000, limited: 7000 thousandths of a GPU; 0 would fit; used in other (1000), most by other/p (1000)"
            "; 6000 admitted moments ago",
        ),
    ],
    ids=["without observed pods", "with observed pods"],
)
def test_reserved_usage_is_in_the_message(pods: list[Json], says: str) -> None:
    view = view_of(*WORLD, *pods).with_reservation(QuotaReservation("u1", "team", (((), 6000),), 0.0))
    (found,) = review(TWO, shared(7000), view=view).findings
    assert found.message == f"exceeded quota: lab, requested: 2000, {says}"


def test_few_consumers_are_named() -> None:
    spaces = [make_namespace(f"n{i}", tier="research") for i in range(9)]
    pods = [running(f"p{j}", f"n{i}") for i in range(9) for j in range(9)]
    (found,) = review(TWO, shared(0), view=view_of(*WORLD, *spaces, *pods)).findings
    assert found.message.endswith(
        "used in n0 (9000), n1 (9000), n2 (9000) and 6 more, most by n0/p0 (1000), n0/p1 (1000), n0/p2 (1000)"
    )


def test_a_pod_that_will_be_right_sized_is_charged_for_its_slice() -> None:
    pod = make_pod().gpus(1).needs("8Gi")
    sizing = "mode: enforce\nrightSizing: {}"
    assert codes(review(pod, shared(143), sizing, view=view_of(*WORLD))) == ["warn GPU-R101"]
    pod.data["metadata"]["uid"] = "0a1b"
    assert "enforce GPU-Q303" in codes(review(pod, shared(143), sizing, view=view_of(*WORLD))), (
        "it is no longer right-sized"
    )


def test_a_stale_view_is_reported() -> None:
    view = view_of(*WORLD).with_staleness(stale=True)
    assert codes(review(TWO, shared(9000), view=view)) == ["enforce GPU-Q304"]
    assert codes(review(make_pod().gpus(2).namespace("sales"), shared(0), view=view)) == []


def test_an_update_is_charged_nothing() -> None:
    assert codes(review(TWO, shared(0), view=view_of(*WORLD), operation="UPDATE")) == []
    resize = review(TWO, shared(0), view=view_of(*WORLD), operation="UPDATE", sub_resource="resize")
    assert codes(resize) == [], "GPUs cannot be resized"


def test_recently_admitted_pods_count_once() -> None:
    view = view_of(*WORLD).with_reservation(QuotaReservation("u1", "other", ((("NVIDIA-A100-SXM4-80GB",), 1000),), 0.0))
    view = view.with_reservation(QuotaReservation("u1", "other", (((), 1000),), 1.0))
    assert codes(review(TWO, shared(3000), view=view)) == []
    assert codes(review(TWO, shared(2999), view=view)) == OVER
    again = make_pod().gpus(1)
    again.data["metadata"]["uid"] = "u1"
    assert codes(review(again, shared(1000), view=view)) == [], "the same request does not count twice"
    assert codes(review(TWO, shared(2000), view=view.without_reservations(["u1"]))) == []
    assert codes(review(TWO, shared(2000), view=view.without_reservations_before(0.0))) == []


def test_a_pod_without_policies_is_counted_for_shared_quotas() -> None:
    choosy = "mode: enforce\nmatch: {objectSelector: {matchLabels: {a: b}}}\nquotas: {shared: [{name: q, gpuMilli: 0}]}"
    assert review(TWO, choosy, view=view_of(*WORLD)).quota_charge
    assert not review(TWO, "mode: enforce\nquotas: {}", view=view_of(*WORLD)).quota_charge


POLICY = policies_of(policy(shared(3000)))
VIEW = view_of(*WORLD)
EVENTS = st.lists(
    st.tuples(st.sampled_from(["reserve", "arrive", "ask", "lines", "relabel"]), st.integers(1, 4)), max_size=12
)


@settings(max_examples=100)
@given(EVENTS)
def test_a_cached_decision_equals_a_new_one(events: list[tuple[str, int]]) -> None:
    memory, view = DecisionCache(), VIEW
    for action, number in events:
        view = _after(view, action, number)
        request = request_of(make_pod().gpus(number % 2 + 1).build() | {"status": {}})
        final = msgspec.structs.replace(request, pod=_with_uid(request.pod, f"u{number}"))
        for one in (request, final):
            assert memory.decide(one, POLICY, view, NO_USAGE, NOW) == decide(one, POLICY, view, NO_USAGE, NOW)


CARDS = resource_slice("d", NVIDIA, "d", nodeName="d", devices=[card("gpu-0")])
SERVED = device_class("gpu", f"device.driver == '{NVIDIA}'", "nvidia.com/gpu")
LABEL, CLASS = "select another nvidia.com/gpu.product", "request another device class"
PUBLISHED = [make_node("d", {}), CARDS, SERVED]
NETWORK = [
    device_class("nic", "device.driver == 'dra.net'", "example.com/nic"),
    resource_slice("net", "dra.net", "a", nodeName="a", devices=[{"name": "eth0"}]),
]
OTHER_PRODUCTS: dict[str, tuple[PodMaker, list[Json], str]] = {
    "a name of the device plugin": (make_pod().gpus(1), [*WORLD], LABEL),
    "a name that a class serves": (make_pod().gpus(1), [*RESEARCH, *PUBLISHED], CLASS),
    "a name that a class serves on other nodes": (make_pod().gpus(1), [*WORLD, *PUBLISHED], LABEL),
    "the implicit name of a class": (
        make_pod().requests("deviceclass.resource.kubernetes.io/gpu", "1"), [*RESEARCH, *PUBLISHED], CLASS,
    ),
    "a claim": (
        make_pod().claims({"name": "c", "resourceClaimName": "c"}),
        [*RESEARCH, *PUBLISHED, resource_claim("c")], "select another productName in the claim",
    ),
    "a name of the device plugin, and a claim of a network card": (
        make_pod().gpus(1).claims({"name": "c", "resourceClaimName": "c"}),
        [*WORLD, *NETWORK, resource_claim("c", device_class_name="nic")], LABEL,
    ),
    "a name of the device plugin, and network cards of a class": (
        make_pod().gpus(1).requests("example.com/nic", "1"), [*WORLD, *NETWORK], LABEL,
    ),
    "a name that a class serves, and a claim of a network card": (
        make_pod().requests("deviceclass.resource.kubernetes.io/gpu", "1").claims(
            {"name": "c", "resourceClaimName": "c"}
        ),
        [*RESEARCH, *PUBLISHED, *NETWORK, resource_claim("c", device_class_name="nic")], CLASS,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("pod", "cluster", "way"), OTHER_PRODUCTS.values(), ids=OTHER_PRODUCTS)
def test_a_quota_for_a_product_names_the_way_to_another_that_the_pod_has(
    pod: PodMaker, cluster: list[Json], way: str
) -> None:
    """Nodes whose devices are published have no label of a product: selecting one leaves the pod Pending."""
    [found] = review(pod, shared(0, "NVIDIA-H100-*"), view=view_of(*cluster)).denials
    assert (found.code, found.fix) == (
        "GPU-Q303",
        f"Ending other pods is not enough: ask for a higher quota, or {way}.",
    )


def _with_uid(pod: Pod | None, uid: str) -> Pod:
    assert pod is not None
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=uid))


def _after(view: ClusterView, action: str, number: int) -> ClusterView:
    match action:
        case "reserve":
            return view.with_reservation(QuotaReservation(f"u{number}", "other", (((), 1000),), 0.0))
        case "arrive":
            return view.without_reservations([f"u{number}"])
        case "lines":
            observed = view_of(*WORLD, *[running(f"p{i}") for i in range(number)])
            return view.with_pods({"other": observed._usage._pods["other"]})
        case "relabel":
            tier = "research" if number % 2 else "sales"
            space = view_of(make_namespace("other", tier=tier)).namespace("other")
            return view.with_objects({"other": space}, {}, {})
        case _:
            return view
