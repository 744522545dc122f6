"""Placement as `place` prints it, with reasons in the scheduler's words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import orjson
import pytest

from tests.builders import Json, PodMaker, make_node, make_pod
from tests.engine.test_queued_templates import LOCAL_QUEUE, QUOTAS, cluster_queue, flavor
from tests.engine.test_queued_templates import job as queued_job
from tests.example_cluster import mig_node, policies_of, policy, view_of, whole_node
from tests.placement.clusters import (
    BRIDGED,
    DGX1,
    GPU,
    gpu_node,
    gpu_node_report,
    placement_input,
    running_gpu_pod,
    with_gpu_conditions,
)
from tests.usage_builders import observed_usage, workload_usage
from webhook.audit.admission import admitted_pods
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SourceObject, parse_objects
from webhook.audit.pod_placement import node_filter_reasons, place_pods
from webhook.cache.placement_input import PlacementInput
from webhook.model.dra.device_view import DeviceKind
from webhook.model.pods import parse_pod
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.nodes.ranking import FillOrder
from webhook.report.placement import PlacementResult, placement_document, placement_lines

NOW = datetime(2026, 6, 1, tzinfo=UTC)
H100 = "NVIDIA-H100-80GB-HBM3"


def place_pod(item: Json, *objects: Json, policies: str = "", knows_claims: bool = True) -> PlacementResult:
    """Place one object in a cluster."""
    view = view_of(*objects)
    if not knows_claims:
        unlisted = view.devices.unlisted | {DeviceKind.CLAIM}
        unknown = view.devices._replace(claims={}, allocated={}, knows_claims=False, unlisted=unlisted)
        view = view.with_devices(unknown)
    context = EvaluationContext(policies_of(*([policies] if policies else [])), view, NOW)
    placement = msgspec.structs.replace(placement_input(*objects), devices=view.devices)
    (found,) = place_all(item, context, placement)
    return found


def place_all(item: Json, context: EvaluationContext, placement: PlacementInput) -> list[PlacementResult]:
    """Place the pods of each template of an object."""
    entries = [each for each in parse_objects("x.json", orjson.dumps(item)) if isinstance(each, SourceObject)]
    return list(place_pods(entries, context, placement, ScoringStrategy.TAB, FillOrder.PACK))


def nodes(found: PlacementResult) -> list[str]:
    return [each["node"] for each in placement_document(found)["nodes"]]


def answer(found: PlacementResult) -> str:
    return placement_lines(found)[1].strip()


def deployment(replicas: int, pod: Json, kind: str = "Deployment") -> Json:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": pod["spec"]}
    size = {"parallelism": replicas, "completions": replicas} if kind == "Job" else {"replicas": replicas}
    spec = {**size, "template": template} | ({} if kind == "Job" else {"selector": {"matchLabels": {"app": "a"}}})
    group = "batch/v1" if kind == "Job" else "apps/v1"
    return {"apiVersion": group, "kind": kind, "metadata": {"name": "a", "namespace": "team"}, "spec": spec}


def node_with_other_resources(name: str) -> Json:
    """Return a node with GPUs, ephemeral storage, and cards of another vendor."""
    return make_node(name, {}, **{GPU: 1, "ephemeral-storage": 10 * 2**30, "example.com/card": 2, "pods": 3})


OTHER_RESOURCES: dict[str, tuple[str, object, list[str]]] = {
    "the accounting resource": ("rightslice.dev/gpu-milli", "500", []),
    "huge pages": ("hugepages-2Mi", "64Mi", []),
    "too much ephemeral storage": ("ephemeral-storage", "11Gi", []),
    "all ephemeral storage": ("ephemeral-storage", "10Gi", ["n"]),
    "allocated cards": ("example.com/card", "2", []),
    "free cards": ("example.com/card", "1", ["n"]),
    "a device class": ("deviceclass.resource.kubernetes.io/gpu", "1", ["n"]),
}


@pytest.mark.parametrize(("resource", "amount", "fits"), OTHER_RESOURCES.values(), ids=OTHER_RESOURCES)
def test_every_requested_resource_must_be_free(resource: str, amount: object, fits: list[str]) -> None:
    found = place_pod(
        make_pod().requests(resource, amount).build(),
        node_with_other_resources("n"),
        running_gpu_pod("x", "n", "example.com/card"),
    )

    assert nodes(found) == fits
    reasons = [each.scheduler_message for some in found.reasons.values() for each in some]
    assert reasons == ([] if fits else [f"Insufficient {resource}"])


def test_pod_with_a_node_name_is_placed_only_there() -> None:
    there = place_pod(make_pod().gpus(1).spec(nodeName="b").build(), gpu_node("a"), gpu_node("b"))
    nowhere = place_pod(make_pod().gpus(1).spec(nodeName="ghost").build(), gpu_node("a"))

    assert nodes(there) == ["b"]
    assert "fixed by spec.nodeName" in answer(there)
    assert [each.scheduler_message for each in there.reasons[0]] == ["node(s) didn't match the requested node name"]
    assert (nodes(nowhere), answer(nowhere)) == ([], "spec.nodeName is ghost, which does not exist.")


def test_negative_request_is_an_error() -> None:
    found = place_pod(make_pod().gpus("-8").build(), gpu_node("a"))

    assert nodes(found) == []
    assert found.reasons[0][0].scheduler_message == "Invalid value: nvidia.com/gpu must be greater than or equal to 0"


@pytest.mark.parametrize(
    ("count", "replicas", "text"),
    [(2, 4, ""), (2, 5, "; 4 of 5 replicas fit now"), (3, 3, "; 2 of 3 replicas fit now")],
)
def test_number_of_fitting_replicas_is_reported(count: int, replicas: int, text: str) -> None:
    found = place_pod(deployment(replicas, make_pod().gpus(count).build()), gpu_node("a", 4), gpu_node("b", 4))

    assert answer(found).endswith(text or "GPUs 0,1")
    assert placement_document(found)["fits"] == min(replicas, found.fits)


def without_template(group: str, kind: str, spec: Json) -> Json:
    """Return a workload without a pod template, with one GPU container."""
    return {"apiVersion": group, "kind": kind, "metadata": {"name": "a", "namespace": "team"}, "spec": spec}


(CONTAINER,) = make_pod().gpus(1).build()["spec"]["containers"]
WITHOUT_TEMPLATE = {
    "a workflow step": without_template(
        "argoproj.io/v1alpha1", "Workflow", {"templates": [{"name": "step", "container": CONTAINER}]}
    ),
    "a served model": without_template(
        "serving.kserve.io/v1beta1", "InferenceService", {"predictor": {"model": CONTAINER}}
    ),
    "a custom predictor": without_template(
        "serving.kserve.io/v1beta1", "InferenceService", {"predictor": {"containers": [CONTAINER]}}
    ),
}


@pytest.mark.parametrize("item", WITHOUT_TEMPLATE.values(), ids=WITHOUT_TEMPLATE)
def test_every_kind_of_workload_is_placed(item: Json) -> None:
    found = place_pod(item, make_node("cpu"), gpu_node("gpu"))

    assert (found.title, found.request.resource, found.request.count) == ("Pod team/a-*", GPU, 1)
    assert nodes(found) == ["gpu"]


@pytest.mark.parametrize(("kind", "wants"), [("Deployment", "nvidia.com/mig-1g.10gb"), ("DaemonSet", GPU)])
def test_placed_pod_is_named_after_its_owner(kind: str, wants: str) -> None:
    sizing = policy("mode: enforce\nrightSizing: {evidence: [default], default: {memory: 8Gi}}")
    found = place_pod(deployment(1, make_pod().gpus(1).build(), kind), whole_node(), mig_node(), policies=sizing)

    assert found.request.resource == wants


def test_pod_slots_of_nodes_limit_the_replicas() -> None:
    found = place_pod(
        deployment(5, make_pod().build()), node_with_other_resources("n"), running_gpu_pod("x", "n", "cpu")
    )

    assert (found.replicas, found.fits) == (5, 2)


def test_connected_gpu_sets_limit_the_replicas() -> None:
    pod = make_pod().gpus(3).annotate("rightslice.dev/topology", "nvlink=required").build()
    item: Any = deployment(3, pod)
    item["spec"]["template"]["metadata"]["annotations"] = pod["metadata"]["annotations"]

    assert place_pod(item, gpu_node("dgx", 8, "Tesla-V100-SXM2-32GB")).fits == 2


def test_job_is_placed_in_the_domain_where_all_pods_fit() -> None:
    domains = {"a-small": "d1", "large-1": "d2", "large-2": "d2"}
    cluster = [gpu_node(name, 8, H100) for name in domains]
    for node, at in zip(cluster, domains.values(), strict=True):
        node["metadata"]["labels"] = {**node["metadata"]["labels"], "nvidia.com/gpu.clique": at}
    text = policy("topology: {nvlink: preferred, multiNodeDomain: nvidia.com/gpu.clique}")
    job = deployment(2, make_pod().gpus(8).build(), "Job")

    assert nodes(place_pod(job, *cluster, policies=text)) == ["large-1", "large-2", "a-small"]
    assert nodes(place_pod(job, *cluster))[0] == "a-small"


def test_reason_for_unknown_free_gpus_is_reported() -> None:
    occupant = running_gpu_pod("x", "n")
    without_report = place_pod(make_pod().gpus(2).build(), gpu_node("n"), occupant)
    mismatched = place_pod(make_pod().gpus(2).build(), gpu_node("n"), occupant, gpu_node_report("n", 17, {}))

    why = "its agent's report cannot be used: it lists 17 GPUs, more than the supported 16"
    assert answer(without_report) == "Would be placed on n (it is unknown which GPUs are free: no agent runs there)"
    assert answer(mismatched) == f"Would be placed on n (it is unknown which GPUs are free: {why})"


def test_unhealthy_gpus_are_reported() -> None:
    sick = [gpu_node("n"), with_gpu_conditions(gpu_node_report("n", 4, BRIDGED), 0, 2)]
    unsure = [
        gpu_node("n"),
        with_gpu_conditions(gpu_node_report("n", 4, BRIDGED, {3: "team/x"}), 0, 2),
        running_gpu_pod("x", "n", count=2),
    ]
    pod = make_pod().gpus(1).build()

    assert answer(place_pod(pod, *sick)) == "Would be placed on n, GPUs 0; gets unhealthy GPUs 0"
    assert placement_document(place_pod(pod, *sick))["nodes"][0]["unhealthy"] == (0,)
    why = "it is unknown which GPUs are free: its agent reports more free GPUs than the Node has"
    assert answer(place_pod(pod, *unsure)) == f"Would be placed on n ({why}); may get unhealthy GPUs 0,2"


def domain(name: str, *free: int) -> list[Json]:
    """Return the nodes of an NVLink domain with eight GPUs each, some of them free."""
    named = [(f"{name}{i}", units) for i, units in enumerate(free)]
    pods = [running_gpu_pod(f"on-{node}", node, count=8 - units) for node, units in named if units < 8]
    return [*(gpu_node(node, 8, H100, **{"nvidia.com__gpu.clique": name}) for node, _ in named), *pods]


def job(replicas: int) -> Json:
    """Return a Job whose pods are a gang, eight GPUs each."""
    made = deployment(replicas, make_pod().gpus(8).build(), "Job")
    made["spec"]["template"]["metadata"]["annotations"] = {"rightslice.dev/gang-size": str(replicas)}
    return made


CLUSTER = (*domain("a", 8, 8, 8), *domain("b", 8, 8), *domain("c", 8, 4), gpu_node("alone", 8, H100))
GANGS = {
    "the smallest domain that fits all": (
        2,
        "b has capacity for it and 1 other",
        {
            "a0": "a has capacity for 3: b is the smallest that fits all",
            "b0": "",
            "b1": "",
            "c0": "c has capacity for 1 of the 2 pending pods",
            "alone": "has no label nvidia.com/gpu.clique",
        },
    ),
    "the only domain that fits all": (
        3,
        "a has capacity for it and 2 others",
        {"a0": "", "b0": "b has capacity for 2 of the 3 pending pods"},
    ),
    "no domain fits all": (
        5,
        "no domain has capacity for it and 4 others; a is nearest, with 3: 2 too few",
        {"a2": "", "b0": "b has capacity for 2, a for 3", "c0": "c has capacity for 1, a for 3"},
    ),
}


@pytest.mark.parametrize(("size", "text", "why"), GANGS.values(), ids=GANGS)
def test_domain_of_a_gang_and_the_reasons_against_others(size: int, text: str, why: dict[str, str]) -> None:
    found = place_pod(job(size), *CLUSTER)
    lines = placement_lines(found)
    rows = {line.split()[0]: line for line in lines[lines.index("") + 2 :] if line}

    assert lines[2].strip() == f"Its workload of {size} pods, in one domain of nvidia.com/gpu.clique: {text}"
    assert {name: rows[name].partition("NVLink")[2].strip() for name in why} == why


def test_a_gang_whose_controller_names_it_later_has_no_name_yet() -> None:
    """The affinity that a policy adds is on a label of the controller."""
    template = {"metadata": {}, "spec": make_pod().gpus(8).build()["spec"]}
    template["spec"]["affinity"] = {
        "podAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "podAffinityTerm": {
                        "topologyKey": "nvidia.com/gpu.clique",
                        "labelSelector": {"matchLabels": {"ray.io/cluster": ""}},
                    },
                }
            ]
        }
    }
    spec = {"workerGroupSpecs": [{"groupName": "g", "replicas": 2, "template": template}]}
    cluster = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "r", "namespace": "team"}}

    lines = placement_lines(place_pod({**cluster, "spec": spec}, *CLUSTER))

    assert lines[2].strip().startswith("Its workload of 2 pods, in one domain")


def test_gang_as_json() -> None:
    document = placement_document(place_pod(job(2), *CLUSTER))

    assert document["gang"] == {
        "name": "",
        "size": 2,
        "placed": 0,
        "label": "nvidia.com/gpu.clique",
        "domain": "b",
        "pending": 2,
        "capacity": 2,
        "domains": {"a": 3, "b": 2, "c": 1},
    }
    assert {each["node"]: each["domain"] for each in document["nodes"]}["c0"] == "c"


def member(name: str) -> Any:
    """Return a pod of a gang of three, with a controller's label."""
    return make_pod(name).gpus(8).label("jobset.sigs.k8s.io/jobset-name", "t").annotate("rightslice.dev/gang-size", "3")


