"""The accounting resource: its amounts, overwritten user values, and checks of pods that can no longer be changed."""

from __future__ import annotations

import pytest

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.device_builders import allocated, device_class, partitionable_gpus, resource_claim
from tests.example_cluster import A100, apply_patch, codes, mig_node, review, view_of, whole_node
from webhook.model.apimachinery import MAX_MILLI
from webhook.model.cluster_view import ClusterView
from webhook.model.defaulting import LIMIT_RANGER_ANNOTATION, LIMIT_RANGER_PREFIX
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE
from webhook.model.mig_catalog import _CARD_SPECS as CARDS

GPU, SMALL, LARGE, SHARED = (
    "nvidia.com/gpu",
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/mig-3g.40gb",
    "nvidia.com/gpu.shared",
)
NATIVE = "mode: enforce\nlimits: {accounting: native, accountingScheduler: configured}"
PLAIN = "mode: enforce\nlimits: {accounting: native}"
TURNS = make_node("turns", A100 | {"nvidia.com/gpu.replicas": "4"}, **{SHARED: 32})
MPS = make_node(
    "mps", A100 | {"nvidia.com/gpu.replicas": "3", "nvidia.com/gpu.sharing-strategy": "mps"}, **{SHARED: 24}
)

WEIGHTS: dict[str, tuple[PodMaker, Json, str]] = {
    "a whole GPU": (make_pod().gpus(2), whole_node(), "2000"),
    "a slice by compute, 1 of 7": (make_pod().requests(SMALL, "1"), mig_node(), "143"),
    "a slice by memory, 4 of 8": (make_pod().requests(LARGE, "1"), mig_node(), "500"),
    "a time slice, 1 of 4": (make_pod().requests(SHARED, "1"), TURNS, "250"),
    "a third by MPS, rounded up": (make_pod().requests(SHARED, "1"), MPS, "334"),
    "a slice that no node offers": (make_pod().requests(LARGE, "1"), whole_node(), "429"),
    "more GPUs than the API server's largest integer in thousandths": (
        make_pod().gpus("9E"),
        whole_node(),
        str(MAX_MILLI),
    ),
    "several kinds": (make_pod().requests(SMALL, "2").requests(LARGE, "1"), mig_node(), "786"),
}


@pytest.mark.parametrize(("pod", "node", "milli"), WEIGHTS.values(), ids=WEIGHTS)
def test_gpu_milli_amounts(pod: PodMaker, node: Json, milli: str) -> None:
    after = apply_patch(pod, review(pod, NATIVE, nodes=(node,)))
    resources = after["spec"]["containers"][0]["resources"]
    assert (resources["limits"][ACCOUNTING_RESOURCE], resources["requests"][ACCOUNTING_RESOURCE]) == (milli, milli)


PROFILES = [(product, profile) for product, card in CARDS.items() for profile in card.profiles]


@pytest.mark.parametrize(("product", "profile"), PROFILES)
def test_every_profile_has_the_cataloged_gpu_milli(product: str, profile: str) -> None:
    card, name = CARDS[product], f"nvidia.com/mig-{profile}"
    labels = {"nvidia.com/gpu.product": f"NVIDIA-{product.upper()}", "nvidia.com/mig.strategy": "mixed"}
    pod = make_pod().requests(name, "1")
    after = apply_patch(pod, review(pod, NATIVE, nodes=(make_node("node", labels, **{name: 1}),)))

    milli = int(after["spec"]["containers"][0]["resources"]["limits"][ACCOUNTING_RESOURCE])
    compute, memory = int(profile.partition("g")[0]), card.profiles[profile].memory_units
    parts, whole = max(
        (compute, card.compute_slices), (memory, card.memory_units), key=lambda share: share[0] / share[1]
    )
    assert 0 <= milli * whole - 1000 * parts < whole


