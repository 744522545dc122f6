"""Reach: which pods of a cluster could use a smaller GPU, and why they keep theirs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.builders import PodMaker, make_node, make_pod
from tests.storage_builders import claim_volume, make_claim, make_volume
from webhook.audit import sequential_reach
from webhook.audit.cluster_audit import audit_documents
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SourceObject, parse_objects
from webhook.audit.reach_metrics import reach_metrics
from webhook.cache.snapshot import view_of_objects
from webhook.policy.loader import load_policies
from webhook.report.reach import ReachReport, reach_document, reach_lines, summarize_reach

CARDS = "NVIDIA-A100-SXM4-80GB"
WHOLE = make_node("whole", {"nvidia.com/gpu.product": CARDS, "nvidia.com/gpu.memory": "81920"}, **{"nvidia.com/gpu": 8})
SLICES = make_node(
    "slices",
    {"nvidia.com/gpu.product": CARDS, "nvidia.com/gpu.memory": "81920", "nvidia.com/mig.strategy": "mixed"},
    **{"nvidia.com/gpu": 4, "nvidia.com/mig-1g.10gb": 28},
)

RIGHT_SIZING = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: smaller}
spec:
  mode: enforce
  match: {namespaces: [team]}
  rightSizing: {mode: %s, evidence: [declared]}
"""


def reach_of(
    *objects: dict[str, Any], mode: str = "enforce", more: str = "", most_kept: int = 10
) -> ReachReport | None:
    """Audit a snapshot under a policy that right-sizes namespace team."""
    found = list(parse_objects("f.json", orjson.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})))
    view = view_of_objects((each.data, each.locate()) for each in found if isinstance(each, SourceObject))
    loaded = load_policies([("p.yaml", (RIGHT_SIZING % mode).rstrip() + more + "\n")])
    assert loaded.policies is not None, loaded.errors
    context = EvaluationContext(loaded.policies, view, datetime(2026, 6, 1, tzinfo=UTC))
    with patch.object(sequential_reach, "MAX_KEPT_PODS", most_kept):
        audit = audit_documents(found, len(found), context, None, lambda documents, _: nullcontext(documents))
    return summarize_reach(audit.results, view.fleet)


def running(name: str = "p", gpus: int = 1) -> PodMaker:
    """Return a pod of namespace team that declares a need of 8 GiB and runs on whole cards."""
    return make_pod(name).gpus(gpus).needs("8Gi").spec(nodeName="whole")


KEPT = {
    "no policy right-sizes its namespace": (running().namespace("other"), "enforce", "NoRightSizingPolicy"),
    "its policy only audits": (running(), "audit", "AuditMode"),
    "a queue starts it": (running().label("kueue.x-k8s.io/queue-name", "q"), "enforce", "QueuedPod"),
    "it opts out": (running().annotate("rightslice.dev/keep", "true"), "enforce", "OptedOut"),
    "a gate holds it": (running().spec(schedulingGates=[{"name": "g"}]), "enforce", "SchedulingGated"),
}


@pytest.mark.parametrize(("pod", "mode", "reason"), KEPT.values(), ids=KEPT)
def test_a_pod_that_could_use_a_free_slice_is_eligible_although(pod: PodMaker, mode: str, reason: str) -> None:
    reach = reach_of(WHOLE, SLICES, pod.build(), mode=mode)
    assert reach is not None
    assert (reach.eligible, reach.right_sized) == (1, 0)
    assert [(each.pods, each.reason) for each in reach.kept] == [(1, reason)]


