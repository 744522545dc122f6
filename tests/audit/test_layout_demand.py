"""The demand of MIG layouts: what pods would request if every slice were free, and where whole cards stay."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from tests.builders import PodMaker, make_node, make_pod
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.layout_demand import DemandCollector
from webhook.audit.layout_quotas import QuotaCollector
from webhook.audit.layout_view import advertised_share_forms, view_with_slices
from webhook.audit.object_files import SourceObject, parse_objects
from webhook.audit.pod_audit import audit_pods
from webhook.cache.snapshot import view_of_objects
from webhook.placement.layout_plan import CardUnit
from webhook.placement.node_layouts import node_layouts
from webhook.policy.loader import load_policies
from webhook.report.layout_demand import LayoutDemand, RequestOrigin

A100, H100, T4 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3", "Tesla-T4"
POLICY = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: smaller}
spec:
  mode: enforce
  match: {namespaces: [team]}
  rightSizing: {mode: enforce, evidence: [declared], isolation: hardware, forms: [mig]}
"""


def card_node(name: str, product: str, **gpus: int) -> dict[str, Any]:
    """Return a node with cards of a product."""
    return make_node(name, {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": "81920"}, **gpus)


NODES = (
    card_node("a100", A100, **{"nvidia.com/gpu": 8}),
    card_node("mixed", A100, **{"nvidia.com/gpu": 6, "nvidia.com/mig-1g.10gb": 4, "nvidia.com/mig-3g.40gb": 2}),
    card_node("h100", H100, **{"nvidia.com/gpu": 8}),
    card_node("t4", T4, **{"nvidia.com/gpu": 4}),
)


def demand_of(*pods: PodMaker, nodes: tuple[dict[str, Any], ...] = NODES, policy: str = POLICY) -> LayoutDemand:
    """Collect the demand of some pods under a policy that right-sizes namespace team."""
    items = [*nodes, *(pod.build() for pod in pods)]
    found = list(parse_objects("f.json", orjson.dumps({"apiVersion": "v1", "kind": "List", "items": items})))
    view = view_of_objects((each.data, each.locate()) for each in found if isinstance(each, SourceObject))
    loaded = load_policies([("p.yaml", policy)])
    assert loaded.policies is not None, loaded.errors
    share_forms = advertised_share_forms(loaded.policies)
    layouts = node_layouts(view.fleet, sharing=bool(share_forms))
    offering = view_with_slices(view, layouts, share_forms)
    context = EvaluationContext(loaded.policies, offering, datetime(2026, 6, 1, tzinfo=UTC))
    collector = DemandCollector(offering.fleet, layouts, loaded.policies, QuotaCollector(view, loaded.policies))
    for result in audit_pods(found, context):
        collector.add(result)
    return collector.demand()


def needs_of(demand: LayoutDemand) -> dict[tuple[str, ...], int]:
    """Return the requests by the units that serve them, as words."""
    return {
        (need.origin.value, *(f"{unit.product.split('-')[1]}/{unit.profile or 'whole'}" for unit in need.units)): count
        for need, count in demand.needs.items()
    }


def whole(name: str, need: str = "", node: str = "") -> PodMaker:
    """Return a pod of namespace team with one whole card."""
    pod = make_pod(name).gpus(1)
    pod = pod.needs(need) if need else pod
    return pod.spec(nodeName=node) if node else pod


SLICES_OF_8_GIB = ("A100/1g.10gb", "A100/1g.20gb", "A100/2g.20gb", "A100/3g.40gb", "A100/4g.40gb", "A100/whole")
NEEDS: dict[str, tuple[list[PodMaker], dict[tuple[str, ...], int]]] = {
    "a small pod could have any slice of its product, or its card": (
        [whole("p", "8Gi", "a100")],
        {("right-sized", *SLICES_OF_8_GIB): 1},
    ),
    "a pod that needs 30 GiB has fewer slices to choose from": (
        [whole("p", "30Gi", "a100")],
        {("right-sized", "A100/3g.40gb", "A100/4g.40gb", "A100/whole"): 1},
    ),
    "a running pod stays on its product": (
        [whole("p", "30Gi", "h100")],
        {("right-sized", "H100/3g.40gb", "H100/4g.40gb", "H100/whole"): 1},
    ),
    "pods with the same need are counted together": (
        [whole("p", "30Gi", "a100"), whole("q", "31Gi", "a100")],
        {("right-sized", "A100/3g.40gb", "A100/4g.40gb", "A100/whole"): 2},
    ),
    "a pod that needs most of a card keeps it": ([whole("p", "70Gi", "a100")], {}),
    "a pod without a known need keeps its card": ([whole("p", node="a100")], {}),
    "a slice that a running pod has is needed by name, on its product": (
        [make_pod("p").requests("nvidia.com/mig-3g.40gb", "1").spec(nodeName="mixed")],
        {("slice requested", "A100/3g.40gb"): 1},
    ),
    "a waiting pod may have a slice by that name on every product that has it": (
        [make_pod("p").requests("nvidia.com/mig-1g.10gb", "1")],
        {("slice requested", "A100/1g.10gb", "H100/1g.10gb"): 1},
    ),
    "a waiting pod that selects a product stays there": (
        [make_pod("p").gpus(1).spec(nodeSelector={"nvidia.com/gpu.product": H100})],
        {("whole cards requested", "H100/whole"): 1},
    ),
    "a pod of several slices needs a node whose cards can have them together": (
        [make_pod("p").requests("nvidia.com/mig-7g.80gb", "9").spec(nodeSelector={"nvidia.com/gpu.product": A100})],
        {("slice requested",): 9},
    ),
    "and may use only such nodes": (
        [make_pod("p").requests("nvidia.com/mig-3g.40gb", "14")],
        {("slice requested", "A100/3g.40gb", "H100/3g.40gb"): 14},
    ),
    "a slice that no product has is needed and cannot be served": (
        [make_pod("p").requests("nvidia.com/mig-1g.5gb", "1")],
        {("slice requested",): 1},
    ),
    "a pod that could have a slice of a card that is not partitioned today": (
        [whole("p", "30Gi").spec(nodeSelector={"nvidia.com/gpu.product": H100})],
        {("right-sized", "H100/3g.40gb", "H100/4g.40gb", "H100/whole"): 1},
    ),
    "pods on cards that cannot be partitioned are not planned": ([whole("p", "4Gi", "t4")], {}),
}


@pytest.mark.parametrize(("pods", "expected"), NEEDS.values(), ids=NEEDS.keys())
def test_needs(pods: list[PodMaker], expected: dict[tuple[str, ...], int]) -> None:
    assert needs_of(demand_of(*pods)) == expected


def shared_policy(forms: str, isolation: str = "none") -> str:
    """Return the policy with shares."""
    return POLICY.replace("isolation: hardware, forms: [mig]", f"isolation: {isolation}, forms: {forms}")


SHARED_L4 = make_node(
    "l4",
    {
        "nvidia.com/gpu.product": "NVIDIA-L4-SHARED",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.replicas": "3",
        "nvidia.com/gpu.memory": "23034",
    },
    **{"nvidia.com/gpu": 6},
)
A30 = "NVIDIA-A30"
SLICES_OF_4_GIB = ("A30/1g.6gb", "A30/2g.12gb", "A30/whole")


MEMORY_OF_A100 = {"nvidia.com/gpu.product": A100, "nvidia.com/gpu.memory": "81920"}


def driver(version: str) -> dict[str, str]:
    """Return the labels of a driver on a card of Ampere."""
    compute = {"nvidia.com/gpu.compute.major": "8", "nvidia.com/gpu.compute.minor": "0"}
    return {"nvidia.com/cuda.driver-version.full": version, **compute}


def a30_node(name: str = "a30", **labels: str) -> dict[str, Any]:
    """Return a node with four whole A30."""
    return make_node(
        name, {"nvidia.com/gpu.product": A30, "nvidia.com/gpu.memory": "24576", **labels}, **{"nvidia.com/gpu": 4}
    )


def tainted(node: dict[str, Any], key: str = "team") -> dict[str, Any]:
    """Return a node with a taint."""
    return node | {"spec": {"taints": [{"key": key, "value": "other", "effect": "NoSchedule"}]}}


UNSHARED = {"nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/gpu.replicas": "1"}
WITH_PROFILE = {"nvidia.com/mig-1g.10gb.product": f"{A100}-MIG-1g.10gb"}
HAS_PROFILE = {"matchExpressions": [{"key": "nvidia.com/mig-1g.10gb.product", "operator": "Exists"}]}
FULLY_PARTITIONED = {"nvidia.com/mig-1g.10gb": 28, "nvidia.com/mig-3g.40gb": 4}
REACHABLE: dict[str, tuple[PodMaker, tuple[dict[str, Any], ...], str, dict[tuple[str, ...], int]]] = {
    "slices of a partitioned node, beside whole cards on a node that it does not tolerate": (
        whole("p", "8Gi"),
        (tainted(NODES[0]), card_node("n", A100, **FULLY_PARTITIONED)),
        POLICY,
        {("right-sized", *SLICES_OF_8_GIB): 1},
    ),
    "and if the policy lets pods wait for slices": (
        whole("p", "8Gi"),
        (tainted(NODES[2]), card_node("n", A100, **FULLY_PARTITIONED)),
        POLICY.replace("forms: [mig]", "forms: [mig], whenFull: wait"),
        {("right-sized", *SLICES_OF_8_GIB): 1},
    ),
    "slices of a node whose taint a policy tolerates": (
        whole("p", "8Gi"),
        (tainted(NODES[0]), NODES[3]),
        f"{POLICY}  injection: {{tolerations: [{{key: team, operator: Exists}}]}}\n",
        {("right-sized", *SLICES_OF_8_GIB): 1},
    ),
    "slices of each product, although those of one are a smaller part of their card": (
        whole("p", "4Gi"),
        (NODES[0], a30_node()),
        POLICY,
        {("right-sized", *SLICES_OF_8_GIB[:5], *SLICES_OF_4_GIB[:2], SLICES_OF_8_GIB[5], SLICES_OF_4_GIB[2]): 1},
    ),
    "slices, but no shares, of a node that it selects as one without shares": (
        whole("p", "4Gi").spec(nodeSelector=UNSHARED),
        (a30_node(**UNSHARED),),
        shared_policy("[timeSlicing, mig]"),
        {("right-sized", *SLICES_OF_4_GIB): 1},
    ),
    "a whole card of such a node": (
        whole("p").spec(nodeSelector=UNSHARED),
        (a30_node(**UNSHARED),),
        shared_policy("[mps]"),
        {("whole cards requested", "A30/whole"): 1},
    ),
    "shares of a node that it selects by the label of shared cards": (
        make_pod("p").requests("nvidia.com/gpu.shared", "1").spec(nodeSelector={"nvidia.com/gpu.replicas": "3"}),
        (SHARED_L4, a30_node()),
        shared_policy("[timeSlicing]"),
        {("share requested", "L4/timeSlicing/3", "L4/timeSlicing/2"): 1},
    ),
    "slices of a node that it selects by the label of a profile": (
        make_pod("p")
        .requests("nvidia.com/mig-1g.10gb", "1")
        .spec(
            affinity={
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [HAS_PROFILE]}}
            }
        ),
        (NODES[2], make_node("n", MEMORY_OF_A100 | WITH_PROFILE, **{"nvidia.com/mig-1g.10gb": 7})),
        POLICY,
        {("slice requested", "A100/1g.10gb"): 1},
    ),
    "no slices of nodes whose driver is too old for the image": (
        whole("p", "4Gi").annotate("rightslice.dev/cuda", ">=12.4"),
        (
            make_node("a100", MEMORY_OF_A100 | driver("550.54.15"), **{"nvidia.com/gpu": 8}),
            a30_node(**driver("470.82.01")),
        ),
        POLICY,
        {("right-sized", *SLICES_OF_8_GIB): 1},
    ),
    "no card, if it declares more memory than the partitioned cards have": (
        whole("p", "100Gi"),
        (card_node("n", A100, **FULLY_PARTITIONED),),
        POLICY,
        {("whole cards requested",): 1},
    ),
    "nor without a label of the memory": (
        whole("p", "100Gi"),
        (make_node("n", {"nvidia.com/gpu.product": A100}, **FULLY_PARTITIONED),),
        POLICY,
        {("whole cards requested",): 1},
    ),
    "nor of shared cards": (
        whole("p", "30Gi"),
        (SHARED_L4,),
        shared_policy("[timeSlicing]"),
        {("whole cards requested",): 1},
    ),
}


