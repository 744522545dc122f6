"""The devices that an object's claims would get on the nodes of a cluster, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from webhook.audit.evaluate import CLAIMS, POD, EvaluationContext, build_admission_request
from webhook.audit.object_files import SourceObject
from webhook.engine.workload_review import pods_of_workload
from webhook.errors import ReviewError
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.allocator import AllocationOutcome, ChosenDevice, NodeAllocation
from webhook.model.dra.device_pools import NodePool
from webhook.model.dra.gpu_devices import gpus_of_pool
from webhook.model.dra.pod_devices import allocate_for_pod, resolve_claims
from webhook.model.dra.selector_cache import select_device
from webhook.model.pods import ObjectMeta, Pod, PodResourceClaim, PodSpec
from webhook.report.text import pluralize

MAX_NODES = 1_000
"""Nodes with devices that are tried."""

MAX_NAMES = 3


def describe_claimed_devices(source: SourceObject, context: EvaluationContext) -> tuple[str, ...]:
    """Return what the claims of a claim, a template, a pod or a workload's pods would get, one line for each result."""
    if not context.view.devices.pools:
        return ()
    try:
        request = build_admission_request(source.data, context)
        pods = list(_pods_with_claims(request, context))
        return tuple(line for pod in pods for line in _describe_pod(pod, request.namespace, context.view))
    except ReviewError:
        return ()


def _pods_with_claims(request: AdmissionRequest, context: EvaluationContext) -> Iterator[Pod]:
    kind = request.group, request.kind
    if kind == POD and request.pod is not None:
        yield request.pod
    elif kind in CLAIMS:
        is_template = request.kind == "ResourceClaimTemplate"
        named = PodResourceClaim("claim", **{f"resource_claim{'_template' * is_template}_name": request.name})
        yield Pod(ObjectMeta(), PodSpec(resource_claims=(named,)))
    elif kind in context.policies.workload_kinds:
        yield from (pod for _, _, pod in pods_of_workload(request, context.policies, context.view))


def _describe_pod(pod: Pod, namespace: str, view: ClusterView) -> Iterator[str]:
    """Yield the devices that a pod would get, with the nodes where it would, and why it gets none on the others."""
    pod = replace(pod, metadata=replace(pod.metadata, namespace=namespace))
    claims = resolve_claims(pod, view.namespace_claims(namespace), view.devices, view.fleet)
    if claims.is_empty():
        return
    if claims.rejection:
        yield f"none: {claims.rejection}"
        return
    pools = {index: view.devices.pools.pools_of_node(index) for index in range(len(view.fleet.nodes))}
    nodes: dict[str, list[str]] = {}
    for index in [index for index, some in pools.items() if some][:MAX_NODES]:
        found = allocate_for_pod(pod, claims, index, view.devices, view.fleet, select_device)
        nodes.setdefault(_describe_allocation(found, pools[index]), []).append(view.fleet.nodes[index].name)
    for text, names in nodes.items():
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        yield f"{text} on {pluralize(len(names), 'node')} ({', '.join(names[:MAX_NAMES])}{more})"
    if not nodes:
        yield "none: no node has devices"


def _describe_allocation(found: NodeAllocation, pools: Sequence[NodePool]) -> str:
    if found.outcome is not AllocationOutcome.ALLOCATED:
        return f"none ({found.reason or found.outcome})"
    chosen = [_describe_device(each, pools) for some in found.claims for each in some]
    counted = [f"{chosen.count(one)} x {one}" if chosen.count(one) > 1 else one for one in dict.fromkeys(chosen)]
    return ", ".join(counted) or "devices that it has"


def _describe_device(chosen: ChosenDevice, pools: Sequence[NodePool]) -> str:
    """Return the kind of a device, with the request that gets it."""
    device = chosen.device
    pool = next(one for one in pools if (one.id.driver, one.id.pool) == (device.driver, device.pool))
    gpu = gpus_of_pool(pool).get(device.device)
    if gpu is None:
        return f"{device.device} of {device.driver} for {chosen.request}"
    kinds = " of ".join(filter(None, (gpu.profile, gpu.product or device.device)))
    share = "" if chosen.consumed is None else "a share of "
    return f"{share}{kinds} for {chosen.request}"
