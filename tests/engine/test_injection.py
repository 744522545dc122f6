"""Additions to a pod: tolerations, affinity, runtime class, labels, spread."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.device_builders import NVIDIA, card, device_class, node_groups, resource_claim, resource_slice
from tests.example_cluster import (
    A100,
    GPU_TAINT,
    MIXED,
    apply_patch,
    codes,
    mig_node,
    review,
    tainted,
    view_of,
    whole_node,
)
from webhook.model.decisions import KeepReason, KeepRequest

RULE = "{key: zone, operator: In, values: [a]}"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ZONED = [make_node(f"node-{zone}", A100 | {"zone": zone}, **{"nvidia.com/gpu": 8}) for zone in "ab"]


def injected(pod: PodMaker, section: str, nodes: Any = (), **fields: Any) -> Json:
    """Return the pod's spec after an enforced injection."""
    spec: Json = apply_patch(pod, review(pod, f"mode: enforce\ninjection: {section}", nodes=nodes, **fields))["spec"]
    return spec


def terms(spec: Json) -> Any:
    """Return the required node affinity terms."""
    return spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]


EXPRESSION = {"key": "zone", "operator": "In", "values": ["a"]}
OTHER = {"key": "disk", "operator": "Exists"}
FIELD = {"key": "metadata.name", "operator": "In", "values": ["node-a"]}


def test_tolerations_cover_exactly_the_gpu_taints_of_the_nodes() -> None:
    team = {"key": "team", "value": "b", "effect": "NoSchedule"}
    bare = {"key": "nvidia.com/gpu", "effect": "NoExecute"}
    nodes = (tainted(whole_node("a"), GPU_TAINT, bare), tainted(whole_node("b"), GPU_TAINT, team))
    assert injected(make_pod().gpus(1), "{tolerations: auto}", nodes)["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"},
        {"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"},
    ]


@pytest.mark.parametrize(
    "toleration",
    [
        pytest.param({"operator": "Exists"}, id="everything"),
        pytest.param({"key": "nvidia.com/gpu", "operator": "Exists"}, id="the key, any effect"),
        pytest.param({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}, id="the very taint"),
    ],
)
def test_existing_entries_are_not_added_again(toleration: Json) -> None:
    pod = make_pod().gpus(1).spec(tolerations=[toleration])
    assert injected(pod, "{tolerations: auto}", (tainted(whole_node(), GPU_TAINT),))["tolerations"] == [toleration]


def test_a_list_of_tolerations_is_added_as_written() -> None:
    section = "{tolerations: [{key: team, operator: Equal, value: a, effect: NoExecute, tolerationSeconds: 60}]}"
    assert injected(make_pod().gpus(1), section)["tolerations"] == [
        {"key": "team", "operator": "Equal", "value": "a", "effect": "NoExecute", "tolerationSeconds": 60}
    ]


def test_no_toleration_where_a_whitelist_could_reject_it() -> None:
    namespace = make_namespace("team")
    namespace["metadata"]["annotations"] = {"scheduler.alpha.kubernetes.io/tolerationsWhitelist": "[]"}
    view = view_of(namespace, tainted(whole_node(), GPU_TAINT))
    assert "tolerations" not in injected(make_pod().gpus(1), "{tolerations: auto}", view=view)


def test_no_slice_whose_taint_only_an_addition_would_tolerate_where_a_whitelist_could_reject_it() -> None:
    namespace = make_namespace("team")
    namespace["metadata"]["annotations"] = {"scheduler.alpha.kubernetes.io/tolerationsWhitelist": "[]"}
    view, tolerate = view_of(namespace, whole_node(), tainted(mig_node(), GPU_TAINT)), "injection: {tolerations: auto}"
    pod = make_pod().gpus(1).annotate("rightslice.dev/gpu-memory", "8Gi")
    decision = review(pod, f"mode: enforce\nrightSizing: {{}}\n{tolerate}", view=view)
    assert isinstance(decision.outcome, KeepRequest)
    assert decision.outcome.reason is KeepReason.UNREACHABLE


