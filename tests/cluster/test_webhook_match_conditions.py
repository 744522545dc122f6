"""Match conditions of the webhooks: the API server sends requests about GPU pods, and no others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import PodMaker, make_pod
from tests.cluster.client import Json, RefusedError
from tests.cluster.installation import pods_sent_by
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.random_claims import API
from tests.cluster.recording_webhook import RecordingWebhook, object_name, register_recording_webhook
from webhook.manifests.cel_conditions import MAX_ENTRIES
from webhook.manifests.sent_resources import MAX_NAMES
from webhook.model.annotations import GPU_MEMORY_ANNOTATION
from webhook.model.claims import MADE_CLAIM_ANNOTATIONS
from webhook.policy.workload_kinds import WORKLOAD_KINDS
from webhook.well_known import EXCLUDED_NAMESPACES

NAMESPACE = "hooks-try"


@pytest.fixture(scope="module")
def hooks(plane: Plane) -> Iterator[RecordingWebhook]:
    """Our configurations on a real API server, calling a recorder."""
    with register_recording_webhook(plane, NAMESPACE) as recorder:
        yield recorder


COUNTER = iter(range(10**6))


def called_webhooks(plane: Plane, recorder: RecordingWebhook, maker: PodMaker, namespace: str = NAMESPACE) -> set[str]:
    """Return the webhooks called for a new pod in a dry run."""
    pod = maker.namespace(namespace).build()
    pod["metadata"]["name"] = name = f"pod-{next(COUNTER)}"
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")
    return recorder.paths_called_for(name)


def volumes(path: str, count: int) -> list[Json]:
    """Return many volumes of one host path."""
    return [{"name": f"v{index}", "hostPath": {"path": path}} for index in range(count)]


def volume(path: str) -> Json:
    return {"name": "host", "hostPath": {"path": path}}


def with_env(kind: str, name: str) -> PodMaker:
    return make_pod().container("more", kind=kind, image="i", env=[{"name": name, "value": "all"}])


GPU_PODS = {
    "a whole GPU": make_pod().gpus(1),
    "a MIG slice": make_pod().requests("nvidia.com/mig-1g.10gb", 1),
    "a share": make_pod().requests("nvidia.com/gpu.shared", 1),
    "an unknown resource of nvidia.com": make_pod().requests("nvidia.com/vgpu-x", 1),
    "an explicit zero": make_pod().gpus("0"),
    "an extended resource of a claim": make_pod().requests("deviceclass.resource.kubernetes.io/gpu", 1),
    "the accounting resource": make_pod().requests("rightslice.dev/gpu-milli", 250),
    "a GPU in an init container": make_pod().container(
        "first", kind="initContainers", image="i", resources={"limits": {"nvidia.com/gpu": 1}}
    ),
    "a GPU in a sidecar": make_pod().container(
        "side",
        kind="initContainers",
        image="i",
        restartPolicy="Always",
        resources={"limits": {"nvidia.com/gpu": 1}, "requests": {"nvidia.com/gpu": 1}},
    ),
    "a claim": make_pod().spec(resourceClaims=[{"name": "gpu", "resourceClaimName": "one"}]),
    "one of our annotations": make_pod().annotate("rightslice.dev/keep", "true"),
    "a forged record": make_pod().annotate("rightslice.dev/decision", "{}"),
}
PODS_WITHOUT_REQUESTS = {
    "a variable": with_env("containers", "NVIDIA_VISIBLE_DEVICES"),
    "a variable in an init container": with_env("initContainers", "NVIDIA_IMEX_CHANNELS"),
    "a variable of CUDA": with_env("containers", "CUDA_VISIBLE_DEVICES"),
    "a variable of MPS": with_env("containers", "CUDA_MPS_PIPE_DIRECTORY"),
    "a runtime class": make_pod().spec(runtimeClassName="nvidia-cdi"),
    "a device path of the host": make_pod().spec(volumes=[volume("/dev/nvidia0")]),
    "a device path with a dot segment": make_pod().spec(volumes=[volume("/dev/./nvidia0")]),
    "a relative device path": make_pod().spec(volumes=[volume("dev/nvidia0")]),
    "the kubelet's device sockets": make_pod().spec(volumes=[volume("/var/lib/kubelet/device-plugins")]),
    "the device sockets of k0s": make_pod().spec(volumes=[volume("/var/lib/k0s/kubelet/device-plugins")]),
    "the container toolkit": make_pod().spec(volumes=[volume("/usr/local/nvidia")]),
    "a mount that is read as a list of GPUs": make_pod()
    .spec(volumes=[{"name": "list", "emptyDir": {}}])
    .container(
        "more", image="i", volumeMounts=[{"name": "list", "mountPath": "/var/run/nvidia-container-devices/GPU-1"}]
    ),
    "an annotation of CDI": make_pod().annotate(
        "nvidia.cdi.k8s.io/container.main", "k8s.device-plugin.nvidia.com/gpu=0"
    ),
    "the annotation of a mirror pod, from a user": make_pod()
    .annotate("kubernetes.io/config.mirror", "x")
    .spec(nodeName="n1"),
}
HOST_ACCESS_PODS = {
    "the root of the host": make_pod().spec(volumes=[volume("/")]),
    "all devices": make_pod().spec(volumes=[volume("/dev")]),
    "the container runtime": make_pod().spec(volumes=[volume("/run/containerd/containerd.sock")]),
    "the container runtime of k0s": make_pod().spec(volumes=[volume("/run/k0s/containerd.sock")]),
    "the agent folder of K3s": make_pod().spec(volumes=[volume("/run/k3s/agent")]),
    "the data folder of MicroK8s": make_pod().spec(volumes=[volume("/var/snap/microk8s/common")]),
    "all memory": make_pod().spec(volumes=[volume("/dev/mem")]),
    "the proc file system": make_pod().spec(volumes=[volume("/proc")]),
}
OTHER_PODS = {
    "nothing": make_pod(),
    "CPU and memory": make_pod().requests("cpu", "1").requests("memory", "1Gi"),
    "an accelerator of another vendor": make_pod().requests("amd.com/gpu", 1),
    "unrelated variables": with_env("containers", "PATH_NVIDIA_"),
    "many containers": make_pod().container("b", image="i").container("a", kind="initContainers", image="i"),
    "another runtime class": make_pod().spec(runtimeClassName="gvisor"),
    "logs of the host": make_pod().spec(volumes=[volume("/var/log/pods")]),
    "a network plug-in": make_pod().spec(
        volumes=[{"name": "a", "hostPath": {"path": "/etc/cni/net.d"}}, {"name": "b", "hostPath": {"path": "/opt/cni"}}]
    ),
    "volumes that are not of the host": make_pod().spec(
        volumes=[{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "x"}}]
    ),
    "annotations of others": make_pod().annotate("example.com/gpu", "nvidia"),
    "a privileged container": make_pod().container("root", image="i", securityContext={"privileged": True}),
    "labels like ours": make_pod().label("rightslice.dev/x", "y"),
}


@pytest.fixture(scope="module", autouse=True)
def classes(plane: Plane) -> Iterator[None]:
    """The runtime classes of the pods: an API server rejects unknown ones."""
    names = ("nvidia-cdi", "gvisor")
    folder = "/apis/node.k8s.io/v1/runtimeclasses"
    for name in names:
        plane.api.create(folder, {"metadata": {"name": name}, "handler": name})
    eventually(lambda: try_class(plane))
    yield
    for name in names:
        plane.api.delete(f"{folder}/{name}")


def try_class(plane: Plane) -> bool:
    """Return whether admission knows the last class."""
    pod = make_pod("class").spec(runtimeClassName="gvisor").namespace("default").build()
    try:
        plane.api.create("/api/v1/namespaces/default/pods", pod, dryRun="All")
    except RefusedError:
        return False
    return True


@pytest.mark.parametrize("maker", GPU_PODS.values(), ids=GPU_PODS)
def test_gpu_pods_are_sent(plane: Plane, hooks: RecordingWebhook, maker: PodMaker) -> None:
    assert called_webhooks(plane, hooks, maker) == {"mutate", "validate"}


@pytest.mark.parametrize("maker", PODS_WITHOUT_REQUESTS.values(), ids=PODS_WITHOUT_REQUESTS)
def test_pods_that_reach_gpus_without_a_request_are_evaluated_and_not_changed(
    plane: Plane, hooks: RecordingWebhook, maker: PodMaker
) -> None:
    assert called_webhooks(plane, hooks, maker) == {"validate"}


@pytest.mark.parametrize("maker", HOST_ACCESS_PODS.values(), ids=HOST_ACCESS_PODS)
def test_pods_with_host_access_are_sent_and_fail_open(plane: Plane, hooks: RecordingWebhook, maker: PodMaker) -> None:
    assert called_webhooks(plane, hooks, maker) == {"host"}


@pytest.mark.parametrize("maker", OTHER_PODS.values(), ids=OTHER_PODS)
def test_any_other_pod_is_not_sent(plane: Plane, hooks: RecordingWebhook, maker: PodMaker) -> None:
    assert called_webhooks(plane, hooks, maker) == set()


@pytest.mark.parametrize(
    "namespace", sorted({*EXCLUDED_NAMESPACES} - {"kube-system", "kube-public", "kube-node-lease"})
)
def test_pods_of_excluded_namespaces_are_not_sent(plane: Plane, hooks: RecordingWebhook, namespace: str) -> None:
    with plane.namespace_called(namespace):
        assert called_webhooks(plane, hooks, make_pod().gpus(1), namespace) == set()


def test_mirror_pods_are_not_blocked(plane: Plane, hooks: RecordingWebhook) -> None:
    pod = (
        make_pod("mirror").namespace(NAMESPACE).annotate("kubernetes.io/config.mirror", "x").spec(nodeName="n1").build()
    )
    as_node = ("--as=system:node:n1", "--as-group=system:nodes", "--as-group=system:masters")

    plane.kubectl("create", "--dry-run=server", "-f", "-", *as_node, stdin=as_json(pod))

    assert hooks.paths_called_for("mirror") == set()


def as_json(data: Any) -> str:
    """Return JSON for kubectl's standard input."""
    return json.dumps(data)