@pytest.mark.parametrize(("pod", "nodes", "policy", "expected"), REACHABLE.values(), ids=REACHABLE.keys())
def test_a_waiting_pod_needs_what_the_nodes_that_it_may_use_could_have(
    pod: PodMaker, nodes: tuple[dict[str, Any], ...], policy: str, expected: dict[tuple[str, ...], int]
) -> None:
    assert needs_of(demand_of(pod, nodes=nodes, policy=policy)) == expected


def test_a_policy_that_requires_a_large_saving_allows_fewer_slices() -> None:
    policy = POLICY.replace("forms: [mig]", "forms: [mig], minSavingPercent: 60")

    assert needs_of(demand_of(whole("p", "8Gi", "a100"), policy=policy)) == {
        ("right-sized", "A100/1g.10gb", "A100/1g.20gb", "A100/2g.20gb", "A100/whole"): 1
    }


SHARES: dict[str, tuple[list[PodMaker], str, dict[tuple[str, ...], int]]] = {
    "as many replicas as fit into the memory": (
        [whole("p", "20Gi", "h100")],
        shared_policy("[timeSlicing]"),
        {("right-sized", "H100/timeSlicing/4", "H100/timeSlicing/3", "H100/timeSlicing/2", "H100/whole"): 1},
    ),
    "no more than the duty allows": (
        [make_pod("p").gpus(1).needs("8Gi", "40%").spec(nodeName="h100")],
        shared_policy("[mps]", "memory"),
        {("right-sized", "H100/mps/2", "H100/whole"): 1},
    ),
    "seven, if the duty is not known": (
        [whole("p", "1Gi", "t4")],
        shared_policy("[timeSlicing]"),
        {("right-sized", *(f"T4/timeSlicing/{count}" for count in (7, 6, 5, 4, 3, 2)), "T4/whole"): 1},
    ),
    "the form that the policy prefers": (
        [whole("p", "30Gi", "a100")],
        shared_policy("[mig, timeSlicing]"),
        {("right-sized", "A100/3g.40gb", "A100/4g.40gb", "A100/whole"): 1},
    ),
    "a share that a pod has, if its need is not known": (
        [whole("p", node="l4")],
        shared_policy("[timeSlicing]"),
        {("share requested", "L4/timeSlicing/3", "L4/timeSlicing/2"): 1},
    ),
    "a larger or smaller one, if it is known": (
        [whole("p", "5Gi", "l4")],
        shared_policy("[timeSlicing]"),
        {("right-sized", "L4/timeSlicing/4", "L4/timeSlicing/3", "L4/timeSlicing/2", "L4/whole"): 1},
    ),
    "of both forms, if the policy allows both": (
        [whole("p", "30Gi", "h100")],
        shared_policy("[timeSlicing, mps]"),
        {("right-sized", "H100/timeSlicing/2", "H100/mps/2", "H100/whole"): 1},
    ),
    "a waiting pod that requests shares gets one as large as today's": (
        [make_pod("p").requests("nvidia.com/gpu.shared", "1").spec(nodeSelector={"kubernetes.io/hostname": "l4"})],
        shared_policy("[timeSlicing]"),
        {("share requested", "L4/timeSlicing/3", "L4/timeSlicing/2"): 1},
    ),
    "or half a card where none is shared": (
        [make_pod("p").requests("nvidia.com/gpu.shared", "1").spec(nodeSelector={"kubernetes.io/hostname": "h100"})],
        shared_policy("[mps]"),
        {("share requested", "H100/mps/2"): 1},
    ),
    "a share of a slice is needed, and no plan has it": (
        [make_pod("p").requests("nvidia.com/mig-1g.10gb.shared", "1")],
        shared_policy("[mps]"),
        {("share requested",): 1},
    ),
    "a pod that needs more than half of a card keeps it": (
        [whole("p", "50Gi", "h100")],
        shared_policy("[timeSlicing]"),
        {},
    ),
}


