"""Pods of a snapshot, each evaluated as if it were created now."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from tests.builders import make_namespace, make_node, make_pod
from tests.device_builders import allocated, partitionable_gpus, resource_claim
from tests.engine.test_claim_sizing import GPUS, sized_claim
from tests.engine.test_class_offers import CLASSES as DEVICE_CLASSES
from webhook.audit.adjusted_view import with_namespace_labels, with_only_namespace_labels, without_pod_usage
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SkippedDocument, SourceObject, parse_objects
from webhook.audit.pod_audit import audit_pods, deduplicate_pods
from webhook.cache.snapshot import view_of_objects
from webhook.errors import SourceLocation
from webhook.model.cluster_view import ClusterView
from webhook.model.filters.inter_pod_affinity import ExclusionByOthers
from webhook.model.pods import parse_pod
from webhook.policy.loader import load_policies
from webhook.report.audit import admission_summary, audit_document
from webhook.report.results import CheckResult, CheckVerdict

POLICY = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: guard}
spec:
  mode: enforce
  limits: {resourceQuotas: evaluate}
  security: {deny: [nodeName]}
"""
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "gpus", "namespace": "team"},
    "spec": {"hard": {"requests.nvidia.com/gpu": "4"}},
    "status": {"hard": {"requests.nvidia.com/gpu": "4"}, "used": {"requests.nvidia.com/gpu": "4"}},
}
ACCOUNTED = {"requests.rightslice.dev/gpu-milli": "1k"}
NODE = make_node("n", {"nvidia.com/gpu.product": "A"}, **{"nvidia.com/gpu": 8})


def context_of(view: ClusterView, policy: str = POLICY) -> EvaluationContext:
    loaded = load_policies([("p.yaml", policy)])
    assert loaded.policies is not None, loaded.errors
    return EvaluationContext(policies=loaded.policies, view=view, now=datetime(2026, 6, 1, tzinfo=UTC))


def run_audit(*objects: dict[str, Any], policy: str = POLICY) -> list[CheckResult]:
    """Audit a snapshot of these objects."""
    found = list(parse_objects("f.json", orjson.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})))
    view = view_of_objects((each.data, each.locate()) for each in found if isinstance(each, SourceObject))
    return list(audit_pods(found, context_of(view, policy)))


def running(name: str, gpus: int, phase: str = "Running") -> dict[str, Any]:
    pod = make_pod(name).gpus(gpus).spec(nodeName="n").build()
    pod["status"] = {"phase": phase}
    return pod


def test_only_active_pods_are_evaluated() -> None:
    results = run_audit(
        NODE, make_namespace("team"), running("a", 1), running("b", 1, "Succeeded"), running("c", 1, "Failed")
    )
    assert [result.name for result in results] == ["a"]


SAME = {
    "the phase has changed": ([running("a", 1), running("a", 1, "Succeeded")], ["Succeeded"]),
    "another namespace": ([running("a", 1), make_pod("a").namespace("other").build()], ["Running", ""]),
    "no name yet": ([make_pod("").build(), make_pod("").build()], ["", ""]),
}


@pytest.mark.parametrize(("pods", "phases"), SAME.values(), ids=SAME)
def test_of_duplicate_pods_the_last_one_counts(pods: list[dict[str, Any]], phases: list[str]) -> None:
    listed = orjson.dumps({"apiVersion": "v1", "kind": "List", "items": [NODE, *pods, NODE]})
    once = deduplicate_pods(list(parse_objects("f.json", listed)))

    found = [each.data for each in once if isinstance(each, SourceObject)]
    assert [data["kind"] for data in found] == ["Node", *["Pod"] * len(phases), "Node"]
    assert [data.get("status", {}).get("phase", "") for data in found[1:-1]] == phases


def test_node_of_a_bound_pod_is_not_a_finding() -> None:
    [result] = run_audit(NODE, running("a", 1))
    assert result.verdict is CheckVerdict.ALLOWED


