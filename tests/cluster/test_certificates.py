"""Certificates on a real API server: issued once, trusted before they are served, repaired without a failed call."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.builders import make_pod
from tests.cluster.client import RefusedError
from tests.cluster.credentials import kubeconfig
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.server.managed_site import managing, page, served_certificate
from tests.server.site import Site
from tests.server.test_process import Process
from webhook.certs.reconciler import CertificateReconciler, ManagedCertificateSpec, ReconcileResult, state_after_step
from webhook.certs.rotation import AUTHORITY_OVERLAP, BUNDLE_SETTLE_TIME, CreateAuthority, IssueCertificate
from webhook.certs.secret_state import SecretName, SecretState, build_secret, parse_authorities, secret_state_of
from webhook.certs.webhook_configs import CONFIG_PATHS, WebhookConfigSelector
from webhook.kube.access import ClusterAccess
from webhook.kube.api import KubeClient
from webhook.kube.leader_election import LeaseName

ADDRESS = "127.0.0.1"
SEAT = "rightslice"


@contextmanager
def serving(store: CertificateStore, file: Path, monotonic: Callable[[], float] = time.monotonic) -> Iterator[Site]:
    """A server with a certificate from the Secret, which it asks for by a kubeconfig."""
    api = KubeClient(asyncio.run(ClusterAccess(str(file)).read()))

    async def close_in_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await api.close()

    lease = LeaseName(store.namespace, SEAT)
    with managing(api, store.keeping, lease, monotonic, [close_in_the_end]) as site:
        yield site


class CertificateStore:
    """A Secret, and two webhook configurations that call a port of this machine for the pods of one namespace."""

    def __init__(self, plane: Plane, namespace: str) -> None:
        self.plane = plane
        self.namespace = namespace
        self.secret = SecretName(namespace, "rightslice-tls")
        self.hooks = f"{SEAT}-{secrets.token_hex(3)}"
        self.keeping = ManagedCertificateSpec(self.secret, WebhookConfigSelector(names=(self.hooks,)), (ADDRESS,))
        self.paths = [f"{folder}/{self.hooks}" for folder in CONFIG_PATHS]

    def add_hooks(self, port: int) -> None:
        """Have the API server call the port about pods."""
        for path, route in zip(self.paths, ["mutate", "validate"], strict=True):
            body = {"metadata": {"name": self.hooks}, "webhooks": [self._webhook(route, port)]}
            self.plane.api.create(path.rpartition("/")[0], body)

    def _webhook(self, route: str, port: int) -> dict[str, Any]:
        return {
            "name": f"{route}.rightslice.dev",
            "clientConfig": {"url": f"https://{ADDRESS}:{port}/{route}"},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "timeoutSeconds": 5,
            "admissionReviewVersions": ["v1"],
        }

    @property
    def held(self) -> SecretState:
        """What the Secret holds."""
        held = (
            secret_state_of(self.plane.api.get(self.secret.path)) if self.plane.api.exists(self.secret.path) else None
        )
        return held or SecretState()

    def bundles(self) -> set[bytes]:
        """What the webhooks trust."""
        found = [webhook for path in self.paths for webhook in self.plane.api.get(path)["webhooks"]]
        return {b64decode(webhook["clientConfig"].get("caBundle") or "") for webhook in found}

    def set_bundle(self, path: str, bundle: bytes) -> None:
        """Replace the caBundle of a webhook."""
        operation = {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": b64encode(bundle).decode()}
        self.plane.api.patch(path, [operation], "json")

    def write(self, held: SecretState) -> None:
        """Put this into the Secret."""
        self.plane.api.create(self.secret.collection_path, build_secret(held, self.secret, None))

    def call(self) -> None:
        """Create a pod that both webhooks evaluate."""
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        self.plane.api.create(pods, make_pod("probe").namespace(self.namespace).build(), dryRun="All")

    def is_called(self) -> bool:
        """Return whether a pod is evaluated, rather than rejected because no webhook was reachable."""
        try:
            self.call()
        except RefusedError as refusal:
            if "failed calling webhook" in refusal.message:
                return False
            raise
        return True


@pytest.fixture
def store(plane: Plane, namespace: str) -> Iterator[CertificateStore]:
    """A Secret that is not there yet, and configurations that are deleted afterwards."""
    one = CertificateStore(plane, namespace)
    yield one
    for path in one.paths:
        if plane.api.exists(path):
            plane.api.delete(path)


class PodEvaluator(Protocol):
    """A server that evaluates pods."""

    def call(self) -> None:
        """Create a pod to evaluate; RefusedError or OSError if it is not evaluated."""


class ContinuousCaller:
    """A thread that creates pods continuously."""

    def __init__(self, called: PodEvaluator) -> None:
        self.calls = 0
        self.failures: list[str] = []
        self._called = called
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    def __enter__(self) -> ContinuousCaller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._ended.is_set():
            try:
                self._called.call()
                self.calls += 1
            except (RefusedError, OSError) as error:
                self.failures.append(str(error))

    def wait_for(self, more: int) -> None:
        """Wait for so many more calls."""
        enough = self.calls + more
        eventually(lambda: self.calls >= enough or self.failures)
        assert self.failures == []


def test_one_of_three_concurrent_replicas_creates_the_secret(store: CertificateStore) -> None:
    async def race() -> list[ReconcileResult]:
        access = await ClusterAccess(str(store.plane.kubeconfig)).read()
        async with KubeClient(access) as one, KubeClient(access) as two, KubeClient(access) as three:
            keepers = [CertificateReconciler(api, store.keeping, lambda: False, _now) for api in (one, two, three)]
            return await asyncio.gather(*(keeper.reconcile() for keeper in keepers))

    for _ in range(10):
        looked = asyncio.run(race())
        assert [each.changed for each in looked if isinstance(each.step, CreateAuthority)].count(True) == 1
        assert len(store.held.authorities) == 1
        store.plane.api.delete(store.secret.path)


def test_no_call_fails_while_a_ca_is_replaced(store: CertificateStore) -> None:
    begun = _now() - timedelta(days=250)
    aged = state_after_step(CreateAuthority("of old"), SecretState(), (), begun)
    store.write(state_after_step(IssueCertificate("of old"), aged, (ADDRESS,), _now()))
    old = store.held.authorities
    skipped = 0.0

    with serving(store, store.plane.kubeconfig, lambda: time.monotonic() + skipped) as site:
        store.add_hooks(site.port)
        eventually(store.is_called)
        with ContinuousCaller(store) as caller:
            caller.wait_for(20)
            both = store.held.authorities
            assert both[1:] == old
            assert store.bundles() == {store.held.bundle}
            before = served_certificate(site.port, store.held.bundle, ADDRESS)

            skipped += BUNDLE_SETTLE_TIME.total_seconds()
            eventually(lambda: served_certificate(site.port, both[0].pem, ADDRESS) != before)
            caller.wait_for(20)

            skipped += AUTHORITY_OVERLAP.total_seconds()
            eventually(lambda: store.bundles() == {both[0].pem})
            assert store.held.authorities == both[:1]
            caller.wait_for(20)
        assert caller.failures == []


@pytest.fixture
def replicas(store: CertificateStore) -> Iterator[list[Process]]:
    """Three processes that share the Secret; the webhooks call the first."""
    arguments = ["--policies", "policies", "--cluster", "demo", "--listen", f"{ADDRESS}:0", "--managed-tls"]
    arguments += ["--tls-secret", str(store.secret), "--tls-names", ADDRESS, "--webhook-configurations", store.hooks]
    with ExitStack() as stack:
        started = []
        for _ in range(3):
            started.append(Process([*arguments, "--kubeconfig", str(store.plane.kubeconfig)]))
            stack.callback(_end, started[-1])
            eventually(lambda: any('"event":"serving"' in line for line in started[-1].lines), within=90)
        store.add_hooks(started[0].port)
        yield started


def _end(process: Process) -> None:
    if process.popen.poll() is None:
        process.popen.kill()
    process.end()


def test_three_processes_share_a_certificate_and_repair_it(store: CertificateStore, replicas: list[Process]) -> None:
    eventually(store.is_called, within=60)
    eventually(lambda: [page(process.port)[0] for process in replicas] == [200, 200, 200])
    certificates = {served_certificate(process.port, store.held.bundle, ADDRESS) for process in replicas}
    assert certificates == {_leaf(store)}
    leaders = [process for process in replicas if "leader this replica" in page(process.port)[1]]
    assert len(leaders) == 1

    for path in store.paths:
        store.set_bundle(path, b"")
        eventually(lambda: store.bundles() == {store.held.bundle})
    eventually(store.is_called)

    with ContinuousCaller(store) as caller:
        before = _leaf(store)
        store.plane.api.delete(store.secret.path)
        eventually(lambda: store.held.serving is not None and _leaf(store) != before, within=90)
        trusted = store.held.authorities
        eventually(lambda: served_certificate(replicas[0].port, trusted[0].pem, ADDRESS) == _leaf(store))
        caller.wait_for(20)

        store.plane.api.patch(store.secret.path, {"data": {"ca.key": b64encode(b"junk").decode()}})
        eventually(lambda: store.held.authority_key is not None and store.held.authorities[1:] == trusted)
        eventually(lambda: store.bundles() == {store.held.bundle})
        caller.wait_for(20)
    assert caller.failures == []

    others = [process for process in replicas if process is not leaders[0]]
    leaders[0].popen.kill()
    eventually(lambda: any("leader this replica" in page(process.port)[1] for process in others), within=60)


LEAST = [
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["rightslice-tls"], "verbs": ["get", "update"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [SEAT],
        "verbs": ["get", "update"],
    },
]


def test_missing_permissions_are_reported_and_the_minimum_suffices(store: CertificateStore, tmp_path: Path) -> None:
    api, rbac = store.plane.api, "/apis/rbac.authorization.k8s.io/v1"
    accounts = f"/api/v1/namespaces/{store.namespace}/serviceaccounts"
    api.create(accounts, {"metadata": {"name": SEAT}})
    token = api.create(f"{accounts}/{SEAT}/token", {"spec": {}})["status"]["token"]
    file = tmp_path / "kubeconfig"
    file.write_text(kubeconfig(store.plane.url, store.plane.ca, token))

    with serving(store, file) as site:
        store.add_hooks(site.port)
        lines = eventually(lambda: page(site.port), until=lambda found: "is forbidden" in found[1])[1]
        assert page(site.port)[0] == 503
        assert (
            f"Required are get, create and update on Secret {store.secret} and Lease {store.namespace}/{SEAT}" in lines
        )

        hooks = {
            "apiGroups": ["admissionregistration.k8s.io"],
            "resources": ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
            "resourceNames": [store.hooks],
            "verbs": ["get", "patch"],
        }
        subject = {"kind": "ServiceAccount", "name": SEAT, "namespace": store.namespace}
        group = "rbac.authorization.k8s.io"
        name = {"metadata": {"name": store.hooks}}
        in_it = f"{rbac}/namespaces/{store.namespace}"
        api.create(f"{rbac}/clusterroles", {**name, "rules": [hooks]})
        role = {"apiGroup": group, "kind": "ClusterRole", "name": store.hooks}
        api.create(f"{rbac}/clusterrolebindings", {**name, "roleRef": role, "subjects": [subject]})
        api.create(f"{in_it}/roles", {**name, "rules": LEAST})
        role = {"apiGroup": group, "kind": "Role", "name": store.hooks}
        api.create(f"{in_it}/rolebindings", {**name, "roleRef": role, "subjects": [subject]})

        eventually(lambda: page(site.port)[0] == 200, within=60)
        eventually(store.is_called)
    api.delete(f"{rbac}/clusterrolebindings/{store.hooks}")
    api.delete(f"{rbac}/clusterroles/{store.hooks}")


def test_configurations_can_be_selected_by_label(store: CertificateStore) -> None:
    store.add_hooks(1)
    label = f"{SEAT}.test/{store.hooks}=yes"
    for path in store.paths:
        store.plane.api.patch(path, {"metadata": {"labels": dict([label.split("=")])}})
    keeping = ManagedCertificateSpec(store.secret, WebhookConfigSelector.parse(label), (ADDRESS,))

    async def keep() -> ReconcileResult:
        async with await KubeClient.connect(str(store.plane.kubeconfig)) as api:
            keeper = CertificateReconciler(api, keeping, lambda: True, _now)
            while (looked := await keeper.reconcile()).changed:
                pass
            return looked

    looked = asyncio.run(keep())
    assert looked.config_count == 2
    assert looked.serving is not None
    assert store.bundles() == {store.held.bundle}
    assert parse_authorities(store.held.bundle) == store.held.authorities


def _leaf(store: CertificateStore) -> bytes:
    leaf = store.held.serving
    assert leaf is not None
    return leaf.certificate


def _now() -> datetime:
    return datetime.now(UTC)
