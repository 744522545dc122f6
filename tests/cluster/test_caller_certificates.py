"""The certificate that an API server presents to webhooks: required once it does, and never before."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from tests.builders import Json, make_pod
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.controlplane.build import control_plane, wanted_version
from tests.server.site import PAIR, Site
from tests.server.test_client_certificates import readiness_line, reloading_site, status_for

pytestmark = pytest.mark.cluster

NAME = "front-proxy-client"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
CLASSES = ("MutatingAdmissionWebhook", "ValidatingAdmissionWebhook")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """The authority of the certificate that the API server presents."""
    return trustme.CA()


@pytest.fixture(scope="module")
def presenting_plane(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A control plane whose API server presents a certificate to every webhook, as SECURITY.md describes."""
    folder = tmp_path_factory.mktemp("presenting")
    certificate = authority.issue_cert(common_name=NAME)
    certificate.private_key_and_cert_chain_pem.write_to_path(folder / "client.pem")
    user = {"client-certificate": str(folder / "client.pem"), "client-key": str(folder / "client.pem")}
    users = {"apiVersion": "v1", "kind": "Config", "users": [{"name": "*", "user": user}]}
    (folder / "webhooks.yaml").write_text(json.dumps(users))
    group = "apiserver.config.k8s.io/v1"
    webhooks = {"kind": "WebhookAdmissionConfiguration", "kubeConfigFile": str(folder / "webhooks.yaml")}
    plugins = [{"name": name, "configuration": {"apiVersion": group, **webhooks}} for name in CLASSES]
    admission = {"apiVersion": group, "kind": "AdmissionConfiguration", "plugins": plugins}
    (folder / "admission.yaml").write_text(json.dumps(admission))
    flags = [f"--admission-control-config-file={folder / 'admission.yaml'}"]
    with Plane(control_plane(wanted_version()), folder / "plane", apiserver_flags=flags) as plane:
        yield plane


@contextmanager
def registered(plane: Plane, site: Site) -> Iterator[None]:
    """Let the API server call a site for every new pod in namespaces with a label; it must answer."""
    client = {"url": f"https://127.0.0.1:{site.port}/validate", "caBundle": b64encode(PAIR.authority).decode()}
    hook = {
        "name": "validate.rightslice.dev",
        "clientConfig": client,
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"callers": "tested"}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    plane.api.create(CONFIGURATION, {"metadata": {"name": "callers"}, "webhooks": [hook]})
    plane.add_namespace("callers", {"callers": "tested"})
    try:
        eventually(lambda: is_reviewed(plane, site, "first"))
        yield
    finally:
        plane.api.delete(f"{CONFIGURATION}/callers")
        plane.api.delete("/api/v1/namespaces/callers")


def is_reviewed(plane: Plane, site: Site, name: str) -> bool:
    """Create a pod, which must succeed, and return whether the site reviewed it."""
    before = reviews(site)
    pod: Json = make_pod(name).namespace("callers").build()
    plane.api.create("/api/v1/namespaces/callers/pods", pod, dryRun="All")
    return reviews(site) > before


def reviews(site: Site) -> float:
    """Return how many reviews a site has answered."""
    return site.metric("rightslice_admission_requests_total", route="validate", result="allowed")


def test_an_api_server_that_presents_none_is_never_locked_out(
    plane: Plane, authority: trustme.CA, tmp_path: Path
) -> None:
    with reloading_site(tmp_path) as (site, files), registered(plane, site):
        (tmp_path / "name").write_text(NAME)
        files.authorities.write_bytes(authority.cert_pem.bytes())
        site.until(lambda: "until a client connects with" in readiness_line(site))

        assert [is_reviewed(plane, site, f"pod-{index}") for index in range(5)] == [True] * 5
        assert "until a client connects with" in readiness_line(site)


def test_the_certificate_that_an_api_server_presents_is_required_from_then_on(
    presenting_plane: Plane, authority: trustme.CA, tmp_path: Path
) -> None:
    with reloading_site(tmp_path) as (site, files), registered(presenting_plane, site):
        assert status_for(site, None) == 200
        (tmp_path / "name").write_text(NAME)
        files.authorities.write_bytes(authority.cert_pem.bytes())
        site.until(lambda: "until a client connects with" in readiness_line(site))

        assert [is_reviewed(presenting_plane, site, f"pod-{index}") for index in range(5)] == [True] * 5
        assert readiness_line(site) == f"[+]clients with a certificate of {files.authorities} named {NAME}"
        assert status_for(site, None) == 403
        assert is_reviewed(presenting_plane, site, "last")