def test_a_users_own_value_is_overwritten() -> None:
    pod = (
        make_pod()
        .gpus(1)
        .requests(ACCOUNTING_RESOURCE, "1")
        .container("side", resources={"limits": {ACCOUNTING_RESOURCE: "7"}})
    )
    main, side = (each["resources"] for each in apply_patch(pod, review(pod, NATIVE))["spec"]["containers"])
    assert main["limits"][ACCOUNTING_RESOURCE] == main["requests"][ACCOUNTING_RESOURCE] == "1000"
    assert side["limits"][ACCOUNTING_RESOURCE] == side["requests"][ACCOUNTING_RESOURCE] == "0"


def test_it_is_zero_for_a_pod_without_gpus() -> None:
    pod = make_pod().requests(ACCOUNTING_RESOURCE, "5")
    assert apply_patch(pod, review(pod, NATIVE))["spec"]["containers"][0]["resources"]["limits"] == {
        ACCOUNTING_RESOURCE: "0"
    }
    assert not review(make_pod(), NATIVE).patch


MILLI_RANGE: dict[str, Json] = {
    "a minimum": {"min": {ACCOUNTING_RESOURCE: "10"}, "default": {ACCOUNTING_RESOURCE: "20"}},
    "a minimum next to GPUs": {
        "max": {GPU: "4"},
        "min": {ACCOUNTING_RESOURCE: "10"},
        "default": {ACCOUNTING_RESOURCE: "20", GPU: "4"},
    },
    "a ratio": {"maxLimitRequestRatio": {ACCOUNTING_RESOURCE: "1"}, "default": {ACCOUNTING_RESOURCE: "20"}},
    "a minimum of pods": {"type": "Pod", "min": {ACCOUNTING_RESOURCE: "10"}},
    "a minimum of pods above the amount of the GPUs": {"type": "Pod", "min": {ACCOUNTING_RESOURCE: "1015"}},
    "a maximum": {"max": {ACCOUNTING_RESOURCE: "2000"}, "default": {ACCOUNTING_RESOURCE: "20"}},
    "a maximum of pods": {"type": "Pod", "max": {ACCOUNTING_RESOURCE: "1005"}},
}


