"""The pods that a controller creates from a template: what it adds to each, and how many a DaemonSet has.

Sources: NodeShouldRunDaemonPod and AddOrUpdateDaemonPodTolerations of the daemon controller, updateStorage of the
StatefulSet controller. The daemon controller chooses nodes by the template alone: what admission adds does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from webhook.engine.templates import PodTemplate
from webhook.model.field_paths import map_at
from webhook.model.fleet import Fleet
from webhook.model.pod_volumes import MAX_POD_CLAIMS
from webhook.model.pods import Pod, Toleration, Volume
from webhook.well_known import Json

DAEMON_TOLERATIONS: tuple[Json, ...] = tuple(
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect}
    for key, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
)
"""Tolerations that the controller adds to every pod of a DaemonSet."""

HOST_NETWORK_TOLERATION: Json = {
    "key": "node.kubernetes.io/network-unavailable",
    "operator": "Exists",
    "effect": "NoSchedule",
}
"""Added for pods with hostNetwork."""


MAX_STATEFUL_PODS = 200
"""Pods of a StatefulSet whose claims are looked up; a larger one counts as if its claims were not known."""

MAX_CLAIM_NAME = 253
"""Letters of the name of a claim in the API; longer ones are not looked up for each pod."""

UNKNOWN_CLAIM = Volume(persistent_volume_claim={"claimName": ""})
"""Stands for claims that are not looked up."""


def complete_template(template: PodTemplate, workload: Any, fleet: Fleet) -> PodTemplate:
    """Return a template with what its controller adds to each pod, and with the number of pods."""
    tolerations, volumes = _added_tolerations(template), _claimed_volumes(workload, template)
    if not tolerations and not volumes:
        return template
    spec = {**template.data["spec"]}
    for key, added in (("tolerations", tolerations), ("volumes", volumes)):
        if added:
            spec[key] = [*(spec.get(key) or ()), *added]
    pod = _with_additions(template.pod, tolerations, volumes)
    completed = replace(template, pod=pod, data={**template.data, "spec": spec})
    return replace(completed, replicas=count_owned_pods(completed, fleet))


def _with_additions(pod: Pod, tolerations: list[Json], volumes: list[Json]) -> Pod:
    added = msgspec.convert(tolerations, tuple[Toleration, ...]), msgspec.convert(volumes, tuple[Volume, ...])
    spec = replace(pod.spec, tolerations=(*pod.spec.tolerations, *added[0]), volumes=(*pod.spec.volumes, *added[1]))
    return replace(pod, spec=spec)


def count_owned_pods(template: PodTemplate, fleet: Fleet) -> int:
    """Return the number of pods of a completed template: of a DaemonSet, one on each of its nodes, and at least 1."""
    if not is_of_daemon_set(template) or not fleet.nodes:
        return template.replicas
    return max(1, daemon_set_nodes(template.pod, fleet).bit_count())


def daemon_set_nodes(pod: Pod, fleet: Fleet) -> int:
    """Return the mask of the nodes on which the controller creates a pod, however much is free there.

    Args:
        pod: The template's, with the tolerations that the controller adds.
    """
    tolerations = pod.spec.tolerations
    return fleet.nodes_selected_by(pod.spec) & fleet.tolerated_nodes(tolerations) & fleet.schedulable_nodes(tolerations)


def is_of_daemon_set(template: PodTemplate) -> bool:
    """Return whether a DaemonSet creates the pods of a template."""
    return template.owner.kind == "DaemonSet"


def _added_tolerations(template: PodTemplate) -> list[Json]:
    if not is_of_daemon_set(template):
        return []
    on_host = template.data["spec"].get("hostNetwork") is True
    return [*DAEMON_TOLERATIONS, HOST_NETWORK_TOLERATION] if on_host else list(DAEMON_TOLERATIONS)


def claims_of_first_pod(workload: Any, template: PodTemplate) -> dict[str, Any]:
    """Return the claims that the controller creates for the first pod: their volumeClaimTemplates, by claim name.

    The controller creates a claim a moment before its pod, and keeps it for the next pod of the same name.
    """
    return next(_claims_by_pod(workload, template))


def _claims_by_pod(workload: Any, template: PodTemplate) -> Iterator[dict[str, Any]]:
    """Yield the claims of each pod, in the order of their numbers; those of the first also without replicas."""
    parent: Any = workload
    for step in template.path[:-1]:
        parent = parent[step]
    claims = parent.get("volumeClaimTemplates") if isinstance(parent, dict) else None
    known = claims[: MAX_POD_CLAIMS + 1] if isinstance(claims, list) else []
    start = map_at(parent, "ordinals").get("start") if known else 0
    first = start if isinstance(start, int) and start > 0 else 0
    for number in range(first, first + max(1, template.replicas)):
        yield {f"{_claim_name(claim)}-{template.owner.name}-{number}": claim for claim in known}


def with_claims_of_all_pods(pod: Pod, workload: Any, template: PodTemplate, exists: Callable[[str], bool]) -> Pod:
    """Return a pod of a StatefulSet with the claims of all its pods, which shall be able to run on the same nodes.

    Of claims that do not exist yet, it gets one of each template; instead of too many, one that is not known.

    Args:
        exists: Returns whether there is a claim by a name.
    """
    first = claims_of_first_pod(workload, template)
    if template.owner.kind != "StatefulSet" or not first:
        return pod
    claims = _claims_of_all_pods(workload, template, exists) if _are_looked_up(first, template) else (UNKNOWN_CLAIM,)
    others = (each for each in pod.spec.volumes if _claim_of_volume(each) not in first)
    return replace(pod, spec=replace(pod.spec, volumes=(*others, *claims)))


def _are_looked_up(first: Mapping[str, Any], template: PodTemplate) -> bool:
    if template.replicas > MAX_STATEFUL_PODS or len(first) > MAX_POD_CLAIMS:
        return False
    return all(len(name) <= MAX_CLAIM_NAME for name in first)


def _claims_of_all_pods(workload: Any, template: PodTemplate, exists: Callable[[str], bool]) -> list[Volume]:
    volumes: list[Volume] = []
    new: dict[str, Volume] = {}
    for claims in _claims_by_pod(workload, template):
        for name, claim in claims.items():
            if exists(name):
                volumes.append(Volume(persistent_volume_claim={"claimName": name}))
            else:
                new[_claim_name(claim)] = Volume(ephemeral={"volumeClaimTemplate": claim})
    return [*volumes, *new.values()]


def _claimed_volumes(workload: Any, template: PodTemplate) -> list[Json]:
    return [
        {"name": _claim_name(claim), "persistentVolumeClaim": {"claimName": name}}
        for name, claim in claims_of_first_pod(workload, template).items()
    ]


def with_new_claims(pod: Pod, claims: Mapping[str, Any]) -> Pod:
    """Return a pod whose claims by these names are created for it, by their templates."""
    volumes = tuple(
        Volume(ephemeral={"volumeClaimTemplate": claims[name]}) if (name := _claim_of_volume(each)) in claims else each
        for each in pod.spec.volumes
    )
    return replace(pod, spec=replace(pod.spec, volumes=volumes)) if claims else pod


def _claim_of_volume(volume: Volume) -> str:
    name = (volume.persistent_volume_claim or {}).get("claimName")
    return name if isinstance(name, str) else ""


def _claim_name(claim: object) -> str:
    metadata = claim.get("metadata") if isinstance(claim, Mapping) else None
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return name if isinstance(name, str) else ""
