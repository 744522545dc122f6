"""Claims of devices: what the webhook says when a claim, a template or a workload with claims is created."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest

from tests.builders import make_pod
from tests.cluster.client import Json
from tests.cluster.end_to_end.test_changes import rejection_message
from tests.cluster.installation import Installation
from tests.cluster.polling import eventually
from tests.cluster.published_devices import OF_NVIDIA, published_devices
from tests.cluster.random_claims import API
from tests.device_builders import NVIDIA, card, device_class, mig_device
from tests.engine.test_workload_review import workload
from tests.policy.policy_texts import policy_text

CLASS = "published-gpus"
NOTHING_MATCHES = f"device.attributes['{NVIDIA}'].productName == 'NVIDIA B200'"


@pytest.fixture(scope="module", autouse=True)
def published(site: Installation) -> Iterator[None]:
    """A node whose slice has two cards and a part of another one, and their class; deleted afterwards."""
    devices = [card("gpu-0"), card("gpu-1"), mig_device("gpu-2-mig-0", "1g.10gb", "GPU-2")]
    with published_devices(site.plane, "published-cards", devices, device_class(CLASS, OF_NVIDIA)):
        yield


def claim_spec(expression: str) -> Json:
    """Return the specification of a claim for one device of the class."""
    request = {"deviceClassName": CLASS, "selectors": [{"cel": {"expression": expression}}]}
    return {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}


def claim_object(kind: str, team: str, expression: str) -> Json:
    """Return a claim or a template."""
    spec = claim_spec(expression)
    about = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "gpus", "namespace": team}}
    return about | {"spec": {"spec": spec} if kind == "ResourceClaimTemplate" else spec}


def printed_by(site: Installation, manifest: Json, *flags: str) -> str:
    """Return what kubectl prints on standard error when it creates an object."""
    return site.plane.kubectl("create", *flags, "-f", "-", stdin=json.dumps(manifest)).stderr


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
def test_a_claim_that_matches_nothing_is_warned_about_and_accepted(site: Installation, team: str, kind: str) -> None:
    harmful = claim_object(kind, team, NOTHING_MATCHES)

    def dry_run() -> str:
        return printed_by(site, harmful, "--dry-run=server")

    eventually(dry_run, until=lambda text: "[GPU-D101]" in text)
    harmless = partial(printed_by, site, claim_object(kind, team, "true"), "--dry-run=server")
    eventually(harmless, until=lambda text: text == "")
    assert "Warning: [GPU-D101]" in printed_by(site, harmful)


def test_a_claim_of_an_older_version_is_reviewed_as_the_api_server_converts_it(site: Installation, team: str) -> None:
    """In v1beta1, a request has the fields of `exactly` itself."""
    claim = claim_object("ResourceClaim", team, NOTHING_MATCHES) | {"apiVersion": "resource.k8s.io/v1beta1"}
    request = claim["spec"]["devices"]["requests"][0]
    request |= request.pop("exactly")
    eventually(partial(printed_by, site, claim, "--dry-run=server"), until=lambda text: "[GPU-D101]" in text)


def test_a_workload_with_claims_is_warned_about(site: Installation, team: str) -> None:
    printed_by(site, claim_object("ResourceClaimTemplate", team, NOTHING_MATCHES))
    pod = make_pod().spec(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "gpus"}], restartPolicy="Never")
    job = workload("Job", pod, "batch/v1")
    job["metadata"]["namespace"] = team

    def dry_run() -> str:
        return printed_by(site, job, "--dry-run=server")

    warning = "Warning: [GPU-D101] spec.template.spec.resourceClaims[0]: devices.requests[0]"
    eventually(dry_run, until=lambda text: warning in text)


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
def test_a_claim_that_declares_its_need_gets_the_smallest_device_first(
    site: Installation, team: str, kind: str
) -> None:
    submitted = claim_object(kind, team, "true")
    submitted["metadata"]["annotations"] = {"rightslice.dev/gpu-memory": "8Gi"}

    def dry_run() -> str:
        flags = ("--dry-run=server", "-o", "json")
        return site.plane.kubectl("create", *flags, "-f", "-", stdin=json.dumps(submitted)).stdout

    created = json.loads(eventually(dry_run, until=lambda text: "firstAvailable" in text))
    spec = created["spec"].get("spec", created["spec"])
    (request,) = spec["devices"]["requests"]
    assert request["name"] == "gpu"
    assert [choice["name"] for choice in request["firstAvailable"]] == ["mig-1g-10gb", "requested"]


def test_a_pod_with_a_claim_is_denied_only_where_a_policy_says_so(site: Installation, team: str) -> None:
    site.plane.api.create(
        f"{API}/namespaces/{team}/resourceclaimtemplates", claim_object("ResourceClaimTemplate", team, "true")
    )
    claims = [{"name": name, "resourceClaimTemplateName": "gpus"} for name in ("a", "b")]
    pod = make_pod("claiming").namespace(team).spec(resourceClaims=claims).build()
    eventually(partial(rejection_message, site, pod), until=lambda message: not message)

    limits = {"perPod": [{"resource": "nvidia.com/gpu", "max": 1}]}
    text = policy_text(team, mode="enforce", match={"namespaces": [team]}, limits=limits)
    site.plane.kubectl("apply", "-f", "-", stdin=text)
    message = eventually(partial(rejection_message, site, pod))
    assert (
        "[GPU-L103] spec.resourceClaims[0]: a pod's nvidia.com/gpu with claims must be at most 1 (found 2)" in message
    )
    pod["spec"]["resourceClaims"].pop()
    assert rejection_message(site, pod) == ""
    site.plane.kubectl("delete", "gpupolicy", team)