def in_queue(label: str, **quotas: int) -> list[dict[str, Any]]:
    """Return a pod of a Job in a queue that a label names, and that queue with some quotas."""
    resources = [{"name": f"nvidia.com/{name}", "nominalQuota": amount} for name, amount in quotas.items()]
    group = {"coveredResources": [one["name"] for one in resources], "flavors": [{"name": "f", "resources": resources}]}
    objects: list[tuple[str, dict[str, Any]]] = [
        ("ResourceFlavor", {"metadata": {"name": "f"}}),
        ("ClusterQueue", {"metadata": {"name": "c"}, "spec": {"resourceGroups": [group], "namespaceSelector": {}}}),
        ("LocalQueue", {"metadata": {"name": "q", "namespace": "team"}, "spec": {"clusterQueue": "c"}}),
    ]
    pod = running().label(f"kueue.x-k8s.io/{label}", "q").build()
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "1", "controller": True}
    pod["metadata"]["ownerReferences"] = [owner]
    return [pod, *({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, **one} for kind, one in objects)]


CARD, BOTH = {"gpu": 8}, {"gpu": 8, "mig-1g.10gb": 8}
QUEUED = {
    "templates are not right-sized": (BOTH, "", "QueuedWorkload"),
    "templates are not right-sized, and the queue does not cover slices": (CARD, "", "NotAdmittedByQueue"),
    "templates are right-sized, and the queue does not cover slices": (CARD, "enforce", "NotAdmittedByQueue"),
    "templates are right-sized": (BOTH, "enforce", "RightSized"),
}


@pytest.mark.parametrize("label", ["queue-name", "local-queue-name"])
@pytest.mark.parametrize(("quotas", "templates", "outcome"), QUEUED.values(), ids=QUEUED)
def test_a_queued_pod_counts_as_its_template(quotas: dict[str, int], templates: str, outcome: str, label: str) -> None:
    mode = f"enforce, templates: {templates}" if templates else "enforce"
    reach = reach_of(WHOLE, SLICES, *in_queue(label, **quotas), mode=mode)
    assert reach is not None
    assert (reach.eligible, reach.right_sized) == (1, outcome == "RightSized")
    assert [each.reason for each in reach.kept] == ([] if outcome == "RightSized" else [outcome])


def of_kai(need: str) -> PodMaker:
    """Return a pod in a queue of KAI."""
    return make_pod("p").gpus(1).needs(need).spec(nodeName="whole", schedulerName="kai-scheduler")


CHARGED = {
    "the queue of its Job is not known": (in_queue("queue-name")[0], "enforce", "AlreadyCharged"),
    "its Job is in a queue, and no template of that kind is ever changed": (
        running().label("kueue.x-k8s.io/queue-name", "q").owned_by("Workflow", "w").build(),
        "enforce",
        "QueuedPod",
    ),
    "KAI would charge its slice as one GPU": (of_kai("8Gi").build(), "", "ChargedAsWholeGPUs"),
    "KAI would charge its slice as several GPUs": (of_kai("16Gi").build(), "", "NoEqualCharge"),
}


@pytest.mark.parametrize(("pod", "templates", "reason"), CHARGED.values(), ids=CHARGED)
def test_a_setting_is_advised_only_for_pods_that_it_right_sizes(
    pod: dict[str, Any], templates: str, reason: str
) -> None:
    mode = f"enforce, templates: {templates}" if templates else "enforce"
    large = make_node("large", SLICES["metadata"]["labels"], **{"nvidia.com/mig-2g.20gb": 3})
    reach = reach_of(WHOLE, SLICES, large, pod, mode=mode)
    assert reach is not None
    assert [(each.pods, each.reason) for each in reach.kept] == [(1, reason)]


INELIGIBLE = {
    "it needs two GPUs": (running(gpus=2), "MultipleGPUs"),
    "its need is unknown": (make_pod("p").gpus(1), "NoEvidence"),
    "it is one worker of a gang in a queue": (running().label("kueue.x-k8s.io/pod-group-name", "g"), "GangMember"),
    "it already has a slice": (make_pod("p").requests("nvidia.com/mig-1g.10gb", "1"), "NoWholeGPU"),
}


