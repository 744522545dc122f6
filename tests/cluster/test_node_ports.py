"""The nodes on which host ports are free: those of our filter, and the verdict of the real scheduler on each node."""

from __future__ import annotations

from random import Random

import msgspec

from tests.builders import Json, make_node, make_pod
from tests.cluster.nodes import add_nodes, remove_nodes
from tests.cluster.plane import Plane
from tests.cluster.pod_creation import create_pods
from tests.cluster.polling import eventually
from webhook.model.filters.node_ports import HostPort, held_ports, index_host_ports
from webhook.model.fleet import Fleet
from webhook.model.objects import Node
from webhook.model.pods import parse_pod

NODE_COUNT, REQUESTS = 12, 16
HOST = "kubernetes.io/hostname"


def random_ports(random: Random) -> list[Json]:
    """Return one to three different ports of a container."""
    ports: list[Json] = [
        {"containerPort": 1000 + i, "hostPort": random.choice((8080, 8081)), "protocol": random.choice(("TCP", "UDP"))}
        for i in range(random.randint(1, 3))
    ]
    for port in ports:
        port["hostIP"] = random.choice(("", "0.0.0.0", "10.0.0.1", "10.0.0.2"))
    return list({(one["hostPort"], one["protocol"], one["hostIP"]): one for one in ports}.values())


def test_our_filter_allows_the_nodes_on_which_the_scheduler_places_the_pod(plane: Plane, namespace: str) -> None:
    random, names = Random(18), [f"ports-{number}" for number in range(NODE_COUNT)]
    fleet = Fleet([msgspec.convert(make_node(name), Node) for name in names])
    kinds = ("containers", "containers", "initContainers", "sidecar")
    holders = [
        _pod(f"held-{i}", namespace, name, random_ports(random), random.choice(kinds), bound=True)
        for i, name in enumerate(random.choices(names, k=NODE_COUNT))
    ]
    in_use: dict[HostPort, list[str]] = {}
    for holder in map(parse_pod, holders):
        for port in held_ports(holder):
            in_use.setdefault(port, []).append(holder.spec.node_name)
    index = index_host_ports(in_use, fleet)
    add_nodes(plane, [make_node(name) for name in names])
    try:
        _create(plane, holders)
        for number in range(REQUESTS):
            kind, ports = random.choice(kinds), random_ports(random)
            pods = [_pod(f"new-{number}-{i}", namespace, name, ports, kind) for i, name in enumerate(names)]
            held = held_ports(parse_pod(pods[0]))
            expected = {name for i, name in enumerate(names) if not (held and index.nodes_in_use(held) >> i & 1)}
            assert _nodes_of(plane, pods) == expected, (number, kind, ports)
    finally:
        remove_nodes(plane, names)


def _pod(name: str, namespace: str, node: str, ports: list[Json], kind: str, *, bound: bool = False) -> Json:
    """Return a pod with these ports for one node, to which it is bound or that it selects."""
    restart = {"restartPolicy": "Always"} if kind == "sidecar" else {}
    field = "initContainers" if kind == "sidecar" else kind
    maker = make_pod(name).namespace(namespace).container("web", kind=field, ports=ports, image="web", **restart)
    return maker.spec(**({"nodeName": node} if bound else {"nodeSelector": {HOST: node}})).build()


def _create(plane: Plane, pods: list[Json]) -> None:
    assert [answer for answer in create_pods(plane, pods) if not answer.created] == []


def _nodes_of(plane: Plane, pods: list[Json]) -> set[str]:
    """Return the nodes that pods get, each pinned to one, and delete them; NodePorts must be why others get none."""
    _create(plane, pods)
    root, new = (
        f"/api/v1/namespaces/{pods[0]['metadata']['namespace']}/pods",
        {each["metadata"]["name"] for each in pods},
    )

    def stored_pods() -> list[Json]:
        return [each for each in plane.api.get(root)["items"] if each["metadata"]["name"] in new]

    stored = eventually(stored_pods, until=lambda found: all(map(_is_tried, found)))
    for name in new:
        plane.api.delete(f"{root}/{name}", gracePeriodSeconds="0")
    eventually(stored_pods, until=lambda found: not found)
    pending = [each for each in stored if not each["spec"].get("nodeName")]
    assert [each for each in pending if "free ports" not in each["status"]["conditions"][0]["message"]] == []
    return {pod["spec"]["nodeName"] for pod in stored if pod["spec"].get("nodeName")}


def _is_tried(pod: Json) -> bool:
    return bool(pod["spec"].get("nodeName")) or any(
        each["type"] == "PodScheduled" for each in pod["status"].get("conditions", ())
    )
