"""Another mutating webhook before, after and between our calls: the end state is right, or what was asked for."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import product
from typing import NamedTuple

import pytest

from tests.builders import make_pod
from tests.cluster.client import Json, RefusedError
from tests.cluster.dryrun import Answer
from tests.cluster.installation import Installed
from tests.cluster.no_harm.admission_trials import ACCOUNTED, FLEET, GPU, SIZED, containers_of, declared, weights
from tests.cluster.polling import eventually
from tests.cluster.recording_webhook import Recorder, recording, stored
from webhook.model.pods import parse_pod

SLICE = "nvidia.com/mig-1g.10gb"
BUSY = {"cpu": "3", "memory": "4Gi"}
Act = Callable[[Json], list[Json]]


def adds_a_sidecar(pod: Json) -> list[Json]:
    """At the front, so that every other container stands elsewhere afterwards."""
    if any(one["name"] == "proxy" for one in pod["spec"]["containers"]):
        return []
    return [{"op": "add", "path": "/spec/containers/0", "value": {"name": "proxy", "image": "example/proxy:1"}}]


def changes_limits(pod: Json) -> list[Json]:
    """CPU and memory, in requests and limits."""
    operations = []
    for place, resources in _asking(pod):
        for side in ("limits", "requests"):
            wanted = {**resources[side], **BUSY}
            if resources[side] != wanted:
                path = f"/spec/containers/{place}/resources/{side}"
                operations.append({"op": "replace", "path": path, "value": wanted})
    return operations


def asks_for_gpus(count: str) -> Act:
    """Whatever GPUs were asked for, whole ones take their place."""

    def act(pod: Json) -> list[Json]:
        operations = []
        for place, resources in _asking(pod):
            for side in ("limits", "requests"):
                others = {name: one for name, one in resources[side].items() if not name.startswith("nvidia.com/")}
                wanted = {**others, GPU: count}
                if resources[side] != wanted:
                    path = f"/spec/containers/{place}/resources/{side}"
                    operations.append({"op": "replace", "path": path, "value": wanted})
        return operations

    return act


def removes_our_records(pod: Json) -> list[Json]:
    """Whatever we wrote down."""
    ours = ("rightslice.dev/decision", "rightslice.dev/original-resources")
    there = [name for name in ours if name in pod["metadata"].get("annotations", {})]
    return [{"op": "remove", "path": f"/metadata/annotations/{name.replace('/', '~1')}"} for name in there]


def _asking(pod: Json) -> list[tuple[int, Json]]:
    """Place and resources of every container that asks for GPUs."""
    each = [(place, one.get("resources", {})) for place, one in enumerate(pod["spec"]["containers"])]
    return [(place, found) for place, found in each if any("nvidia" in name for name in found.get("limits", ()))]


class Where(NamedTuple):
    """Webhooks are called in the order of their configurations' names, each once more where its policy says so."""

    name: str
    again: str = "Never"


BEFORE, AFTER = "a-vendor", "z-vendor"
PLACES: Mapping[str, tuple[Where, ...]] = {
    "before us": (Where(BEFORE),),
    "between our two calls": (Where(AFTER),),
    "before us and between": (Where(BEFORE, "IfNeeded"),),
    "between us and after": (Where(AFTER, "IfNeeded"),),
    "everywhere": (Where(BEFORE, "IfNeeded"), Where(AFTER, "IfNeeded")),
}
ACTS: Mapping[str, tuple[Act, Json]] = {
    "adds a sidecar": (adds_a_sidecar, {SLICE: "1"}),
    "changes limits": (changes_limits, {SLICE: "1"}),
    "asks for two GPUs": (asks_for_gpus("2"), {GPU: "2"}),
    "removes our records": (removes_our_records, {SLICE: "1"}),
}
CASES = {f"{act} {place}": (PLACES[place], *ACTS[act]) for act, place in product(ACTS, PLACES)}


@pytest.fixture(scope="module")
def space(sizing: Installed) -> Iterator[str]:
    """A namespace whose pods are right-sized and weighed."""
    name = sizing.plane.add_namespace(f"order-{secrets.token_hex(3)}", {**SIZED, **ACCOUNTED})
    yield name
    sizing.plane.api.delete(f"/api/v1/namespaces/{name}")


def hook(where: Where, other: Recorder, space: str) -> Json:
    """The configuration of the other one."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": where.name},
        "webhooks": [
            {
                "name": f"{where.name}.example.com",
                "clientConfig": {"url": f"{other.url}/{where.name}", "caBundle": other.bundle},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space}},
                "reinvocationPolicy": where.again,
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }


def tried(site: Installed, space: str, name: str) -> Answer:
    """What becomes of a pod with one GPU that needs a slice. Nothing is stored."""
    pod = make_pod(name).namespace(space).needs("8Gi").gpus(1).build()
    return Answer(201, site.plane.api.create(f"/api/v1/namespaces/{space}/pods", pod, dryRun="All"))


@pytest.mark.parametrize(("places", "act", "wanted"), CASES.values(), ids=CASES)
def test_the_end_state_is_right_whoever_else_changes_the_pod(
    sizing: Installed, space: str, places: tuple[Where, ...], act: Act, wanted: Json
) -> None:
    with others(sizing, space, places, act):
        pod = tried(sizing, space, "pod")

    assert_right(pod, wanted)
    assert act is removes_our_records or act(pod.body) == [], "what the other one wants is so"


def test_who_has_the_last_word_on_gpus_does_not_get_them_at_the_price_of_a_slice(sizing: Installed, space: str) -> None:
    """It undoes our change each time, and is asked after us: the pod is refused, for it would weigh too little."""
    undoing = others(sizing, space, PLACES["between us and after"], asks_for_gpus("1"))
    with undoing, pytest.raises(RefusedError, match=r"must be 1000, the amount of its GPUs \(found 143\)"):
        tried(sizing, space, "pod")


@contextmanager
def others(site: Installed, space: str, places: tuple[Where, ...], act: Act) -> Iterator[None]:
    """Inside, somebody else's webhook is asked at all of these places."""
    names = {where.name for where in places}
    with recording(lambda request: act(request["object"])) as other:

        def asked() -> set[str]:
            with suppress(RefusedError):
                tried(site, space, "try")
            return other.called("try")

        with stored(site.plane, [hook(where, other, space) for where in places]):
            eventually(asked, until=lambda called: called == names)
            yield


def assert_right(pod: Answer, wanted: Json) -> None:
    """It asks for what is wanted, is told to weigh what it weighs, and there is a node that has it."""
    (main,) = [one for one in containers_of(pod) if one["name"] == "main"]
    for side in ("limits", "requests"):
        assert {name: one for name, one in main["resources"][side].items() if name.startswith("nvidia.com/")} == wanted
    assert declared(pod) == weights(pod)
    spec = parse_pod(pod.body).spec
    affinity = spec.affinity.node_affinity if spec.affinity else None
    terms = affinity.required.node_selector_terms if affinity and affinity.required else None
    nodes = FLEET.select_nodes(spec.node_selector, terms) & FLEET.tolerated_nodes(spec.tolerations)
    (name,) = wanted
    assert any(offer.nodes & nodes for offer in FLEET.by_resource[name])
    assert len(set(map(str, spec.tolerations))) == len(spec.tolerations)
    for term in terms or ():
        assert len(set(map(str, term.match_expressions))) == len(term.match_expressions)
