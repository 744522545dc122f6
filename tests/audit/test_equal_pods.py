"""Equal pods are evaluated once: which pods count as equal, and that their results are those of one evaluation each."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from benchmarks.fleet import demo_objects, grow
from tests.builders import PodMaker, make_node, make_pod
from tests.cli.conftest import JUNE
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.layout_view import view_with_slices
from webhook.audit.object_files import SourceObject, parse_objects
from webhook.audit.pod_audit import EqualPods, audit_pods
from webhook.cache.bundled_files import bundled_folder
from webhook.cache.snapshot import view_of_objects
from webhook.errors import SourceLocation
from webhook.placement.node_layouts import node_layouts
from webhook.policy.loader import load_policies

POLICY = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: guard}
spec: {mode: enforce, match: {MATCH}, rightSizing: {evidence: [declared]}}
"""
A100, H100 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3"
NODES = [
    make_node(name, {"nvidia.com/gpu.product": product}, **{"nvidia.com/gpu": 8})
    for name, product in (("a", A100), ("b", A100), ("h", H100))
]


def replica(name: str, node: str = "a") -> PodMaker:
    """Return a running pod of the StatefulSet train."""
    pod = make_pod(name).gpus(1).needs("8Gi").owned_by("StatefulSet", "train").spec(nodeName=node, hostname=name)
    return pod.label("statefulset.kubernetes.io/pod-name", name)


def mounted(pod: PodMaker, volume: str) -> PodMaker:
    """Return a pod with the volume of its service account's token."""
    pod.main["volumeMounts"] = [{"name": volume, "mountPath": "/var/run/secrets"}]
    return pod.spec(volumes=[{"name": volume, "projected": {"sources": []}}])


SPREAD = {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]}
NAME_IS_READ = "matchConditions: [{name: c, expression: 'object.metadata.name.startsWith(\"p\")'}]"
SPEC_IS_READ = "matchConditions: [{name: c, expression: 'has(object.spec.restartPolicy)'}]"
LABELS_ARE_READ = "objectSelector: {matchExpressions: [{key: statefulset.kubernetes.io/pod-name, operator: Exists}]}"
PAIRS: dict[str, tuple[PodMaker, PodMaker, str, bool]] = {
    "replicas on equal nodes": (replica("p0"), replica("p1", "b"), "", True),
    "tokens of replicas have volumes of other names": (
        mounted(replica("p0"), "kube-api-access-abc12"),
        mounted(replica("p1"), "kube-api-access-xyz89"),
        "",
        True,
    ),
    "nodes with other cards": (replica("p0"), replica("p1", "h"), "", False),
    "one waits": (replica("p0"), make_pod("p1").gpus(1).needs("8Gi").owned_by("StatefulSet", "train"), "", False),
    "another need": (replica("p0"), replica("p1").needs("9Gi"), "", False),
    "another owner": (replica("p0"), replica("p1").owned_by("StatefulSet", "other"), "", False),
    "another namespace": (replica("p0"), replica("p1").namespace("other"), "", False),
    "pods without an owner": (make_pod("p0").gpus(1), make_pod("p1").gpus(1), "", False),
    "spread pods": (replica("p0").spec(**SPREAD), replica("p1").spec(**SPREAD), "", False),
    "a condition reads the name": (replica("p0"), replica("p1"), NAME_IS_READ, False),
    "a condition reads the specification": (replica("p0"), replica("p1"), SPEC_IS_READ, True),
    "a policy selects by labels, and one is the name": (replica("p0"), replica("p1"), LABELS_ARE_READ, False),
}


@pytest.mark.parametrize(("one", "other", "match", "expected"), PAIRS.values(), ids=PAIRS.keys())
def test_equal_pods(one: PodMaker, other: PodMaker, match: str, *, expected: bool) -> None:
    loaded = load_policies([("p.yaml", POLICY.replace("MATCH", match))])
    assert loaded.policies is not None, loaded.errors
    view = view_of_objects((node, SourceLocation("nodes.yaml")) for node in NODES)
    equal = EqualPods(EvaluationContext(loaded.policies, view, datetime(2026, 6, 1, tzinfo=UTC)))
    keys = [equal.key(pod.build()) for pod in (one, other)]

    assert (keys[0] is not None and keys[0] == keys[1]) == expected


def test_results_are_those_of_each_pod_alone() -> None:
    """Every pod of forty nodes, under the shipped policies, in the cluster with every slice."""
    items = grow(demo_objects(), 40)
    found = list(parse_objects("f.json", orjson.dumps({"apiVersion": "v1", "kind": "List", "items": items})))
    view = view_of_objects((each.data, each.locate()) for each in found if isinstance(each, SourceObject))
    texts = [(str(file), file.read_text()) for file in sorted(bundled_folder("policies").glob("*.yaml"))]
    policies = load_policies(texts).policies
    assert policies is not None
    offering = view_with_slices(view, node_layouts(view.fleet))
    context = EvaluationContext(policies, offering, datetime.fromisoformat(JUNE))
    equal = EqualPods(context)
    pods: list[dict[str, Any]] = [each.data for each in found if isinstance(each, SourceObject)]
    keys = [key for pod in pods if pod["kind"] == "Pod" and (key := equal.key(pod)) is not None]

    assert len(set(keys)) < len(keys)
    once, each = (
        [
            (result.namespace, result.name, result.node, result.verdict, result.decision, result.pod_details)
            for result in audit_pods(found, context, equal_once=equal_once)
        ]
        for equal_once in (True, False)
    )
    assert once == each