def test_placed_pods_of_a_gang_count_for_their_domain() -> None:
    seated = member("first").spec(nodeName="a0").build()
    found = place_pod(member("next").build(), *domain("a", 8, 8, 8), *domain("b", 8, 8, 8), seated)

    assert placement_lines(found)[2].strip() == (
        "Gang team/jobset.sigs.k8s.io/jobset-name=t of 3 pods, 1 of them placed, in one domain of"
        " nvidia.com/gpu.clique: a has capacity for it and 1 other"
    )
    assert "b has 0 of the gang, a 1" in "\n".join(placement_lines(found))


def test_gang_of_unknown_size_is_placed_where_most_is_free() -> None:
    pod = make_pod().gpus(8).label("jobset.sigs.k8s.io/jobset-name", "t").build()
    found = place_pod(pod, *CLUSTER)

    assert placement_lines(found)[2].endswith(
        "of unknown size, in one domain of nvidia.com/gpu.clique: a has capacity for 3 such pods"
    )
    assert "b has capacity for 2, a for 3" in "\n".join(placement_lines(found))


def test_gang_without_domains() -> None:
    assert placement_lines(place_pod(job(2), gpu_node("x", 8, H100)))[2].endswith("no suitable node has that label")


DOMAIN_POLICY = policy(
    "mode: enforce\ntopology: {nvlink: preferred, whenGPUsAtLeast: 2, multiNodeDomain: nvidia.com/gpu.clique}"
)