@pytest.mark.parametrize(("pods", "policy", "expected"), SHARES.values(), ids=SHARES.keys())
def test_needs_of_shares(pods: list[PodMaker], policy: str, expected: dict[tuple[str, ...], int]) -> None:
    memory = {"nvidia.com/gpu.memory": "15360"}
    t4 = make_node("t4", {"nvidia.com/gpu.product": T4, **memory}, **{"nvidia.com/gpu": 4})

    assert needs_of(demand_of(*pods, nodes=(*NODES[:3], t4, SHARED_L4), policy=policy)) == expected


def test_shared_cards_of_today_are_cards_with_a_layout() -> None:
    demand = demand_of(whole("p", node="l4"), nodes=(SHARED_L4,), policy=shared_policy("[timeSlicing]"))
    [node] = demand.nodes

    assert (node.product, node.layouts, node.pods) == ("NVIDIA-L4", ((("timeSlicing/3", 3),),) * 2, 1)
    assert (demand.allocated_cards, demand.kept_whole) == ({}, {})


FORMS = {
    "no shares": ("[mig]", "none", ()),
    "the only one": ("[mps]", "memory", ("mps",)),
    "the one with more isolation, if both are allowed": ("[timeSlicing, mps]", "none", ("mps",)),
    "the only one that is isolated enough": ("[timeSlicing, mps]", "memory", ("mps",)),
    "none is isolated enough": ("[mig, timeSlicing, mps]", "hardware", ()),
    "time-slicing": ("[timeSlicing]", "none", ("timeSlicing",)),
}


