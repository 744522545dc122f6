"""Random clusters with everything that ties a pod to nodes.

Names, labels and amounts come from small sets, so that much fits and much does not. All of it is valid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from tests.builders import Json
from tests.filters.random_affinity import REQUIRED, pod_affinity, random_labels, required_node_affinity, topology_spread
from tests.filters.random_requests import CPUS, MEMORIES, node_amounts, random_containers
from tests.filters.random_volumes import pod_volumes, random_volumes
from webhook.model.pod_resources import effective_requests
from webhook.model.pods import parse_pod
from webhook.model.quantity import format_nano, parse_nano

HOSTNAME, ZONE, REGION = "kubernetes.io/hostname", "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
NAMESPACES = ("team-a", "team-b", "research", "default")
TAINT_KEYS, TAINT_VALUES = ("dedicated", "nvidia.com/gpu", "node.kubernetes.io/unschedulable"), ("", "a", "b")
EFFECTS = ("NoSchedule", "NoSchedule", "NoExecute", "PreferNoSchedule")
PRIORITIES = (0, 10, 1000)
PORTS = (8080, 8081, 9400)
REPLICA_SETS = ("5d4f8c", "77b9ff")
FEATURES = ["ExtendWebSocketsToKubelet", "RestartAllContainersOnContainerExits"]
ADDRESSES = ("", "", "0.0.0.0", "127.0.0.1", "10.0.0.1")


class RandomCluster(NamedTuple):
    """A cluster and pods to schedule.

    Attributes:
        objects: Everything in the cluster, pods with and without a node among it.
        pods: Further pods.
    """

    objects: list[Json]
    pods: list[Json]

    def of_kind(self, kind: str) -> list[Json]:
        """Return the objects of one kind."""
        return [each for each in self.objects if each["kind"] == kind]


def random_cluster(random: Random, *, running: int = 30, waiting: int = 8, pods: int = 10) -> RandomCluster:
    """Return a cluster of 10 to 14 nodes.

    Args:
        running: Pods on nodes.
        waiting: Pods without a node: some are gated, and half of them nominated.
        pods: Pods to schedule.
    """
    nodes = [random_node(random, f"node-{number}") for number in range(random.randint(10, 14))]
    names = [node["metadata"]["name"] for node in nodes]
    objects = [random_namespace(random, name) for name in NAMESPACES] + nodes
    holders = [running_pod(random, f"running-{number}", random.choice(names)) for number in range(running)]
    for node in random.sample(nodes, k=3):
        _leave_little(random, node, holders)
    objects += [*holders, *random_volumes(random, NAMESPACES, names), *random_configuration(random)]
    objects += [_replica_set(name, namespace) for name in REPLICA_SETS for namespace in NAMESPACES]
    objects += [_service(random, name, namespace) for name in ("web", "api") for namespace in NAMESPACES]
    objects += [_waiting_pod(random, f"waiting-{number}", names) for number in range(waiting)]
    return RandomCluster(objects, [random_pod(random, f"pod-{number}", names) for number in range(pods)])


def _leave_little(random: Random, node: Json, pods: Sequence[Json]) -> None:
    """Let a node offer what its pods hold, and just as much more as some pods request."""
    on_node = [pod for pod in pods if pod["spec"]["nodeName"] == node["metadata"]["name"]]
    held = Counter[str]()
    for pod in on_node:
        if pod["status"]["phase"] not in ("Succeeded", "Failed"):
            held.update(effective_requests(parse_pod(pod)))
    for name, amounts in (("cpu", CPUS), ("memory", MEMORIES)):
        left = parse_nano(random.choice(amounts)) + held[name]
        node["status"]["allocatable"][name] = format_nano(-(-left // 10**6) * 10**6 if name == "cpu" else left)


def random_configuration(random: Random) -> list[Json]:
    """Return the configuration of the scheduler, if it is not the default one."""
    if random.random() < 0.6:
        return []
    constraints = [
        {
            "topologyKey": key,
            "maxSkew": random.choice((1, 2)),
            "whenUnsatisfiable": random.choice(("DoNotSchedule", "DoNotSchedule", "ScheduleAnyway")),
        }
        for key in random.sample((HOSTNAME, ZONE, REGION), k=random.choice((1, 1, 2)))
    ]
    spread = {"defaultingType": "List", "defaultConstraints": constraints}
    added = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": random.sample("abc", k=2)}]}
    affinity = {"addedAffinity": {REQUIRED: {"nodeSelectorTerms": [added]}}}
    arguments = [{"name": "PodTopologySpread", "args": spread}, {"name": "NodeAffinity", "args": affinity}]
    profile = {"pluginConfig": random.choice((arguments, arguments[:1], arguments[1:]))}
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    return [{**kind, "profiles": [profile]}]


def _replica_set(name: str, namespace: str) -> Json:
    labels = {"pod-template-hash": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "example.com/app:1"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


def _service(random: Random, name: str, namespace: str) -> Json:
    """Return a Service that selects pods by one or two labels, or none."""
    selector = dict(random.sample(sorted(random_labels(random).items()) or [("app", "web")], k=1))
    metadata = {"name": name, "namespace": namespace}
    spec = random.choice(({}, {"selector": selector}, {"selector": selector | random_labels(random)}))
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def random_namespace(random: Random, name: str) -> Json:
    """Return a namespace, some with a label."""
    labels = {"kubernetes.io/metadata.name": name} | random.choice(({}, {"tenant": "x"}, {"tenant": "y"}))
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def random_node(random: Random, name: str) -> Json:
    """Return a ready node."""
    labels = {HOSTNAME: name, ZONE: random.choice("abc"), REGION: random.choice("xy"), "size": random.choice("0159x")}
    labels |= random.choice(({}, {"disk": "ssd"}, {"disk": "hdd"}))
    if random.random() < 0.3:
        del labels[random.choice(list(labels))]
    amounts = node_amounts(random)
    spec: Json = {"taints": list(_random_taints(random)), "unschedulable": random.random() < 0.08}
    status = {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    status["declaredFeatures"] = random.choice(([], FEATURES[:1], FEATURES, FEATURES))
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status}


def _random_taints(random: Random) -> Sequence[Json]:
    count = random.choice((0, 0, 0, 0, 0, 0, 1, 1, 2))
    taints = [
        {"key": random.choice(TAINT_KEYS), "value": random.choice(TAINT_VALUES), "effect": random.choice(EFFECTS)}
        for _ in range(count)
    ]
    return list({(taint["key"], taint["effect"]): taint for taint in taints}.values())


def random_pod(random: Random, name: str, nodes: Sequence[str]) -> Json:
    """Return a pod without a node."""
    spec: Json = {"priority": random.choice(PRIORITIES), **random_containers(random)}
    if random.random() < 0.25:
        _add_host_ports(random, spec)
    if random.random() < 0.5:
        spec["tolerations"] = [_random_toleration(random) for _ in range(random.randint(1, 3))]
    if random.random() < 0.1:
        spec["nodeSelector"] = dict(
            random.sample([("disk", "ssd"), (ZONE, "a"), (REGION, "x")], k=random.choice((1, 1, 2)))
        )
    affinity: Json = {}
    if random.random() < 0.2:
        affinity["nodeAffinity"] = required_node_affinity(random, nodes)
    if random.random() < 0.15:
        affinity |= pod_affinity(random)
    if affinity:
        spec["affinity"] = affinity
    if random.random() < 0.2:
        spec["topologySpreadConstraints"] = topology_spread(random)
    if random.random() < 0.2:
        spec["volumes"] = pod_volumes(random)
    metadata: Json = {
        "name": name,
        "namespace": random.choice(NAMESPACES),
        "uid": f"uid-{name}",
        "labels": random_labels(random),
    }
    if random.random() < 0.3:
        replica_set = random.choice(REPLICA_SETS)
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": replica_set, "uid": "uid", "controller": True}
        metadata["labels"] = {**random_labels(random), "pod-template-hash": replica_set}
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {}}


def _random_toleration(random: Random) -> Json:
    if random.random() < 0.1:
        return {"operator": "Exists"} | random.choice(({}, {"effect": "NoSchedule"}))
    toleration: Json = {"key": random.choice(TAINT_KEYS)}
    toleration |= random.choice(
        ({"operator": "Exists"}, {"operator": "Equal", "value": random.choice(TAINT_VALUES)}, {})
    )
    effect = random.choice(("", "NoSchedule", "NoExecute"))
    return toleration | ({"effect": effect} if effect else {})


def _add_host_ports(random: Random, spec: Json) -> None:
    container = random.choice([*spec["containers"], *spec.get("initContainers", ())])
    ports = [
        {"containerPort": number, "hostPort": number}
        | random.choice(({}, {"protocol": "TCP"}, {"protocol": "UDP"}))
        | ({"hostIP": address} if address else {})
        for number, address in {
            (random.choice(PORTS), random.choice(ADDRESSES)) for _ in range(random.choice((1, 1, 2)))
        }
    ]
    container["ports"] = sorted(ports, key=str)


def running_pod(random: Random, name: str, node: str) -> Json:
    """Return a pod on a node, whatever its constraints."""
    pod = random_pod(random, name, [node])
    pod["spec"]["nodeName"] = node
    pod["status"] = {"phase": random.choice(("Running",) * 8 + ("Pending", "Succeeded", "Failed"))}
    if random.random() < 0.1:
        pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    return pod


def _waiting_pod(random: Random, name: str, nodes: Sequence[str]) -> Json:
    """Return a pod without a node: one that waits, is gated, or is nominated for a node."""
    pod = random_pod(random, name, nodes)
    pod["status"] = {"phase": "Pending"}
    kind = random.random()
    if kind < 0.2:
        pod["spec"]["schedulingGates"] = [{"name": "example.com/gate"}]
    elif kind < 0.7:
        pod["status"]["nominatedNodeName"] = random.choice(nodes)
    return pod