@pytest.mark.parametrize(("kind", "together"), [("Deployment", False), ("Job", True)])
def test_replicas_of_a_deployment_are_no_gang_although_a_policy_names_a_domain(kind: str, together: bool) -> None:
    found = place_pod(deployment(2, make_pod().gpus(8).build(), kind), *CLUSTER, policies=DOMAIN_POLICY)

    assert (placement_document(found)["gang"] is not None) == together
    assert ("in one domain of" in "\n".join(placement_lines(found))) == together


def test_pod_on_its_own_has_no_gang() -> None:
    found = place_pod(make_pod().gpus(8).build(), *CLUSTER)

    assert placement_document(found)["gang"] is None
    assert "domain" not in "\n".join(placement_lines(found))


BY_HOST = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}]
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": BY_HOST}
BY_INDEX = {"labelSelector": {"matchLabels": {"apps.kubernetes.io/pod-index": "0"}}}
SPREAD = {**BY_HOST[0], "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
UNEVALUATED: dict[str, tuple[Json, list[str]]] = {
    "nothing": ({}, []),
    "anti-affinity": ({"affinity": {"podAntiAffinity": REQUIRED}}, []),
    "a required topology spread": ({"topologySpreadConstraints": [SPREAD]}, []),
    "affinity by the index of a pod": (
        {"affinity": {"podAntiAffinity": {next(iter(REQUIRED)): [BY_HOST[0] | BY_INDEX]}}},
        ["affinity or spread of pods that are not known: by an index, a scheduler's default, or too large a term"],
    ),
    "a resource claim": ({"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]}, ["resource claims"]),
    "a volume": (
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]},
        ["volume topology"],
    ),
    "scheduling gates": (
        {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
        ["scheduling gates, which keep it off every node until they are removed"],
    ),
}


@pytest.mark.parametrize(("spec", "unevaluated"), UNEVALUATED.values(), ids=UNEVALUATED)
def test_constraints_that_are_not_evaluated_are_named(spec: Json, unevaluated: list[str]) -> None:
    found = place_pod(make_pod().gpus(1).spec(**spec).build(), gpu_node("a"))

    assert list(placement_document(found)["unevaluated"]) == unevaluated
    assert any("Not evaluated" in line for line in placement_lines(found)) is bool(unevaluated)
    assert nodes(found) == ["a"]


@pytest.mark.parametrize("claims", [[{"metadata": {"name": "data"}}], [], None, 5])
def test_volumes_that_a_controller_adds_are_named_too(claims: object) -> None:
    workload = deployment(2, make_pod().gpus(1).build(), "StatefulSet")
    workload["spec"]["volumeClaimTemplates"] = claims

    unevaluated = placement_document(place_pod(workload, gpu_node("a")))["unevaluated"]

    assert list(unevaluated) == (["volume topology"] if isinstance(claims, list) and claims else [])


def with_port(number: int, *, init: bool = False, sidecar: bool = False, **port: str) -> PodMaker:
    """Return a pod with a GPU and a host port."""
    ports = [{"containerPort": 80, "hostPort": number, **port}]
    if not init:
        pod = make_pod("new").gpus(1)
        pod.main["ports"] = ports
        return pod
    restart = {"restartPolicy": "Always"} if sidecar else {}
    return make_pod("new").gpus(1).container("first", kind="initContainers", ports=ports, **restart)


PORTS: dict[str, tuple[PodMaker, bool]] = {
    "the same port": (with_port(8080), False),
    "the same port with protocol": (with_port(8080, protocol="TCP"), False),
    "the same port on one address": (with_port(8080, hostIP="10.0.0.1"), False),
    "the same port in a sidecar": (with_port(8080, init=True, sidecar=True), False),
    "the same port in an init container": (with_port(8080, init=True), True),
    "another port": (with_port(8081), True),
    "the same port with another protocol": (with_port(8080, protocol="UDP"), True),
    "no host port": (with_port(0), True),
}


@pytest.mark.parametrize(("pod", "fits"), PORTS.values(), ids=PORTS)
def test_host_port_is_used_once_per_node(pod: PodMaker, fits: bool) -> None:
    holder = with_port(8080).spec(nodeName="a").build()
    found = place_pod(pod.build(), gpu_node("a"), gpu_node("b"), holder)

    assert nodes(found) == (["a", "b"] if fits else ["b"])
    reasons = [each for some in found.reasons.values() for each in some]
    assert {each.scheduler_message for each in reasons} <= {
        "node(s) didn't have free ports for the requested pod ports"
    }
    assert {each.detail for each in reasons} <= {"host port 8080/TCP is in use"}


def test_ports_of_two_interfaces_do_not_conflict() -> None:
    holder = with_port(8080, hostIP="10.0.0.1").spec(nodeName="a").build()

    assert nodes(place_pod(with_port(8080, hostIP="10.0.0.2").build(), gpu_node("a"), holder)) == ["a"]
    assert nodes(place_pod(with_port(8080, hostIP="10.0.0.1").build(), gpu_node("a"), holder)) == []


def test_workload_with_a_host_port_fits_once_per_node() -> None:
    found = place_pod(deployment(3, with_port(8080).build()), gpu_node("a"), gpu_node("b"))

    assert (found.fits, answer(found).split("; ")[-1]) == (2, "2 of 3 replicas fit now")


def created(pod: Json, moment: object) -> Json:
    """Return the pod with this creation time."""
    return pod | {"metadata": pod["metadata"] | {"creationTimestamp": moment}}


CREATION_TIMES: dict[str, tuple[object, object, list[int]]] = {
    "the single came first": ("2026-06-01T08:00:00Z", "2026-06-01T08:00:05Z", [3, 4, 5, 6, 7]),
    "the pair came first": ("2026-06-01T08:00:05Z", "2026-06-01T08:00:00Z", [2, 4, 5, 6, 7]),
    "both at once": ("2026-06-01T08:00:00Z", "2026-06-01T08:00:00Z", [2, 4, 5, 6, 7]),
    "unknown creation times": (None, 5, [2, 4, 5, 6, 7]),
}


@pytest.mark.parametrize(("single", "pair", "gpus"), CREATION_TIMES.values(), ids=CREATION_TIMES)
def test_older_pods_got_their_gpus_first_in_any_order_of_input(single: object, pair: object, gpus: list[int]) -> None:
    node = [gpu_node("v", 8, "Tesla-V100-SXM2-32GB"), gpu_node_report("v", 8, DGX1)]
    pods = [created(running_gpu_pod("zz", "v"), single), created(running_gpu_pod("aa", "v", count=2), pair)]

    answers = [place_pod(make_pod().gpus(5).build(), *node, *order).feasible[0].links for order in (pods, pods[::-1])]

    assert [list(links.gpus) for links in answers if links] == [gpus, gpus]


def test_pods_of_several_templates_are_told_apart() -> None:
    groups = [{"groupName": name, "template": {"spec": make_pod().gpus(1).build()["spec"]}} for name in "ab"]
    cluster = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "r", "namespace": "team"}}
    item = cluster | {"spec": {"workerGroupSpecs": groups}}
    context = EvaluationContext(policies_of(), view_of(gpu_node("a")), NOW)

    found = place_all(item, context, placement_input(gpu_node("a")))

    paths = ["spec.workerGroupSpecs[0].template", "spec.workerGroupSpecs[1].template"]
    assert [placement_document(each)["template"] for each in found] == paths
    assert [placement_lines(each)[0].partition("   ")[0] for each in found] == [
        f"Pod team/r-* of {one}" for one in paths
    ]
    assert placement_document(place_pod(deployment(2, make_pod().gpus(1).build()), gpu_node("a")))["template"] == ""