@pytest.mark.parametrize(("forms", "isolation", "expected"), FORMS.values(), ids=FORMS.keys())
def test_policies_decide_the_form_of_shares(forms: str, isolation: str, expected: tuple[str, ...]) -> None:
    policies = load_policies([("p.yaml", shared_policy(forms, isolation))]).policies
    assert policies is not None

    assert advertised_share_forms(policies) == expected


def test_namespaces_that_allow_only_mps_need_it_beside_those_that_allow_only_time_slicing() -> None:
    other = shared_policy("[mps]", "memory").replace("[team]", "[other]").replace("smaller", "mps")
    pods = [whole("p", "30Gi"), whole("q", "30Gi").namespace("other"), whole("r", "30Gi", "h100").namespace("other")]
    demand = demand_of(*pods, nodes=(NODES[2],), policy=f"{shared_policy('[timeSlicing]')}---\n{other}")

    assert needs_of(demand) == {
        ("right-sized", "H100/timeSlicing/2", "H100/whole"): 1,
        ("right-sized", "H100/mps/2", "H100/whole"): 2,
    }


def test_cards_of_several_gpus_stay_where_they_run() -> None:
    demand = demand_of(make_pod("p").gpus(4).spec(nodeName="a100"), whole("q", "8Gi", "a100"))
    [node] = [each for each in demand.nodes if each.node == "a100"]

    assert (node.kept_whole, node.pods) == (4, 2)
    assert demand.kept_whole == {"MultipleGPUs": 4}
    assert demand.allocated_cards == {A100: 5}


