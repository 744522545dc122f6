"""Certificates on a real API server: issued once, trusted before they are served, repaired without a failed call."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import pytest

from tests.builders import make_pod
from tests.cluster.client import RefusedError
from tests.cluster.credentials import kubeconfig
from tests.cluster.plane import Plane
from tests.cluster.polling import PATIENCE_SECONDS, eventually
from tests.cluster.processes import free_port
from tests.server.managed_site import managed_server, read_readyz, served_certificate
from tests.server.site import Site
from tests.server.test_process import Process
from webhook.certs.reconciler import (
    CONFIG_PATHS,
    CertificateReconciler,
    ManagedCertificateSpec,
    ReconcileResult,
    WebhookConfigSelector,
    state_after_step,
)
from webhook.certs.rotation import AUTHORITY_OVERLAP, BUNDLE_SETTLE_TIME, CreateAuthority, IssueCertificate
from webhook.certs.secret_state import SecretName, SecretState, build_secret, parse_authorities, secret_state_of
from webhook.kube.access import ClusterAccess
from webhook.kube.api import KubeClient
from webhook.kube.leader_election import LeaseName

ADDRESS = "127.0.0.1"
NAME = "rightslice"


@contextmanager
def secret_server(
    store: CertificateStore, file: Path, monotonic: Callable[[], float] = time.monotonic
) -> Iterator[Site]:
    """Run a server with a certificate from the Secret, which it reads with a kubeconfig."""
    api = KubeClient(asyncio.run(ClusterAccess(str(file)).read()))

    async def close_on_exit() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await api.close()

    lease = LeaseName(store.namespace, NAME)
    with managed_server(api, store.spec, lease, monotonic, [close_on_exit]) as site:
        yield site


class CertificateStore:
    """A Secret, and two webhook configurations that call a local port for the pods of one namespace."""

    def __init__(self, plane: Plane, namespace: str) -> None:
        self.plane = plane
        self.namespace = namespace
        self.secret = SecretName(namespace, "rightslice-tls")
        self.configuration_name = f"{NAME}-{secrets.token_hex(3)}"
        self.spec = ManagedCertificateSpec(
            self.secret, WebhookConfigSelector(names=(self.configuration_name,)), (ADDRESS,)
        )
        self.paths = [f"{folder}/{self.configuration_name}" for folder in CONFIG_PATHS]

    def register_webhooks(self, port: int) -> None:
        """Register webhooks that call the port for pods."""
        for path, route in zip(self.paths, ["mutate", "validate"], strict=True):
            body = {"metadata": {"name": self.configuration_name}, "webhooks": [self._webhook(route, port)]}
            self.plane.api.create(path.rpartition("/")[0], body)

    def _webhook(self, route: str, port: int) -> dict[str, Any]:
        return {
            "name": f"{route}.rightslice.dev",
            "clientConfig": {"url": f"https://{ADDRESS}:{port}/{route}"},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "timeoutSeconds": 30,  # on a machine that may be busy
            "admissionReviewVersions": ["v1"],
        }

    @property
    def secret_state(self) -> SecretState:
        """Return the state of the Secret."""
        state = (
            secret_state_of(self.plane.api.get(self.secret.path)) if self.plane.api.exists(self.secret.path) else None
        )
        return state or SecretState()

    def bundles(self) -> set[bytes]:
        """Return the CA bundles of the webhooks."""
        found = [webhook for path in self.paths for webhook in self.plane.api.get(path)["webhooks"]]
        return {b64decode(webhook["clientConfig"].get("caBundle") or "") for webhook in found}

    def set_bundle(self, path: str, bundle: bytes) -> None:
        """Replace the caBundle of a webhook."""
        operation = {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": b64encode(bundle).decode()}
        self.plane.api.patch(path, [operation], "json")

    def write(self, state: SecretState) -> None:
        """Create the Secret with this state."""
        self.plane.api.create(self.secret.collection_path, build_secret(state, self.secret, None))

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
    """A Secret that does not exist yet, and webhook configurations, which are deleted afterwards."""
    created = CertificateStore(plane, namespace)
    yield created
    for path in created.paths:
        if plane.api.exists(path):
            plane.api.delete(path)


class PodEvaluator(Protocol):
    """A server that evaluates pods."""

    def call(self) -> None:
        """Create a pod to evaluate; RefusedError or OSError if it is not evaluated."""


class ContinuousCaller:
    """A thread that creates pods continuously."""

    def __init__(self, evaluator: PodEvaluator) -> None:
        self.calls = 0
        self.failures: list[str] = []
        self._evaluator = evaluator
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._call_until_ended)

    def __enter__(self) -> ContinuousCaller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _call_until_ended(self) -> None:
        while not self._ended.is_set():
            try:
                self._evaluator.call()
                self.calls += 1
            except (RefusedError, OSError) as error:
                self.failures.append(str(error))

    def wait_for(self, more: int) -> None:
        """Wait for this many more calls."""
        enough = self.calls + more
        eventually(lambda: self.calls >= enough or self.failures)
        assert self.failures == []


def test_one_of_three_concurrent_replicas_creates_the_secret(store: CertificateStore) -> None:
    async def race() -> list[ReconcileResult]:
        access = await ClusterAccess(str(store.plane.kubeconfig)).read()
        async with KubeClient(access) as one, KubeClient(access) as two, KubeClient(access) as three:
            reconcilers = [CertificateReconciler(api, store.spec, lambda: False, _now) for api in (one, two, three)]
            return await asyncio.gather(*(reconciler.reconcile() for reconciler in reconcilers))

    for _ in range(10):
        results = asyncio.run(race())
        assert [each.changed for each in results if isinstance(each.step, CreateAuthority)].count(True) == 1
        assert len(store.secret_state.authorities) == 1
        store.plane.api.delete(store.secret.path)


def test_no_call_fails_while_a_ca_is_replaced(store: CertificateStore) -> None:
    created = _now() - timedelta(days=250)
    old_state = state_after_step(CreateAuthority("for the test"), SecretState(), (), created)
    store.write(state_after_step(IssueCertificate("for the test"), old_state, (ADDRESS,), _now()))
    old_authorities = store.secret_state.authorities
    clock_offset = 0.0

    with secret_server(store, store.plane.kubeconfig, lambda: time.monotonic() + clock_offset) as site:
        store.register_webhooks(site.port)
        eventually(store.is_called)
        with ContinuousCaller(store) as caller:
            caller.wait_for(20)
            authorities = store.secret_state.authorities
            assert authorities[1:] == old_authorities
            assert store.bundles() == {store.secret_state.bundle}
            before = served_certificate(site.port, store.secret_state.bundle, ADDRESS)

            clock_offset += BUNDLE_SETTLE_TIME.total_seconds()
            eventually(lambda: served_certificate(site.port, authorities[0].pem, ADDRESS) != before)
            caller.wait_for(20)

            clock_offset += AUTHORITY_OVERLAP.total_seconds()
            eventually(lambda: store.bundles() == {authorities[0].pem})
            assert store.secret_state.authorities == authorities[:1]
            caller.wait_for(20)
        assert caller.failures == []


def webhook_arguments(store: CertificateStore, port: int = 0) -> list[str]:
    """Return the flags of a process that manages the certificate in the store."""
    return [
        *("--policies", "policies", "--cluster", "demo", "--listen", f"{ADDRESS}:{port}", "--managed-tls"),
        *("--tls-secret", str(store.secret), "--tls-names", ADDRESS),
        *("--webhook-configurations", store.configuration_name),
    ]


@pytest.fixture
def replicas(store: CertificateStore) -> Iterator[list[Process]]:
    """Three processes that share the Secret; the webhooks call the first."""
    with ExitStack() as stack:
        started = []
        for _ in range(3):
            started.append(Process([*webhook_arguments(store), "--kubeconfig", str(store.plane.kubeconfig)]))
            stack.callback(_end, started[-1])
            eventually(lambda: any('"event":"serving"' in line for line in started[-1].lines))
        store.register_webhooks(started[0].port)
        yield started


def _end(process: Process) -> None:
    if process.popen.poll() is None:
        process.popen.kill()
    process.end()


def time_until_called(store: CertificateStore) -> float:
    """Return the seconds until both bundles are right and the API server calls the webhooks."""
    start = time.monotonic()
    eventually(lambda: store.bundles() == {store.secret_state.bundle})
    eventually(store.is_called)
    return time.monotonic() - start


def test_three_processes_share_a_certificate_and_repair_it(store: CertificateStore, replicas: list[Process]) -> None:
    eventually(store.is_called)
    eventually(lambda: [read_readyz(process.port)[0] for process in replicas] == [200, 200, 200])
    certificates = {served_certificate(process.port, store.secret_state.bundle, ADDRESS) for process in replicas}
    assert certificates == {_leaf(store)}
    leaders = [process for process in replicas if "leader this replica" in read_readyz(process.port)[1]]
    assert len(leaders) == 1

    undisturbed, repairs = [], []
    for path in store.paths:
        undisturbed.append(time_until_called(store))
        store.set_bundle(path, b"")
        repairs.append(time_until_called(store))
    busy = max(undisturbed)  # what the calls take while other programs use the processors
    assert median(repairs) < 2 + 10 * busy, (
        "a changed bundle is noticed by a watch, not at the interval of five seconds"
    )

    with ContinuousCaller(store) as caller:
        before = _leaf(store)
        store.plane.api.delete(store.secret.path)
        eventually(lambda: store.secret_state.serving is not None and _leaf(store) != before)
        trusted = store.secret_state.authorities
        eventually(lambda: served_certificate(replicas[0].port, trusted[0].pem, ADDRESS) == _leaf(store))
        caller.wait_for(20)

        store.plane.api.patch(store.secret.path, {"data": {"ca.key": b64encode(b"junk").decode()}})
        eventually(
            lambda: store.secret_state.authority_key is not None and store.secret_state.authorities[1:] == trusted
        )
        eventually(lambda: store.bundles() == {store.secret_state.bundle})
        caller.wait_for(20)
    assert caller.failures == []

    others = [process for process in replicas if process is not leaders[0]]
    leaders[0].popen.kill()
    eventually(lambda: any("leader this replica" in read_readyz(process.port)[1] for process in others))


def test_a_restarted_process_presents_only_the_stored_certificate(store: CertificateStore) -> None:
    authority = state_after_step(CreateAuthority("for the test"), SecretState(), (), _now())
    store.write(state_after_step(IssueCertificate("for the test"), authority, (ADDRESS,), _now()))
    port = free_port()
    for _ in range(2):
        presented: set[bytes] = set()
        process = Process([*webhook_arguments(store, port), "--kubeconfig", str(store.plane.kubeconfig)])
        try:
            end = time.monotonic() + PATIENCE_SECONDS
            while len(presented) < 1 or read_readyz(port)[0] != 200:
                assert time.monotonic() < end, process.lines
                presented |= presented_certificates(port)
        finally:
            process.popen.kill()
            process.end()
        assert presented == {_leaf(store)}


def presented_certificates(port: int) -> set[bytes]:
    """Return the certificate that any client gets; nothing if nobody listens."""
    try:
        return {ssl.get_server_certificate((ADDRESS, port)).encode()}
    except OSError:
        return set()


MINIMUM_RULES = [
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["rightslice-tls"], "verbs": ["get", "update"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [NAME],
        "verbs": ["get", "update"],
    },
]


def test_missing_permissions_are_reported_and_the_minimum_suffices(store: CertificateStore, tmp_path: Path) -> None:
    api, rbac = store.plane.api, "/apis/rbac.authorization.k8s.io/v1"
    accounts = f"/api/v1/namespaces/{store.namespace}/serviceaccounts"
    api.create(accounts, {"metadata": {"name": NAME}})
    token = api.create(f"{accounts}/{NAME}/token", {"spec": {}})["status"]["token"]
    file = tmp_path / "kubeconfig"
    file.write_text(kubeconfig(store.plane.url, store.plane.ca, token))

    with secret_server(store, file) as site:
        store.register_webhooks(site.port)
        lines = eventually(lambda: read_readyz(site.port), until=lambda found: "is forbidden" in found[1])[1]
        assert read_readyz(site.port)[0] == 503
        assert (
            f"Required are get, create and update on Secret {store.secret} and Lease {store.namespace}/{NAME}" in lines
        )

        configuration_rule = {
            "apiGroups": ["admissionregistration.k8s.io"],
            "resources": ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
            "resourceNames": [store.configuration_name],
            "verbs": ["get", "list", "watch", "patch"],
        }
        subject = {"kind": "ServiceAccount", "name": NAME, "namespace": store.namespace}
        group = "rbac.authorization.k8s.io"
        name = {"metadata": {"name": store.configuration_name}}
        namespace_rbac = f"{rbac}/namespaces/{store.namespace}"
        api.create(f"{rbac}/clusterroles", {**name, "rules": [configuration_rule]})
        role = {"apiGroup": group, "kind": "ClusterRole", "name": store.configuration_name}
        api.create(f"{rbac}/clusterrolebindings", {**name, "roleRef": role, "subjects": [subject]})
        api.create(f"{namespace_rbac}/roles", {**name, "rules": MINIMUM_RULES})
        role = {"apiGroup": group, "kind": "Role", "name": store.configuration_name}
        api.create(f"{namespace_rbac}/rolebindings", {**name, "roleRef": role, "subjects": [subject]})

        eventually(lambda: read_readyz(site.port)[0] == 200)
        eventually(store.is_called)
    api.delete(f"{rbac}/clusterrolebindings/{store.configuration_name}")
    api.delete(f"{rbac}/clusterroles/{store.configuration_name}")


def test_configurations_can_be_selected_by_label(store: CertificateStore) -> None:
    store.register_webhooks(1)
    label = f"{NAME}.test/{store.configuration_name}=yes"
    for path in store.paths:
        store.plane.api.patch(path, {"metadata": {"labels": dict([label.split("=")])}})
    spec = ManagedCertificateSpec(store.secret, WebhookConfigSelector.parse(label), (ADDRESS,))

    async def reconcile_until_stable() -> ReconcileResult:
        async with await KubeClient.connect(str(store.plane.kubeconfig)) as api:
            reconciler = CertificateReconciler(api, spec, lambda: True, _now)
            while (result := await reconciler.reconcile()).changed:
                pass
            return result

    result = asyncio.run(reconcile_until_stable())
    assert result.config_count == 2
    assert result.serving is not None
    assert store.bundles() == {store.secret_state.bundle}
    assert parse_authorities(store.secret_state.bundle) == store.secret_state.authorities


def _leaf(store: CertificateStore) -> bytes:
    leaf = store.secret_state.serving
    assert leaf is not None
    return leaf.certificate


def _now() -> datetime:
    return datetime.now(UTC)