ELIGIBLE_NODES: dict[str, tuple[Json, list[str], int]] = {
    "three nodes, one of them cordoned": ({}, ["a", "b", "shut"], 3),
    "a node selector": ({"nodeSelector": {"kubernetes.io/hostname": "b"}}, ["b"], 1),
    "tolerated taints": ({"tolerations": [{"operator": "Exists"}]}, ["a", "b", "shut", "taken"], 4),
    "no node": ({"nodeSelector": {"kubernetes.io/hostname": "nowhere"}}, [], 1),
}


@pytest.mark.parametrize(("spec", "names", "wanted"), ELIGIBLE_NODES.values(), ids=ELIGIBLE_NODES)
def test_daemon_set_has_a_pod_on_each_eligible_node(spec: Json, names: list[str], wanted: int) -> None:
    shut, taken = gpu_node("shut"), gpu_node("taken")
    shut["spec"], taken["spec"] = {"unschedulable": True}, {"taints": [{"key": "team", "effect": "NoSchedule"}]}
    found = place_pod(
        deployment(1, make_pod().gpus(1).spec(**spec).build(), "DaemonSet"), gpu_node("a"), gpu_node("b"), shut, taken
    )

    assert sorted(nodes(found)) == names
    assert (found.replicas, found.fits) == (wanted, len(names))
    assert placement_document(found)["eachNode"]