def affinity(*have: Json) -> PodMaker:
    """Return a pod with required terms."""
    return make_pod().gpus(1).spec(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(have)}}})


AFFINITIES = {
    "no affinity: a term of its own": (make_pod().gpus(1), [{"matchExpressions": [EXPRESSION]}]),
    "an empty affinity": (make_pod().gpus(1).spec(affinity={}), [{"matchExpressions": [EXPRESSION]}]),
    "an empty node affinity": (
        make_pod().gpus(1).spec(affinity={"nodeAffinity": {}}),
        [{"matchExpressions": [EXPRESSION]}],
    ),
    "every term is narrowed, at its end": (
        affinity({"matchExpressions": [OTHER]}, {"matchFields": [FIELD]}),
        [
            {"matchExpressions": [OTHER, EXPRESSION]},
            {"matchFields": [FIELD], "matchExpressions": [EXPRESSION]},
        ],
    ),
    "a term that matches nothing still matches nothing": (
        affinity({}, {"matchExpressions": [OTHER]}),
        [{}, {"matchExpressions": [OTHER, EXPRESSION]}],
    ),
    "an existing expression is not added again": (
        affinity({"matchExpressions": [EXPRESSION]}),
        [{"matchExpressions": [EXPRESSION]}],
    ),
}


@pytest.mark.parametrize(("pod", "want"), AFFINITIES.values(), ids=AFFINITIES)
def test_required_expressions_only_narrow(pod: PodMaker, want: list[Json]) -> None:
    assert terms(injected(pod, f"{{nodeAffinity: {{required: [{RULE}]}}}}")) == want


def test_an_affinity_that_would_leave_no_node_is_not_added() -> None:
    pod = make_pod().gpus(1).spec(nodeSelector={"zone": "b"})
    decision = review(pod, f"mode: enforce\ninjection: {{nodeAffinity: {{required: [{RULE}]}}}}", nodes=ZONED)
    assert decision.patch == ()
    assert codes(decision) == ["warn GPU-I102"]


def test_the_runtime_class_of_the_user_stays() -> None:
    pod = make_pod().gpus(1).spec(runtimeClassName="kata")
    decision = review(pod, "mode: enforce\ninjection: {runtimeClassName: nvidia}")
    assert decision.patch == ()
    assert codes(decision) == ["warn GPU-I102"]
    assert injected(make_pod().gpus(1), "{runtimeClassName: nvidia}")["runtimeClassName"] == "nvidia"


def test_labels_are_added_and_never_changed() -> None:
    section = "mode: enforce\ninjection: {labels: {example.com/a: b, tier: gpu}}"
    pod = make_pod().gpus(1).label("tier", "mine")
    decision = review(pod, section)
    assert apply_patch(pod, decision)["metadata"]["labels"] == {"tier": "mine", "example.com/a": "b"}
    assert "warn GPU-I102" in codes(decision)


def test_conflicting_additions_of_policies_are_reported() -> None:
    """Two policies match: the pod requests the resources of both."""
    kinds = {"nvidia.com/gpu": "nvidia", "nvidia.com/mig-*": "nvidia-cdi"}
    texts = [
        f'mode: enforce\nmatch: {{resources: ["{name}"]}}\n'
        f"injection: {{runtimeClassName: {kind}, labels: {{tier: {kind}}}}}"
        for name, kind in kinds.items()
    ]
    pod = make_pod().gpus(1).requests("nvidia.com/mig-1g.10gb", "1")

    said = [found.message for found in review(pod, *texts).findings if found.code == "GPU-I102"]

    assert said == [
        "not added: runtimeClassName nvidia-cdi (another policy sets nvidia)",
        "not added: label tier: nvidia-cdi (another policy sets another value)",
    ]