SETS: dict[str, tuple[list[PodMaker], dict[str, int]]] = {
    "on the node with the fewest free cards that are enough": ([make_pod("p").gpus(6)], {"mixed": 6}),
    "on one with enough free cards": ([make_pod("p").gpus(4), *(whole(f"q{i}", node="mixed") for i in range(3))],
                                      {"a100": 4, "mixed": 3}),
    "on a node that could have it later, no card is kept": ([make_pod("p").gpus(8), make_pod("q").gpus(8),
                                                            whole("r", node="a100")], {"a100": 1, "h100": 8}),
    "the largest first": ([make_pod("p").gpus(2), make_pod("q").gpus(8)], {"a100": 8, "mixed": 2}),
    "those with the fewest possible nodes first": (
        [make_pod("p").gpus(8), make_pod("q").gpus(8).spec(nodeSelector={"nvidia.com/gpu.product": A100})],
        {"a100": 8, "h100": 8},
    ),
    "on nodes that the fewest others need": (
        [make_pod("p").gpus(8), whole("q", "8Gi").spec(nodeSelector={"kubernetes.io/hostname": "a100"})],
        {"h100": 8},
    ),
    "on no node, if none has enough": ([make_pod("p").gpus(8), *(whole(f"q{i}", node=i) for i in ("a100", "h100"))],
                                       {"a100": 1, "h100": 1}),
}  # fmt: skip