def test_pods_own_usage_does_not_exceed_its_quota() -> None:
    results = run_audit(NODE, QUOTA, running("a", 3), running("b", 1))
    assert [result.verdict for result in results] == [CheckVerdict.ALLOWED, CheckVerdict.ALLOWED]


def quota(*, scopes: tuple[str, ...] = (), **full: str) -> dict[str, Any]:
    """Return an exhausted quota; in keys, `_` means a dot and `__` a slash."""
    amounts = {key.replace("__", "/").replace("_", "."): amount for key, amount in full.items()}
    return {**QUOTA, "spec": {"hard": amounts, "scopes": scopes}, "status": {"hard": amounts, "used": amounts}}


def using(name: str, **spec: Any) -> dict[str, Any]:
    """Return a running pod with one GPU, four CPUs and 8 GiB."""
    pod = running(name, 1)
    (container,) = pod["spec"]["containers"]
    whole = {**container["resources"]["limits"], "cpu": "4", "memory": "8Gi", "rightslice.dev/gpu-milli": "1000"}
    container["resources"] = {"limits": whole, "requests": whole}
    return {**pod, "spec": {**pod["spec"], **spec}}


@pytest.mark.parametrize(
    "full",
    [
        quota(requests_cpu="4"),
        quota(cpu="4000m", limits_memory="8589934592"),
        quota(limits_cpu="4", memory="8Gi"),
        quota(pods="1"),
        quota(count__pods="1"),
        {**quota(), "status": {"hard": ACCOUNTED, "used": ACCOUNTED}},
        quota(scopes=("NotBestEffort",), requests_cpu="4"),
    ],
    ids=["CPU", "CPU and memory", "limits of CPU", "pods", "count/pods", "the accounting resource", "in scope"],
)
def test_everything_that_a_pod_uses_is_released_from_a_quota(full: dict[str, Any]) -> None:
    [result] = run_audit(NODE, full, using("a"))
    assert result.verdict is CheckVerdict.ALLOWED, result.findings


def test_overhead_is_released_too() -> None:
    [result] = run_audit(NODE, quota(requests_cpu="5"), using("a", overhead={"cpu": "1"}))
    assert result.verdict is CheckVerdict.ALLOWED, result.findings


DEVICES = "gpu.example.com.deviceclass.resource.k8s.io/devices"
CLAIMS: tuple[dict[str, Any], ...] = (
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "two", "namespace": "team"},
        "spec": {"spec": {"devices": {"requests": [{"exactly": {"deviceClassName": "gpu.example.com", "count": 2}}]}}},
    },
    {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu.example.com"}, "spec": {}},
)


@pytest.mark.parametrize(("node", "codes"), [("n", []), ("", ["GPU-Q306"])], ids=["it runs", "it waits for its claim"])
def test_claims_of_a_running_pod_are_its_own_usage(node: str, codes: list[str]) -> None:
    amounts = {DEVICES: "2"}
    full = {**QUOTA, "spec": {"hard": amounts}, "status": {"hard": amounts, "used": amounts}}
    pod = make_pod("a").claims({"name": "c", "resourceClaimTemplateName": "two"}).spec(nodeName=node).build()
    [result] = run_audit(NODE, *CLAIMS, full, pod)
    assert [found.finding.code for found in result.findings] == codes


def test_pod_larger_than_its_quota_is_denied() -> None:
    [result] = run_audit(NODE, quota(requests_cpu="3"), using("a"))
    assert [found.finding.code for found in result.findings] == ["GPU-Q301"]


def test_pod_that_exceeds_its_quota_without_usage_is_denied() -> None:
    [result] = run_audit(NODE, QUOTA, running("a", 5))
    assert [found.finding.code for found in result.findings] == ["GPU-Q301"]


