"""Reviews that are built to cost a replica time or memory: each is one kind of padding.

Every review of a kind differs from the one before it in all its text, so that caches by text cannot help, and would
grow if they were not bounded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.api_objects import Json, review_bytes

NAMESPACE = "team-vision"

OBJECT_BYTES = 2_900_000
"""An API server accepts bodies of 3 MiB."""

Build = Callable[[str, int], Json]
"""Builds an object from a text that no other review has, and the number of its parts."""


def gpu_container(name: str = "main", /, **fields: Any) -> Json:
    """Return a container that requests a GPU."""
    return {"name": name, "image": "cuda:12.4", "resources": {"limits": {"nvidia.com/gpu": "1"}}, **fields}


def gpu_pod(metadata: Json | None = None, /, **spec: Any) -> Json:
    """Return a pod that requests a GPU, with these fields."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "hostile", "namespace": NAMESPACE, **(metadata or {})},
        "spec": {"containers": [gpu_container()], **spec},
    }


def _words(text: str, count: int) -> list[str]:
    return [f"{text}-{index}" for index in range(count)]


def _capabilities(text: str, count: int) -> Json:
    context = {"capabilities": {"add": _words(text, count)}}
    return gpu_pod(containers=[gpu_container(securityContext=context)])


def _labeled(field: str, prefix: str) -> Build:
    def build(text: str, count: int) -> Json:
        return gpu_pod({field: dict.fromkeys([f"{prefix}{each}" for each in _words(text, count)], text)})

    return build


def _env(text: str, count: int) -> Json:
    return gpu_pod(containers=[gpu_container(env=[{"name": each, "value": "all"} for each in _words(text, count)])])


def _visible_devices(text: str, count: int) -> Json:
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": each} for each in _words(text, count)]
    return gpu_pod(containers=[gpu_container(env=env)])


def _node_selector(text: str, count: int) -> Json:
    return gpu_pod(nodeSelector=dict.fromkeys(_words(text, count), "a"))


def _long_selector(text: str, count: int) -> Json:
    return gpu_pod(nodeSelector={"nvidia.com/gpu.product": text + "x" * count})


def _affinity(terms: list[Json]) -> Json:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return gpu_pod(affinity={"nodeAffinity": required})


def _expression(key: str, values: list[str]) -> Json:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": values}]}


def _affinity_values(text: str, count: int) -> Json:
    return _affinity([_expression("nvidia.com/gpu.product", _words(text, count))])


def _affinity_terms(text: str, count: int) -> Json:
    return _affinity([_expression(each, [each]) for each in _words(text, count)])


def _affinity_expressions(text: str, count: int) -> Json:
    one = [{"key": each, "operator": "Exists"} for each in _words(text, count)]
    return _affinity([{"matchExpressions": one}])


def _preferred_terms(text: str, count: int) -> Json:
    terms = [{"weight": 1, "preference": _expression(each, [each])} for each in _words(text, count)]
    return gpu_pod(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}})


def _pod_affinity(text: str, count: int) -> Json:
    terms = [{"topologyKey": each, "labelSelector": {}} for each in _words(text, count)]
    return gpu_pod(affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})


def _named(field: str, key: str = "name", **fields: Any) -> Build:
    def build(text: str, count: int) -> Json:
        return gpu_pod(**{field: [{key: each, **fields} for each in _words(text, count)]})

    return build


def _in_container(field: str, key: str, **fields: Any) -> Build:
    def build(text: str, count: int) -> Json:
        listed = [{key: each, **fields} for each in _words(text, count)]
        return gpu_pod(containers=[gpu_container(**{field: listed})])

    return build


def _ports(text: str, count: int) -> Json:
    ports = [{"hostPort": 1 + index % 60_000, "hostIP": text} for index in range(count)]
    return gpu_pod(containers=[gpu_container(ports=ports)])


def _volumes(text: str, count: int) -> Json:
    return gpu_pod(volumes=[{"name": each, "hostPath": {"path": f"/dev/{each}"}} for each in _words(text, count)])


def _used_claims(text: str, count: int) -> Json:
    names = [{"name": each} for each in _words(text, count)]
    claims = [{**each, "resourceClaimTemplateName": "t"} for each in names[:500]]
    return gpu_pod(resourceClaims=claims, containers=[gpu_container(resources={"claims": names})])


def _volume_claims(text: str, count: int) -> Json:
    claims = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in _words(text, count)]
    return gpu_pod(volumes=claims)


def _containers(field: str, amounts: Mapping[str, str]) -> Build:
    def build(text: str, count: int) -> Json:
        many = [gpu_container(each, image=each, resources={"limits": dict(amounts)}) for each in _words(text, count)]
        return gpu_pod(**{"containers": [gpu_container()], field: many})

    return build