@pytest.mark.parametrize(("pods", "expected"), SETS.values(), ids=SETS.keys())
def test_cards_for_waiting_pods_of_several_gpus_are_kept(pods: list[PodMaker], expected: dict[str, int]) -> None:
    demand = demand_of(*pods)

    assert {node.node: node.kept_whole for node in demand.nodes if node.kept_whole} == expected


UNSERVED: dict[str, tuple[list[PodMaker], dict[tuple[str, ...], int]]] = {
    "more GPUs than any node has": ([make_pod("p").gpus(16)], {("whole cards requested",): 16}),
    "as many as a node could have later, for one pod for each such node": (
        [*(make_pod(f"p{i}").gpus(8) for i in range(4)), *(whole(f"q{i}", "8Gi", i) for i in ("a100", "h100"))],
        {
            ("right-sized", *SLICES_OF_8_GIB): 1,
            ("right-sized", *(unit.replace("A100", "H100") for unit in SLICES_OF_8_GIB)): 1,
            ("whole cards requested", "A100/whole", "H100/whole"): 24,
            ("whole cards requested",): 8,
        },
    ),
    "not on a node where pods keep so many cards that the others are too few": (
        [*(make_pod(f"p{i}").gpus(8) for i in range(4)), *(whole(f"q{i}", node=i) for i in ("a100", "h100"))],
        {("whole cards requested", "A100/whole", "H100/whole"): 8, ("whole cards requested",): 24},
    ),
    "a need above the memory of each card": ([whole("p", "100Gi")], {("whole cards requested",): 1}),
    "no node that it may use": ([make_pod("p").gpus(1).spec(nodeSelector={"zone": "none"})],
                                {("whole cards requested",): 1}),
    "only nodes that are not planned": ([make_pod("p").gpus(1).spec(nodeSelector={"nvidia.com/gpu.product": T4})], {}),
}  # fmt: skip


@pytest.mark.parametrize(("pods", "expected"), UNSERVED.values(), ids=UNSERVED.keys())
def test_waiting_pods_that_no_node_could_have_use_no_card(
    pods: list[PodMaker], expected: dict[tuple[str, ...], int]
) -> None:
    assert needs_of(demand_of(*pods)) == expected


def test_a_waiting_pod_counts_only_for_products_with_the_memory_that_it_declares() -> None:
    a30 = make_node(
        "a30", {"nvidia.com/gpu.product": "NVIDIA-A30", "nvidia.com/gpu.memory": "24576"}, **{"nvidia.com/gpu": 4}
    )

    assert needs_of(demand_of(whole("p", "70Gi"), nodes=(*NODES, a30))) == {
        ("whole cards requested", "A100/whole", "H100/whole"): 1
    }