def test_errors_are_returned_and_other_documents_are_skipped() -> None:
    found = [
        *parse_objects("f.json", b'{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": 1}}'),
        SkippedDocument(SourceLocation("a"), "gone", invalid=True),
        SkippedDocument(SourceLocation("b"), "a kustomization"),
    ]
    results = list(audit_pods(found, context_of(view_of_objects(()))))
    assert [result.reason for result in results] == ["spec.containers: must be a list, found a whole number", "gone"]
    assert all(result.invalid for result in results)


@pytest.fixture
def view() -> ClusterView:
    return view_of_objects([(make_namespace("team", tier="a"), SourceLocation("f")), (QUOTA, SourceLocation("f"))])


def labels(view: ClusterView, name: str) -> dict[str, str]:
    namespace = view.namespace(name)
    assert namespace is not None
    return dict(namespace.metadata.labels)


SIZING = """\
---
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: sizing}
spec:
  mode: enforce
  rightSizing: {isolation: none, forms: [timeSlicing], default: {memory: 4Gi}}
"""


IMAGE = "nvidia/cuda:12.2.2-base-ubuntu22.04"


def cuda_12(minor: str) -> dict[str, str]:
    """A driver for the image, and the architecture of a card."""
    return {
        "nvidia.com/cuda.driver-version.full": "570.124.06",
        "nvidia.com/gpu.compute.major": "8",
        "nvidia.com/gpu.compute.minor": minor,
    }


def labeled(product: str, count: int, strategy: str = "none", replicas: int = 1) -> dict[str, str]:
    """Return the labels of GPU feature discovery."""
    return {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.memory": "46068",
        "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.sharing-strategy": strategy,
        "nvidia.com/mig.strategy": "none",
        **cuda_12("9"),
    }


def single(profile: str, slices: int, memory: int) -> dict[str, Any]:
    """Return a node of A100 cards that advertises MIG instances under the name of whole cards."""
    labels = {
        "nvidia.com/gpu.product": f"NVIDIA-A100-SXM4-40GB-MIG-{profile}",
        "nvidia.com/gpu.count": "7",
        "nvidia.com/gpu.memory": str(memory),
        "nvidia.com/gpu.slices.gi": str(slices),
        "nvidia.com/gpu.slices.ci": str(slices),
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mig.strategy": "single",
        "nvidia.com/mig.config.state": "success",
        **cuda_12("0"),
    }
    return make_node("single", labels, **{"nvidia.com/gpu": 7})


QUARTERS = labeled("NVIDIA-L40S", 2, "time-slicing", 4)
NODES = {
    "a whole card": make_node("whole", labeled("NVIDIA-L40S", 8), **{"nvidia.com/gpu": 8}),
    "a small instance": single("1g.5gb", 1, 4864),
    "a large instance": single("3g.20gb", 3, 19968),
    "an MPS share": make_node("mps", labeled("NVIDIA-L4-SHARED", 1, "mps", 4), **{"nvidia.com/gpu": 4}),
    "an unrenamed share": make_node(
        "sliced", labeled("NVIDIA-L4-SHARED", 1, "time-slicing", 10), **{"nvidia.com/gpu": 10}
    ),
    "a renamed share": make_node("renamed", QUARTERS, **{"nvidia.com/gpu.shared": 8}),
}
UNITS = {
    "a whole card": ("nvidia.com/gpu", 1000, 250),
    "a small instance": ("nvidia.com/gpu", 143, 143),
    "a large instance": ("nvidia.com/gpu", 500, 250),
    "an MPS share": ("nvidia.com/gpu", 250, 250),
    "an unrenamed share": ("nvidia.com/gpu", 100, 100),
    "a renamed share": ("nvidia.com/gpu.shared", 250, 250),
}


