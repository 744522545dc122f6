"""Amounts that a LimitRange sets and the user never wrote: every rejection names it, in `check` and in the webhook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from tests.audit.test_evaluate import evaluate_data
from tests.builders import Json, PodMaker, make_namespace, make_pod
from tests.example_cluster import NOW, policies_of, policy, review, view_of
from webhook.audit.evaluate import EvaluationContext
from webhook.model.defaulting import default_object, default_pod_data
from webhook.model.field_paths import format_path
from webhook.model.findings import Finding

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
ONLY_LIMITS = "mode: enforce\nlimits: {limitRanges: evaluate, resourceQuotas: evaluate, limitRangeInjected: keep"
BY_DEFAULT = "LimitRange 'lr' sets this"


class World(NamedTuple):
    """A pod, the LimitRange items of its namespace, and the findings: code, field and a part of the message."""

    pod: PodMaker
    items: list[Json]
    want: list[tuple[str, str, str]]
    more: str = ""
    hard: Json | None = None


def pod_with(limits: Json | None = None, requests: Json | None = None) -> PodMaker:
    """Return a pod with these amounts in its container."""
    sides = {"limits": limits or {}, "requests": requests or {}}
    return make_pod().spec(containers=[{"name": "c", "image": "x", "resources": {k: v for k, v in sides.items() if v}}])


WORLDS = {
    "a default limit below the pod's own request": World(
        pod_with({GPU: "1"}, {"memory": "1Gi"}),
        [{"default": {"memory": "512Mi"}, "defaultRequest": {"memory": "512Mi"}}],
        [("GPU-L203", "requests.memory", "LimitRange 'lr' gives memory a default limit, and the API server")],
    ),
    "a minimum gives a request without a limit to a pod without GPUs": World(
        pod_with(),
        [{"min": {GPU: "1"}}],
        [("GPU-L203", "limits['nvidia.com/gpu']", "LimitRange 'lr' gives nvidia.com/gpu a default request")],
    ),
    "a minimum gives a whole GPU without a limit to a pod with a slice": World(
        pod_with({SLICE: "1"}),
        [{"min": {GPU: "1"}}],
        [("GPU-L203", "limits['nvidia.com/gpu']", "LimitRange 'lr' gives nvidia.com/gpu a default request")],
    ),
    "a minimum of zero gives another device without a limit": World(
        pod_with({GPU: "1"}),
        [{"min": {"example.com/fpga": "0"}}],
        [("GPU-L203", "limits['example.com/fpga']", "LimitRange 'lr' gives example.com/fpga a default request")],
    ),
    "a default limit that differs from the pod's own request of GPUs": World(
        pod_with(requests={GPU: "2"}),
        [{"default": {GPU: "1"}, "defaultRequest": {GPU: "1"}}],
        [("GPU-L203", "requests['nvidia.com/gpu']", "2 must be equal to nvidia.com/gpu limit of 1")],
    ),
    "a default limit of a container above the pod level": World(
        pod_with({GPU: "1"}).spec(resources={"limits": {"cpu": "1"}, "requests": {"cpu": "500m"}}),
        [{"default": {"cpu": "2"}, "defaultRequest": {"cpu": "100m"}}],
        [("GPU-L203", "limits.cpu", "2 must be less than or equal to pod limits of 1")],
    ),
    "default requests whose sum exceeds the pod level": World(
        pod_with({GPU: "1"}).spec(resources={"requests": {"cpu": "500m"}}),
        [{"defaultRequest": {"cpu": "1"}}],
        [("GPU-L203", "spec.resources.requests.cpu", "LimitRange 'lr' gives cpu a default request")],
    ),
    "default huge pages without CPU or memory": World(
        pod_with({GPU: "1"}),
        [{"default": {"hugepages-2Mi": "4Mi"}}],
        [("GPU-L203", "containers[0].resources", "HugePages require cpu or memory")],
    ),
    "the pod's own error is not the LimitRange's": World(
        pod_with({GPU: "1", "memory": "1Gi"}, {"memory": "2Gi"}),
        [{"default": {"cpu": "1"}, "defaultRequest": {"memory": "1Gi"}}],
        [],
    ),
    "a maximum of one LimitRange below the default of another": World(
        pod_with({GPU: "1"}),
        [{"default": {"cpu": "4"}}, {"max": {"cpu": "2"}}],
        [("GPU-L201", "limits.cpu", f"but limit is 4 (LimitRange 'other'); {BY_DEFAULT} limit by default")],
    ),
    "the total of a pod above its maximum by default": World(
        make_pod().gpus(1).container("side"),
        [{"default": {"cpu": "4"}, "defaultRequest": {"cpu": "1"}}, {"type": "Pod", "max": {"cpu": "2"}}],
        [("GPU-L201", "spec", "but limit is 8 (LimitRange 'other'); LimitRange 'lr' sets it in containers main, side")],
    ),
    "a policy's maximum below a default": World(
        pod_with({GPU: "1"}),
        [{"default": {"cpu": "4"}, "defaultRequest": {"cpu": "1"}}],
        [("GPU-L103", "limits.cpu", f"must be at most 2 (found 4); {BY_DEFAULT} limit by default")],
        ", perContainer: [{resource: cpu, max: 2}]",
    ),
    "a quota that the default of two containers exceeds": World(
        make_pod().container("side"),
        [{"default": {GPU: "2"}}],
        [("GPU-Q301", "spec", "3 would fit; LimitRange 'lr' sets it in containers main, side")],
        hard={"requests.nvidia.com/gpu": "3"},
    ),
    "the amount is the pod's own": World(
        pod_with({GPU: "1", "cpu": "4"}),
        [{"default": {"cpu": "4", "memory": "1Gi"}}, {"max": {"cpu": "2"}}],
        [("GPU-L201", "limits.cpu", "but limit is 4 (LimitRange 'other')")],
    ),
}


def findings_of(world: World, *, in_webhook: bool) -> Sequence[Finding]:
    """Return the findings about a pod as it is written, or as the API server sends it to a webhook."""
    ranges = [
        {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": name, "namespace": "team"}}
        | {"spec": {"limits": [{"type": "Container"} | item]}}
        for name, item in zip(("lr", "other"), world.items, strict=False)
    ]
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "team"}}
    quota |= {"spec": {"hard": world.hard or {}}}
    text, view = f"{ONLY_LIMITS}{world.more}}}", view_of(make_namespace("team"), *ranges, quota)
    context = EvaluationContext(policies=policies_of(policy(text)), view=view, now=NOW)
    if not in_webhook:
        return evaluate_data(world.pod.build(), context).decision.findings
    stored = default_object(default_pod_data(world.pod.build(), view.ranges("team")), "team")
    return review(stored, text, view=view).findings


@pytest.mark.parametrize("in_webhook", [False, True], ids=["check", "webhook"])
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_rejections_name_the_limit_range_that_set_the_amount(world: World, *, in_webhook: bool) -> None:
    found = findings_of(world, in_webhook=in_webhook)
    assert [finding.code for finding in found] == [code for code, _, _ in world.want]
    for finding, (_, field, message) in zip(found, world.want, strict=True):
        assert format_path(finding.path).endswith(field)
        assert message in finding.message
        assert finding.fix


def test_an_amount_of_the_pod_itself_is_not_attributed() -> None:
    [finding] = findings_of(WORLDS["the amount is the pod's own"], in_webhook=True)
    assert finding.message.endswith("(LimitRange 'other')")
