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
    RIGHT_SIZED,
    containers_of,
    declared_gpu_milli,
    max_gpu_milli,
)
from tests.cluster.polling import eventually
from tests.cluster.recording_webhook import RecordingWebhook, apply_admission_objects, serve_recording_webhook
from webhook.model.pods import parse_pod

SLICE = "nvidia.com/mig-1g.10gb"
BUSY = {"cpu": "3", "memory": "4Gi"}
PatchFunction = Callable[[Json], list[Json]]


def add_sidecar(pod: Json) -> list[Json]:
    """Return a patch that inserts a sidecar first, which shifts the index of every other container."""
    if any(item["name"] == "proxy" for item in pod["spec"]["containers"]):
        return []
    return [{"op": "add", "path": "/spec/containers/0", "value": {"name": "proxy", "image": "example/proxy:1"}}]


def change_limits(pod: Json) -> list[Json]:
    """Return a patch that changes CPU and memory in requests and limits."""
    operations = []
    for index, resources in _gpu_containers(pod):
        for side in ("limits", "requests"):
            expected = {**resources[side], **BUSY}
            if resources[side] != expected:
                path = f"/spec/containers/{index}/resources/{side}"
                operations.append({"op": "replace", "path": path, "value": expected})
    return operations


def request_gpus(count: str) -> PatchFunction:
    """Return a patch that replaces all GPU requests by whole GPUs."""

    def make_patch(pod: Json) -> list[Json]:
        operations = []
        for index, resources in _gpu_containers(pod):
            for side in ("limits", "requests"):
                others = {name: item for name, item in resources[side].items() if not name.startswith("nvidia.com/")}
                expected = {**others, GPU: count}
                if resources[side] != expected:
                    path = f"/spec/containers/{index}/resources/{side}"
                    operations.append({"op": "replace", "path": path, "value": expected})
        return operations

    return make_patch


def remove_annotations(pod: Json) -> list[Json]:
    """Return a patch that removes our annotations."""
    ours = ("rightslice.dev/decision", "rightslice.dev/original-resources")
    present = [name for name in ours if name in pod["metadata"].get("annotations", {})]
    return [{"op": "remove", "path": f"/metadata/annotations/{name.replace('/', '~1')}"} for name in present]


def _gpu_containers(pod: Json) -> list[tuple[int, Json]]:
    """Return the index and resources of every container that requests GPUs."""
    each = [(index, item.get("resources", {})) for index, item in enumerate(pod["spec"]["containers"])]
    return [(index, found) for index, found in each if any("nvidia" in name for name in found.get("limits", ()))]


class WebhookPosition(NamedTuple):
    """A webhook configuration; they are called in name order, and again if reinvocation is IfNeeded."""

    name: str
    reinvocation: str = "Never"


BEFORE, AFTER = "a-vendor", "z-vendor"
POSITIONS: Mapping[str, tuple[WebhookPosition, ...]] = {
    "before ours": (WebhookPosition(BEFORE),),
    "between our two calls": (WebhookPosition(AFTER),),
    "before ours and between": (WebhookPosition(BEFORE, "IfNeeded"),),
    "between and after ours": (WebhookPosition(AFTER, "IfNeeded"),),
    "everywhere": (WebhookPosition(BEFORE, "IfNeeded"), WebhookPosition(AFTER, "IfNeeded")),
}
PATCHES: Mapping[str, tuple[PatchFunction, Json]] = {
    "adds a sidecar": (add_sidecar, {SLICE: "1"}),
    "changes limits": (change_limits, {SLICE: "1"}),
    "requests two GPUs": (request_gpus("2"), {GPU: "2"}),
    "removes our annotations": (remove_annotations, {SLICE: "1"}),
}
CASES = {
    f"{make_patch} {position}": (POSITIONS[position], *PATCHES[make_patch])
    for make_patch, position in product(PATCHES, POSITIONS)
}


