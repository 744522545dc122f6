"""auditing: the pods of a snapshot, each judged as if it were created again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from tests.make import make_namespace, make_node, make_pod
from webhook.audit.auditing import audit_all
from webhook.audit.checking import World
from webhook.audit.manifests import Entry, Passed, entries_of
from webhook.audit.views import with_labels, without_use
from webhook.cache.snapshot import snapshot_of
from webhook.errors import Place
from webhook.model.cluster import ClusterView
from webhook.policy.loading import load
from webhook.report.results import Checked, Verdict

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
NODE = make_node("n", {"nvidia.com/gpu.product": "A"}, **{"nvidia.com/gpu": 8})


def world_of(view: ClusterView) -> World:
    loaded = load([("p.yaml", POLICY)])
    assert loaded.policies is not None, loaded.errors
    return World(policies=loaded.policies, view=view, now=datetime(2026, 6, 1, tzinfo=UTC))


def audited(*objects: dict[str, Any]) -> list[Checked]:
    """Audit a snapshot of these objects."""
    found = list(entries_of("f.json", orjson.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})))
    view = snapshot_of((each.data, each.place()) for each in found if isinstance(each, Entry))
    return list(audit_all(found, world_of(view)))


def running(name: str, gpus: int, phase: str = "Running") -> dict[str, Any]:
    pod = make_pod(name).gpus(gpus).spec(nodeName="n").build()
    pod["status"] = {"phase": phase}
    return pod


def test_only_pods_that_hold_something_are_judged() -> None:
    results = audited(
        NODE, make_namespace("team"), running("a", 1), running("b", 1, "Succeeded"), running("c", 1, "Failed")
    )
    assert [result.name for result in results] == ["a"]


def test_the_node_that_the_scheduler_chose_is_no_finding() -> None:
    [result] = audited(NODE, running("a", 1))
    assert result.verdict is Verdict.ALLOWED


def test_a_pod_does_not_stand_in_its_own_way_in_a_quota() -> None:
    results = audited(NODE, QUOTA, running("a", 3), running("b", 1))
    assert [result.verdict for result in results] == [Verdict.ALLOWED, Verdict.ALLOWED]


def test_a_pod_that_never_fitted_its_quota_is_denied() -> None:
    [result] = audited(NODE, QUOTA, running("a", 5))
    assert [found.finding.code for found in result.findings] == ["GPU-Q301"]


def test_faults_are_told_and_other_documents_are_passed_over() -> None:
    found = [
        *entries_of("f.json", b'{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": 1}}'),
        Passed(Place("a"), "gone", broken=True),
        Passed(Place("b"), "a kustomization"),
    ]
    results = list(audit_all(found, world_of(snapshot_of(()))))
    assert [result.reason for result in results] == ["spec.containers: must be a list, found a whole number", "gone"]
    assert all(result.broken for result in results)


@pytest.fixture
def view() -> ClusterView:
    return snapshot_of([(make_namespace("team", tier="a"), Place("f")), (QUOTA, Place("f"))])


def labels(view: ClusterView, name: str) -> dict[str, str]:
    namespace = view.namespace(name)
    assert namespace is not None
    return dict(namespace.metadata.labels)


def test_labels_stand_beside_those_of_the_cluster_or_alone(view: ClusterView) -> None:
    name = {"kubernetes.io/metadata.name": "team"}
    assert labels(with_labels(view, {"sized": "true"}), "team") == {**name, "tier": "a", "sized": "true"}
    assert labels(with_labels(view, {"tier": "b"}), "team") == {**name, "tier": "b"}
    assert labels(with_labels(view, {"x": "y"}, alone=True), "team") == {**name, "x": "y"}
    assert labels(with_labels(view, {}, alone=True), "team") == name
    assert with_labels(view, {}) is view


def test_labels_stay_when_use_is_taken_out(view: ClusterView) -> None:
    both = without_use(with_labels(view, {"x": "y"}), "team", {"nvidia.com/gpu": 1})
    assert labels(both, "team")["x"] == "y"
    [quota] = both.quotas("team")
    assert quota.status.used == {"requests.nvidia.com/gpu": "3"}
    assert both.quotas("other") == ()
    assert view.quotas("team")[0].status.used == {"requests.nvidia.com/gpu": "4"}, "the view itself stays"