def ranging(*items: Json) -> ClusterView:
    """Return a view of a namespace with one LimitRange, and a node with whole cards."""
    spec = {"limits": [{"type": "Container"} | item for item in items]}
    metadata = {"name": "milli", "namespace": "team"}
    return view_of(
        make_namespace("team"),
        whole_node(),
        {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": spec},
    )


def twenty(pod: PodMaker, amount: str = "20") -> PodMaker:
    """Return the pod with a sidecar; both containers have an amount from a LimitRange or a user."""
    amounts = {ACCOUNTING_RESOURCE: amount}
    return pod.requests(ACCOUNTING_RESOURCE, amount).container(
        "side", resources={"limits": amounts, "requests": amounts}
    )


LEFT: dict[str, tuple[str, PodMaker, str, list[str]]] = {
    "GPUs next to a minimum": (NATIVE, twenty(make_pod().gpus(1)), "a minimum", ["1000", "20"]),
    "a user's own amount that is enough": (NATIVE, twenty(make_pod().gpus(1), "10"), "a minimum", ["1000", "10"]),
    "no GPUs": (NATIVE, twenty(make_pod()), "a minimum", ["20", "20"]),
    "injected GPUs are removed": (
        NATIVE.replace("native", "native, limitRangeInjected: remove"),
        twenty(
            make_pod()
            .gpus(4)
            .annotate(
                LIMIT_RANGER_ANNOTATION,
                f"{LIMIT_RANGER_PREFIX}{GPU} request for container main; {GPU} limit for container main",
            )
        ),
        "a minimum next to GPUs",
        ["20", "20"],
    ),
    "accounting is off": (PLAIN, twenty(make_pod().gpus(1)), "a minimum", ["20", "20"]),
    "GPUs next to a ratio": (NATIVE, twenty(make_pod().gpus(1)), "a ratio", ["1000", "20"]),
    "the total of the pod": (NATIVE, twenty(make_pod()), "a minimum of pods", ["20", "20"]),
    "the total of the pod is enough": (NATIVE, twenty(make_pod().gpus(1)), "a minimum of pods", ["1000", "0"]),
    "the total of the pod is too low": (
        NATIVE,
        twenty(make_pod().gpus(1)),
        "a minimum of pods above the amount of the GPUs",
        ["1000", "20"],
    ),
    "a maximum allows the zero": (NATIVE, twenty(make_pod().gpus(1)), "a maximum", ["1000", "0"]),
    "a maximum that only the zero satisfies": (NATIVE, twenty(make_pod().gpus(1)), "a maximum of pods", ["1000", "0"]),
}


@pytest.mark.parametrize(("text", "pod", "item", "want"), LEFT.values(), ids=LEFT)
def test_a_zero_that_a_limit_range_would_reject_is_not_written(
    text: str, pod: PodMaker, item: str, want: list[str]
) -> None:
    view = ranging(MILLI_RANGE[item])
    decision = review(pod, text, view=view)
    after = apply_patch(pod, decision)
    each = [one["resources"] for one in after["spec"]["containers"]]
    assert (
        [one["limits"][ACCOUNTING_RESOURCE] for one in each]
        == [one["requests"][ACCOUNTING_RESOURCE] for one in each]
        == want
    )
    assert not decision.denials
    assert not review(after, text, view=view).patch
    after["metadata"]["uid"] = "0a1b"
    assert not review(after, text, view=view).denials


def test_a_pod_that_a_limit_range_rejects_for_its_own_amount_gets_a_fix() -> None:
    pod, view = twenty(make_pod().gpus(1), "5"), ranging({"min": {ACCOUNTING_RESOURCE: "10"}})
    (denied,) = review(pod, NATIVE, view=view).denials
    assert denied.message.endswith("but request is 5 (LimitRange 'milli')")
    assert denied.fix == f"Request at least 10 {ACCOUNTING_RESOURCE}, in limits and requests."
    assert not review(twenty(make_pod().gpus(1), "10"), NATIVE, view=view).denials


def stored_pod(pod: PodMaker) -> PodMaker:
    """Return the pod as /validate receives it, after all mutating webhooks."""
    pod.data["metadata"]["uid"] = "0a1b"
    return pod


FINAL: dict[str, tuple[PodMaker, list[str]]] = {
    "the right value": (stored_pod(make_pod().gpus(1).requests(ACCOUNTING_RESOURCE, "1000")), []),
    "the right value, written another way": (stored_pod(make_pod().gpus(1).requests(ACCOUNTING_RESOURCE, "1k")), []),
    "less": (stored_pod(make_pod().gpus(1).requests(ACCOUNTING_RESOURCE, "1")), ["enforce GPU-Q302"]),
    "none": (stored_pod(make_pod().gpus(1)), ["enforce GPU-Q302"]),
    "no value yet, before mutation": (make_pod().gpus(1), []),
    "a lower value, before mutation": (make_pod().gpus(1).requests(ACCOUNTING_RESOURCE, "1"), []),
}


@pytest.mark.parametrize(("pod", "want"), FINAL.values(), ids=FINAL)
def test_a_pod_that_cannot_be_changed_must_have_the_right_value(pod: PodMaker, want: list[str]) -> None:
    assert codes(review(pod, NATIVE, nodes=(whole_node(),))) == want


def test_a_whole_gpu_is_not_counted_as_its_possible_slice() -> None:
    """Seen on a real control plane: another webhook restored the GPU, or ours was not called."""
    pod = stored_pod(make_pod().gpus(1).needs("8Gi").requests(ACCOUNTING_RESOURCE, "143"))

    decision = review(pod, NATIVE, "mode: enforce\nrightSizing: {}", nodes=(whole_node(), mig_node()))

    assert [found.message for found in decision.findings if found.code == "GPU-Q302"] == [
        "rightslice.dev/gpu-milli must be 1000, the amount of its GPUs (found 143)"
    ]


def test_mutate_output_passes_validate() -> None:
    """One name has two sizes: the added affinity selects one, so both calls compute the same amount."""
    smaller = A100 | {
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/mig-1g.10gb.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.10gb",
        "nvidia.com/mig-1g.10gb.memory": "9856",
    }
    nodes = (mig_node(), make_node("small", smaller, **{GPU: 1, SMALL: 4}))
    pod = make_pod().gpus(1).needs("8Gi")
    policies = (NATIVE, "mode: enforce\nrightSizing: {}")
    first = review(pod, *policies, nodes=nodes)
    assert first.applied
    after = apply_patch(pod, first)
    after["metadata"]["uid"] = "0a1b"
    assert codes(review(after, *policies, nodes=nodes)) == []


def counting(node: Json, milli: str = "8000000") -> Json:
    """Return the node with the accounting resource."""
    allocatable = node["status"]["allocatable"] | {ACCOUNTING_RESOURCE: milli}
    return node | {"status": node["status"] | {"allocatable": allocatable}}


COUNTING = counting(whole_node("counting", 8))
PINNED = make_pod().gpus(1).spec(nodeSelector={"kubernetes.io/hostname": "whole"})

TAKEN: dict[str, tuple[str, PodMaker, tuple[Json, ...], str | None]] = {
    "an admin declares that schedulers ignore it": (NATIVE, make_pod().gpus(1), (whole_node(),), "1000"),
    "no declaration": (PLAIN, make_pod().gpus(1), (whole_node(),), None),
    "a node advertises it": (PLAIN, make_pod().gpus(1), (COUNTING,), "1000"),
    "one of two nodes advertises it": (PLAIN, make_pod().gpus(1), (COUNTING, whole_node()), None),
    "both do": (PLAIN, make_pod().gpus(1), (COUNTING, counting(make_node("turns", A100, **{GPU: 8}))), "1000"),
    "a cordoned node advertises it, and a schedulable one does not": (
        PLAIN,
        make_pod().gpus(1),
        (COUNTING | {"spec": {"unschedulable": True}}, whole_node()),
        None,
    ),
    "a schedulable node advertises it, and a tainted one does not": (
        PLAIN,
        make_pod().gpus(1),
        (COUNTING, whole_node() | {"spec": {"taints": [{"key": "kept", "value": "", "effect": "NoSchedule"}]}}),
        None,
    ),
    "a node with too few GPUs advertises it, and one with enough does not": (
        PLAIN,
        make_pod().gpus(4),
        (counting(whole_node("few", 2)), whole_node()),
        None,
    ),
    "all nodes that the pod may run on advertise it": (
        PLAIN,
        make_pod().gpus(1).spec(nodeSelector={"kubernetes.io/hostname": "counting"}),
        (COUNTING, whole_node()),
        "1000",
    ),
    "the node advertises less than its GPUs count": (
        PLAIN,
        make_pod().gpus(1),
        (counting(whole_node("counting", 8), "7999"),),
        None,
    ),
    "only a node that the pod cannot run on advertises it": (PLAIN, PINNED, (COUNTING, whole_node()), None),
    "only a node without such a GPU advertises it": (
        PLAIN,
        make_pod().requests(SMALL, "1"),
        (COUNTING, mig_node()),
        None,
    ),
    "a user wrote it and no node advertises it": (
        PLAIN,
        make_pod().gpus(1).requests(ACCOUNTING_RESOURCE, "1"),
        (whole_node(),),
        "0",
    ),
}


@pytest.mark.parametrize(("text", "pod", "nodes", "milli"), TAKEN.values(), ids=TAKEN)
def test_gpu_milli_is_written_only_if_no_pod_becomes_pending(
    text: str, pod: PodMaker, nodes: tuple[Json, ...], milli: str | None
) -> None:
    decision = review(pod, text, nodes=nodes)
    after = apply_patch(pod, decision)["spec"]["containers"][0]["resources"]["limits"]
    assert after.get(ACCOUNTING_RESOURCE) == milli
    assert ("warn GPU-Q305" in codes(decision)) is (milli in (None, "0"))


def test_a_pod_is_admitted_without_gpu_milli_where_it_is_omitted() -> None:
    assert codes(review(stored_pod(make_pod().gpus(1)), PLAIN, nodes=(whole_node(),))) == ["warn GPU-Q305"]


def test_a_pod_is_not_right_sized_to_a_slice_that_its_quota_does_not_count() -> None:
    """A quota on the accounting resource covers a slice only if the amount is written for the slice."""
    both = {"requests.nvidia.com/gpu": "8", f"requests.{ACCOUNTING_RESOURCE}": "8000"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "team"}}
    view = view_of(make_namespace("team"), mig_node(), quota | {"spec": {"hard": both}})
    pod, sizing = make_pod().gpus(1).needs("8Gi"), "mode: enforce\nrightSizing: {}"
    assert review(pod, NATIVE, sizing, view=view).applied
    assert not review(pod, PLAIN, sizing, view=view).applied