@pytest.mark.parametrize("kind", UNITS)
def test_bound_pod_is_measured_on_its_node(kind: str) -> None:
    node = NODES[kind]
    quarters = make_node("quarters", QUARTERS, **{"nvidia.com/gpu.shared": 8})
    resource, before, after = UNITS[kind]
    pod = make_pod("a").image(IMAGE).requests(resource, 1).spec(nodeName=node["metadata"]["name"]).build()
    [result] = run_audit(node, quarters, pod, policy=POLICY + SIZING)
    decision = result.decision
    assert (decision.gpu_milli_before, decision.gpu_milli_after) == (before, after)
    sized = {"GPU-R101", "GPU-R102"} & {found.finding.code for found in result.findings}
    assert bool(sized) == (after < before), "a pod that saves nothing keeps its request"


ENFORCED, ON_TRIAL = "mode: enforce\n  rightSizing", "mode: {}\n  rightSizing"


@pytest.mark.parametrize("mode", ["audit", "warn"])
@pytest.mark.parametrize("kind", UNITS)
def test_savings_in_audit_mode_are_reported_separately(mode: str, kind: str) -> None:
    node = NODES[kind]
    quarters = make_node("quarters", QUARTERS, **{"nvidia.com/gpu.shared": 8})
    resource, before, after = UNITS[kind]
    pod = make_pod("a").image(IMAGE).requests(resource, 1).spec(nodeName=node["metadata"]["name"]).build()
    trial = SIZING.replace(ENFORCED, ON_TRIAL.format(mode))
    [result] = results = run_audit(node, quarters, pod, policy=POLICY + trial)
    assert result.decision.gpu_milli_before == result.decision.gpu_milli_after == before, "nothing is saved yet"
    [share] = audit_document(results)["namespaces"]
    assert (share["gpuMilliSaved"], share["gpuMilliAuditSaved"]) == (0, before - after)


def test_audit_mode_saves_nothing_for_a_denied_pod() -> None:
    quarters = make_node("quarters", QUARTERS, **{"nvidia.com/gpu.shared": 8})
    pod = make_pod("a").gpus(1).spec(nodeName="whole", hostPID=True).build()
    deny = POLICY.replace("[nodeName]", "[hostNamespaces]")
    trial = SIZING.replace(ENFORCED, ON_TRIAL.format("audit"))
    [share] = audit_document(run_audit(NODES["a whole card"], quarters, pod, policy=deny + trial))["namespaces"]
    assert share["gpuMilliAuditSaved"] == 0


INJECTING = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "trap", "namespace": "team"},
    "spec": {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "1"}}]},
}
NOTE = "LimitRanger plugin set: nvidia.com/gpu request for container side; nvidia.com/gpu limit for container side"


@pytest.mark.parametrize(("mode", "after"), [("enforce", 1000), ("audit", 2000)])
def test_gpus_that_a_policy_removes_are_saved(mode: str, after: int) -> None:
    gpu = {"nvidia.com/gpu": "1"}
    pod = make_pod("a").gpus(1).container("side", resources={"limits": gpu, "requests": gpu}).spec(nodeName="n")
    pod = pod.annotate("kubernetes.io/limit-ranger", NOTE)
    taking = f"limits: {{mode: {mode}, limitRangeInjected: remove}}"
    policy = POLICY.replace("limits: {resourceQuotas: evaluate}", taking)
    [result] = run_audit(NODE, make_namespace("team"), INJECTING, pod.build(), policy=policy)
    assert (result.decision.gpu_milli_before, result.decision.gpu_milli_after) == (2000, after)


def test_pod_that_would_be_denied_saves_nothing() -> None:
    quarters = make_node("quarters", QUARTERS, **{"nvidia.com/gpu.shared": 8})
    pod = make_pod("a").gpus(1).spec(nodeName="whole", hostPID=True).build()
    deny = POLICY.replace("[nodeName]", "[hostNamespaces]")
    [result] = run_audit(NODES["a whole card"], quarters, pod, policy=deny + SIZING)
    assert result.verdict is CheckVerdict.DENIED
    assert result.decision.gpu_milli_before == result.decision.gpu_milli_after == 1000