WORKER = make_pod().gpus(1).label("batch.kubernetes.io/job-name", "train").owned_by("Job", "train")


@pytest.mark.parametrize(("spread", "want"), [("preferred", "ScheduleAnyway"), ("required", "DoNotSchedule")])
def test_pods_of_one_workload_are_spread_over_hosts(spread: str, want: str) -> None:
    assert injected(WORKER, f"{{spread: {spread}}}")["topologySpreadConstraints"] == [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": want,
            "labelSelector": {"matchLabels": {"batch.kubernetes.io/job-name": "train"}},
        }
    ]


def test_a_single_pod_is_not_spread() -> None:
    assert "topologySpreadConstraints" not in injected(make_pod().gpus(1), "{spread: required}")


def test_a_spread_constraint_of_the_user_stays() -> None:
    mine = {"maxSkew": 2, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    pod = make_pod().gpus(1).label("job-name", "train").owned_by("Job", "train").spec(topologySpreadConstraints=[mine])
    assert injected(pod, "{spread: required}")["topologySpreadConstraints"] == [mine]


def test_a_pod_without_gpus_gets_no_additions() -> None:
    section = "mode: enforce\ninjection: {runtimeClassName: nvidia, labels: {a: b}, tolerations: auto}"
    assert review(make_pod(), section, nodes=(tainted(whole_node(), GPU_TAINT),)).patch == ()


def test_several_additions_report_their_common_field() -> None:
    policy = "injection: {mode: warn, runtimeClassName: nvidia, tolerations: [{key: a}]}"
    [warning] = review(make_pod().gpus(1), policy).warnings
    fix = "Write it in the pod, or ask the admin to enforce the policy."
    assert str(warning) == f"[GPU-I101] spec: would add tolerations, runtimeClassName. {fix}"


def test_audit_mode_adds_nothing_and_reports_the_additions() -> None:
    decision = review(make_pod().gpus(1), "injection: {mode: warn, runtimeClassName: nvidia}")
    assert decision.patch == ()
    assert [str(finding) for finding in decision.warnings] == [
        "[GPU-I101] spec.runtimeClassName: would add runtimeClassName. "
        "Write it in the pod, or ask the admin to enforce the policy."
    ]


@pytest.mark.parametrize("required", [{}, {"nodeSelectorTerms": []}, {"nodeSelectorTerms": None}])
def test_a_required_affinity_without_terms_still_matches_nothing(required: Json) -> None:
    wrong = {"nodeAffinity": {REQUIRED: required}}
    pod = make_pod().gpus(1).spec(affinity=wrong)
    assert injected(pod, f"{{nodeAffinity: {{required: [{RULE}]}}}}", (whole_node(),))["affinity"] == wrong


GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"


def zoned(zone: str, labels: Any = None, **amounts: int) -> Json:
    return make_node(f"node-{zone}", (labels or A100) | {"zone": zone}, **amounts)


def mig_in(zone: str) -> Json:
    """Return a node with whole cards and slices."""
    return make_node(f"mig-{zone}", MIXED | {"zone": zone}, **{GPU: 4, SLICE: 7})


def sidecar_pod(resource: str) -> PodMaker:
    """Return a pod with two containers: one requests a whole GPU, the other one of this resource."""
    return make_pod().gpus(1).container("b", resources={"limits": {resource: "1"}})


SHARES = {
    "nvidia.com/gpu.product": "NVIDIA-L4-SHARED",
    "nvidia.com/gpu.replicas": "4",
    "nvidia.com/gpu.sharing-strategy": "mps",
}
CARDS_IN_B = zoned("b", **{GPU: 4})
LARGE_IN_B = zoned("b", **{GPU: 4, "memory": 2**40})
CORDONED = zoned("a", **{GPU: 4}) | {"spec": {"unschedulable": True}}
TWO = make_pod().gpus(2)
LEFT: dict[str, tuple[PodMaker, tuple[Json, ...], bool]] = {
    "two shares, which the kubelet rejects": (TWO, (zoned("a", SHARES, **{GPU: 8}), CARDS_IN_B), False),
    "one share": (make_pod().gpus(1), (zoned("a", SHARES, **{GPU: 8}), CARDS_IN_B), True),
    "too few GPUs on a node": (TWO, (zoned("a", **{GPU: 1}), CARDS_IN_B), False),
    "too few for two containers": (sidecar_pod(GPU), (zoned("a", **{GPU: 1}), CARDS_IN_B), False),
    "two names, and no node with both": (
        sidecar_pod(SLICE),
        (zoned("a", **{GPU: 4}), make_node("slices", MIXED | {"zone": "a"}, **{SLICE: 7}), mig_in("b")),
        False,
    ),
    "two names, and a node with both": (sidecar_pod(SLICE), (mig_in("a"), mig_in("b")), True),
    "too few cores": (make_pod().gpus(1).requests("cpu", "16"), (zoned("a", cpu=8, **{GPU: 4}), CARDS_IN_B), False),
    "too little memory": (make_pod().gpus(1).requests("memory", "600Gi"), (zoned("a", **{GPU: 4}), LARGE_IN_B), False),
    "a cordoned node": (TWO, (CORDONED, CARDS_IN_B), True),
    "no node of any zone is large enough": (make_pod().gpus(8), (zoned("a", **{GPU: 1}), CARDS_IN_B), True),
}


@pytest.mark.parametrize(("pod", "nodes", "added"), LEFT.values(), ids=LEFT)
def test_a_requirement_leaves_a_node_that_could_take_the_whole_pod(
    pod: PodMaker, nodes: tuple[Json, ...], added: bool
) -> None:
    policies = (f"mode: enforce\ninjection: {{nodeAffinity: {{required: [{RULE}]}}}}",)
    first = review(pod, *policies, nodes=nodes)
    assert bool(first.patch) is added
    assert ("warn GPU-I102" in codes(first)) is not added
    assert review(apply_patch(pod, first), *policies, nodes=nodes).patch == ()


OTHER_TAINT = {"key": "nvidia.com/reserved", "effect": "NoSchedule"}
CLASS = device_class("gpu", f"device.driver == '{NVIDIA}'", "nvidia.com/gpu")
DEVICE: Json = {"deviceClassName": "gpu", "count": 1}
CARD: list[Json] = [{"name": "g", "exactly": DEVICE}]
H100_ONLY = {"cel": {"expression": f"device.attributes['{NVIDIA}'].productName == 'NVIDIA H100'"}}


def claim_template(requests: list[Json]) -> Json:
    """Return a template of claims."""
    claim = resource_claim("t")
    return claim | {"kind": "ResourceClaimTemplate", "spec": {"spec": {"devices": {"requests": requests}}}}


def devices_on(node: str, *products: str, **labels: str) -> list[Json]:
    """Return a node with a taint of GPU nodes, and the slice of its cards."""
    cards = [card(f"gpu-{index}", product) for index, product in enumerate(products)]
    published = resource_slice(f"{node}-gpus", NVIDIA, node, nodeName=node, devices=cards)
    return [tainted(make_node(node, labels), GPU_TAINT if "H100" in products[0] else OTHER_TAINT), published]


CLAIMED = [*devices_on("a", "NVIDIA H100", zone="a"), *devices_on("b", "NVIDIA A10", "NVIDIA A10", zone="b"), CLASS]
BY_TEMPLATE = make_pod().spec(resourceClaims=[{"name": "g", "resourceClaimTemplateName": "t"}])
BY_NAME = make_pod().spec(resourceClaims=[{"name": "g", "resourceClaimName": "c"}])
BY_CLASS = make_pod().requests("deviceclass.resource.kubernetes.io/gpu", "1")
H100_CARD = [{"name": "g", "exactly": DEVICE | {"selectors": [H100_ONLY]}}]
TWO_CARDS = [{"name": "g", "exactly": DEVICE | {"count": 2}}]
NO_CARD = [{"name": "g", "exactly": DEVICE | {"selectors": [{"cel": {"expression": "false"}}]}}]
KEYS = ["nvidia.com/gpu", "nvidia.com/reserved"]

TOLERATED: dict[str, tuple[PodMaker, list[Json], list[str]]] = {
    "a claim that one node can serve": (BY_TEMPLATE, [claim_template(H100_CARD)], KEYS[:1]),
    "a claim that two nodes can serve": (BY_TEMPLATE, [claim_template(CARD)], KEYS),
    "a claim by name": (BY_NAME, [resource_claim("c", device_class_name="gpu")], KEYS),
    "a class by its own name": (BY_CLASS, [], KEYS),
    "a class by the name of the device plugin": (make_pod().gpus(1), [], KEYS),
    "and nodes of the device plugin": (
        make_pod().gpus(1), [tainted(whole_node(), {"key": "nvidia.com/plugin", "effect": "NoSchedule"})],
        ["nvidia.com/gpu", "nvidia.com/plugin", "nvidia.com/reserved"],
    ),
    "a name and a claim, which one node can serve": (
        make_pod().gpus(1).spec(resourceClaims=BY_TEMPLATE.build()["spec"]["resourceClaims"]),
        [claim_template(H100_CARD)], KEYS[:1],
    ),
    "a node selector": (
        make_pod().requests("deviceclass.resource.kubernetes.io/gpu", "1").spec(nodeSelector={"zone": "b"}),
        [], KEYS[1:],
    ),
    "a selector that matches nothing": (BY_TEMPLATE, [claim_template(NO_CARD)], []),
    "a template that is not known": (BY_TEMPLATE, [], []),
    "no claim": (make_pod(), [claim_template(CARD)], []),
}  # fmt: skip


@pytest.mark.parametrize(("pod", "objects", "keys"), TOLERATED.values(), ids=TOLERATED)
def test_pods_with_claims_tolerate_the_taints_of_the_nodes_with_such_devices(
    pod: PodMaker, objects: list[Json], keys: list[str]
) -> None:
    cluster = [*CLAIMED, *objects]
    spec = injected(pod, "{tolerations: auto}", cluster)
    assert sorted(each["key"] for each in spec.get("tolerations", ())) == keys
    again = review({**pod.build(), "spec": spec}, "mode: enforce\ninjection: {tolerations: auto}", nodes=cluster)
    assert again.patch == ()


def group_of_cards(product: str = "NVIDIA H100", **fields: Any) -> Json:
    """Return settings with a group without nodes, whose new nodes have a taint of GPU nodes and publish a card."""
    published = resource_slice("s", NVIDIA, "gone", nodeName="gone", devices=[card("gpu-0", product)])
    return node_groups(published, taints=[GPU_TAINT], **fields)


OF_NEW_NODES: dict[str, tuple[PodMaker, list[Json], list[str]]] = {
    "no node publishes devices": (BY_TEMPLATE, [group_of_cards()], KEYS[:1]),
    "a class by its own name": (BY_CLASS, [group_of_cards()], KEYS[:1]),
    "a live node publishes them": (BY_TEMPLATE, [*devices_on("b", "NVIDIA A10"), group_of_cards()], KEYS[1:]),
    "a group that does not grow": (BY_TEMPLATE, [group_of_cards(grows=False)], []),
    "a group that the pod does not select": (
        make_pod().spec(nodeSelector={"zone": "b"}, resourceClaims=BY_TEMPLATE.build()["spec"]["resourceClaims"]),
        [group_of_cards(labels={"zone": "a"})],
        [],
    ),
}


@pytest.mark.parametrize(("pod", "objects", "keys"), OF_NEW_NODES.values(), ids=OF_NEW_NODES)
def test_pods_with_claims_tolerate_the_taints_of_nodes_that_a_group_adds(
    pod: PodMaker, objects: list[Json], keys: list[str]
) -> None:
    cluster = [make_node("cpu"), CLASS, claim_template(CARD), *objects]
    spec = injected(pod, "{tolerations: auto}", cluster)
    assert sorted(each["key"] for each in spec.get("tolerations", ())) == keys


def claims_allowed(count: int, **fields: Any) -> Json:
    """Return a quota of claims, none of them used."""
    hard = {"count/resourceclaims.resource.k8s.io": str(count)}
    about = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "team"}}
    return about | {"spec": {"hard": hard, **fields}, "status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}


PLUGIN_IN_C = make_node("c", {"zone": "c"}, **{"nvidia.com/gpu": 1})

REQUIRED_OF_CLAIMS: dict[str, tuple[PodMaker, list[Json], str, bool]] = {
    "a node with the device is left": (BY_TEMPLATE, [claim_template(CARD)], "a", True),
    "the node that is left has other devices": (BY_TEMPLATE, [claim_template(H100_CARD)], "b", False),
    "the node that is left has enough devices": (BY_TEMPLATE, [claim_template(TWO_CARDS)], "b", True),
    "the node that is left has too few devices": (BY_TEMPLATE, [claim_template(TWO_CARDS)], "a", False),
    "no node is left": (BY_TEMPLATE, [claim_template(CARD)], "c", False),
    "a claim that other pods may use elsewhere": (BY_NAME, [resource_claim("c", device_class_name="gpu")], "a", False),
    "a class by its own name": (BY_CLASS, [], "a", True),
    "a class by the name of the device plugin": (make_pod().gpus(1), [], "a", True),
    "a class that has too few devices there": (make_pod().gpus(2), [], "a", False),
    "a class, and no node is left": (make_pod().gpus(1), [], "c", False),
    "a class, without the node whose device plugin serves the pod": (make_pod().gpus(1), [PLUGIN_IN_C], "a", True),
    "and a quota admits the claim that it then needs": (
        make_pod().gpus(1),
        [PLUGIN_IN_C, claims_allowed(1)],
        "a",
        True,
    ),
    "and a quota rejects that claim": (make_pod().gpus(1), [PLUGIN_IN_C, claims_allowed(0)], "a", False),
    "and a quota with a scope counts no claim": (
        make_pod().gpus(1),
        [PLUGIN_IN_C, claims_allowed(0, scopes=["NotTerminating"])],
        "a",
        True,
    ),
    "a quota rejects a claim that the pod needs on every node": (make_pod().gpus(1), [claims_allowed(0)], "a", True),
}


@pytest.mark.parametrize(("pod", "objects", "zone", "is_added"), REQUIRED_OF_CLAIMS.values(), ids=REQUIRED_OF_CLAIMS)
def test_an_affinity_leaves_claims_a_node_with_their_devices(
    pod: PodMaker, objects: list[Json], zone: str, *, is_added: bool
) -> None:
    rule = f"{{tolerations: auto, nodeAffinity: {{required: [{{key: zone, operator: In, values: [{zone}]}}]}}}}"
    decision = review(pod, f"mode: enforce\ninjection: {rule}", nodes=[*CLAIMED, *objects])
    spec = apply_patch(pod, decision)["spec"]
    assert ("affinity" in spec, "warn GPU-I102" in codes(decision)) == (is_added, not is_added)


def test_an_affinity_leaves_claims_a_node_whose_taints_the_pod_tolerates() -> None:
    rule = f"mode: enforce\ninjection: {{nodeAffinity: {{required: [{RULE}]}}}}"
    decision = review(BY_TEMPLATE, rule, nodes=[*CLAIMED, claim_template(CARD)])
    assert (decision.patch, "warn GPU-I102" in codes(decision)) == ((), True)