def turned(before: tuple[Json, ...], after: tuple[Json, ...]) -> ClusterView:
    """Return the view after a change of nodes."""
    space = make_namespace("team")
    return view_of(space, *after).with_pending_of(view_of(space, *before))


CHANGED: dict[str, tuple[str, list[str]]] = {
    "computed before the change": ("250", []),
    "computed after the change": ("1000", []),
    "less than either": ("249", ["enforce GPU-Q302"]),
    "more, which bypasses no quota": ("2000", []),
}
FOUR = make_node("turns", A100 | {"nvidia.com/gpu.replicas": "4"}, **{GPU: 32})


@pytest.mark.parametrize(("milli", "want"), CHANGED.values(), ids=CHANGED)
def test_a_change_of_nodes_between_two_calls_denies_nothing(milli: str, want: list[str]) -> None:
    pod = stored_pod(make_pod().gpus(1).requests(ACCOUNTING_RESOURCE, milli))
    found = codes(review(pod, NATIVE, view=turned((FOUR,), (FOUR, whole_node()))))
    assert [code for code in found if "GPU-Q" in code] == want


def test_the_change_before_the_last_no_longer_counts() -> None:
    pod, later = stored_pod(make_pod().gpus(1).requests(ACCOUNTING_RESOURCE, "250")), turned((FOUR,), (whole_node(),))
    latest = view_of(make_namespace("team"), whole_node()).with_pending_of(later)
    assert [codes(review(pod, NATIVE, view=view)) for view in (later, latest)] == [[], ["enforce GPU-Q302"]]