def test_pod_on_a_node_that_is_not_in_the_snapshot_holds_whole_cards() -> None:
    [result] = run_audit(NODE, make_pod("a").gpus(2).spec(nodeName="gone").build())
    assert result.decision.gpu_milli_before == 2000


NAME = {"kubernetes.io/metadata.name": "team"}


def test_labels_are_added_to_those_of_the_cluster(view: ClusterView) -> None:
    assert labels(with_namespace_labels(view, {"sized": "true"}), "team") == {**NAME, "tier": "a", "sized": "true"}
    assert labels(with_namespace_labels(view, {"tier": "b"}), "team") == {**NAME, "tier": "b"}
    assert with_namespace_labels(view, {}) is view


def test_labels_of_one_namespace_replace_only_its_own(view: ClusterView) -> None:
    assert labels(with_only_namespace_labels(view, "team", {"x": "y"}), "team") == {**NAME, "x": "y"}
    assert labels(with_only_namespace_labels(view, "team", {}), "team") == NAME
    assert labels(with_only_namespace_labels(view, "other", {"x": "y"}), "team") == {**NAME, "tier": "a"}


def test_labels_keep_annotations() -> None:
    noted = make_namespace("team")
    noted["metadata"]["annotations"] = {"note": "1"}
    view = view_of_objects([(noted, SourceLocation("f"))])
    for adjusted in (with_namespace_labels(view, {"x": "y"}), with_only_namespace_labels(view, "team", {})):
        namespace = adjusted.namespace("team")
        assert namespace is not None
        assert namespace.metadata.annotations == {"note": "1"}


def test_releasing_usage_keeps_labels(view: ClusterView) -> None:
    both = without_pod_usage(
        with_namespace_labels(view, {"x": "y"}), "team", parse_pod(make_pod("pod").gpus(1).build()), runs=True
    )
    assert labels(both, "team")["x"] == "y"
    [quota] = both.quotas("team")
    assert quota.status.used == {"requests.nvidia.com/gpu": "3"}
    assert both.quotas("other") == ()
    assert view.quotas("team")[0].status.used == {"requests.nvidia.com/gpu": "4"}, "the view itself stays"


