"""quota_status: usage of quotas that no controller has counted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.builders import Json, make_node, make_pod
from webhook.cache.build_view import with_quota_status
from webhook.cache.snapshot import view_of_objects
from webhook.errors import SourceLocation
from webhook.model.objects import ResourceQuota
from webhook.model.pods import parse_pod

GPU = "nvidia.com/gpu"


def _quota(hard: Json, **fields: Any) -> ResourceQuota:
    return msgspec.convert({"spec": {"hard": hard, **fields.pop("spec", {})}, **fields}, ResourceQuota)


PODS = [
    parse_pod(make_pod("a").gpus(2).requests("cpu", "1500m").requests("memory", "3Gi").build()),
    parse_pod(make_pod("b").gpus(1).build()),
]

USED: dict[str, tuple[ResourceQuota, Json]] = {
    "GPUs": (_quota({f"requests.{GPU}": "8"}), {f"requests.{GPU}": "3"}),
    "a resource without requests": (
        _quota({"requests.nvidia.com/gpu.shared": "8"}),
        {"requests.nvidia.com/gpu.shared": "0"},
    ),
    "CPU, by both names": (
        _quota({"cpu": "8", "requests.cpu": "8", "limits.cpu": "8"}),
        {"cpu": "1500m", "requests.cpu": "1500m", "limits.cpu": "1500m"},
    ),
    "memory": (_quota({"requests.memory": "8Gi"}), {"requests.memory": "3Gi"}),
    "pods": (_quota({"pods": "8", "count/pods": "8"}), {"pods": "2", "count/pods": "2"}),
    "limits of a GPU are never counted": (_quota({f"limits.{GPU}": "8", GPU: "8"}), {}),
    "resources that pods do not use are not counted": (_quota({"services": "8", "requests.storage": "1Ti"}), {}),
    "only the pods of its scopes": (
        _quota({f"requests.{GPU}": "8"}, spec={"scopes": ["BestEffort"]}),
        {f"requests.{GPU}": "1"},
    ),
    "counted usage stays": (
        _quota({f"requests.{GPU}": "8"}, status={"used": {f"requests.{GPU}": "7"}}),
        {f"requests.{GPU}": "7"},
    ),
}


@pytest.mark.parametrize(("quota", "used"), USED.values(), ids=USED)
def test_quota_usage(quota: ResourceQuota, used: Json) -> None:
    assert with_quota_status(quota, PODS).status.used == used


def test_hard_limits_come_from_the_status_or_else_the_spec() -> None:
    assert with_quota_status(_quota({"pods": "8"}), []).status.hard == {"pods": "8"}
    assert with_quota_status(_quota({"pods": "8"}, status={"hard": {"pods": "4"}}), []).status.hard == {"pods": "4"}


def test_snapshot_counts_active_pods_of_the_quotas_namespace() -> None:
    quota = {
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": "team"},
        "spec": {"hard": {f"requests.{GPU}": "8"}},
    }
    limits = {"kind": "LimitRange", "metadata": {"name": "l", "namespace": "team"}}
    limits["spec"] = {"limits": [{"type": "Container", "max": {GPU: "4"}}]}
    bound, pending = make_pod("a").gpus(2).spec(nodeName="n").build(), make_pod("b").gpus(1).build()
    ended, elsewhere = make_pod("c").gpus(4).build() | {"status": {"phase": "Failed"}}, make_pod("d").gpus(4)
    objects = [
        make_node("n", {}, **{GPU: 8}),
        quota,
        limits,
        bound,
        pending,
        ended,
        elsewhere.namespace("other").build(),
    ]
    view = view_of_objects((item, SourceLocation("x")) for item in objects)
    (found,) = view.quotas("team")
    assert found.status.used == {f"requests.{GPU}": "3"}
    assert view.limit_ranges("team")[0].spec.limits[0].default == {GPU: "4"}
    assert view.quotas("other") == ()
