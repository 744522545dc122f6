"""Where pods would go, as `place` says it: what the scheduler would refuse is refused in its words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from tests.make import Json, make_node, make_pod
from tests.placement.kube import GPU, gpu_node, placing, report, running
from tests.world import policies_of, policy, view_of
from webhook.audit.checking import World
from webhook.audit.manifests import Entry, entries_of
from webhook.audit.placing import place_all
from webhook.placement.fragmentation.policies import Policy
from webhook.placement.nodes.ranking import Fill
from webhook.report.placed import Placed, placed_document, placed_lines

NOW = datetime(2026, 6, 1, tzinfo=UTC)
H100 = "NVIDIA-H100-80GB-HBM3"


def placed(item: Json, *objects: Json, policies: str = "") -> Placed:
    """What becomes of one object in a cluster."""
    world = World(policies_of(*([policies] if policies else [])), view_of(*objects), NOW)
    entries = [each for each in entries_of("x.json", orjson.dumps(item)) if isinstance(each, Entry)]
    (found,) = place_all(entries, world, placing(*objects), Policy.TAB, Fill.PACK)
    return found


def nodes(found: Placed) -> list[str]:
    return [each["node"] for each in placed_document(found)["nodes"]]


def answer(found: Placed) -> str:
    return placed_lines(found)[1].strip()


def deployment(replicas: int, pod: Json, kind: str = "Deployment") -> Json:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": pod["spec"]}
    size = {"parallelism": replicas, "completions": replicas} if kind == "Job" else {"replicas": replicas}
    spec = {**size, "template": template} | ({} if kind == "Job" else {"selector": {"matchLabels": {"app": "a"}}})
    group = "batch/v1" if kind == "Job" else "apps/v1"
    return {"apiVersion": group, "kind": kind, "metadata": {"name": "a", "namespace": "team"}, "spec": spec}


def storing(name: str) -> Json:
    """A node with GPUs, a scratch disk, and cards of another vendor."""
    return make_node(name, {}, **{GPU: 1, "ephemeral-storage": 10 * 2**30, "example.com/card": 2, "pods": 3})


ASKED: dict[str, tuple[str, object, list[str]]] = {
    "the accounting resource, where no node has it": ("rightslice.dev/gpu-milli", "500", []),
    "huge pages, where no node has any": ("hugepages-2Mi", "64Mi", []),
    "more scratch disk than any has": ("ephemeral-storage", "11Gi", []),
    "as much scratch disk as there is": ("ephemeral-storage", "10Gi", ["n"]),
    "a card that another pod holds": ("example.com/card", "2", []),
    "one that nobody holds": ("example.com/card", "1", ["n"]),
    "a device class, which no node advertises": ("deviceclass.resource.kubernetes.io/gpu", "1", ["n"]),
}


@pytest.mark.parametrize(("resource", "amount", "fits"), ASKED.values(), ids=ASKED)
def test_every_resource_that_a_pod_asks_for_must_be_there(resource: str, amount: object, fits: list[str]) -> None:
    found = placed(make_pod().asks(resource, amount).build(), storing("n"), running("x", "n", "example.com/card"))

    assert nodes(found) == fits
    said = [each.scheduler for some in found.reasons.values() for each in some]
    assert said == ([] if fits else [f"Insufficient {resource}"])


def test_a_pod_that_names_its_node_goes_there_or_nowhere() -> None:
    there = placed(make_pod().gpus(1).spec(nodeName="b").build(), gpu_node("a"), gpu_node("b"))
    nowhere = placed(make_pod().gpus(1).spec(nodeName="ghost").build(), gpu_node("a"))

    assert nodes(there) == ["b"]
    assert "fixed by spec.nodeName" in answer(there)
    assert [each.scheduler for each in there.reasons[0]] == ["node(s) didn't match the requested node name"]
    assert (nodes(nowhere), answer(nowhere)) == ([], "spec.nodeName says ghost, and there is no such node.")


def test_a_pod_that_asks_for_less_than_nothing_cannot_be() -> None:
    found = placed(make_pod().gpus("-8").build(), gpu_node("a"))

    assert nodes(found) == []
    assert found.reasons[0][0].scheduler == "Invalid value: nvidia.com/gpu must be greater than or equal to 0"


@pytest.mark.parametrize(
    ("count", "replicas", "said"),
    [(2, 4, ""), (2, 5, "; 4 of 5 replicas fit now"), (3, 3, "; 2 of 3 replicas fit now")],
)
def test_it_is_said_how_many_replicas_fit(count: int, replicas: int, said: str) -> None:
    found = placed(deployment(replicas, make_pod().gpus(count).build()), gpu_node("a", 4), gpu_node("b", 4))

    assert answer(found).endswith(said or "GPUs 0,1")
    assert placed_document(found)["fits"] == min(replicas, found.fits)


def test_places_for_pods_bound_the_replicas() -> None:
    found = placed(deployment(5, make_pod().build()), storing("n"), running("x", "n", "cpu"))

    assert (found.replicas, found.fits) == (5, 2)


def test_only_so_many_replicas_as_there_are_joined_sets() -> None:
    pod = make_pod().gpus(3).annotate("rightslice.dev/topology", "nvlink=required").build()
    item: Any = deployment(3, pod)
    item["spec"]["template"]["metadata"]["annotations"] = pod["metadata"]["annotations"]

    assert placed(item, gpu_node("dgx", 8, "Tesla-V100-SXM2-32GB")).fits == 2


def test_a_job_goes_to_the_domain_where_all_of_it_fits() -> None:
    domains = {"a-small": "d1", "large-1": "d2", "large-2": "d2"}
    cluster = [gpu_node(name, 8, H100) for name in domains]
    for node, at in zip(cluster, domains.values(), strict=True):
        node["metadata"]["labels"] = {**node["metadata"]["labels"], "nvidia.com/gpu.clique": at}
    text = policy("topology: {nvlink: preferred, multiNodeDomain: nvidia.com/gpu.clique}")
    job = deployment(2, make_pod().gpus(8).build(), "Job")

    assert nodes(placed(job, *cluster, policies=text)) == ["large-1", "large-2", "a-small"]
    assert nodes(placed(job, *cluster))[0] == "a-small"


def test_it_is_said_why_it_is_not_known_which_gpus_are_free() -> None:
    held = running("x", "n")
    bare = placed(make_pod().gpus(2).build(), gpu_node("n"), held)
    told = placed(make_pod().gpus(2).build(), gpu_node("n"), held, report("n", 17, {}))

    why = "its agent's report cannot be used: it names 17 GPUs, and at most 16 are told apart"
    assert answer(bare) == "Goes to n (which GPUs are free is not known: no agent runs there)"
    assert answer(told) == f"Goes to n (which GPUs are free is not known: {why})"
