"""Resource claims in shared quotas: what they weigh, what is counted when, and what is charged for a new pod."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.cpu_timer import CpuTimer
from tests.device_builders import (
    AMD,
    NVIDIA,
    allocated,
    amd_gpu,
    card,
    device_class,
    partitionable_gpus,
    resource_claim,
    resource_slice,
)
from tests.example_cluster import A100, NO_USAGE, NOW, codes, policies_of, policy, request_of, review, view_of
from webhook.engine.claimed_gpus import CREATE_FIRST
from webhook.engine.decision_cache import DecisionCache
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.allocator import AllocationOutcome, NamedClaim, allocate_on_node
from webhook.model.dra.claim_weights import weigh_unallocated_claims
from webhook.model.dra.gpu_devices import chosen_milli
from webhook.model.dra.selector_cache import select_device
from webhook.model.pools import QuotaPool, QuotaReservation

ATTRIBUTES, MEMORY = "device.attributes['gpu.nvidia.com']", "device.capacity['gpu.nvidia.com'].memory"
PROFILE = f"{ATTRIBUTES}.profile == '1g.10gb'"
CLASSES = [
    device_class("gpu", f"device.driver == '{NVIDIA}' && {ATTRIBUTES}.type == 'gpu'", "nvidia.com/gpu"),
    device_class("mig", f"device.driver == '{NVIDIA}' && {ATTRIBUTES}.type == 'mig'"),
    device_class("any", f"device.driver == '{NVIDIA}'"),
    device_class("small", f"device.driver == '{NVIDIA}' && {ATTRIBUTES}.type == 'mig' && {PROFILE}"),
    device_class("amd", f"device.driver == '{AMD}'"),
    device_class("nic", "device.driver == 'nic.example.com'"),
]
SHARED_CARD = card("gpu-0", "NVIDIA A10", memory="20Gi") | {"allowMultipleAllocations": True}
PARTITIONS = [amd_gpu(f"gpu-{i}", "0000:11:00.0", "cpx_nps4") for i in range(8)]
CLUSTER = [
    make_namespace("team"),
    *(make_node(name, {}) for name in ("h100", "a10", "mi300")),
    *partitionable_gpus("h100", 2),
    resource_slice("a10", NVIDIA, "a10", nodeName="a10", devices=[SHARED_CARD]),
    resource_slice(
        "mi300",
        AMD,
        "mi300",
        nodeName="mi300",
        devices=[amd_gpu(f"gpu-{i}", "0000:11:00.0", "cpx_nps4") for i in range(8)],
    ),
    resource_slice("nic", "nic.example.com", "nic", nodeName="h100", devices=[{"name": "nic-0"}]),
    *CLASSES,
]
EVERYTHING = QuotaPool(lambda _name, _labels: True)


def devices(name: str, *expressions: str, **fields: Any) -> Json:
    """Return devices of a class."""
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    return {"deviceClassName": name, "selectors": selectors, **fields}


def exactly(name: str, *expressions: str, **fields: Any) -> Json:
    """Return a request of a claim."""
    return {"name": "g", "exactly": devices(name, *expressions, **fields)}


def first_available(*choices: Json) -> Json:
    """Return a request of a claim with choices."""
    return {"name": "g", "firstAvailable": [{"name": f"c{i}", **each} for i, each in enumerate(choices)]}


def template(*requests: Json, name: str = "t") -> Json:
    """Return a ResourceClaimTemplate."""
    return resource_claim(name) | {
        "kind": "ResourceClaimTemplate",
        "spec": {"spec": {"devices": {"requests": list(requests)}}},
    }


def pod(name: str = "p", *claims: Json, made: dict[str, str] | None = None) -> Json:
    """Return a pod of the cluster; `made` names the claims that were made for it."""
    data = with_claims(*claims).build()
    data["metadata"] |= {"name": name, "namespace": "team"}
    statuses = [{"name": key, "resourceClaimName": claim} for key, claim in (made or {}).items()]
    return data | {"status": {"resourceClaimStatuses": statuses}}


def with_claims(*claims: Json) -> PodMaker:
    """Return a new pod with claims."""
    return make_pod().claims(*claims)


OWN = {"name": "g", "resourceClaimTemplateName": "t"}
NAMED = {"name": "g", "resourceClaimName": "c"}
GPU, SMALL, TWO = exactly("gpu"), exactly("small"), exactly("gpu", count=2)
SLICE, CARD = allocated("h100", "gpu-0-mig-1g10gb-1-0"), allocated("h100", "gpu-1")
OF_SCHEDULER = {"resource.kubernetes.io/extended-resource-claim": "true"}

REQUESTS = {
    "a whole GPU": ([GPU], 1000),
    "two of them": ([TWO], 2000),
    "a slice weighs the same as by its name": ([SMALL], 143),
    "two requests": ([GPU, SMALL], 1143),
    "any slice may be the largest": ([exactly("mig")], 1000),
    "a selector that leaves only small ones": ([exactly("mig", f"{MEMORY}.compareTo(quantity('10Gi')) < 0")], 143),
    "the largest choice": ([first_available(devices("small"), devices("gpu", count=2))], 2000),
    "all devices are as many as a claim can have": ([exactly("small", allocationMode="All")], 32 * 143),
    "access for administration": ([exactly("gpu", adminAccess=True)], 0),
    "a partition of a card that is one of eight": ([exactly("amd")], 125),
    "a device that is no GPU": ([exactly("nic")], 0),
    "a selector that matches nothing now": ([exactly("gpu", f"{ATTRIBUTES}.productName == 'B200'")], 1000),
    "a class that does not exist": ([exactly("new")], 1000),
    "a selector that does not compile": ([exactly("small", "device.x")], 1000),
    "a selector with an error on some devices": ([exactly("any", PROFILE)], 1000),
    "half of a card that claims share": (
        [exactly("any", f"{ATTRIBUTES}.productName == 'NVIDIA A10'", capacity={"requests": {"memory": "10Gi"}})],
        500,
    ),
    "all of a card that claims share": ([exactly("any", f"{ATTRIBUTES}.productName == 'NVIDIA A10'")], 1000),
}


@pytest.mark.parametrize(("requests", "milli"), REQUESTS.values(), ids=REQUESTS)
def test_claims_without_devices_weigh_the_most_that_they_can_get(requests: list[Json], milli: int) -> None:
    view = view_of(*CLUSTER, template(*requests), pod("p", OWN))
    assert view.pool_usage(EVERYTHING) == milli


USAGE = {
    "a claim that no pod uses": ([resource_claim("c")], 0),
    "a claim that a pod waits for": ([resource_claim("c"), pod("p", NAMED)], 1000),
    "two pods share a claim": ([resource_claim("c"), pod("p", NAMED), pod("q", NAMED)], 1000),
    "a claim with a device weighs what this is": ([resource_claim("c", SLICE, device_class_name="any")], 143),
    "and once, though two pods use it": ([resource_claim("c", SLICE), pod("p", NAMED), pod("q", NAMED)], 143),
    "two devices": ([resource_claim("c", SLICE, CARD)], 1143),
    "a device of an unknown pool": ([resource_claim("c", allocated("gone", "gpu-0"))], 1000),
    "a share of a device": ([resource_claim("c", allocated("a10", "gpu-0", share="s", memory="5Gi"))], 250),
    "two pods with claims of a template": ([template(SMALL), pod("p", OWN), pod("q", OWN)], 286),
    "the claim of a template was made": (
        [template(GPU), resource_claim("p-g", SLICE), pod("p", OWN, made={"g": "p-g"})],
        143,
    ),
    "it was made, but is not known yet": ([template(SMALL), pod("p", OWN, made={"g": "p-g"})], 143),
    "neither claim nor template is known": ([pod("p", OWN)], 1000),
    "a claim that the scheduler made counts with its pod": (
        [
            resource_claim("c", CARD) | {"metadata": {"name": "c", "namespace": "team", "annotations": OF_SCHEDULER}},
            make_pod().gpus(1).namespace("team").build(),
        ],
        1000,
    ),
    "an extended resource of a class": (
        [make_pod().requests("deviceclass.resource.kubernetes.io/small", "2").namespace("team").build()],
        286,
    ),
    "names and claims together": (
        [template(SMALL), pod("p", OWN), make_pod().gpus(2).namespace("team").build()],
        2143,
    ),
    "a name of AMD's device plugin weighs nothing": (
        [
            make_node("plugin", {}, **{"amd.com/gpu": 8}),
            make_pod().requests("amd.com/gpu", "2").namespace("team").build(),
        ],
        0,
    ),
    "the same name, if a device class serves it": (
        [
            device_class("amd-gpu", f"device.driver == '{AMD}'", "amd.com/gpu"),
            make_pod().requests("amd.com/gpu", "2").namespace("team").build(),
        ],
        250,
    ),
    "a pod that ended": ([template(GPU), pod("p", OWN) | {"status": {"phase": "Succeeded"}}], 0),
}


@pytest.mark.parametrize(("objects", "milli"), USAGE.values(), ids=USAGE)
def test_usage_of_a_quota_has_names_and_claims(objects: list[Json], milli: int) -> None:
    assert view_of(*CLUSTER, *objects).pool_usage(EVERYTHING) == milli


def quota(milli: int, product: str = "") -> str:
    """Return a policy with one quota."""
    about = f", product: '{product}'" if product else ""
    return f"mode: enforce\nquotas: {{shared: [{{name: lab, gpuMilli: {milli}{about}}}]}}"


class Admission(NamedTuple):
    """A new pod under a quota: the cluster, the quota, and the denials."""

    pod: PodMaker
    objects: list[Json]
    milli: int
    want: list[str]
    product: str = ""


OVER, UNKNOWN = ["enforce GPU-Q303"], ["enforce GPU-Q304"]
ADMISSIONS = {
    "a claim of a template just fits": Admission(with_claims(OWN), [template(TWO)], 2000, []),
    "and does not": Admission(with_claims(OWN), [template(TWO)], 1999, OVER),
    "with another pod's claim": Admission(with_claims(OWN), [template(GPU), pod("q", OWN)], 1999, OVER),
    "with a pod that requests by name": Admission(
        with_claims(OWN), [template(SMALL), make_pod().gpus(1).namespace("team").build()], 1142, OVER
    ),
    "a claim by name": Admission(with_claims(NAMED), [resource_claim("c")], 999, OVER),
    "a claim that another pod uses": Admission(with_claims(NAMED), [resource_claim("c"), pod("q", NAMED)], 1000, []),
    "a claim that has a device": Admission(with_claims(NAMED), [resource_claim("c", CARD)], 1000, []),
    "a claim twice": Admission(with_claims(NAMED, NAMED | {"name": "h"}), [resource_claim("c")], 1000, []),
    "a template that is not known": Admission(with_claims(OWN), [], 9000, UNKNOWN),
    "a claim that is not known": Admission(with_claims(NAMED), [], 9000, UNKNOWN),
    "a class by its implicit name": Admission(
        make_pod().requests("deviceclass.resource.kubernetes.io/small", "1"), [], 142, OVER
    ),
    "a quota of another product": Admission(with_claims(OWN), [template(SMALL)], 0, [], "NVIDIA-A10"),
    "a quota of its product": Admission(with_claims(OWN), [template(SMALL)], 142, OVER, "NVIDIA-H100-*"),
    "a pod without claims": Admission(make_pod(), [], 0, []),
}


def test_a_quota_that_cannot_be_checked_says_what_makes_the_template_known() -> None:
    fixes = {"Permit listing resourceclaimtemplates, or add them to the snapshot.": [], CREATE_FIRST: [template(TWO)]}
    for fix, templates in fixes.items():
        pod = with_claims(OWN | {"resourceClaimTemplateName": "other"})
        [denial] = review(pod, quota(9000), view=view_of(*CLUSTER, *templates)).denials
        assert (denial.code, denial.fix) == ("GPU-Q304", fix)


@pytest.mark.parametrize("case", ADMISSIONS.values(), ids=ADMISSIONS)
def test_new_pods_with_claims(case: Admission) -> None:
    decision = review(case.pod, quota(case.milli, case.product), view=view_of(*CLUSTER, *case.objects))
    assert [each for each in codes(decision) if "GPU-Q" in each] == case.want


A10_ONLY = f"{ATTRIBUTES}.productName == 'NVIDIA A10'"
PRODUCTS: dict[str, tuple[list[Json], bool]] = {
    "cards of the product": ([exactly("gpu", f"!({A10_ONLY})")], True),
    "slices of the product": ([SMALL], True),
    "cards of it and of another": ([GPU], True),
    "a choice of it": ([first_available(devices("any", A10_ONLY), devices("small"))], True),
    "cards of another product": ([exactly("any", A10_ONLY)], False),
    "GPUs of another vendor": ([exactly("amd")], False),
    "devices that are no GPUs": ([exactly("nic")], False),
}


@pytest.mark.parametrize("mode", ["enforce", "warn", "audit"])
@pytest.mark.parametrize(("requests", "is_reported"), PRODUCTS.values(), ids=PRODUCTS)
def test_a_product_that_a_namespace_may_not_have(requests: list[Json], mode: str, *, is_reported: bool) -> None:
    rules = quota(0, "NVIDIA-H100-*").replace("enforce", mode)
    view, of_claim = view_of(*CLUSTER, template(*requests)), "warn GPU-Q303" if mode != "audit" else ""
    assert codes(review(with_claims(OWN), rules, view=view)) == [f"{mode} GPU-Q303"] * is_reported
    assert codes(review(template(*requests), rules, view=view)) == [of_claim] * (is_reported and bool(of_claim))


def test_a_class_of_a_product_that_a_namespace_may_not_have() -> None:
    pod_of_class = make_pod().requests("deviceclass.resource.kubernetes.io/small", "1")
    assert codes(review(pod_of_class, quota(0, "NVIDIA-H100-*"), view=view_of(*CLUSTER))) == OVER
    assert codes(review(pod_of_class, quota(0, "NVIDIA-A10"), view=view_of(*CLUSTER))) == []


ONE_PRODUCT = [one for one in CLUSTER if one["metadata"]["name"] != "a10"]
BY_PLUGIN = make_node("old", A100, **{"nvidia.com/gpu": 8})
WHOLE, HOST = "nvidia.com/gpu", "kubernetes.io/hostname"


def running(node: str) -> PodMaker:
    """Return a pod that requests a GPU by name and has a node, or none yet."""
    return make_pod("r").gpus(1).namespace("team").spec(**({"nodeName": node} if node else {}))


def labeled(node: Json) -> Json:
    """Return a node with its name as label."""
    return {
        **node,
        "metadata": {
            **node["metadata"],
            "labels": {**node["metadata"].get("labels", {}), HOST: node["metadata"]["name"]},
        },
    }


BY_NAME: dict[str, tuple[list[Json], PodMaker, dict[str, int]]] = {
    "cards of one product": (ONE_PRODUCT, running(""), {"NVIDIA-H100-80GB-HBM3": 1000}),
    "cards of one product, on their node": (ONE_PRODUCT, running("h100"), {"NVIDIA-H100-80GB-HBM3": 1000}),
    "cards of two products": (CLUSTER, running(""), {"NVIDIA-H100-80GB-HBM3": 1000, "NVIDIA-A10": 1000}),
    "the cards of the node": (CLUSTER, running("a10"), {"NVIDIA-A10": 1000}),
    "the cards of a selected node": (
        [labeled(one) for one in CLUSTER],
        running("").spec(nodeSelector={HOST: "h100"}),
        {"NVIDIA-H100-80GB-HBM3": 1000},
    ),
    "a card of a device plugin, or one of a class": (
        [*ONE_PRODUCT, BY_PLUGIN], running(""), {"NVIDIA-A100-SXM4-80GB": 1000, "NVIDIA-H100-80GB-HBM3": 1000},
    ),
    "the card of a device plugin": ([*ONE_PRODUCT, BY_PLUGIN], running("old"), {"NVIDIA-A100-SXM4-80GB": 1000}),
    "the implicit name of a class": (
        CLUSTER,
        make_pod("r").requests("deviceclass.resource.kubernetes.io/gpu", "2").namespace("team").spec(nodeName="a10"),
        {"NVIDIA-A10": 2000},
    ),
    "a node without devices of the class": (
        CLUSTER, running("mi300"), {"NVIDIA-H100-80GB-HBM3": 1000, "NVIDIA-A10": 1000, "NVIDIA-A100-SXM4-80GB": 1000},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("objects", "pod", "counted"), BY_NAME.values(), ids=BY_NAME)
def test_a_gpu_by_name_counts_under_the_products_of_the_devices_that_serve_it(
    objects: list[Json], pod: PodMaker, counted: dict[str, int]
) -> None:
    for product in ("NVIDIA-H100-80GB-HBM3", "NVIDIA-A10", "NVIDIA-A100-SXM4-80GB"):
        milli = counted.get(product, 0)
        pool = QuotaPool(lambda _name, _labels: True, product.__eq__)
        assert view_of(*objects, pod.build()).pool_usage(pool) == milli
        view = view_of(*objects)
        assert "enforce GPU-Q303" not in codes(review(pod, quota(milli, product), view=view))
        assert ("enforce GPU-Q303" in codes(review(pod, quota(max(0, milli - 1), product), view=view))) is bool(milli)


def test_a_claim_is_told_which_quota_its_pods_exceed() -> None:
    [found] = review(resource_claim("c"), quota(0, "NVIDIA-H100-*"), view=view_of(*CLUSTER)).findings
    assert found.message == (
        "its pods will be denied: quota lab allows 0 thousandths of a GPU of NVIDIA-H100-*, found up to 1000"
    )


def test_the_message_names_pods_with_claims() -> None:
    view = view_of(*CLUSTER, template(SMALL), pod("q", OWN), resource_claim("c", CARD), pod("r", NAMED))
    found = [each for each in review(with_claims(OWN), quota(1200), view=view).findings if each.code == "GPU-Q303"]
    assert [each.message for each in found] == [
        "exceeded quota: lab, requested: 143, used: 1143, limited: 1200 thousandths of a GPU; 57 would fit; "
        "used in team (1143), most by team/r (1000), team/q (143)"
    ]


def test_pods_admitted_at_once_are_charged_once_for_a_claim_that_they_share() -> None:
    view = view_of(*CLUSTER, resource_claim("c"))
    reserved = view.with_reservation(QuotaReservation("u1", "team", (((), 1000),), 0.0, ("c",)))
    assert not codes(review(with_claims(NAMED), quota(1000), view=reserved))


def test_replicas_are_charged_once_for_a_claim_that_they_share() -> None:
    pods = with_claims(NAMED, OWN | {"name": "h"}).build()
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "team"},
        "spec": {"replicas": 4, "selector": {}, "template": {"metadata": {}, "spec": pods["spec"]}},
    }
    view = view_of(*CLUSTER, resource_claim("c"), template(SMALL))
    (found,) = review(deployment, quota(1300), view=view).findings
    assert found.message.startswith("2 of 4 pods would be admitted, then: exceeded quota: lab, requested: 143")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([GPU, SMALL, TWO, *[each[0][0] for each in REQUESTS.values()]]), min_size=1, max_size=3)
)
def test_a_claim_never_gets_more_than_it_weighed(requests: list[Json]) -> None:
    requests = [each | {"name": f"g{i}"} for i, each in enumerate(requests)]
    view = view_of(*CLUSTER, template(*requests))
    spec = view.namespace_claims("team").templates["t"]
    most = sum(milli for _, milli in weigh_unallocated_claims([spec], view.devices, view.fleet))
    for node in range(len(view.fleet.nodes)):
        pools = view.devices.pools.pools_of_node(node)
        found = allocate_on_node([NamedClaim("c", spec)], pools, {}, view.classes, select_device)
        if found.outcome is AllocationOutcome.ALLOCATED:
            assert chosen_milli(found, pools) <= most


def test_weighing_many_different_claims_is_bounded_and_never_too_low() -> None:
    selectors = [f"{MEMORY}.compareTo(quantity('{i}Mi')) < 0 && {PROFILE}" for i in range(10_000, 10_400)]
    templates = [template(exactly("mig", one), name=f"t{i}") for i, one in enumerate(selectors)]
    pods = [pod(f"p{i}", {"name": "g", "resourceClaimTemplateName": f"t{i}"}) for i in range(len(selectors))]
    view = view_of(*CLUSTER, *templates, *pods)
    with CpuTimer() as timer:
        usage = view.pool_usage(EVERYTHING)
    assert timer.seconds < 1
    assert 143 * len(selectors) < usage <= 1000 * len(selectors)
    again = view_of(*CLUSTER, *reversed(templates), *reversed(pods))
    assert again.pool_usage(EVERYTHING) == usage, "the same on every replica"


def test_a_cached_decision_counts_claims_that_changed_since() -> None:
    cache, policies = DecisionCache(), policies_of(policy(quota(1000)))
    request = request_of(with_claims(NAMED).build())

    def decide(view: ClusterView) -> list[str]:
        return codes(cache.decide(request, policies, view, NO_USAGE, NOW))

    assert decide(view_of(*CLUSTER, resource_claim("c"))) == []
    assert decide(view_of(*CLUSTER, resource_claim("c"), template(SMALL), pod("q", OWN))) == OVER
    assert decide(view_of(*CLUSTER, resource_claim("c", CARD))) == []