def spread(name: str, node: str, key: str = "kubernetes.io/hostname") -> dict[str, Any]:
    """Return a pod that excludes others like it from its node, or its zone."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "a"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    pod = make_pod(name).gpus(1).label("app", "a").spec(affinity=affinity)
    return (pod.spec(nodeName=node) if node else pod).build()


A, B, C = 0b001, 0b010, 0b100
ANTI_AFFINITY: dict[str, tuple[list[dict[str, Any]], ExclusionByOthers]] = {
    "alone": ([spread("own", "a")], ExclusionByOthers(0)),
    "waiting alone": ([spread("own", "")], ExclusionByOthers(0)),
    "another pod on another node": ([spread("own", "a"), spread("other", "b")], ExclusionByOthers(B)),
    "another pod on its node, before anti-affinity was observed": (
        [spread("own", "a"), spread("other", "a")],
        ExclusionByOthers(A),
    ),
    "another pod in its zone": ([spread("own", "a", "zone"), spread("other", "b", "zone")], ExclusionByOthers(A | B)),
    "another pod that waits": (
        [spread("own", "a"), spread("other", "")],
        ExclusionByOthers(0, (("kubernetes.io/hostname", 1),)),
    ),
    "another term": ([spread("own", "a"), spread("other", "c", "zone")], ExclusionByOthers(C)),
    "a pod that is not in the cluster": ([spread("other", "a")], ExclusionByOthers(A)),
}


@pytest.mark.parametrize(("pods", "excluded"), ANTI_AFFINITY.values(), ids=ANTI_AFFINITY)
def test_a_pod_is_excluded_only_by_the_anti_affinity_of_others(
    pods: list[dict[str, Any]], excluded: ExclusionByOthers
) -> None:
    nodes = [
        make_node(name, {"kubernetes.io/hostname": name, "zone": zone}, **{"nvidia.com/gpu": 8})
        for name, zone in (("a", "1"), ("b", "1"), ("c", "2"))
    ]
    view = view_of_objects((each, SourceLocation("f")) for each in (*nodes, *pods))
    adjusted = without_pod_usage(view, "team", parse_pod(spread("own", "a")), runs=True)
    assert adjusted.exclusion_by_pods("team", (("app", "a"),)) == excluded


ENDING = quota(scopes=("Terminating",), pods="1", requests_cpu="4")
NEARLY_EMPTY = {**quota(), "status": {"hard": {"requests.cpu": "9", "pods": "9"}, "used": {"requests.cpu": "3500m"}}}


@pytest.mark.parametrize(
    ("counting", "deadline", "left"),
    [
        (ENDING, {"activeDeadlineSeconds": 60}, {"pods": "0", "requests.cpu": "0"}),
        (ENDING, {}, {"pods": "1", "requests.cpu": "4"}),
        (NEARLY_EMPTY, {}, {"requests.cpu": "0"}),
    ],
    ids=["a quota that counts the pod", "one that does not", "never below zero, and no key that is not counted"],
)
def test_each_quota_is_reduced_by_the_charge_of_the_pod(
    counting: dict[str, Any], deadline: dict[str, Any], left: dict[str, str]
) -> None:
    view = view_of_objects([(counting, SourceLocation("f"))])
    [found] = without_pod_usage(view, "team", parse_pod(using("a", **deadline)), runs=True).quotas("team")
    assert found.status.used == left


def test_pod_with_an_invalid_amount_releases_nothing(view: ClusterView) -> None:
    pod = parse_pod(make_pod("a").gpus("many").build())
    assert without_pod_usage(view, "team", pod, runs=True).quotas("team") == view.quotas("team")


SHARED_QUOTA = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: lab}
spec:
  mode: enforce
  quotas: {shared: [{name: lab, gpuMilli: 143}]}
"""


def test_pods_hold_the_devices_of_their_claims_and_fit_the_quota_that_they_fill() -> None:
    slice_of_claim = allocated("n", "gpu-0-mig-1g10gb-1-0")
    pods = [make_pod(name).spec(nodeName="n").claims(CLAIM).build() for name in ("a", "b")]
    claim, nodes = resource_claim("c", slice_of_claim), [make_node("n", {}), *partitionable_gpus("n")]
    results = run_audit(*nodes, make_namespace("team"), claim, *pods, policy=SHARED_QUOTA)
    assert [(each.name, each.decision.gpu_milli_before, each.decision.denials) for each in results] == [
        ("a", 143, ()),
        ("b", 0, ()),
    ]
    assert results[0].decision.keep_reason == "ClaimedGPUs"


def right_sized(
    name: str, gpus: str = "1", milli: int = 143, resource: str = "nvidia.com/mig-1g.10gb"
) -> dict[str, Any]:
    record: dict[str, Any] = {"policies": ["sizing"], "digest": "0123456789ab", "changed": ["resources"]}
    made = make_pod(name).requests(resource, gpus).spec(nodeName="m")
    record |= {"resource": resource, "gpuMilli": milli}
    return made.annotate("rightslice.dev/decision", orjson.dumps(record).decode()).build()


SLICES = make_node("m", {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}, **{"nvidia.com/mig-1g.10gb": 7})
SAVED_BEFORE = {
    "one slice each": (
        [right_sized("a"), right_sized("b")],
        "2 pods were right-sized at admission: GPUs requested 2, now 0.29, saved 1.71.",
    ),
    "a slice in each of two containers": (
        [right_sized("a", "2")],
        "1 pod was right-sized at admission: GPUs requested 2, now 0.29, saved 1.71.",
    ),
    "a record of an unknown size": ([right_sized("a", milli=0)], ""),
    "a record of more than a GPU": ([right_sized("a", milli=4000)], ""),
    "a slice that the user requested": ([make_pod("a").requests("nvidia.com/mig-1g.10gb", "1").build()], ""),
}