def test_only_relevant_updates_are_sent(plane: Plane, hooks: RecordingWebhook) -> None:
    name = "updated"
    pod = make_pod(name).namespace(NAMESPACE).gpus(1).build()
    pod["metadata"]["finalizers"] = ["example.com/held"]
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    plane.api.create(path, pod)

    def webhooks_called_by(patch: Json, subresource: str = "") -> set[str]:
        hooks.reviews.clear()
        plane.api.patch(f"{path}/{name}{subresource}", patch, kind="strategic")
        return hooks.paths_called_for(name)

    assert webhooks_called_by({"metadata": {"labels": {"a": "b"}}}) == set()
    assert webhooks_called_by({"metadata": {"annotations": {"rightslice.dev/decision": "{}"}}}) == {"validate"}
    assert webhooks_called_by({"spec": {"activeDeadlineSeconds": 600}}) == {"validate"}
    assert webhooks_called_by({"status": {"phase": "Running"}}, "/status") == set()
    debugger = {"name": "debug", "image": "i", "targetContainerName": "main"}
    assert webhooks_called_by({"spec": {"ephemeralContainers": [debugger]}}, "/ephemeralcontainers") == {"validate"}
    assert webhooks_called_by({"metadata": {"finalizers": None}}) == set()
    hooks.reviews.clear()
    plane.api.delete(f"{path}/{name}", gracePeriodSeconds="0")
    assert hooks.paths_called_for(name) == set()