@pytest.mark.parametrize(("pod", "reason"), INELIGIBLE.values(), ids=INELIGIBLE)
def test_a_pod_is_not_eligible_if(pod: PodMaker, reason: str) -> None:
    reach = reach_of(WHOLE, SLICES, pod.build())
    assert reach is not None
    assert (reach.eligible, reach.kept) == (0, ())
    assert [(each.pods, each.reason) for each in reach.ineligible] == [(1, reason)]
    assert str(reach) == "no pod is known to fit a smaller GPU that is free now"


def test_right_sized_pods_are_counted_and_pods_without_gpus_are_not() -> None:
    reach = reach_of(WHOLE, SLICES, running().build(), make_pod("cpu").build())
    assert reach is not None
    assert (reach.eligible, reach.right_sized, reach.kept, reach.ineligible) == (1, 1, (), ())
    assert str(reach) == "1 of 1 eligible pod right-sized (100.0%)"


def test_partitions_are_advised_for_pods_for_which_no_slice_is_free() -> None:
    reach = reach_of(WHOLE, *(running(f"p{number}").build() for number in range(9)))
    assert reach is not None
    assert [(each.pods, each.reason) for each in reach.ineligible] == [(9, "NoOffer")]
    assert list(map(str, reach.partitioning)) == [f"Partition 2 {CARDS} cards as 7 x 1g.10gb: up to 9 more pods"]


def advice(*objects: dict[str, Any]) -> list[str]:
    reach = reach_of(*objects)
    assert reach is not None
    return list(map(str, reach.partitioning))


def node_with_cards(name: str, gpus: int, product: str = CARDS, **spec: Any) -> dict[str, Any]:
    """Return a node with whole cards that is labeled with its name."""
    labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": "81920", "kubernetes.io/hostname": name}
    return make_node(name, labels, **{"nvidia.com/gpu": gpus}) | {"spec": spec}


def pods(count: int, name: str = "p", **spec: Any) -> list[dict[str, Any]]:
    """Return pods of namespace team on no node."""
    return [make_pod(f"{name}{i}").gpus(1).needs("8Gi").spec(**spec).build() for i in range(count)]


def test_no_more_pods_are_advised_than_fit_on_the_cards() -> None:
    assert advice(node_with_cards("a", 2), *pods(41)) == [
        f"Partition 2 {CARDS} cards as 7 x 1g.10gb: up to 14 more pods"
    ]