LEFT_OUT: dict[str, tuple[ClusterView, list[str]]] = {
    "the node that does not advertise it is deleted": (turned((COUNTING, whole_node()), (COUNTING,)), []),
    "the last node starts to advertise it": (turned((whole_node(),), (counting(whole_node()),)), []),
    "it was also written before the change": (
        turned((COUNTING,), (COUNTING, counting(whole_node()))),
        ["enforce GPU-Q302"],
    ),
    "it is no longer written": (turned((COUNTING,), (COUNTING, whole_node())), ["warn GPU-Q305"]),
}


@pytest.mark.parametrize(("view", "want"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_pod_without_gpu_milli_passes_when_nodes_change_between_two_calls(view: ClusterView, want: list[str]) -> None:
    found = codes(review(stored_pod(make_pod().gpus(1)), PLAIN, view=view))
    assert [code for code in found if "GPU-Q" in code] == want


def test_a_newly_free_slice_does_not_change_a_stored_pods_gpu_milli() -> None:
    pod = stored_pod(make_pod().gpus(1).needs("8Gi").requests(ACCOUNTING_RESOURCE, "1000"))
    found = codes(review(pod, NATIVE, "mode: enforce\nrightSizing: {}", nodes=(mig_node(),)))
    assert "enforce GPU-Q302" not in found


def test_a_policy_in_audit_mode_does_not_enable_accounting_for_an_enforced_policy() -> None:
    enforced = "mode: enforce\nlimits: {accounting: native}"
    decision = review(make_pod().gpus(1), enforced, NATIVE.replace("enforce", "audit"), nodes=(whole_node(),))
    assert decision.patch == ()


GPU_CLASS = device_class(
    "gpu", "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"
)
SMALL_CLASS = device_class("small", "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'")
SMALL_CLASS["spec"]["selectors"].insert(0, {"cel": {"expression": "device.attributes['gpu.nvidia.com'].type == 'mig'"}})
OF_SMALL = resource_claim("t", device_class_name="small")
TEMPLATE = OF_SMALL | {"kind": "ResourceClaimTemplate", "spec": {"spec": OF_SMALL["spec"]}}
DEVICES = [
    make_node("dra", {}),
    *partitionable_gpus("dra"),
    GPU_CLASS,
    SMALL_CLASS,
    TEMPLATE,
    resource_claim("c"),
    resource_claim("allocated", allocated("dra", "gpu-0-mig-1g10gb-1-0")),
]
OWN = {"name": "own", "resourceClaimTemplateName": "t"}


def claiming(*claims: Json) -> PodMaker:
    """Return a pod with claims."""
    return make_pod().spec(resourceClaims=list(claims))


CLAIMED: dict[str, tuple[PodMaker, str]] = {
    "a claim of a template": (claiming(OWN), "143"),
    "two of them": (claiming(OWN, OWN | {"name": "other"}), "286"),
    "a claim that pods share counts with each": (claiming({"name": "c", "resourceClaimName": "c"}), "1000"),
    "a claim that has its device": (claiming({"name": "c", "resourceClaimName": "allocated"}), "143"),
    "a template that does not exist yet": (claiming({"name": "c", "resourceClaimTemplateName": "new"}), "32000"),
    "with whole GPUs by name": (claiming(OWN).gpus(1), "1143"),
    "a class by its implicit name": (make_pod().requests("deviceclass.resource.kubernetes.io/small", "2"), "286"),
    "a class by its implicit name, without a limit": (
        make_pod().requests_without_limit("deviceclass.resource.kubernetes.io/small", "2"),
        "286",
    ),
}


@pytest.mark.parametrize(("pod", "milli"), CLAIMED.values(), ids=CLAIMED)
def test_pods_with_claims_request_what_these_weigh(pod: PodMaker, milli: str) -> None:
    view = view_of(*DEVICES, whole_node())
    after = apply_patch(pod, review(pod, NATIVE, view=view))
    assert after["spec"]["containers"][0]["resources"]["limits"][ACCOUNTING_RESOURCE] == milli
    after["metadata"]["uid"] = "u"
    assert not [each for each in codes(review(after, NATIVE, view=view)) if "GPU-Q" in each]
    after["spec"]["containers"][0]["resources"]["limits"][ACCOUNTING_RESOURCE] = "142"
    assert "enforce GPU-Q302" in codes(review(after, NATIVE, view=view))


def test_where_the_scheduler_does_not_ignore_the_resource_claims_do_not_count() -> None:
    view = view_of(*DEVICES)
    assert "warn GPU-Q305" in codes(review(claiming(OWN), PLAIN, view=view))
    assert ACCOUNTING_RESOURCE not in str(apply_patch(claiming(OWN), review(claiming(OWN), PLAIN, view=view)))


def test_the_container_that_uses_a_claim_gets_its_amount() -> None:
    pod = claiming(OWN).build()
    using = {"name": "b", "image": "b", "resources": {"claims": [{"name": "own"}]}}
    pod["spec"]["containers"].append(using)
    first, second = apply_patch(pod, review(pod, NATIVE, view=view_of(*DEVICES)))["spec"]["containers"]
    assert ACCOUNTING_RESOURCE not in first["resources"].get("limits", {})
    assert second["resources"]["limits"] == {ACCOUNTING_RESOURCE: "143"}
