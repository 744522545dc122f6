"""Karpenter on a control plane: its core, with its own provider of simulated nodes.

Its nodes have four A100: whole ones in the pool `cards`, whose instance type lists the GPUs, and slices in the pool
`slices`, which Karpenter knows only from a NodeOverlay. `settle_new_nodes` does what kubelets, the device plugin and
GPU feature discovery do on real nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.cluster.client import Json, RefusedError
from tests.cluster.nodes import NODES
from tests.cluster.operator_crds import serve_operator_kinds
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.processes import Process, free_port, is_up
from tests.controlplane.build import karpenter_program
from tests.example_cluster import A100, MIXED

API, OVERLAYS = "/apis/karpenter.sh/v1", "/apis/karpenter.sh/v1alpha1/nodeoverlays"
CLASSES = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
POOL = "karpenter.sh/nodepool"
GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
CARDS, SLICES = 4, 28
"""Whole GPUs of one node, or slices."""

MIG_TAINT = {"key": "nvidia.com/mig", "value": "present", "effect": "NoSchedule"}
POOLS: dict[str, tuple[Json, list[Json]]] = {"cards": ({GPU: str(CARDS)}, []), "slices": ({}, [MIG_TAINT])}
"""By name of a pool and of its instance type: the GPUs that Karpenter knows of, and the taints."""

LABELS = {"cards": A100 | {f"{GPU}.count": str(CARDS)}, "slices": MIXED | {f"{SLICE}.count": str(SLICES)}}
ADVERTISED = {"cards": {GPU: str(CARDS)}, "slices": {SLICE: str(SLICES)}}
"""Labels and resources that agents add to the nodes of a pool."""


def instance_type(name: str, gpus: Json) -> Json:
    """Return an instance type as the provider reads it."""
    offering = {
        "Price": 20.0,
        "Available": True,
        "Requirements": [
            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-a"]},
        ],
    }
    return {
        "name": name,
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "900Gi", "pods": "110"} | gpus,
        "offerings": [offering],
    }


@contextmanager
def run_karpenter(plane: Plane, folder: Path) -> Iterator[Process]:
    """Run Karpenter for the block with the pools `cards` and `slices`, with an empty folder for its files."""
    core = [f"{plural}.karpenter.sh" for plural in ("nodepools", "nodeclaims", "nodeoverlays")]
    with ExitStack() as stack:
        stack.enter_context(serve_operator_kinds(plane, "karpenter", *core))
        stack.enter_context(serve_operator_kinds(plane, "karpenter-kwok", "kwoknodeclasses.karpenter.kwok.sh"))
        process = _karpenter_process(plane, folder)
        stack.enter_context(process.run())
        _create_pools(plane)
        stack.callback(_remove_pools, plane)
        yield process


def _karpenter_process(plane: Plane, folder: Path) -> Process:
    health, types = free_port(), folder / "types.json"
    types.write_text(json.dumps([instance_type(name, gpus) for name, (gpus, _) in POOLS.items()]), encoding="utf-8")
    command = [
        "env",
        f"KUBECONFIG={plane.kubeconfig}",
        str(karpenter_program()),
        f"--instance-types-file-path={types}",
        f"--health-probe-port={health}",
        f"--metrics-port={free_port()}",
        "--disable-leader-election=true",
        "--feature-gates=NodeOverlay=true",
    ]
    return Process("karpenter", command, folder / "karpenter.log", lambda: is_up(f"http://127.0.0.1:{health}/readyz"))


def _create_pools(plane: Plane) -> None:
    plane.api.create(CLASSES, _object("karpenter.kwok.sh/v1alpha1", "KWOKNodeClass", "simulated", {}))
    overlay = {
        "requirements": [{"key": POOL, "operator": "In", "values": ["slices"]}],
        "capacity": {SLICE: str(SLICES)},
    }
    plane.api.create(OVERLAYS, _object("karpenter.sh/v1alpha1", "NodeOverlay", "slices", overlay))
    for name, (_, taints) in POOLS.items():
        plane.api.create(f"{API}/nodepools", _object("karpenter.sh/v1", "NodePool", name, _pool_spec(name, taints)))


def _pool_spec(name: str, taints: list[Json]) -> Json:
    node_class = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "simulated"}
    requirements = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [name]}]
    template = {"nodeClassRef": node_class, "requirements": requirements, "taints": taints, "expireAfter": "Never"}
    disruption = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"}
    return {"template": {"spec": template}, "disruption": disruption}


def _object(version: str, kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _remove_pools(plane: Plane) -> None:
    remove_new_nodes(plane)
    for path in (f"{API}/nodepools/cards", f"{API}/nodepools/slices", f"{OVERLAYS}/slices", f"{CLASSES}/simulated"):
        plane.api.delete(path)


def remove_new_nodes(plane: Plane) -> None:
    """Delete the nodes of Karpenter, and wait until they are gone."""
    plane.api.delete(f"{API}/nodeclaims")
    eventually(lambda: not plane.api.get(f"{API}/nodeclaims")["items"] and not new_nodes(plane))


def new_nodes(plane: Plane) -> list[Json]:
    """Return the nodes of Karpenter."""
    nodes: list[Json] = plane.api.get(NODES, labelSelector=POOL)["items"]
    return nodes


def settle_new_nodes(plane: Plane) -> bool:
    """Label the GPUs of new nodes, advertise them, and let pods in; return whether none was new."""
    unsettled = [node for node in new_nodes(plane) if _is_unsettled(node)]
    for node in unsettled:
        try:
            _settle(plane, node)
        except RefusedError as refusal:
            if refusal.status not in (404, 409):
                raise
    return not unsettled


def _is_unsettled(node: Json) -> bool:
    return any(taint["key"] == "node.kubernetes.io/not-ready" for taint in node["spec"].get("taints", ()))


def _settle(plane: Plane, node: Json) -> None:
    path, pool = f"{NODES}/{node['metadata']['name']}", node["metadata"]["labels"][POOL]
    plane.api.patch(path, {"metadata": {"labels": LABELS[pool]}})
    plane.api.patch(f"{path}/status", {"status": {"capacity": ADVERTISED[pool], "allocatable": ADVERTISED[pool]}})
    current = plane.api.get(path)
    taints = [taint for taint in current["spec"].get("taints", ()) if taint["key"] != "node.kubernetes.io/not-ready"]
    version = current["metadata"]["resourceVersion"]  # Karpenter removes its own taint meanwhile
    plane.api.patch(path, {"metadata": {"resourceVersion": version}, "spec": {"taints": taints}})
