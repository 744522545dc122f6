"""A rewrite does no harm: a pod that an API server takes is still taken in our shape, and comes to what we say."""

from __future__ import annotations

import secrets
from random import Random
from typing import Any

import jsonpatch

from tests.builders import Json
from tests.cluster.dryrun import Answer, DryRuns, dry_runs
from tests.cluster.plane import Plane
from tests.cluster.pod_comparison import World, new_world
from tests.cluster.predicted_outcomes import ranges_of, resources_in, texts_of
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
    """A pod whose first container asks for one GPU, beside whatever else it asks for."""
    data = pod(random, name)
    data["metadata"]["annotations"] = {"rightslice.dev/gpu-memory": "8Gi"}
    main = data["spec"]["containers"][0].setdefault("resources", {})
    for side in main.values():
        for key in [key for key in side if key.startswith("nvidia.com/")]:
            del side[key]
    main.setdefault("limits", {})[GPU] = "1"
    return data


def as_seen(world: World, answer: Answer) -> Json:
    """The pod as a mutating webhook sees it: with all defaults, and without what is only given later."""
    metadata = answer.body["metadata"]
    kept = {key: metadata[key] for key in ("name", "annotations", "labels") if key in metadata}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": kept | {"namespace": world.name},
        "spec": answer.body["spec"],
    }


def cluster(world: World) -> ClusterView:
    """The namespace as it is, and nodes with room for everything."""
    objects = [*world.ranges, *world.quotas]
    kinds = ["LimitRange"] * len(world.ranges) + ["ResourceQuota"] * len(world.quotas)
    typed = [{"apiVersion": "v1", "kind": kind} | item for kind, item in zip(kinds, objects, strict=True)]
    return view_of(whole_node(), mig_node(), *typed)


async def rewritten(world: World, asking: DryRuns, random: Random) -> tuple[int, list[Any]]:
    """How many pods of a world were changed, and every one that should not have been."""
    changed, harmed = 0, list[Any]()
    view = cluster(world)
    pods = [one_gpu(random, f"pod-{number}") for number in range(PODS)]
    for answer in await asking.pods(world.name, pods):
        if answer.status != 201:
            continue
        seen = as_seen(world, answer)
        decision = decide(request_of(seen), POLICIES, view, NO_USAGE, NOW)
        if not decision.patch:
            continue
        changed += 1
        patch: Any = list(decision.patch)
        after = jsonpatch.apply_patch(seen, patch)
        (again,) = await asking.pods(world.name, [after])
        if again.status != 201:
            harmed.append((world, seen["spec"], decision.patch, again.body.get("message")))
            continue
        ours = texts_of(apply_request_defaults(apply_defaults(parse_pod(after), ranges_of(world.ranges))))
        if ours != resources_in(again):
            harmed.append((world, ours, resources_in(again)))
    return changed, harmed


async def test_a_pod_that_is_taken_is_still_taken_in_our_shape(plane: Plane) -> None:
    random, run, changed = Random("rewrites"), secrets.token_hex(3), 0
    async with dry_runs(plane.url, plane.ca, plane.token) as asking:
        await asking.prepare(f"seen-{run}")
        worlds = [await new_world(asking, random, f"rewrite-{run}-{number}") for number in range(WORLDS)]
        await asking.all_seen()
        for world in worlds:
            count, harmed = await rewritten(world, asking, random)
            assert harmed[:1] == []
            changed += count
            await asking.ask("DELETE", f"/api/v1/namespaces/{world.name}")
    assert changed > 60