@pytest.fixture(scope="module")
def namespace(sizing: Installation) -> Iterator[str]:
    """A namespace with right-sizing and GPU accounting."""
    name = sizing.plane.add_namespace(f"order-{secrets.token_hex(3)}", {**RIGHT_SIZED, **ACCOUNTED})
    # What earlier tests left on this control plane may hold every slice for a while.
    eventually(lambda: gpu_amounts(dry_run_pod(sizing, name, "first"), "limits"), until=lambda found: SLICE in found)
    yield name
    sizing.plane.api.delete(f"/api/v1/namespaces/{name}")


def webhook_configuration(position: WebhookPosition, other: RecordingWebhook, namespace: str) -> Json:
    """Return the configuration of the other webhook."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": position.name},
        "webhooks": [
            {
                "name": f"{position.name}.example.com",
                "clientConfig": {"url": f"{other.url}/{position.name}", "caBundle": other.bundle},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "reinvocationPolicy": position.reinvocation,
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }


def dry_run_pod(site: Installation, namespace: str, name: str) -> ApiAnswer:
    """Return the dry-run answer for a pod with one GPU that needs a slice."""
    pod = make_pod(name).namespace(namespace).needs("8Gi").gpus(1).build()
    return ApiAnswer(201, site.plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All"))


@pytest.mark.parametrize(("positions", "make_patch", "expected"), CASES.values(), ids=CASES)
def test_the_final_pod_is_consistent_with_another_mutating_webhook(
    sizing: Installation,
    namespace: str,
    positions: tuple[WebhookPosition, ...],
    make_patch: PatchFunction,
    expected: Json,
) -> None:
    with register_other_webhook(sizing, namespace, positions, make_patch):
        pod = dry_run_pod(sizing, namespace, "pod")

    assert_consistent(pod, expected)
    assert make_patch is remove_annotations or make_patch(pod.body) == [], (
        "the final pod has the other webhook's change"
    )


def test_a_webhook_that_reverts_the_slice_is_rejected(sizing: Installation, namespace: str) -> None:
    """It reverts our patch each time and runs after us: the pod is rejected because its gpu-milli would be too low."""
    reverting = register_other_webhook(sizing, namespace, POSITIONS["between and after ours"], request_gpus("1"))
    with reverting, pytest.raises(RefusedError, match=r"must be 1000, the amount of its GPUs \(found 143\)"):
        dry_run_pod(sizing, namespace, "pod")


@contextmanager
def register_other_webhook(
    site: Installation, namespace: str, positions: tuple[WebhookPosition, ...], make_patch: PatchFunction
) -> Iterator[None]:
    """Register the other webhook at all of these positions within the block."""
    names = {position.name for position in positions}
    with serve_recording_webhook(lambda request: make_patch(request["object"])) as other:

        def called_positions() -> set[str]:
            with suppress(RefusedError):
                dry_run_pod(site, namespace, "try")
            return other.paths_called_for("try")

        with apply_admission_objects(
            site.plane, [webhook_configuration(position, other, namespace) for position in positions]
        ):
            eventually(called_positions, until=lambda called: called == names)
            yield


def gpu_amounts(pod: ApiAnswer, side: str) -> Json:
    """Return the GPUs in the limits or requests of the main container."""
    (main,) = [item for item in containers_of(pod) if item["name"] == "main"]
    return {name: item for name, item in main["resources"][side].items() if name.startswith("nvidia.com/")}


def assert_consistent(pod: ApiAnswer, expected: Json) -> None:
    """Assert the resource, its gpu-milli, and that a node offers it."""
    for side in ("limits", "requests"):
        assert gpu_amounts(pod, side) == expected, pod.body["metadata"].get("annotations")
    assert declared_gpu_milli(pod) == max_gpu_milli(pod)
    spec = parse_pod(pod.body).spec
    affinity = spec.affinity.node_affinity if spec.affinity else None
    terms = affinity.required.node_selector_terms if affinity and affinity.required else None
    nodes = FLEET.select_nodes(spec.node_selector, terms) & FLEET.tolerated_nodes(spec.tolerations)
    (name,) = expected
    assert any(offer.nodes & nodes for offer in FLEET.by_resource[name])
    assert len(set(map(str, spec.tolerations))) == len(spec.tolerations)
    for term in terms or ():
        assert len(set(map(str, term.match_expressions))) == len(term.match_expressions)