@pytest.mark.parametrize(("on_host", "homes"), [(True, ["a", "offline"]), (False, ["a"])])
def test_daemon_on_the_host_network_tolerates_an_unavailable_network(on_host: bool, homes: list[str]) -> None:
    offline = gpu_node("offline")
    offline["spec"] = {"taints": [{"key": "node.kubernetes.io/network-unavailable", "effect": "NoSchedule"}]}
    item = deployment(1, make_pod().gpus(1).spec(hostNetwork=on_host).build(), "DaemonSet")

    assert sorted(nodes(place_pod(item, gpu_node("a"), offline))) == homes


def test_number_of_nodes_that_fit_a_daemon_set_is_reported() -> None:
    item = deployment(1, make_pod().gpus(1).build(), "DaemonSet")
    full = running_gpu_pod("x", "b", GPU, 4)

    assert answer(place_pod(item, gpu_node("a"), gpu_node("b"))).startswith("Would be placed on each of the 2 nodes")
    assert answer(place_pod(item, gpu_node("a"), gpu_node("b"), full)).startswith("Would be placed on 1 of the 2 nodes")


def with_adapter(node: Json, count: int = 4) -> Json:
    """Return the node with network adapters as a resource."""
    for amounts in (node["status"]["allocatable"], node["status"]["capacity"]):
        amounts["rdma/hca"] = str(count)
    return node


