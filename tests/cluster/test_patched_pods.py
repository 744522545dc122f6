"""Patched pods: a pod that an API server accepts is still accepted after our patch, with the predicted result."""

from __future__ import annotations

import secrets
from random import Random
from typing import Any

import jsonpatch

from tests.builders import Json
from tests.cluster.dryrun import ApiAnswer, DryRunClient, open_dry_run_client
from tests.cluster.plane import Plane
from tests.cluster.pod_comparison import NamespaceObjects, create_random_namespace
from tests.cluster.predicted_outcomes import answered_resources, format_resources, parse_limit_ranges
from tests.cluster.random_objects import pod
from tests.example_cluster import NO_USAGE, NOW, mig_node, policies_of, policy, request_of, view_of, whole_node
from webhook.engine.decide import decide
from webhook.model.cluster_view import ClusterView
from webhook.model.defaulting import apply_defaults, apply_request_defaults
from webhook.model.pods import parse_pod

NAMESPACES, PODS = 50, 15
GPU = "nvidia.com/gpu"
POLICIES = policies_of(policy("mode: enforce\nrightSizing: {}\nlimits: {limitRangeInjected: remove}"))


def random_gpu_pod(random: Random, name: str) -> Json:
    """Return a random pod whose first container also requests one GPU."""
    data = pod(random, name)
    data["metadata"]["annotations"] = {"rightslice.dev/gpu-memory": "8Gi"}
    main = data["spec"]["containers"][0].setdefault("resources", {})
    for side in main.values():
        for key in [key for key in side if key.startswith("nvidia.com/")]:
            del side[key]
    main.setdefault("limits", {})[GPU] = "1"
    return data


def reviewed_pod(namespace: NamespaceObjects, answer: ApiAnswer) -> Json:
    """Return the pod as a mutating webhook reviews it: with all defaults, without fields that are set later."""
    metadata = answer.body["metadata"]
    kept = {key: metadata[key] for key in ("name", "annotations", "labels") if key in metadata}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": kept | {"namespace": namespace.name},
        "spec": answer.body["spec"],
    }


def cluster(namespace: NamespaceObjects) -> ClusterView:
    """Return a view with the namespace's objects and with free nodes."""
    objects = [*namespace.ranges, *namespace.quotas]
    kinds = ["LimitRange"] * len(namespace.ranges) + ["ResourceQuota"] * len(namespace.quotas)
    with_kind = [{"apiVersion": "v1", "kind": kind} | item for kind, item in zip(kinds, objects, strict=True)]
    return view_of(whole_node(), mig_node(), *with_kind)


async def find_rejected_patches(
    namespace: NamespaceObjects, client: DryRunClient, random: Random
) -> tuple[int, list[Any]]:
    """Return the number of patched pods of a namespace, and those whose patch caused harm."""
    changed, failures = 0, list[Any]()
    view = cluster(namespace)
    pods = [random_gpu_pod(random, f"pod-{number}") for number in range(PODS)]
    for answer in await client.dry_run_pods(namespace.name, pods):
        if answer.status != 201:
            continue
        reviewed = reviewed_pod(namespace, answer)
        decision = decide(request_of(reviewed), POLICIES, view, NO_USAGE, NOW)
        if not decision.patch:
            continue
        changed += 1
        patch: Any = list(decision.patch)
        after = jsonpatch.apply_patch(reviewed, patch)
        (answer_after,) = await client.dry_run_pods(namespace.name, [after])
        if answer_after.status != 201:
            failures.append((namespace, reviewed["spec"], decision.patch, answer_after.body.get("message")))
            continue
        ranges = parse_limit_ranges(namespace.ranges)
        ours = format_resources(apply_request_defaults(apply_defaults(parse_pod(after), ranges), ranges))
        if ours != answered_resources(answer_after):
            failures.append((namespace, ours, answered_resources(answer_after)))
    return changed, failures


async def test_an_accepted_pod_is_still_accepted_after_the_patch(plane: Plane) -> None:
    random, run, changed = Random("rewrites"), secrets.token_hex(3), 0
    async with open_dry_run_client(plane.url, plane.ca, plane.token) as client:
        await client.create_marker_namespace(f"marker-{run}")
        namespaces = [
            await create_random_namespace(client, random, f"rewrite-{run}-{number}") for number in range(NAMESPACES)
        ]
        await client.wait_for_admission_caches()
        for namespace in namespaces:
            count, failures = await find_rejected_patches(namespace, client, random)
            assert failures[:1] == []
            changed += count
            await client.send("DELETE", f"/api/v1/namespaces/{namespace.name}")
    assert changed > 60
