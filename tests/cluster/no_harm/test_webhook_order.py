"""Another mutating webhook before, after and between our calls: the final pod is right-sized or unchanged."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import product
from typing import NamedTuple

import pytest

from tests.builders import make_pod
from tests.cluster.client import Json, RefusedError
from tests.cluster.dryrun import ApiAnswer
from tests.cluster.installation import Installation
from tests.cluster.no_harm.admission_trials import (
    ACCOUNTED,
    FLEET,
    GPU,
    SIZED,
    containers_of,
    declared_gpu_milli,
    max_gpu_milli,
)
from tests.cluster.polling import eventually
from tests.cluster.recording_webhook import RecordingWebhook, apply_admission_objects, serve_recording_webhook
from webhook.model.pods import parse_pod

SLICE = "nvidia.com/mig-1g.10gb"
BUSY = {"cpu": "3", "memory": "4Gi"}
Act = Callable[[Json], list[Json]]


def add_sidecar(pod: Json) -> list[Json]:
    """At the front, so that every other container stands elsewhere afterwards."""
    if any(one["name"] == "proxy" for one in pod["spec"]["containers"]):
        return []
    return [{"op": "add", "path": "/spec/containers/0", "value": {"name": "proxy", "image": "example/proxy:1"}}]


def change_limits(pod: Json) -> list[Json]:
    """CPU and memory, in requests and limits."""
    operations = []
    for place, resources in _gpu_containers(pod):
        for side in ("limits", "requests"):
            wanted = {**resources[side], **BUSY}
            if resources[side] != wanted:
                path = f"/spec/containers/{place}/resources/{side}"
                operations.append({"op": "replace", "path": path, "value": wanted})
    return operations


def request_gpus(count: str) -> Act:
    """Return a patch that replaces all GPU requests by whole GPUs."""

    def act(pod: Json) -> list[Json]:
        operations = []
        for place, resources in _gpu_containers(pod):
            for side in ("limits", "requests"):
                others = {name: one for name, one in resources[side].items() if not name.startswith("nvidia.com/")}
                wanted = {**others, GPU: count}
                if resources[side] != wanted:
                    path = f"/spec/containers/{place}/resources/{side}"
                    operations.append({"op": "replace", "path": path, "value": wanted})
        return operations

    return act


def remove_annotations(pod: Json) -> list[Json]:
    """Return a patch that removes our annotations."""
    ours = ("rightslice.dev/decision", "rightslice.dev/original-resources")
    there = [name for name in ours if name in pod["metadata"].get("annotations", {})]
    return [{"op": "remove", "path": f"/metadata/annotations/{name.replace('/', '~1')}"} for name in there]


def _gpu_containers(pod: Json) -> list[tuple[int, Json]]:
    """Return the index and resources of every container that requests GPUs."""
    each = [(place, one.get("resources", {})) for place, one in enumerate(pod["spec"]["containers"])]
    return [(place, found) for place, found in each if any("nvidia" in name for name in found.get("limits", ()))]


class WebhookPosition(NamedTuple):
    """Webhooks are called in the order of their configurations' names, each once more where its policy says so."""

    name: str
    again: str = "Never"


BEFORE, AFTER = "a-vendor", "z-vendor"
PLACES: Mapping[str, tuple[WebhookPosition, ...]] = {
    "before us": (WebhookPosition(BEFORE),),
    "between our two calls": (WebhookPosition(AFTER),),
    "before us and between": (WebhookPosition(BEFORE, "IfNeeded"),),
    "between us and after": (WebhookPosition(AFTER, "IfNeeded"),),
    "everywhere": (WebhookPosition(BEFORE, "IfNeeded"), WebhookPosition(AFTER, "IfNeeded")),
}
ACTS: Mapping[str, tuple[Act, Json]] = {
    "adds a sidecar": (add_sidecar, {SLICE: "1"}),
    "changes limits": (change_limits, {SLICE: "1"}),
    "asks for two GPUs": (request_gpus("2"), {GPU: "2"}),
    "removes our records": (remove_annotations, {SLICE: "1"}),
}
CASES = {f"{act} {place}": (PLACES[place], *ACTS[act]) for act, place in product(ACTS, PLACES)}