def test_pods_of_a_node_with_failed_cards_use_no_more_cards_than_it_advertises() -> None:
    small = card_node("small", A100, **{"nvidia.com/gpu": 2})
    demand = demand_of(*(whole(f"p{i}", node="small") for i in range(4)), nodes=(small,))

    assert ([node.kept_whole for node in demand.nodes], demand.kept_whole) == ([2], {"NoEvidence": 2})
    assert demand.allocated_cards == {A100: 2}


def test_waiting_whole_cards_have_reasons_and_running_pods_to_create_again_are_counted() -> None:
    demand = demand_of(whole("p"), make_pod("q").gpus(2), whole("r", "8Gi", "a100"))

    assert (demand.waiting_whole, demand.resized_pods) == ({"NoEvidence": 1, "MultipleGPUs": 2}, 1)


def test_pods_on_other_nodes_and_waiting_pods_are_counted() -> None:
    waits_for_t4 = make_pod("w").gpus(1).spec(nodeSelector={"nvidia.com/gpu.product": T4})
    pods = [whole("p", "4Gi", "t4"), whole("q", "30Gi"), make_pod("cpu").spec(nodeName="a100"), waits_for_t4]
    demand = demand_of(*pods)

    assert (demand.pods_elsewhere, demand.waiting_pods) == (2, 1)


@pytest.mark.parametrize(("limit", "requested"), [("1.5", "1.5"), ("0", "1")])
def test_a_running_pod_without_a_whole_number_of_gpus_needs_none(limit: str, requested: str) -> None:
    pod = make_pod("p").gpus(limit).spec(nodeName="a100")
    pod.main["resources"]["requests"]["nvidia.com/gpu"] = requested
    demand = demand_of(pod, whole("q", "8Gi", "a100"))

    assert sum(demand.needs.values()) == 1
    assert [node.pods for node in demand.nodes if node.node == "a100"] == [1]


def test_full_nodes_and_missing_slices_do_not_reduce_the_demand() -> None:
    pods = [whole(f"p{i}", "8Gi", "small") for i in range(2)]
    nodes = (card_node("small", A100, **{"nvidia.com/gpu": 2}),)
    nodes[0]["status"]["allocatable"]["pods"] = "2"

    assert needs_of(demand_of(*pods, nodes=nodes)) == {("right-sized", *SLICES_OF_8_GIB): 2}


NOT_PLANNED: dict[str, dict[str, Any]] = {
    "a cordoned node": card_node("n", A100, **{"nvidia.com/gpu": 8}) | {"spec": {"unschedulable": True}},
    "cards that are shared": make_node(
        "n",
        {"nvidia.com/gpu.product": f"{A100}-SHARED", "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "2"},
        **{"nvidia.com/gpu": 8},
    ),
    "slices under the name of whole cards": card_node("n", f"{A100}-MIG-1g.10gb", **{"nvidia.com/gpu": 7}),
    "a product that the catalog does not have": card_node("n", "NVIDIA-L4", **{"nvidia.com/gpu": 4}),
    "a profile with media engines": card_node("n", A100, **{"nvidia.com/mig-1g.10gb.me": 1}),
    "a node without GPUs": card_node("n", A100),
}


@pytest.mark.parametrize("node", NOT_PLANNED.values(), ids=NOT_PLANNED.keys())
def test_a_node_that_is_not_planned(node: dict[str, Any]) -> None:
    assert demand_of(whole("p", "8Gi", "n"), nodes=(node,)).nodes == ()


def test_needs_list_the_smallest_unit_first() -> None:
    demand = demand_of(whole("p", "8Gi", "a100"))
    [need] = demand.needs

    assert need.origin is RequestOrigin.RIGHT_SIZED
    assert [unit.milli for unit in need.units] == sorted(unit.milli for unit in need.units)
    assert need.units[-1] == CardUnit(A100, "")