def test_gang_is_placed_in_the_domain_where_all_requests_fit() -> None:
    clique = "nvidia.com/gpu.clique"
    short = [gpu_node("a1", 1), gpu_node("a2", 1)]
    for node in short:
        node["metadata"]["labels"][clique] = "a"
    fitting = [with_adapter(gpu_node(name, 1)) for name in ("b1", "b2", "b3")]
    for node in fitting:
        node["metadata"]["labels"][clique] = "b"
    with_adapter(short[0])
    job = deployment(2, make_pod().gpus(1).requests("rdma/hca", "1").build(), "Job")
    job["spec"]["template"]["metadata"]["annotations"] = {"rightslice.dev/gang-size": "2"}

    found = place_pod(job, *short, *fitting)

    assert nodes(found)[0].startswith("b")


def test_preemption_considers_only_nodes_that_otherwise_fit() -> None:
    objects = [gpu_node("a", 2), with_adapter(gpu_node("b", 2))]
    pods = [running_gpu_pod("a1", "a"), running_gpu_pod("a2", "a"), running_gpu_pod("b12", "b", count=2)]

    found = place_pod(make_pod().gpus(1).requests("rdma/hca", "1").build(), *objects, *pods)

    assert found.nearest is not None
    assert [pod.metadata.name for pod in found.nearest.pods] == ["b12"]


def test_ports_of_pods_on_the_host_network_are_host_ports() -> None:
    pod = make_pod().gpus(1).spec(hostNetwork=True)
    pod.data["spec"]["containers"][0]["ports"] = [{"containerPort": 8080}]

    found = place_pod(pod.build(), gpu_node("a"))

    assert found.fits == 1


class TieCase(NamedTuple):
    """A pod, a running one on node b, the nodes that exclude the pod, the scheduler's message, and our detail."""

    pod: Json
    running: Json
    excluded: str
    message: str
    detail: str


TIES = {
    "affinity": TieCase(
        {"affinity": {"podAffinity": REQUIRED}},
        {},
        "a",
        "node(s) didn't match pod affinity rules",
        "no pod that its required affinity selects runs on a node with its kubernetes.io/hostname",
    ),
    "anti-affinity": TieCase(
        {"affinity": {"podAntiAffinity": REQUIRED}},
        {},
        "b",
        "node(s) didn't match pod anti-affinity rules",
        "a pod that its required anti-affinity selects runs on a node with its kubernetes.io/hostname",
    ),
    "anti-affinity of a running pod": TieCase(
        {},
        {"affinity": {"podAntiAffinity": REQUIRED}},
        "b",
        "node(s) didn't satisfy existing pods anti-affinity rules",
        "the required anti-affinity of a pod there selects it",
    ),
    "spread": TieCase(
        {"topologySpreadConstraints": [SPREAD]},
        {},
        "b",
        "node(s) didn't match pod topology spread constraints",
        "too many of the pods with which it is spread run on nodes with its kubernetes.io/hostname",
    ),
    "spread over a label that no node has": TieCase(
        {"topologySpreadConstraints": [SPREAD | {"topologyKey": "zone"}]},
        {},
        "ab",
        "node(s) didn't match pod topology spread constraints (missing required label)",
        "it lacks zone, by which the pod is spread",
    ),
}


