"""`rightslice install` and `uninstall` on a real API server, with the webhook running as its service account."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.builders import make_node, make_pod
from tests.cluster.client import Json, RefusedError
from tests.cluster.credentials import kubeconfig
from tests.cluster.installation import dry_run_succeeds, rightslice, with_local_address
from tests.cluster.nodes import add_nodes, demo_nodes
from tests.cluster.plane import Plane
from tests.cluster.polling import PATIENCE_SECONDS, eventually
from tests.cluster.processes import Process, free_port
from tests.cluster.prometheus_operator import scrape_service
from tests.conftest import ROOT
from tests.controlplane.build import control_plane, wanted_version
from tests.device_builders import device_class
from tests.policy.policy_texts import exception_text, policy_text
from tests.server.managed_site import read_readyz
from tests.usage.prometheus import Prometheus
from webhook.certs.issuer import create_self_signed
from webhook.cli.commands.doctor import diagnose
from webhook.cli.commands.install import InstallMode, shipped_manifests
from webhook.documents.reader import read_documents
from webhook.errors import ApiError
from webhook.installing.apply import TLS_SECRET_PATH, install_manifests, uninstall_manifests
from webhook.installing.facts import CheckState, ClusterFacts, DiagnosticResult, read_cluster_facts
from webhook.kube.api import KubeClient
from webhook.manifests.objects import DEPLOYMENT_PATH, WEBHOOK_KINDS, api_path
from webhook.well_known import SYSTEM_NAMESPACE

ACCOUNT = f"system:serviceaccount:{SYSTEM_NAMESPACE}:rightslice"
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": [ACCOUNT]}, {"level": "None"}],
}
GPU_POD = "/api/v1/namespaces/default/pods"
BINDING = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/rightslice-pods"


class InstalledSite(NamedTuple):
    """A control plane, the installed objects, the only real replica, its port, and the messages of
    `install_manifests`.
    """

    plane: Plane
    objects: list[Json]
    replica: Process
    port: int
    messages: list[str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledSite]:
    """Install everything, enforced. WatchList is disabled, so that objects are also listed, as on older servers."""
    folder = tmp_path_factory.mktemp("installed")
    rules = folder / "rules.json"
    rules.write_text(json.dumps(AUDIT), encoding="utf-8")
    flags = [f"--audit-policy-file={rules}", "--feature-gates=WatchList=false"]
    with Plane(control_plane(wanted_version()), folder, apiserver_flags=flags) as plane:
        add_nodes(plane, demo_nodes())
        port = free_port()
        objects = [with_local_address(item, port) for item in shipped_manifests(InstallMode.ENFORCE)]
        replica = Process("rightslice", command(folder, port), folder / "rightslice.log")
        messages: list[str] = []
        try:
            asyncio.run(install_all(plane, objects, replica, port, messages))
            yield InstalledSite(plane, objects, replica, port, messages)
        finally:
            replica.kill()


async def install_all(plane: Plane, objects: list[Json], replica: Process, port: int, messages: list[str]) -> None:
    """Install, and start the replica once its service account exists; nothing else makes its Deployment wait for it."""

    def record(line: str) -> None:
        messages.append(line)
        if line.startswith("applied Deployment"):
            write_account_kubeconfig(plane)
            replica.launch()
            eventually(lambda: read_readyz(port)[0] == 200)

    async with await KubeClient.connect(str(plane.kubeconfig)) as api:
        await install_manifests(api, objects, record, seconds=PATIENCE_SECONDS)


def write_account_kubeconfig(plane: Plane, folder: Path | None = None, namespace: str = SYSTEM_NAMESPACE) -> None:
    """Write the kubeconfig of the service account into a folder, by default that of the plane."""
    token = plane.kubectl("create", "token", "rightslice", f"--namespace={namespace}").stdout.strip()
    ((folder or plane.folder) / "account").write_text(kubeconfig(plane.url, plane.ca, token), encoding="utf-8")


def command(folder: Path, port: int) -> list[str]:
    """Return the local command of the Deployment."""
    [deployment] = [item for item in shipped_manifests(InstallMode.ENFORCE) if item["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return local_command(container, folder, port)


def local_command(container: Json, folder: Path, port: int) -> list[str]:
    """Return the command of a container with another address, kubeconfig and policy folder."""
    arguments = [argument for argument in container["args"] if not argument.startswith(("--listen=", "--policies="))]
    local = [f"--listen=127.0.0.1:{port}", f"--kubeconfig={folder / 'account'}", f"--policies={ROOT / 'policies'}"]
    return [sys.executable, "-m", "webhook.cli", *arguments, *local]


def rejection_message(plane: Plane, path: str, data: Json) -> str:
    """Return the message that rejects an object in a dry run; "" if it is accepted."""
    try:
        plane.api.create(path, data, dryRun="All")
    except RefusedError as error:
        return error.message
    return ""


def test_webhooks_are_registered_after_replicas_are_ready(site: InstalledSite) -> None:
    ready = site.messages.index("replicas are ready")

    assert [line for line in site.messages[ready:] if line.startswith("applied")] == [
        "applied MutatingWebhookConfiguration rightslice",
        "applied ValidatingWebhookConfiguration rightslice",
    ]
    assert site.messages[-1] == "the webhooks answer"


def test_a_bad_pod_is_rejected_and_a_good_pod_gets_tolerations(site: InstalledSite) -> None:
    bad = make_pod("bad").namespace("default").gpus(1)
    bad.main["securityContext"] = {"privileged": True}

    message = rejection_message(site.plane, GPU_POD, bad.build())

    assert 'admission webhook "validate.rightslice.dev" denied the request: 1 problem in Pod default/bad' in message
    assert "privileged must be false in a pod that uses GPUs" in message
    assert rejection_message(site.plane, GPU_POD, make_pod("plain").namespace("default").build()) == ""


POLICIES = "/apis/rightslice.dev/v1alpha1/gpupolicies"
EXCEPTIONS = f"/apis/rightslice.dev/v1alpha1/namespaces/{SYSTEM_NAMESPACE}/gpupolicyexceptions"


def test_an_invalid_policy_is_rejected_with_the_lint_message(site: InstalledSite) -> None:
    data = json.loads(policy_text("bad", mode="enforced", securty={}))

    message = rejection_message(site.plane, POLICIES, data)

    assert message == (
        'admission webhook "policies.rightslice.dev" denied the request: 2 errors in GPUPolicy bad\n'
        "[GPU-P103] spec.mode: must be enforce, warn or audit, found 'enforced'. Write enforce\n"
        "[GPU-P102] spec.securty: must be a field of spec, found 'securty'. Did you mean security? Write security"
    )


def conflicting_policy(name: str, runtime: str) -> Json:
    """Return a policy for no existing namespace."""
    match, injection = {"namespaces": ["no-such-namespace"]}, {"runtimeClassName": runtime}
    data: Json = json.loads(policy_text(name, match=match, injection=injection))
    return data


def test_of_two_conflicting_policies_applied_together_the_second_is_rejected(site: InstalledSite) -> None:
    for attempt in range(5):
        first = f"first-{attempt}"
        created = conflicting_policy(first, f"runtime-{attempt}")
        is_possible = partial(rejection_message, site.plane, POLICIES, created)
        eventually(is_possible, until=lambda message: not message)  # the one of the last attempt is gone
        site.plane.api.create(POLICIES, created)
        try:
            second = conflicting_policy(f"second-{attempt}", "kata")
            assert "GPU-P104" in rejection_message(site.plane, POLICIES, second), (
                "before a watch has delivered the first"
            )
            assert ready_condition(site.plane, f"{POLICIES}/{first}")["reason"] == "Active"
            assert "GPU-P104" in rejection_message(site.plane, POLICIES, second), "and afterwards"
        finally:
            site.plane.api.delete(f"{POLICIES}/{first}")


def test_a_policy_without_effect_is_admitted_with_a_warning(site: InstalledSite) -> None:
    cases = {
        "Warning: GPUPolicy guard has the same name as one in": json.loads(policy_text("guard")),
        "Warning: policy nowhere matches no pod: none of the cluster's": conflicting_policy("nowhere", "kata"),
    }
    for text, data in cases.items():
        arguments = ("create", "--dry-run=server", "-f", "-", "-o", "name")
        assert text in site.plane.kubectl(*arguments, stdin=json.dumps(data)).stderr


def ready_condition(plane: Plane, path: str) -> Json:
    """Return the Ready condition of an object once it is written."""
    conditions = eventually(lambda: plane.api.get(path)["status"]["conditions"])
    (condition,) = [each for each in conditions if each["type"] == "Ready"]
    return dict(condition)


def test_policies_and_exceptions_have_a_ready_condition(site: InstalledSite) -> None:
    plane = site.plane
    exception = json.loads(exception_text("checked", policyName="guard"))
    exception["metadata"]["namespace"] = SYSTEM_NAMESPACE
    plane.api.create(POLICIES, json.loads(policy_text("checked", match={"namespaces": ["no-such-namespace"]})))
    plane.api.create(EXCEPTIONS, exception)
    try:
        for path in (f"{POLICIES}/checked", f"{EXCEPTIONS}/checked"):
            condition = ready_condition(plane, path)
            assert (condition["status"], condition["reason"]) == ("True", "Active")
    finally:
        plane.api.delete(f"{POLICIES}/checked")
        plane.api.delete(f"{EXCEPTIONS}/checked")


def create_denied_pod(plane: Plane, job: str) -> None:
    """Let a pod of a Job be denied."""
    bad = make_pod("bad").namespace("default").gpus(1).owned_by("Job", job)
    bad.main["securityContext"] = {"privileged": True}
    with pytest.raises(RefusedError, match="denied the request"):
        plane.api.create(GPU_POD, bad.build())


def test_the_owner_of_a_denied_pod_gets_an_event(site: InstalledSite) -> None:
    plane = site.plane
    for _ in range(3):
        create_denied_pod(plane, "train")

    path, selector = "/api/v1/namespaces/default/events", "involvedObject.name=train,source=rightslice"
    events = eventually(lambda: plane.api.get(path, fieldSelector=selector)["items"])

    codes = [event["reason"] for event in events]
    assert len(codes) == len(set(codes)), "one per owner, code and hour"
    assert any("privileged must be false" in event["message"] for event in events)


ABSENT_GROUPS = {"kueue.x-k8s.io", "scheduling.volcano.sh", "karpenter.sh", "cluster.x-k8s.io"}
"""API groups that this cluster does not have: their resources are looked for, and never listed."""

ABSENT_RESOURCES = {"devicetaintrules"}
"""Resources that it lacks of a group that it has; they are looked for, and never listed."""


def is_served(permission: Permission) -> bool:
    """Return whether the cluster has what a permission is for."""
    return permission[1] not in ABSENT_GROUPS and permission[2] not in ABSENT_RESOURCES


def test_each_granted_permission_is_used_and_none_is_missing(site: InstalledSite) -> None:
    plane = site.plane
    exception = json.loads(exception_text("some", policyName="guard"))
    exception["metadata"]["namespace"] = SYSTEM_NAMESPACE
    plane.api.create(EXCEPTIONS, exception)
    plane.api.create(POLICIES, json.loads(policy_text("some", match={"namespaces": ["no-such-namespace"]})))
    create_denied_pod(plane, "needs-an-event")
    plane.api.create("/apis/resource.k8s.io/v1/deviceclasses", device_class("some", "true"))  # starts watches of claims
    for configuration in (item for item in site.objects if item["kind"] in WEBHOOK_KINDS):
        wiped = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": ""}]
        plane.api.patch(api_path(configuration), wiped, "json")
    every = {permission for item in site.objects for permission in permissions_of(item)}
    granted = set(filter(is_served, every))

    assert not eventually(
        lambda: granted - used_and_refused_permissions(plane, granted)[0], until=lambda unused: not unused
    )
    used, refused = used_and_refused_permissions(plane, granted)
    assert set(filter(is_served, used)) == granted
    assert refused == set()


def test_prometheus_has_every_alert_metric_and_no_alert_fires(site: InstalledSite) -> None:
    built = site.plane.kubectl("kustomize", str(ROOT / "manifests" / "monitoring")).stdout
    monitoring = [document.data for document in read_documents(built, "monitoring", aliases=True)]
    [service] = [item for item in shipped_manifests(InstallMode.ENFORCE) if item["kind"] == "Service"]

    with scrape_service(site.plane, monitoring, service, site.port) as prometheus:
        eventually(lambda: prometheus.instant_query('up{job="rightslice"} == 1'))
        rules = eventually(
            lambda: rules_of(prometheus), until=lambda found: "RightsliceDown" not in active_alerts(found)
        )
        known = {name.removesuffix("_total") for name in prometheus.api("metadata")}

    named = set(re.findall(r"\brightslice_\w+", " ".join(rule["query"] for rule in rules)))
    assert len(rules) > 5
    assert {rule["health"] for rule in rules} == {"ok"}
    assert {name.removesuffix("_bucket").removesuffix("_total") for name in named - USAGE_METRICS} <= known
    assert active_alerts(rules) <= {"RightsliceSlow"}


USAGE_METRICS = {"rightslice_usage_loads_total"}
"""Metrics of servers that read GPU usage, which this one does not."""


def rules_of(prometheus: Prometheus) -> list[Json]:
    """Return the alerts; empty until each was evaluated."""
    rules = [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]
    return [] if any(rule["health"] == "unknown" for rule in rules) else rules


def active_alerts(rules: list[Json]) -> set[str]:
    """Return the names of pending and firing alerts; RightsliceDown if there are no alerts yet."""
    return {rule["name"] for rule in rules if rule["state"] != "inactive"} if rules else {"RightsliceDown"}


def test_doctor_reports_a_healthy_installation(site: InstalledSite) -> None:
    async def facts() -> ClusterFacts:
        async with await KubeClient.connect(str(site.plane.kubeconfig)) as api:
            return await read_cluster_facts(api)

    def run_doctor() -> list[DiagnosticResult]:
        return diagnose(asyncio.run(facts()), datetime.now(UTC))

    lines = eventually(run_doctor, until=lambda found: "2 of 2 replicas ready" in {line.summary for line in found})

    problems = [line for line in lines if line.state in (CheckState.WARN, CheckState.FAIL)]
    assert problems == []
    skipped = [line.summary for line in lines if line.state is CheckState.SKIP]
    assert skipped == [
        "no replica could be queried",
        "callers need no client certificate",
        "no agent reports the GPUs of its node",
    ]
    assert {
        "both webhooks answer a dry-run pod",
        "caBundle matches the serving certificate in every webhook",
        "the backstop denies, as in mode enforce",
    } <= {line.summary for line in lines}


PROBLEMS = {
    "a webhook trusts an expired CA": ("fail", "caBundle: mutate.rightslice.dev has only expired certificates"),
    "the certificate has expired": ("fail", "serving certificate has expired"),
    "no replica is reachable": ("fail", "the webhooks do not answer"),
    "the mutating webhook fails open": ("warn", "mutate.rightslice.dev did not answer and failed open"),
    "the backstop only audits": ("fail", "the backstop denies nothing, but the mode is enforce"),
    "another version runs": ("warn", "image rightslice:0.0.9"),
    "a policy allocates what no node has": ("warn", "policy slicing allocates timeSlicing"),
    "a node has no labels of GPU Feature Discovery": ("fail", "without nvidia.com/gpu.product"),
    "a LimitRange sets a default of GPUs": ("warn", "LimitRange trapped/trap"),
    "a quota has no effect": ("warn", "ResourceQuota trapped/trap"),
}


@pytest.fixture(scope="module")
def doctor_results(site: InstalledSite) -> list[Json]:
    """Return doctor's results for an installation with all of these problems, which stay afterwards."""
    plane = site.plane
    sizing = {"isolation": "none", "forms": ["timeSlicing"], "evidence": ["declared"]}
    plane.api.create(POLICIES, json.loads(policy_text("slicing", mode="audit", rightSizing=sizing)))
    plane.api.delete("/api/v1/nodes/l40s-sliced-1")
    site.replica.kill()
    expired = create_self_signed(["localhost"], datetime.now(UTC) - timedelta(days=400))
    bundle, certificate, key = (
        b64encode(pem).decode() for pem in (expired.authority, expired.certificate, expired.key)
    )
    trust = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]
    expired_secret = {"data": {"tls.crt": certificate, "tls.key": key}}
    image = {"spec": {"template": {"spec": {"containers": [{"name": "webhook", "image": "rightslice:0.0.9"}]}}}}
    limits = {"limits": [{"type": "Container", "default": {"nvidia.com/gpu": "1"}}]}
    [mutating] = [api_path(item) for item in site.objects if item["kind"] == "MutatingWebhookConfiguration"]
    plane.api.patch(mutating, trust, "json")
    plane.api.patch(TLS_SECRET_PATH, expired_secret)
    plane.api.patch(DEPLOYMENT_PATH, image, "strategic")
    plane.api.patch(BINDING, {"spec": {"validationActions": ["Audit"]}})
    namespace_path = f"/api/v1/namespaces/{plane.add_namespace('trapped')}"
    plane.api.create(f"{namespace_path}/limitranges", {"metadata": {"name": "trap"}, "spec": limits})
    hard = {"hard": {"limits.nvidia.com/gpu": "8"}}
    plane.api.create(f"{namespace_path}/resourcequotas", {"metadata": {"name": "trap"}, "spec": hard})
    add_nodes(plane, [make_node("bare", {}, **{"nvidia.com/gpu": 8})])
    with pytest.raises(RefusedError, match="failed calling webhook"):
        plane.api.create(GPU_POD, make_pod("held").namespace("default").gpus(1).build(), dryRun="All")
    done = rightslice(plane, "doctor", "-o", "json")
    assert done.returncode == 1, done.stderr
    found: list[Json] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("state", "text"), PROBLEMS.values(), ids=PROBLEMS)