@pytest.fixture(scope="module")
def space(sizing: Installation) -> Iterator[str]:
    """A namespace with right-sizing and GPU accounting."""
    name = sizing.plane.add_namespace(f"order-{secrets.token_hex(3)}", {**SIZED, **ACCOUNTED})
    yield name
    sizing.plane.api.delete(f"/api/v1/namespaces/{name}")


def webhook_configuration(where: WebhookPosition, other: RecordingWebhook, space: str) -> Json:
    """Return the configuration of the other webhook."""
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


def dry_run_pod(site: Installation, space: str, name: str) -> ApiAnswer:
    """Return the dry-run answer for a pod with one GPU that needs a slice."""
    pod = make_pod(name).namespace(space).needs("8Gi").gpus(1).build()
    return ApiAnswer(201, site.plane.api.create(f"/api/v1/namespaces/{space}/pods", pod, dryRun="All"))


@pytest.mark.parametrize(("places", "act", "wanted"), CASES.values(), ids=CASES)
def test_the_final_pod_is_consistent_with_another_mutating_webhook(
    sizing: Installation, space: str, places: tuple[WebhookPosition, ...], act: Act, wanted: Json
) -> None:
    with register_other_webhook(sizing, space, places, act):
        pod = dry_run_pod(sizing, space, "pod")

    assert_consistent(pod, wanted)
    assert act is remove_annotations or act(pod.body) == [], "what the other one wants is so"


def test_a_webhook_that_reverts_the_slice_is_rejected(sizing: Installation, space: str) -> None:
    """It reverts our patch each time and runs after us: the pod is rejected because its gpu-milli would be too low."""
    undoing = register_other_webhook(sizing, space, PLACES["between us and after"], request_gpus("1"))
    with undoing, pytest.raises(RefusedError, match=r"must be 1000, the amount of its GPUs \(found 143\)"):
        dry_run_pod(sizing, space, "pod")


@contextmanager
def register_other_webhook(
    site: Installation, space: str, places: tuple[WebhookPosition, ...], act: Act
) -> Iterator[None]:
    """Register the other webhook at all of these positions within the block."""
    names = {where.name for where in places}
    with serve_recording_webhook(lambda request: act(request["object"])) as other:

        def asked() -> set[str]:
            with suppress(RefusedError):
                dry_run_pod(site, space, "try")
            return other.paths_called_for("try")

        with apply_admission_objects(site.plane, [webhook_configuration(where, other, space) for where in places]):
            eventually(asked, until=lambda called: called == names)
            yield


def assert_consistent(pod: ApiAnswer, wanted: Json) -> None:
    """Assert the resource, its gpu-milli, and that a node offers it."""
    (main,) = [one for one in containers_of(pod) if one["name"] == "main"]
    for side in ("limits", "requests"):
        assert {name: one for name, one in main["resources"][side].items() if name.startswith("nvidia.com/")} == wanted
    assert declared_gpu_milli(pod) == max_gpu_milli(pod)
    spec = parse_pod(pod.body).spec
    affinity = spec.affinity.node_affinity if spec.affinity else None
    terms = affinity.required.node_selector_terms if affinity and affinity.required else None
    nodes = FLEET.select_nodes(spec.node_selector, terms) & FLEET.tolerated_nodes(spec.tolerations)
    (name,) = wanted
    assert any(offer.nodes & nodes for offer in FLEET.by_resource[name])
    assert len(set(map(str, spec.tolerations))) == len(spec.tolerations)
    for term in terms or ():
        assert len(set(map(str, term.match_expressions))) == len(term.match_expressions)