@pytest.mark.parametrize("case", TIES.values(), ids=TIES)
def test_ties_to_running_pods_exclude_nodes_with_the_words_of_the_scheduler(case: TieCase) -> None:
    pod = make_pod().gpus(1).label("app", "a").spec(**case.pod).build()
    cluster = (gpu_node("a"), gpu_node("b"), make_pod("o").label("app", "a").spec(nodeName="b", **case.running).build())
    placement = placement_input(*cluster)
    reasons = {
        placement.snapshot.fleet.nodes[node].name: [(reason.scheduler_message, reason.detail) for reason in found]
        for node, found in node_filter_reasons(parse_pod(pod), placement).items()
    }
    assert reasons == {node: [(case.message, case.detail)] for node in case.excluded}
    assert nodes(place_pod(pod, *cluster)) == [node for node in "ab" if node not in case.excluded]


def nominated_for(node: str, pod: PodMaker, priority: int | None = 0) -> Json:
    """Return a pod that waits for a node, for which it is nominated."""
    pod.data["metadata"]["name"] = "nominated"
    spec = pod.spec(**({} if priority is None else {"priority": priority}))
    return spec.build() | {"status": {"phase": "Pending", "nominatedNodeName": node}}


def priority_class(name: str, value: int, *, default: bool = False) -> Json:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
    return kind | {"value": value, "globalDefault": default}


APP = {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"}
AFFINITY, ANTI_AFFINITY = (
    {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [APP]}} for kind in ("podAffinity", "podAntiAffinity")
)
CLASSES = (priority_class("low", -5), priority_class("high", 5))


def all_cards() -> PodMaker:
    """Return a pod that takes every card of a node."""
    return make_pod().gpus(4)


NOMINATED: dict[str, tuple[PodMaker, Json, tuple[Json, ...], list[str]]] = {
    "of the same priority": (make_pod().gpus(1).spec(priority=0), nominated_for("a", all_cards()), (), ["b"]),
    "of higher priority": (make_pod().gpus(1).spec(priority=0), nominated_for("a", all_cards(), 1), (), ["b"]),
    "of lower priority": (make_pod().gpus(1).spec(priority=0), nominated_for("a", all_cards(), -1), (), ["a", "b"]),
    "of unknown priority": (make_pod().gpus(1).spec(priority=9), nominated_for("a", all_cards(), None), (), ["b"]),
    "for a node that does not exist": (
        make_pod().gpus(1).spec(priority=0), nominated_for("gone", all_cards()), (), ["a", "b"]
    ),
    "of a priority between those of two classes, for the lower": (
        make_pod().gpus(1).spec(priorityClassName="low"), nominated_for("a", all_cards()), CLASSES, ["b"]
    ),
    "of a priority between those of two classes, for the higher": (
        make_pod().gpus(1).spec(priorityClassName="high"), nominated_for("a", all_cards()), CLASSES, ["a", "b"]
    ),
    "for a pod of a class that is not known": (
        make_pod().gpus(1).spec(priorityClassName="other"), nominated_for("a", all_cards(), -10), CLASSES, ["b"]
    ),
    "for a pod without a class": (make_pod().gpus(1), nominated_for("a", all_cards(), -1), CLASSES, ["a", "b"]),
    "for a pod of the default class": (
        make_pod().gpus(1), nominated_for("a", all_cards(), -1), (priority_class("usual", -5, default=True),), ["b"]
    ),
    "for a pod in a cluster whose classes are not known": (
        make_pod().gpus(1), nominated_for("a", all_cards(), -1), (), ["b"]
    ),
    "that leaves enough": (make_pod().gpus(2).spec(priority=0), nominated_for("a", make_pod().gpus(2)), (), ["a", "b"]),
    "with a host port of the pod": (
        make_pod().gpus(1).spec(priority=0).container("web", ports=[{"hostPort": 80}]),
        nominated_for("a", make_pod().container("web", ports=[{"hostPort": 80}])), (), ["b"]
    ),
    "that the anti-affinity of the pod selects": (
        make_pod().gpus(1).spec(priority=0, affinity=ANTI_AFFINITY),
        nominated_for("a", make_pod().label("app", "a")), (), ["b"]
    ),
    "that the affinity of the pod selects: it may go elsewhere": (
        make_pod().gpus(1).spec(priority=0, affinity=AFFINITY), nominated_for("a", make_pod().label("app", "a")), (), []
    ),
}  # fmt: skip