OTHER_PRODUCT = {"key": "nvidia.com/gpu.product", "operator": "NotIn", "values": [CARDS]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
EXCLUDING: dict[str, dict[str, Any]] = {
    "another product": {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L40S"}},
    "another node": {"nodeSelector": {"kubernetes.io/hostname": "other"}},
    "not this product": {
        "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [OTHER_PRODUCT]}]}}}
    },
}


@pytest.mark.parametrize("spec", EXCLUDING.values(), ids=EXCLUDING)
def test_cards_that_pods_exclude_are_not_advised_for_them(spec: dict[str, Any]) -> None:
    nodes = node_with_cards("a", 8), node_with_cards("other", 2, "NVIDIA-L40S")

    assert advice(*nodes, *pods(9, **spec)) == []
    assert advice(*nodes, *pods(9, **spec), *pods(3, "q")) == [
        f"Partition 1 {CARDS} card as 7 x 1g.10gb: up to 3 more pods"
    ]


def test_cards_of_tainted_nodes_are_advised_for_pods_that_tolerate_the_taint() -> None:
    taint = {"key": "team", "value": "x", "effect": "NoSchedule"}
    node = node_with_cards("a", 8, taints=[taint])

    assert advice(node, *pods(2)) == []
    assert advice(node, *pods(2, tolerations=[{"key": "team", "operator": "Exists"}])) == [
        f"Partition 1 {CARDS} card as 7 x 1g.10gb: up to 2 more pods"
    ]


def test_pods_that_may_use_fewer_nodes_get_their_cards_first() -> None:
    nodes = node_with_cards("a", 1), node_with_cards("b", 1)
    anywhere, only_a = pods(7), pods(7, "q", nodeSelector={"kubernetes.io/hostname": "a"})

    assert advice(*nodes, *anywhere, *only_a) == [f"Partition 2 {CARDS} cards as 7 x 1g.10gb: up to 14 more pods"]


def test_denied_pods_are_counted_and_named() -> None:
    limits = "\n  limits: {perPod: [{resource: nvidia.com/gpu, max: 1}]}"
    reach = reach_of(WHOLE, SLICES, running().build(), running("q", 2).build(), more=limits)

    assert reach is not None
    assert (reach.eligible, reach.right_sized) == (1, 1)
    assert [(each.pods, each.reason, each.message) for each in reach.ineligible] == [
        (1, "Denied", "its policies would deny it now")
    ]
    assert "Not eligible: 1 Denied" in list(reach_lines(reach))


def test_a_claim_for_one_pod_is_not_in_use_by_the_pod_itself() -> None:
    storage = [make_claim("data", volume="v", modes=("ReadWriteOncePod",)), make_volume("v", claim="data")]
    reach = reach_of(WHOLE, SLICES, *storage, running().spec(volumes=[claim_volume("data")]).build())
    assert reach is not None
    assert (reach.eligible, reach.right_sized) == (1, 1), reach


def test_without_nodes_there_is_no_reach() -> None:
    assert reach_of(running().build()) is None


def test_metrics_have_the_same_figures() -> None:
    needs = [running(name).build() for name in "abc"]
    reach = reach_of(WHOLE, *needs, running("q", 2).build())
    assert reach is not None
    samples = [each for family in text_string_to_metric_families(reach_metrics(reach)) for each in family.samples]
    one = {"product": CARDS, "profile": "1g.10gb"}
    assert [(each.name.removeprefix("rightslice_reach_"), each.labels, each.value) for each in samples] == [
        ("eligible_pods", {"outcome": "RightSized"}, 0),
        ("ineligible_pods", {"reason": "NoOffer"}, 3),
        ("ineligible_pods", {"reason": "MultipleGPUs"}, 1),
        ("partition_cards", one, 1),
        ("partition_pods", one, 3),
    ]


def test_metrics_name_why_eligible_pods_keep_their_request() -> None:
    reach = reach_of(WHOLE, SLICES, running().build(), running("q").namespace("other").build())
    assert reach is not None
    (eligible, *_) = text_string_to_metric_families(reach_metrics(reach))
    assert {each.labels["outcome"]: each.value for each in eligible.samples} == {
        "RightSized": 1,
        "NoRightSizingPolicy": 1,
    }


def test_lines_and_document_have_the_same_figures() -> None:
    reach = reach_of(WHOLE, SLICES, running().namespace("other").build(), running("q", 2).build())
    assert reach is not None
    lines = list(reach_lines(reach))
    assert lines[:2] == [
        "Reach: 0 of 1 eligible pod right-sized (0.0%)",
        "Not eligible: 1 MultipleGPUs",
    ]
    assert "NoRightSizingPolicy" in lines[3]
    document = reach_document(reach)
    assert (document["eligiblePods"], document["rightSizedPods"]) == (1, 0)
    assert [each["reason"] for each in document["kept"]] == ["NoRightSizingPolicy"]


def one_slice(units: int = 1, name: str = "slices", **resources: Any) -> dict[str, Any]:
    """Return a node with a few slices."""
    labels = {**SLICES["metadata"]["labels"], HOST: name}
    return make_node(name, labels, **{"nvidia.com/gpu": 4, "nvidia.com/mig-1g.10gb": units, **resources})


HOST = "kubernetes.io/hostname"
LARGER = make_node("larger", SLICES["metadata"]["labels"], **{"nvidia.com/gpu": 4, "nvidia.com/mig-2g.20gb": 1})
APART = {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": HOST}


def apart(name: str) -> PodMaker:
    """Return a pod that runs on no node with others of its application."""
    return running(name).label("app", "a").spec(affinity={"podAntiAffinity": {REQUIRED: [APART]}})


def with_port(name: str) -> PodMaker:
    pod = running(name)
    pod.main["ports"] = [{"containerPort": 80, "hostPort": 80}]
    return pod


def opting_out(name: str) -> PodMaker:
    return running(name).annotate("rightslice.dev/keep", "true")


IN_ORDER: dict[str, tuple[list[dict[str, Any]], Callable[[str], PodMaker], int]] = {
    "one slice": ([one_slice()], running, 1),
    "two slices": ([one_slice(2)], running, 2),
    "a slice and a larger one": ([one_slice(), LARGER], running, 2),
    "slices on a node with CPU for one": (
        [one_slice(4, cpu="3")],
        lambda name: running(name).requests("cpu", "2"),
        1,
    ),
    "slices on a node that accepts one more pod": ([one_slice(4, pods="1")], running, 1),
    "slices on two nodes, each for one pod of an application": ([one_slice(4), one_slice(4, "b")], apart, 2),
    "slices on two nodes, on each of which the port is free once": ([one_slice(4), one_slice(4, "b")], with_port, 2),
}


@pytest.mark.parametrize(("nodes", "make", "most"), IN_ORDER.values(), ids=IN_ORDER)
def test_of_ten_pods_that_would_each_fit_only_as_many_are_right_sized_as_fit_together_on(
    nodes: list[dict[str, Any]], make: Callable[[str], PodMaker], most: int
) -> None:
    pods = [make(f"p{number}").build() for number in range(10)]
    reach = reach_of(WHOLE, *nodes, *pods)
    assert reach is not None
    assert (reach.eligible, reach.right_sized, reach.kept) == (most, most, ())
    assert sum(each.pods for each in reach.ineligible) == 10 - most
    assert reach.displaced == 10 - most  # the savings count all ten
    assert f"The savings count {10 - most} more pods" in "\n".join(reach_lines(reach))


def test_the_pods_that_would_gain_from_a_change_are_those_that_fit_on_what_right_sized_pods_leave() -> None:
    kept, right_sized = ([make(f"{make.__name__}{i}").build() for i in range(4)] for make in (opting_out, running))
    reach = reach_of(WHOLE, one_slice(6), *kept, *right_sized)
    assert reach is not None
    assert (reach.eligible, reach.right_sized) == (6, 4)
    assert [(each.pods, each.reason) for each in reach.kept] == [(2, "OptedOut")]
    assert (reach.displaced, reach.savings_note) == (0, "")  # nothing is saved of those that keep their GPUs
    assert [(each.pods, each.reason) for each in reach.ineligible] == [(2, "NoFreeCapacity")]
    assert list(map(str, reach.partitioning)) == [f"Partition 1 {CARDS} card as 7 x 1g.10gb: up to 2 more pods"]


def test_pods_in_audit_mode_take_slices_from_one_another() -> None:
    reach = reach_of(WHOLE, one_slice(3), *(running(f"p{number}").build() for number in range(10)), mode="audit")
    assert reach is not None
    assert (reach.eligible, reach.right_sized) == (3, 0)
    assert [(each.pods, each.reason) for each in reach.kept] == [(3, "AuditMode")]
    assert reach.displaced == 7


def test_the_report_says_how_many_of_too_many_pods_are_evaluated_alone() -> None:
    reach = reach_of(WHOLE, one_slice(), *(opting_out(f"p{number}").build() for number in range(5)), most_kept=2)
    assert reach is not None
    assert (reach.eligible, reach.alone) == (4, 3)
    assert str(reach).endswith("(0.0%); 3 of these evaluated alone, so fewer may get a slice")