@pytest.mark.parametrize(("pods", "line"), SAVED_BEFORE.values(), ids=SAVED_BEFORE)
def test_records_of_pods_tell_what_right_sizing_saved_when_they_were_created(
    pods: list[dict[str, Any]], line: str
) -> None:
    assert admission_summary(run_audit(SLICES, make_namespace("team"), *pods)) == line


def test_a_pod_with_a_gpu_by_the_name_of_a_class_keeps_it_for_that_reason() -> None:
    name = "deviceclass.resource.kubernetes.io/gpu"
    made = resource_claim("made", allocated("n", "gpu-0"))
    pod = make_pod("a").requests(name, "1").needs("8Gi").spec(nodeName="n").build()
    pod["status"] = {"extendedResourceClaimStatus": {"resourceClaimName": "made"}}
    sizing = SHARED_QUOTA.replace("quotas: {shared: [{name: lab, gpuMilli: 143}]}", "rightSizing: {}")
    cluster = [make_node("n", {}), *partitionable_gpus("n"), make_namespace("team"), *DEVICE_CLASSES, made]
    [result] = run_audit(*cluster, pod, policy=sizing)
    assert (result.decision.gpu_milli_before, result.decision.keep_reason) == (1000, "RequestedByDeviceClass")


CLAIM = {"name": "g", "resourceClaimName": "c"}


def sized(device: str, request: str, name: str = "c") -> dict[str, Any]:
    """Return a right-sized claim that has a device."""
    made = sized_claim(about={"name": name, "namespace": "team", "annotations": {"rightslice.dev/gpu-memory": "8Gi"}})
    results = [{**allocated("a", device), "request": request}]
    return made | {"status": {"allocation": {"devices": {"results": results}}}}


def claim_user(name: str = "a") -> dict[str, Any]:
    return make_pod(name).spec(nodeName="a").claims(CLAIM).build()


SLICE, CARD = ("gpu-0-mig-1g10gb-1-0", "gpu/mig-1g-10gb"), ("gpu-0", "gpu/requested")
SAVED_BY_CLAIMS = {
    "a slice": (
        [sized(*SLICE), claim_user()],
        "1 pod was right-sized at admission: GPUs requested 1, now 0.14, saved 0.86.",
    ),
    "a slice that two pods share": (
        [sized(*SLICE), claim_user(), claim_user("b")],
        "1 pod was right-sized at admission: GPUs requested 1, now 0.14, saved 0.86.",
    ),
    "the card, as no slice was free": ([sized(*CARD), claim_user()], ""),
    "a slice that the user requested": ([resource_claim("c", allocated("a", SLICE[0])), claim_user()], ""),
    "a slice that no pod uses": ([sized(*SLICE)], ""),
    "a slice in a claim, and one by a resource name": (
        [sized(*SLICE), claim_user(), right_sized("b")],
        "2 pods were right-sized at admission: GPUs requested 2, now 0.29, saved 1.71.",
    ),
    "a slice by the name of a class": (
        [right_sized("a", resource="deviceclass.resource.kubernetes.io/small")],
        "1 pod was right-sized at admission: GPUs requested 1, now 0.14, saved 0.86.",
    ),
    "a record of a resource that is no GPU": ([right_sized("a", resource="cpu")], ""),
}


@pytest.mark.parametrize(("objects", "line"), SAVED_BY_CLAIMS.values(), ids=SAVED_BY_CLAIMS)
def test_right_sized_claims_tell_what_they_save_now(objects: list[dict[str, Any]], line: str) -> None:
    assert admission_summary(run_audit(SLICES, *GPUS, *DEVICE_CLASSES, make_namespace("team"), *objects)) == line