@pytest.mark.parametrize(("pod", "nominated", "objects", "want"), NOMINATED.values(), ids=NOMINATED)
def test_a_pod_fits_with_the_nominated_pods_of_at_least_its_priority(
    pod: PodMaker, nominated: Json, objects: tuple[Json, ...], want: list[str]
) -> None:
    found = place_pod(pod.build(), gpu_node("a"), gpu_node("b"), nominated, *objects)

    assert sorted(nodes(found)) == want


def test_replicas_beside_a_nominated_pod_are_counted() -> None:
    pod = make_pod().gpus(1).spec(priority=0).build()

    found = place_pod(deployment(9, pod), gpu_node("a"), gpu_node("b"), nominated_for("a", make_pod().gpus(2)))

    assert found.fits == 6


def test_place_names_the_feature_that_a_node_does_not_declare() -> None:
    pod = make_pod().gpus(1).spec(hostNetwork=True, hostUsers=False)
    declaring = gpu_node("new")
    declaring["status"]["declaredFeatures"] = ["UserNamespacesHostNetworkSupport"]

    found = place_pod(pod.build(), declaring, gpu_node("old"))

    assert nodes(found) == ["new"]
    (reason,) = found.reasons[1]
    assert reason.scheduler_message == "node(s) didn't match Pod's required features"
    assert "UserNamespacesHostNetworkSupport" in reason.detail


@pytest.mark.parametrize(("key", "fits"), [("zone", 2), ("kubernetes.io/hostname", 3)])
def test_replicas_that_exclude_each_other_are_counted_one_in_each_domain(key: str, fits: int) -> None:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "a"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    cluster = [gpu_node(name, zone=zone) for name, zone in ("a1", "b1", "c2")]
    for node in cluster:
        node["metadata"]["labels"]["kubernetes.io/hostname"] = node["metadata"]["name"]

    found = place_pod(deployment(6, make_pod().gpus(1).spec(affinity=affinity).build()), *cluster)

    assert (found.fits, found.unevaluated) == (fits, ())
    assert answer(found).endswith(f"; {fits} of 6 replicas fit now")


def test_place_applies_the_configuration_of_the_scheduler() -> None:
    added = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["east"]}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [added]}}
    profile = {
        "plugins": {"filter": {"enabled": [{"name": "Capacity"}]}},
        "pluginConfig": [{"name": "NodeAffinity", "args": {"addedAffinity": affinity}}],
    }
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    cluster = (gpu_node("a", zone="east"), gpu_node("b", zone="west"), {**kind, "profiles": [profile]})

    found, other = (
        place_pod(make_pod().gpus(1).spec(**spec).build(), *cluster) for spec in ({}, {"schedulerName": "x"})
    )

    assert (nodes(found), found.unevaluated) == (["a"], ("plugin Capacity",))
    assert (sorted(nodes(other)), other.unevaluated) == (["a", "b"], ())


def test_the_pods_of_a_template_that_is_right_sized_under_a_queue_are_placed_with_their_slices() -> None:
    objects = (flavor(), cluster_queue(QUOTAS), LOCAL_QUEUE)
    sizing = policy("mode: enforce\nrightSizing: {templates: enforce}")
    queued = queued_job(parallelism=3, completions=3)
    found = place_pod(queued, whole_node(), mig_node(), *objects, policies=sizing)

    assert found.request.resource == "nvidia.com/mig-1g.10gb"
    assert found.replicas == 3
    assert nodes(found) == ["mig"]


def cron_job(queued: Json) -> Json:
    """Return a CronJob whose Jobs are like a Job."""
    about = {"name": "nightly", "namespace": "team"}
    template = {"metadata": {"labels": queued["metadata"]["labels"]}, "spec": queued["spec"]}
    spec = {"schedule": "0 3 * * *", "jobTemplate": template}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": about, "spec": spec}


def test_the_pods_of_a_cron_job_are_placed_as_those_of_its_next_job() -> None:
    objects = (whole_node(), mig_node(), flavor(), cluster_queue(QUOTAS), LOCAL_QUEUE)
    sizing = policy("mode: enforce\nrightSizing: {templates: enforce}")
    found = place_pod(cron_job(queued_job(parallelism=3, completions=3)), *objects, policies=sizing)

    assert placement_lines(found)[0].startswith("Pod team/nightly-*")
    assert (found.request.resource, found.replicas, nodes(found)) == ("nvidia.com/mig-1g.10gb", 3, ["mig"])


def test_the_usage_of_earlier_runs_counts_for_a_cron_job() -> None:
    usage = workload_usage("CronJob/nightly", main=observed_usage(6000))
    policies = policies_of(policy("mode: enforce\nrightSizing: {evidence: [observed]}"))
    context = EvaluationContext(policies, view_of(whole_node(), mig_node()), NOW, usage)
    data = cron_job(queued_job(make_pod().gpus(1), labels={}))
    entries = [each for each in parse_objects("x.json", orjson.dumps(data)) if isinstance(each, SourceObject)]
    (admitted,) = [one for each in entries for one in admitted_pods(each, context)]
    assert admitted.checked.decision.needed_mib