def test_doctor_finds_each_of_many_problems(doctor_results: list[Json], state: str, text: str) -> None:
    found = [line for line in doctor_results if text in line["summary"]]

    assert {line["state"] for line in found} == {state}
    assert all(line["advice"] for line in found)


Permission = tuple[str, str, str, str]
"""Namespace ("" for all), API group, resource, verb."""


def permissions_of(item: Json) -> Iterator[Permission]:
    """Yield the permissions that a role grants."""
    if item["kind"] not in ("ClusterRole", "Role"):
        return
    for rule in item["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield item["metadata"].get("namespace", ""), group, resource, verb


def used_and_refused_permissions(plane: Plane, granted: set[Permission]) -> tuple[set[Permission], set[Permission]]:
    """Return the permissions that the service account used, and those that it lacked. One for all namespaces counts as
    used in any of them."""
    used: set[Permission] = set()
    refused: set[Permission] = set()
    for line in plane.audit_log.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        ref = event.get("objectRef")
        if event["user"]["username"] != ACCOUNT or ref is None:
            continue
        resource = "/".join(filter(None, (ref["resource"], ref.get("subresource", ""))))
        namespace = ref.get("namespace", "")
        everywhere = ("", ref.get("apiGroup", ""), resource, event["verb"])
        permission = everywhere if everywhere in granted else (namespace, *everywhere[1:])
        (refused if event["responseStatus"]["code"] == 403 else used).add(permission)
    return used, refused


def test_uninstall_removes_webhooks_first_and_keeps_policies(site: InstalledSite) -> None:
    plane, messages = site.plane, list[str]()

    async def remove(*, with_policies: bool) -> None:
        async with await KubeClient.connect(str(plane.kubeconfig)) as api:
            await uninstall_manifests(api, site.objects, messages.append, with_policies=with_policies, seconds=120)

    asyncio.run(remove(with_policies=False))

    assert {line.split()[1] for line in messages[:2]} == set(WEBHOOK_KINDS)
    kept = {"CustomResourceDefinition", "Namespace"}
    assert {item["kind"] for item in site.objects if plane.api.exists(api_path(item))} == kept
    assert rejection_message(plane, GPU_POD, make_pod("after").namespace("default").gpus(1).build()) == ""

    asyncio.run(remove(with_policies=True))

    assert [item for item in site.objects if plane.api.exists(api_path(item))] == []


async def probe(plane: Plane) -> bool:
    """Return whether both webhooks answer."""
    async with await KubeClient.connect(str(plane.kubeconfig)) as api:
        return await dry_run_succeeds(api)


def test_without_webhooks_probes_fail(site: InstalledSite) -> None:
    with pytest.raises(ApiError, match="NotFound"):
        asyncio.run(probe(site.plane))