MIG_PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")


def _resource_names(prefix: str) -> Build:
    def build(text: str, count: int) -> Json:
        limits = dict.fromkeys([f"{prefix}{each}" for each in _words(text, count)], "1")
        return gpu_pod(containers=[gpu_container(resources={"limits": {"nvidia.com/gpu": "1", **limits}})])

    return build


def _mig_names(_text: str, count: int) -> Json:
    limits = {f"nvidia.com/mig-{1 + index % 7}g.{index + 1}gb": "1" for index in range(count)}
    return gpu_pod(containers=[gpu_container(resources={"limits": limits})])


def _distinct_amounts(text: str, count: int) -> Json:
    seed = sum(text.encode()) % 1000
    amounts = [{"cpu": f"{1 + index + seed}m", "memory": f"{1 + index + seed}Ki"} for index in range(count)]
    many = [gpu_container(f"c{index}", resources={"limits": one}) for index, one in enumerate(amounts)]
    return gpu_pod(containers=[gpu_container(), *many])


def _long_image(text: str, count: int) -> Json:
    return gpu_pod(containers=[gpu_container(image=text + "cu-" * (count // 3))])


def _long_arguments(text: str, count: int) -> Json:
    return gpu_pod(containers=[gpu_container(command=["sh", "-c", text + "torchrun " * (count // 9)])])


def _arguments(text: str, count: int) -> Json:
    return gpu_pod(containers=[gpu_container(args=_words(text, count))])


def _long_value(text: str, count: int) -> Json:
    value = f"{text} cuda>=12.0," * (count // 20)
    return gpu_pod(containers=[gpu_container(env=[{"name": "NVIDIA_REQUIRE_CUDA", "value": value}])])


def _long_annotation(text: str, count: int) -> Json:
    return gpu_pod({"annotations": {"rightslice.dev/gpu-memory": text + "9" * count}})


def _long_label(text: str, count: int) -> Json:
    return gpu_pod({"labels": {"app": text + "9" * count}, "name": "n" * 200})


def _nulls(text: str, count: int) -> Json:
    return gpu_pod(volumes=None, tolerations=[{"key": each, "value": None} for each in _words(text, count)])


def _extra(text: str, count: int) -> Json:
    return {**gpu_pod(), "status": {"conditions": [{"type": each} for each in _words(text, count)]}}


def _workload(kind: str, version: str, *path: str) -> Build:
    def build(text: str, count: int) -> Json:
        many = [gpu_container(each, image=each) for each in _words(text, count)]
        spec: Any = {"metadata": {"labels": {"a": text}}, "spec": {"containers": many}}
        for step in reversed(path):
            spec = {step: spec}
        return {"apiVersion": version, "kind": kind, "metadata": {"name": "w", "namespace": NAMESPACE}, "spec": spec}

    return build


def _job_set(text: str, count: int) -> Json:
    template = {"spec": {"template": {"spec": {"containers": [gpu_container()]}}}}
    jobs = [{"name": each, "template": template} for each in _words(text, count)]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "w", "namespace": NAMESPACE},
        "spec": {"replicatedJobs": jobs},
    }


def _role_group(text: str, count: int) -> Json:
    """Return a kind with most sources, which all pass the same empty members."""
    return {
        "apiVersion": "workloads.x-k8s.io/v1alpha1",
        "kind": "RoleBasedGroup",
        "metadata": {"name": "w", "namespace": NAMESPACE, "labels": {"a": text}},
        "spec": {"roles": [{} for _ in range(count)]},
    }


def _quota(text: str, count: int) -> Json:
    hard = {f"requests.nvidia.com/{each}": "1" for each in _words(text, count)}
    metadata = {"name": "w", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}


def _range(text: str, count: int) -> Json:
    limits = [{"type": "Container", "default": {f"nvidia.com/{each}": "1"}} for each in _words(text, count)]
    metadata = {"name": "w", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": limits}}


KINDS: Mapping[str, Build] = {
    "capabilities": _capabilities,
    "CDI annotations": _labeled("annotations", "cdi.k8s.io/"),
    "annotations": _labeled("annotations", "example.com/"),
    "Rightslice annotations": _labeled("annotations", "rightslice.dev/"),
    "labels": _labeled("labels", "example.com/"),
    "environment variables": _env,
    "visible devices": _visible_devices,
    "envFrom sources": _in_container("envFrom", "prefix"),
    "node selector keys": _node_selector,
    "a long node selector value": _long_selector,
    "affinity values": _affinity_values,
    "affinity terms": _affinity_terms,
    "affinity expressions": _affinity_expressions,
    "preferred affinity terms": _preferred_terms,
    "pod affinity terms": _pod_affinity,
    "tolerations": _named("tolerations", "key", operator="Exists"),
    "spread constraints": _named("topologySpreadConstraints", "topologyKey", whenUnsatisfiable="DoNotSchedule"),
    "scheduling gates": _named("schedulingGates"),
    "claims": _named("resourceClaims", resourceClaimTemplateName="t"),
    "uses of claims": _used_claims,
    "ports": _ports,
    "mounts": _in_container("volumeMounts", "mountPath"),
    "host paths": _volumes,
    "volume claims": _volume_claims,
    "containers": _containers("containers", {"nvidia.com/gpu": "1"}),
    "containers of five MIG profiles": _containers(
        "containers", {f"nvidia.com/mig-{profile}": "1" for profile in MIG_PROFILES}
    ),
    "init containers": _containers("initContainers", {f"nvidia.com/mig-{each}": "1" for each in MIG_PROFILES}),
    "ephemeral containers": _containers("ephemeralContainers", {}),
    "resource names": _resource_names("example.com/"),
    "unknown NVIDIA names": _resource_names("nvidia.com/"),
    "device classes": _resource_names("deviceclass.resource.kubernetes.io/"),
    "MIG names": _mig_names,
    "distinct amounts": _distinct_amounts,
    "a long image": _long_image,
    "a long command": _long_arguments,
    "arguments": _arguments,
    "a long CUDA requirement": _long_value,
    "a long annotation": _long_annotation,
    "a long label": _long_label,
    "nulls": _nulls,
    "a long status": _extra,
    "owner references": lambda text, count: gpu_pod(
        {"ownerReferences": [{"kind": each, "name": each, "uid": each} for each in _words(text, count)]}
    ),
    "overhead": lambda text, count: gpu_pod(overhead=dict.fromkeys(_words(text, count), "1")),
    "pod-level resources": lambda text, count: gpu_pod(resources={"limits": dict.fromkeys(_words(text, count), "1")}),
    "a Deployment": _workload("Deployment", "apps/v1", "template"),
    "an unknown workload": _workload("Strange", "example.com/v1", "a", "template"),
    "a JobSet": _job_set,
    "a RoleBasedGroup": _role_group,
    "a ResourceQuota": _quota,
    "a LimitRange": _range,
}
"""Every kind of padding."""


def hostile_review(kind: str, text: str, size: int = OBJECT_BYTES) -> bytes:
    """Return the review of an object with as many parts as fit into `size` bytes."""
    return review_bytes(hostile_object(kind, text, size), f"uid-{text}")


def hostile_object(kind: str, text: str, size: int = OBJECT_BYTES) -> Json:
    """Return an object with as many parts as fit into `size` bytes."""
    build = KINDS[kind]
    small, large = (len(json.dumps(build(text, count), separators=(",", ":"))) for count in (100, 1100))
    each = max((large - small) / 1000, 1)
    return build(text, max(1, int((size - small) / each * 0.97)))


def repeated_keys(text: str, size: int = OBJECT_BYTES) -> bytes:
    """Return a review whose last object has one key again and again."""
    padding = f'"{text}":{{"a":1,"a":1}},'.encode()
    return review_bytes(gpu_pod()).replace(b'"metadata":{', b'"metadata":{' + padding * (size // len(padding)), 1)


def nested_lists(text: str, size: int = OBJECT_BYTES) -> bytes:
    """Return a review of nested lists."""
    padding = f'"{text}":{"[" * 200}{"]" * 200},'.encode()
    return review_bytes(gpu_pod()).replace(b'"spec":{', b'"spec":{' + padding * (size // len(padding)), 1)


def many_groups(text: str, size: int = OBJECT_BYTES) -> bytes:
    """Return a review of a user in many groups."""
    padding = b",".join(f'"{each}"'.encode() for each in _words(text, size // (len(text) + 9)))
    return review_bytes(gpu_pod()).replace(b'"groups":[', b'"groups":[' + padding + b",", 1)


def spaces(text: str, size: int = OBJECT_BYTES) -> bytes:
    """Return a review of a small pod and spaces."""
    return review_bytes(gpu_pod({"labels": {"a": text}})) + b" " * size


BODIES: Mapping[str, Callable[[str, int], bytes]] = {
    "repeated keys": repeated_keys,
    "nested lists": nested_lists,
    "many groups": many_groups,
    "spaces": spaces,
}
"""Bodies that no API server sends."""


def update_review(kind: str, text: str, size: int = OBJECT_BYTES) -> bytes:
    """Return the review of an update from one such object to another."""
    review = json.loads(hostile_review(kind, text, size))
    review["request"] |= {"operation": "UPDATE", "oldObject": review["request"]["object"]}
    return json.dumps(review, separators=(",", ":")).encode()
