"""What a scheduler's configuration adds keeps a pod off slices, and what is not modeled keeps its request."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.builders import Json, PodMaker, make_node, make_pod
from tests.example_cluster import A100, MIXED, review
from webhook.cache.snapshot import read_schedulers
from webhook.errors import SnapshotError
from webhook.model.decisions import KeepReason, KeepRequest
from webhook.model.schedulers import SCHEDULER_API_VERSION

SIZING = "mode: enforce\nrightSizing: {}"
SLICE, GPU, ZONE = "nvidia.com/mig-1g.10gb", "nvidia.com/gpu", "zone"
HASH = "pod-template-hash"


def configuration(*profiles: Json, **more: Any) -> Json:
    """Return a configuration of a scheduler."""
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    return {**kind, **({"profiles": list(profiles)} if profiles else {}), **more}


def profile(plugin: str = "", args: Json | None = None, name: str = "default-scheduler", **plugins: Json) -> Json:
    """Return a profile with arguments of one plugin, and with further plugins."""
    return {
        "schedulerName": name,
        "plugins": plugins,
        "pluginConfig": [{"name": plugin, "args": args}] if plugin else [],
    }


def spread(kind: str = "List", when: str = "DoNotSchedule") -> Json:
    """Return arguments with a default constraint over zones."""
    constraint = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": when}
    return {"defaultingType": kind, "defaultConstraints": [constraint]}


def added_affinity(zone: str) -> Json:
    """Return arguments by which every pod runs in a zone."""
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
    return {"addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def small(**spec: Any) -> PodMaker:
    """Return a pod that requests one GPU and needs 8Gi."""
    return make_pod().gpus(1).needs("8Gi").spec(**spec)


def owned(kind: str, pod: PodMaker | None = None) -> PodMaker:
    """Return a pod of a controller."""
    found = pod or small()
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": "a", "uid": "a", "controller": True}
    found.data["metadata"]["ownerReferences"] = [owner]
    return found


def replica(pod: PodMaker | None = None, template: str = "x") -> PodMaker:
    """Return a pod of a ReplicaSet."""
    return owned("ReplicaSet", pod).label(HASH, template)


def running(template: str) -> Json:
    """Return a pod of a ReplicaSet in the zone of the slices."""
    return replica(make_pod("running"), template).spec(nodeName="slices").build()


def service(app: str, namespace: str = "team", key: str = "app", selector: Json | None = None) -> Json:
    """Return a Service that selects pods with a label."""
    metadata = {"name": app or "none", "namespace": namespace}
    spec = {"selector": {key: app} if selector is None else selector}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def stateful_set(app: str) -> Json:
    """Return the StatefulSet of the pods with a label."""
    spec = {"selector": {"matchLabels": {"app": app}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "a", "namespace": "team"},
        "spec": spec,
    }


def labeled(app: str, node: str = "slices") -> Json:
    """Return a pod with a label that runs on a node."""
    return make_pod("labeled").label("app", app).spec(nodeName=node).build()


def cards(name: str, zone: str) -> Json:
    """Return a node with whole cards."""
    return make_node(name, A100 | {ZONE: zone}, **{GPU: 8})


NODES = (
    make_node("slices", MIXED | {ZONE: "east"}, **{SLICE: 7}),
    cards("cards", "west"),
)
OWN = [
    {
        "topologyKey": ZONE,
        "maxSkew": 9,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {HASH: "x"}},
    }
]
SPREAD = configuration(profile("PodTopologySpread", spread()))
UNKNOWN, EXCLUDED = KeepReason.UNMODELED_CONSTRAINT, KeepReason.TOPOLOGY_SPREAD


class Case(NamedTuple):
    pod: PodMaker
    objects: tuple[Json, ...]
    want: KeepReason | None = None


CASES = {
    "no configuration is known": Case(replica(), (running("x"),)),
    "a default spread, and the zone of the slices has a pod of the ReplicaSet": Case(
        replica(), (SPREAD, running("x")), EXCLUDED
    ),
    "a default spread, and the zone has a pod of another ReplicaSet": Case(replica(), (SPREAD, running("y"))),
    "a default spread, and a constraint of its own": Case(
        replica(small(topologySpreadConstraints=OWN)), (SPREAD, running("x"))
    ),
    "a default spread of a scheduler that the pod does not use": Case(
        replica(small(schedulerName="other")), (SPREAD, running("x"))
    ),
    "a default spread of the scheduler that the pod uses": Case(
        replica(small(schedulerName="other")),
        (configuration(profile("PodTopologySpread", spread(), "other")), running("x")),
        EXCLUDED,
    ),
    "the default spread of Kubernetes": Case(
        replica(), (configuration(profile("PodTopologySpread", spread("System"))), running("x"))
    ),
    "a default spread that only ranks nodes": Case(
        replica(), (configuration(profile("PodTopologySpread", spread(when="ScheduleAnyway"))), running("x"))
    ),
    "a default spread by Services, which may select a pod with labels": Case(
        small().label("app", "a"), (SPREAD,), UNKNOWN
    ),
    "a default spread by the selector of a StatefulSet": Case(owned("StatefulSet"), (SPREAD,), UNKNOWN),
    "a default spread, and a pod that nothing selects": Case(owned("Job"), (SPREAD,)),
    "a default spread, and a pod that no Service selects": Case(
        small().label("app", "a"), (SPREAD, service("b"), labeled("a"))
    ),
    "a default spread, and a Service that selects pods in the zone of the slices": Case(
        small().label("app", "a"), (SPREAD, service("a"), labeled("a")), EXCLUDED
    ),
    "a default spread, and a Service that selects pods elsewhere": Case(
        small().label("app", "a"), (SPREAD, service("a"), labeled("a", "cards"))
    ),
    "a default spread, and a Service of another namespace": Case(
        small().label("app", "a"), (SPREAD, service("a", "other"), labeled("a"))
    ),
    "a default spread, and a Service without a selector": Case(
        small().label("app", "a"), (SPREAD, service("", selector={}), labeled("a"))
    ),
    "two Services, and only one selects the pods that run": Case(
        small().label("app", "a").label("tier", "x"),
        (SPREAD, service("a"), service("x", key="tier"), labeled("a")),
    ),
    "a pod of a StatefulSet that is known": Case(
        owned("StatefulSet", small().label("app", "a")),
        (SPREAD, service("b"), stateful_set("a"), labeled("a")),
        EXCLUDED,
    ),
    "a pod of a StatefulSet whose pods run elsewhere": Case(
        owned("StatefulSet", small().label("app", "a")),
        (SPREAD, service("b"), stateful_set("a"), labeled("a", "cards")),
    ),
    "a pod of a StatefulSet that is not known": Case(
        owned("StatefulSet", small().label("app", "a")), (SPREAD, service("b"), labeled("a")), UNKNOWN
    ),
    "a pod of a ReplicationController, whose selector is not read": Case(
        owned("ReplicationController", small().label("app", "a")), (SPREAD, service("b")), UNKNOWN
    ),
    "added affinity to the zone of the slices": Case(
        small(), (configuration(profile("NodeAffinity", added_affinity("east"))), cards("more", "east"))
    ),
    "added affinity to another zone": Case(
        small(), (configuration(profile("NodeAffinity", added_affinity("west"))),), KeepReason.UNREACHABLE
    ),
    "a plugin of others that may exclude nodes": Case(
        small(), (configuration(profile(filter={"enabled": [{"name": "Capacity"}]})),), UNKNOWN
    ),
    "a plugin of others at every extension point": Case(
        small(), (configuration(profile(multiPoint={"enabled": [{"name": "Capacity"}]})),), UNKNOWN
    ),
    "a plugin of others that only ranks nodes": Case(
        small(), (configuration(profile(score={"enabled": [{"name": "Capacity"}]})),)
    ),
    "plugins that are disabled, and one of Kubernetes that is enabled": Case(
        small(),
        (configuration(profile(multiPoint={"disabled": [{"name": "*"}], "enabled": [{"name": "NodeAffinity"}]})),),
    ),
    "an extender of others that may exclude nodes": Case(
        small(), (configuration(extenders=[{"urlPrefix": "http://10.0.0.1", "filterVerb": "filter"}]),), UNKNOWN
    ),
    "an extender of others that only ranks nodes": Case(
        small(), (configuration(extenders=[{"urlPrefix": "http://10.0.0.1", "prioritizeVerb": "prioritize"}]),)
    ),
    "the extender of Rightslice": Case(
        small(),
        (
            configuration(
                extenders=[
                    {
                        "urlPrefix": "https://10.0.0.1",
                        "filterVerb": "filter",
                        "tlsConfig": {"serverName": "rightslice-extender.rightslice-system.svc"},
                    }
                ]
            ),
        ),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_configuration_of_the_scheduler_counts(case: Case) -> None:
    outcome = review(case.pod, SIZING, nodes=(*NODES, *case.objects)).outcome

    assert (outcome.reason if isinstance(outcome, KeepRequest) else None) is case.want


def test_the_reason_names_what_is_not_known() -> None:
    objects = configuration(profile(filter={"enabled": [{"name": "Capacity"}]}))

    outcome = review(small(), SIZING, nodes=(*NODES, objects)).outcome
    waits = review(small(), "mode: enforce\nrightSizing: {whenFull: wait}", nodes=(*NODES, objects)).outcome

    assert isinstance(outcome, KeepRequest)
    assert outcome.detail == "plugin Capacity of its scheduler"
    assert not isinstance(waits, KeepRequest)


def written(text: str) -> str:
    """Return the text of a configuration with one more line."""
    return f"apiVersion: {SCHEDULER_API_VERSION}\nkind: KubeSchedulerConfiguration\n{text}\n"


def with_args(plugin: str, args: str) -> str:
    """Return the text of a configuration with arguments of a plugin."""
    return written(f"profiles: [{{pluginConfig: [{{name: {plugin}, args: {{{args}}}}}]}}]")


MISTAKES = {
    "kind: Node\napiVersion: v1\nmetadata: {name: a}\n": "must be a KubeSchedulerConfiguration",
    f"apiVersion: {SCHEDULER_API_VERSION}\nkind: KubeSchedulerConfiguration\nprofiles: {{}}\n": "must be a list",
    "apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration\n": (
        r"found \S+:1:1: 1 of kind KubeSchedulerConfiguration \(kubescheduler.config.k8s.io/v1beta3\) skipped"
    ),
    written(
        "profils: []"
    ): r"yaml:3:10: KubeSchedulerConfiguration: profils: must be .*, found 'profils'. Write profiles",
    written("profiles: [{plugins: {filters: {}}}]"): r"profiles\[0\].plugins.filters: .* Write filter",
    written("profiles: [{plugins: {filter: {enable: []}}}]"): r"plugins.filter.enable: .* Write enabled",
    written("extenders: [{filterVerbs: filter}]"): r"extenders\[0\].filterVerbs: .* Write filterVerb",
    with_args("PodTopologySpread", "defaultingType: Lists"): "must be System or List, found 'Lists'. Write List",
    with_args("PodTopologySpread", "defaultingType: list"): "must be System or List, found 'list'. Write List",
    with_args("PodTopologySpread", "defaultConstraints: [{whenUnsatisfiable: DoNot}]"): (
        r"args.defaultConstraints\[0\].whenUnsatisfiable: must be .*, found 'DoNot'. Write DoNotSchedule"
    ),
    with_args("NodeAffinity", "addedAfinity: {}"): "args.addedAfinity: .* Write addedAffinity",
}


def test_the_arguments_of_other_plugins_are_not_checked(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(with_args("Capacity", "anything: 1"))
    assert list(read_schedulers(str(file))) == ["default-scheduler"]


@pytest.mark.parametrize(("text", "message"), MISTAKES.items(), ids=MISTAKES.values())
def test_a_file_without_a_usable_configuration_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(text)

    with pytest.raises(SnapshotError, match=message):
        read_schedulers(str(file))