def test_a_debug_container_with_gpu_access_is_sent(plane: Plane, hooks: RecordingWebhook) -> None:
    name = "plain"
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    plane.api.create(path, make_pod(name).namespace(NAMESPACE).build())
    debugger = {"name": "debug", "image": "i", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}

    plane.api.patch(f"{path}/{name}/ephemeralcontainers", {"spec": {"ephemeralContainers": [debugger]}}, "strategic")

    assert hooks.paths_called_for(name) == {"validate"}


TEMPLATES: dict[str, tuple[str, Json]] = {
    "Deployment": ("/apis/apps/v1/{}/deployments", {"spec": {"selector": {"matchLabels": {"a": "b"}}}}),
    "StatefulSet": (
        "/apis/apps/v1/{}/statefulsets",
        {"spec": {"selector": {"matchLabels": {"a": "b"}}, "serviceName": "s"}},
    ),
    "DaemonSet": ("/apis/apps/v1/{}/daemonsets", {"spec": {"selector": {"matchLabels": {"a": "b"}}}}),
    "ReplicaSet": ("/apis/apps/v1/{}/replicasets", {"spec": {"selector": {"matchLabels": {"a": "b"}}}}),
    "ReplicationController": ("/api/v1/{}/replicationcontrollers", {"spec": {"selector": {"a": "b"}}}),
    "Job": ("/apis/batch/v1/{}/jobs", {"spec": {}}),
    "CronJob": ("/apis/batch/v1/{}/cronjobs", {"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {}}}}),
    "PodTemplate": ("/api/v1/{}/podtemplates", {}),
}


def of_kind(kind: str, maker: PodMaker, name: str) -> Json:
    """Return a workload with the pod as its template."""
    pod = maker.build()
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod["spec"]}
    if kind in ("Job", "CronJob"):
        template["spec"] |= {"restartPolicy": "Never"}
    _, body = TEMPLATES[kind]
    workload: Json = {"metadata": {"name": name}, **{key: {**value} for key, value in body.items()}}
    if kind == "PodTemplate":
        workload["template"] = template
    elif kind == "CronJob":
        workload["spec"]["jobTemplate"] = {"spec": {"template": template}}
    else:
        workload["spec"]["template"] = template
    return workload


def test_every_built_in_kind_is_tested() -> None:
    assert {kind for group, kind in WORKLOAD_KINDS if group in ("", "apps", "batch")} == TEMPLATES.keys()


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_workload_is_sent_if_its_pods_are(plane: Plane, hooks: RecordingWebhook, kind: str) -> None:
    path = TEMPLATES[kind][0].format(f"namespaces/{NAMESPACE}")
    for name, maker, expected in (("with", make_pod().gpus(1), {"templates"}), ("without", make_pod(), set())):
        workload_name = f"{name}-{kind.lower()}"
        plane.api.create(path, of_kind(kind, maker, workload_name), dryRun="All")

        assert hooks.paths_called_for(workload_name) == expected, name


@pytest.mark.parametrize("annotation", ["", *MADE_CLAIM_ANNOTATIONS])
def test_new_claims_of_users_are_sent_and_those_made_for_pods_are_not(
    plane: Plane, hooks: RecordingWebhook, annotation: str
) -> None:
    path, metadata = f"{API}/namespaces/{NAMESPACE}/resourceclaims", {"name": f"claim-{next(COUNTER)}"}
    claim = {"metadata": metadata, "spec": {"devices": {"requests": [request("gpus")]}}}
    if annotation:
        claim["metadata"] = metadata | {"annotations": {annotation: "true"}}
    plane.api.create(path, claim)

    assert hooks.paths_called_for(metadata["name"]) == (set() if annotation else {"claims"})
    hooks.reviews.clear()
    plane.api.patch(f"{path}/{metadata['name']}", {"metadata": {"labels": {"a": "b"}}})
    plane.api.delete(f"{path}/{metadata['name']}")
    assert hooks.paths_called_for(metadata["name"]) == set()


NEED = {"annotations": {GPU_MEMORY_ANNOTATION: "8Gi"}}


@pytest.mark.parametrize(("about", "given", "calls"), [({}, {}, 1), (NEED, {}, 2), ({}, {"metadata": NEED}, 2)])
def test_new_claim_templates_are_reviewed_and_right_sized_if_they_declare_a_need(
    plane: Plane, hooks: RecordingWebhook, about: Json, given: Json, calls: int
) -> None:
    name = f"template-{next(COUNTER)}"
    spec = {"spec": {"devices": {"requests": [request("gpus")]}}, **given}
    template = {"metadata": {"name": name, **about}, "spec": spec}
    plane.api.create(f"{API}/namespaces/{NAMESPACE}/resourceclaimtemplates", template, dryRun="All")
    assert [path for path, request in hooks.reviews if object_name(request) == name] == ["/claims"] * calls


def request(device_class: str) -> Json:
    """Return a request for a device."""
    return {"name": "gpu", "exactly": {"deviceClassName": device_class}}


LIMITS: dict[str, Json] = {
    "limitranges": {"limits": [{"type": "Container", "default": {"nvidia.com/gpu": "0"}}]},
    "resourcequotas": {"hard": {"requests.nvidia.com/gpu": "4"}},
}


@pytest.mark.parametrize("plural", LIMITS)
def test_namespace_specs_are_sent_and_status_updates_are_not(
    plane: Plane, hooks: RecordingWebhook, plural: str
) -> None:
    path, name = f"/api/v1/namespaces/{NAMESPACE}/{plural}", f"one-of-{plural}"
    plane.api.create(path, {"metadata": {"name": name}, "spec": LIMITS[plural]})
    assert hooks.paths_called_for(name) == {"namespace-limits"}

    hooks.reviews.clear()
    plane.api.patch(f"{path}/{name}", {"metadata": {"labels": {"a": "b"}}})
    if plural == "resourcequotas":
        eventually(lambda: plane.api.get(f"{path}/{name}")["status"].get("hard"))
        plane.api.patch(f"{path}/{name}/status", {"status": {"used": {"requests.nvidia.com/gpu": "1"}}})
    assert hooks.paths_called_for(name) == set()
    plane.api.delete(f"{path}/{name}")


def test_the_largest_pods_are_within_the_cel_cost_limit(plane: Plane, hooks: RecordingWebhook) -> None:
    env = [{"name": f"VARIABLE_{index}", "value": "x"} for index in range(60)]
    maker = make_pod()
    for index in range(150):
        maker.container(f"c{index}", image="i", env=env, volumeMounts=[{"name": "v0", "mountPath": f"/m{index}"}])
    maker.spec(volumes=[{"name": f"v{index}", "hostPath": {"path": f"/opt/{index}"}} for index in range(100)])

    assert called_webhooks(plane, hooks, maker) == set()
    assert called_webhooks(plane, hooks, maker.gpus(1)) == {"mutate", "validate"}


def test_the_largest_pods_are_within_the_limit_with_as_many_further_names_as_allowed(
    plane: Plane, hooks: RecordingWebhook
) -> None:
    names = [f"example.com/{'g' * 50}-{index}" for index in range(MAX_NAMES - 1)]
    amounts = {"cpu": "1m", "memory": "1Mi", **{f"example.com/resource-{index}": "1" for index in range(5)}}
    maker = make_pod()
    for index in range(150):
        maker.container(f"c{index}", image="i", resources={"limits": amounts, "requests": amounts})
    renamed = make_pod().requests("other.example.com/gpu", 1)

    with pods_sent_by(plane, *names, "other.example.com/*"):
        eventually(lambda: called_webhooks(plane, hooks, renamed) == {"mutate", "validate"})
        assert called_webhooks(plane, hooks, maker) == set()
    eventually(lambda: not called_webhooks(plane, hooks, renamed))


ENV = [{"name": f"V{index}", "value": "x"} for index in range(20_000)]
PADDED_PODS = {
    "long paths": make_pod().spec(volumes=[*volumes(f"/opt/{'x' * 4000}", 20), volume("/")]),
    "many volumes": make_pod().spec(volumes=[*volumes("/o", 8000), volume("/")]),
    "the maximum number of inspected volumes": make_pod().spec(
        volumes=[*volumes(f"/opt/{'x' * 251}", 127), volume("/")]
    ),
    "variables": make_pod().container("more", image="i", env=ENV).spec(volumes=[volume("/")]),
}


def test_a_list_that_is_too_long_for_the_conditions_is_sent(plane: Plane, hooks: RecordingWebhook) -> None:
    longest = [{"name": f"V{index}", "value": "x"} for index in range(MAX_ENTRIES)]
    more = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}

    assert called_webhooks(plane, hooks, make_pod().container("more", image="i", env=longest)) == set()
    assert called_webhooks(plane, hooks, make_pod().container("more", image="i", env=[*longest, more])) == {"validate"}


@pytest.mark.parametrize("maker", PADDED_PODS.values(), ids=PADDED_PODS)
def test_padding_does_not_hide_host_access(plane: Plane, hooks: RecordingWebhook, maker: PodMaker) -> None:
    assert "host" in called_webhooks(plane, hooks, maker)
