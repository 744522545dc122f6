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

WORLDS, PODS = 50, 15
GPU = "nvidia.com/gpu"
POLICIES = policies_of(policy("mode: enforce\nrightSizing: {}\nlimits: {limitRangeInjected: remove}"))


def one_gpu(random: Random, name: str) -> Json:
    """Return a random pod whose first container also requests one GPU."""
    data = pod(random, name)
    data["metadata"]["annotations"] = {"rightslice.dev/gpu-memory": "8Gi"}
    main = data["spec"]["containers"][0].setdefault("resources", {})
    for side in main.values():
        for key in [key for key in side if key.startswith("nvidia.com/")]:
            del side[key]
    main.setdefault("limits", {})[GPU] = "1"
    return data


def reviewed_pod(world: NamespaceObjects, answer: ApiAnswer) -> Json:
    """The pod as a mutating webhook sees it: with all defaults, and without what is only given later."""
    metadata = answer.body["metadata"]
    kept = {key: metadata[key] for key in ("name", "annotations", "labels") if key in metadata}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": kept | {"namespace": world.name},
        "spec": answer.body["spec"],
    }


def cluster(world: NamespaceObjects) -> ClusterView:
    """The namespace as it is, and nodes with room for everything."""
    objects = [*world.ranges, *world.quotas]
    kinds = ["LimitRange"] * len(world.ranges) + ["ResourceQuota"] * len(world.quotas)
    typed = [{"apiVersion": "v1", "kind": kind} | item for kind, item in zip(kinds, objects, strict=True)]
    return view_of(whole_node(), mig_node(), *typed)


async def find_rejected_patches(world: NamespaceObjects, asking: DryRunClient, random: Random) -> tuple[int, list[Any]]:
    """Return the number of patched pods of a namespace, and those whose patch caused harm."""
    changed, harmed = 0, list[Any]()
    view = cluster(world)
    pods = [one_gpu(random, f"pod-{number}") for number in range(PODS)]
    for answer in await asking.dry_run_pods(world.name, pods):
        if answer.status != 201:
            continue
        seen = reviewed_pod(world, answer)
        decision = decide(request_of(seen), POLICIES, view, NO_USAGE, NOW)
        if not decision.patch:
            continue
        changed += 1
        patch: Any = list(decision.patch)
        after = jsonpatch.apply_patch(seen, patch)
        (again,) = await asking.dry_run_pods(world.name, [after])
        if again.status != 201:
            harmed.append((world, seen["spec"], decision.patch, again.body.get("message")))
            continue
        ours = format_resources(
            apply_request_defaults(apply_defaults(parse_pod(after), parse_limit_ranges(world.ranges)))
        )
        if ours != answered_resources(again):
            harmed.append((world, ours, answered_resources(again)))
    return changed, harmed


async def test_an_accepted_pod_is_still_accepted_after_the_patch(plane: Plane) -> None:
    random, run, changed = Random("rewrites"), secrets.token_hex(3), 0
    async with open_dry_run_client(plane.url, plane.ca, plane.token) as asking:
        await asking.create_marker_namespace(f"seen-{run}")
        worlds = [await create_random_namespace(asking, random, f"rewrite-{run}-{number}") for number in range(WORLDS)]
        await asking.wait_for_admission_caches()
        for world in worlds:
            count, harmed = await find_rejected_patches(world, asking, random)
            assert harmed[:1] == []
            changed += count
            await asking.send("DELETE", f"/api/v1/namespaces/{world.name}")
    assert changed > 60
