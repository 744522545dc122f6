"""`diagnose`: the results of doctor, fact by fact."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from cryptography import x509

from tests.builders import Json, make_node
from tests.policy.policy_texts import exception_text, policy_text
from webhook.certs.issuer import create_self_signed
from webhook.cli.commands.doctor import diagnose, diagnosis_reports
from webhook.cli.output import RowFlags
from webhook.errors import ApiError
from webhook.installing.facts import FAIL_OPEN_METRIC, CheckState, ClusterFacts, DiagnosticResult
from webhook.installing.webhook_health import check_callers
from webhook.manifests.scheduler_config import second_scheduler_config
from webhook.manifests.webhooks import webhook_configurations
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE
from webhook.report.serialization import yaml_text
from webhook.report.text import without_style

NOW = datetime(2026, 6, 1, tzinfo=UTC)
PAIR = create_self_signed(["rightslice.rightslice-system.svc"], NOW)
OTHER = create_self_signed(["rightslice.rightslice-system.svc"], NOW)


def text(content: bytes) -> str:
    return b64encode(content).decode()


def with_ca_bundle(configuration: Json, bundle: bytes = PAIR.authority) -> Json:
    """A configuration with a caBundle in each webhook."""
    webhooks = [
        {**webhook, "clientConfig": {**webhook["clientConfig"], "caBundle": text(bundle)}}
        for webhook in configuration["webhooks"]
    ]
    return {**configuration, "webhooks": webhooks}


def deployment(ready: int = 2, image: str = "rightslice:0.1.0", name: str = "webhook", mode: str = "enforce") -> Json:
    container = {"name": name, "image": image, "env": [{"name": "RIGHTSLICE_MODE", "value": mode}]}
    containers = [{"name": "mesh-proxy", "image": "proxy:2"}, container]
    spec: Json = {"replicas": 2, "template": {"spec": {"containers": containers}}}
    return {"spec": spec, "status": {"readyReplicas": ready}}


def gpu_node(name: str = "n1", **labels: str) -> Json:
    node = make_node(name, {"nvidia.com/gpu.product": "NVIDIA-H100", **labels}, **{"nvidia.com/gpu": 8})
    return {key: value for key, value in node.items() if key not in ("apiVersion", "kind")}


def policy(name: str = "guard", **spec: Any) -> Json:
    found: Json = json.loads(policy_text(name, **spec))
    return found


def exception() -> Json:
    """An exception for a policy that is not among the objects."""
    found: Json = json.loads(exception_text("e1", policyName="in-a-file"))
    return found


def gpu_node_report(moment: datetime) -> Json:
    """A GPUNode created at that time."""
    metadata = {"name": "n1", "creationTimestamp": moment.isoformat()}
    return {"metadata": metadata, "status": {"product": "NVIDIA-H100"}}


def binding(*actions: str) -> Json:
    return {"spec": {"validationActions": list(actions)}}


def lease(name: str, renewed: datetime) -> Json:
    return {"metadata": {"name": name}, "spec": {"renewTime": f"{renewed:%Y-%m-%dT%H:%M:%S.%fZ}"}}


def with_condition(one: Json, status: str, reason: str, *, generation: int = 1) -> Json:
    """The object with the status that a server wrote."""
    ready = {"type": "Ready", "status": status, "reason": reason, "message": "because", "observedGeneration": 1}
    return {
        **one,
        "metadata": {**one["metadata"], "generation": generation},
        "status": {"conditions": [ready]},
    }


MUTATING, VALIDATING = map(with_ca_bundle, webhook_configurations())
HEALTHY = ClusterFacts(
    version={"gitVersion": "v1.36.3", "minor": "36"},
    mutating=MUTATING,
    validating=VALIDATING,
    backstop=binding("Deny"),
    deployment=deployment(),
    secret={"data": {"tls.crt": text(PAIR.certificate), "ca.crt": text(PAIR.authority)}},
    settings={"data": {}},
    client_ca={"data": {"ca.crt": "PEM"}},
    authentication={
        "data": {
            "client-ca-file": "CLUSTER",
            "requestheader-client-ca-file": "PROXY",
            "requestheader-allowed-names": '["front-proxy-client"]',
        }
    },
    ready="[+]policies 1 policy, digest abc\n[+]cluster 8 nodes, confirmed 1 s ago\nready\n",
    answer='admission webhook "validate.rightslice.dev" denied the request: rightslice answers: validate and mutate',
    metrics=f'{FAIL_OPEN_METRIC}{{name="mutate.rightslice.dev",type="admit"}} 0\n',
    policies=[policy()],
    exceptions=[],
    nodes=[gpu_node()],
    limit_ranges=[],
    device_classes=[],
    quotas=[],
    extender={"spec": {"replicas": 2}, "status": {"readyReplicas": 2}},
    extender_ready="[+]cluster 8 nodes\nready\n",
    scheduler="",
    waiting=[],
    agents=[{"metadata": {"name": "n1"}, "status": {"product": "NVIDIA-H100"}}],
    leases=[lease("n1", NOW)],
    workloads=[],
    queued_pods=[],
    overlays=[],
    node_pools=[],
    machine_deployments=[],
    machine_sets=[],
    slices=[],
)
ABSENT, FORBIDDEN = ApiError("GET /x", 404, "NotFound", "gone"), ApiError("GET /x", 403, "Forbidden", "no right")


def without(name: str, why: ApiError = ABSENT) -> ClusterFacts:
    changed: Json = {name: None, "refused": {name: why}}
    return replace(HEALTHY, **changed)


class Case(NamedTuple):
    facts: ClusterFacts
    state: CheckState
    summary: str


MIG: Json = {"rightSizing": {"forms": ["mig"]}}
LIMIT_RANGE = {"metadata": {"name": "lr", "namespace": "team"}}
QUOTA = {"metadata": {"name": "q", "namespace": "team"}}
COUNTED = replace(HEALTHY, policies=[policy(limits={"accounting": "native"})])
COUNTING = {**gpu_node(), "status": {"allocatable": {"nvidia.com/gpu": "8", ACCOUNTING_RESOURCE: "8000"}}}
WAITING = {
    "metadata": {"name": "p"},
    "status": {
        "conditions": [
            {"type": "PodScheduled", "message": "0/8 nodes are available: 8 Insufficient rightslice.dev/gpu-milli."}
        ]
    },
}
SLICE = "nvidia.com/mig-1g.10gb"
PARTITIONED = {**gpu_node(), "status": {"allocatable": {"nvidia.com/gpu": "7", SLICE: "7"}}}


def gpu_pod(resource: str, **spec: str) -> Json:
    """A pod that requests one unit of a resource."""
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"resources": {"limits": {resource: "1"}}}], **spec}}


CASES = {
    "pods wait for slices that no node has": Case(
        replace(HEALTHY, waiting=[gpu_pod("nvidia.com/mig-3g.40gb"), gpu_pod("nvidia.com/gpu")]),
        CheckState.WARN,
        "1 pod waits for nvidia.com/mig-3g.40gb, which no node advertises",
    ),
    "nobody uses slices while a pod waits for a whole GPU": Case(
        replace(HEALTHY, nodes=[PARTITIONED], waiting=[gpu_pod("nvidia.com/gpu")], partitioned_pods=[]),
        CheckState.WARN,
        "no pod uses the slices of 1 of 1 node, and 1 pod waits for whole GPUs: n1",
    ),
    "a version that is too old": Case(
        replace(HEALTHY, version={"gitVersion": "v1.29.1", "minor": "29+"}), CheckState.FAIL, "v1.29.1"
    ),
    "a version that is not tested": Case(
        replace(HEALTHY, version={"gitVersion": "v1.50.0", "minor": "50"}), CheckState.WARN, "v1.50.0"
    ),
    "no mutating webhooks": Case(without("mutating"), CheckState.FAIL, "no mutating webhook configuration"),
    "forbidden webhooks": Case(without("validating", FORBIDDEN), CheckState.SKIP, "validating cannot be read"),
    "one webhook is missing": Case(
        replace(HEALTHY, validating={**VALIDATING, "webhooks": VALIDATING["webhooks"][1:]}),
        CheckState.FAIL,
        "validating webhook configuration without validate.rightslice.dev",
    ),
    "an empty caBundle": Case(
        replace(HEALTHY, mutating=webhook_configurations()[0]),
        CheckState.FAIL,
        "caBundle: empty in mutate.rightslice.dev, queued-templates.rightslice.dev, volcano-jobs",
    ),
    "a caBundle of another CA": Case(
        replace(HEALTHY, validating=with_ca_bundle(webhook_configurations()[1], OTHER.authority)),
        CheckState.FAIL,
        "caBundle: validate.rightslice.dev does not have the CA of the serving certificate",
    ),
    "a caBundle without certificates": Case(
        replace(HEALTHY, mutating=with_ca_bundle(webhook_configurations()[0], b"junk")),
        CheckState.FAIL,
        "caBundle: mutate.rightslice.dev has no readable certificates",
    ),
    "a forbidden Secret": Case(without("secret", FORBIDDEN), CheckState.SKIP, "the serving certificate cannot be read"),
    "no webhook answers": Case(
        replace(HEALTHY, answer="the pod was admitted without an answer from the webhooks"),
        CheckState.FAIL,
        "the webhooks do not answer",
    ),
    "a webhook is unreachable": Case(
        replace(HEALTHY, answer='Internal error occurred: failed calling webhook "validate.rightslice.dev": refused'),
        CheckState.FAIL,
        "the webhooks do not answer",
    ),
    "a LimitRange rejects the dry-run pod": Case(
        replace(HEALTHY, answer="minimum cpu usage per Container is 1, but request is 100m"),
        CheckState.SKIP,
        "the webhooks could not be tested",
    ),
    "the user may not create pods": Case(
        replace(
            HEALTHY, answer='pods is forbidden: User "eve" cannot create resource "pods" in the namespace "default"'
        ),
        CheckState.SKIP,
        "the webhooks could not be tested",
    ),
    "another webhook is unreachable": Case(
        replace(HEALTHY, answer='Internal error occurred: failed calling webhook "mutate.other.example": refused'),
        CheckState.SKIP,
        "the webhooks could not be tested",
    ),
    "only one webhook answers": Case(
        replace(HEALTHY, answer="rightslice answers: validate, but not mutate"),
        CheckState.FAIL,
        "only the validating webhook",
    ),
    "a replica is missing": Case(replace(HEALTHY, deployment=deployment(1)), CheckState.FAIL, "1 of 2 replicas ready"),
    "another version runs": Case(
        replace(HEALTHY, deployment=deployment(image="rightslice:0.0.9")), CheckState.WARN, "image rightslice:0.0.9"
    ),
    "a Deployment without the webhook's container": Case(
        replace(HEALTHY, deployment=deployment(name="other")), CheckState.WARN, "no container webhook in the Deployment"
    ),
    "no backstop": Case(without("backstop"), CheckState.FAIL, "the backstop is not installed"),
    "a backstop that denies in audit mode": Case(
        replace(HEALTHY, deployment=deployment(mode="audit"), backstop=binding("Deny", "Audit")),
        CheckState.FAIL,
        "the backstop denies, but the mode is audit",
    ),
    "a backstop that denies nothing in enforce mode": Case(
        replace(HEALTHY, backstop=binding("Audit")),
        CheckState.FAIL,
        "the backstop denies nothing, but the mode is enforce",
    ),
    "an exception for no policy": Case(
        replace(HEALTHY, exceptions=[exception()]), CheckState.FAIL, "GPUPolicyException e1: GPU-P103"
    ),
    "a problem reported by a replica": Case(
        replace(HEALTHY, ready="[-]policy files p.yaml: bad\nready\n"),
        CheckState.WARN,
        "replica: policy files p.yaml: bad",
    ),
    "no CRDs": Case(without("policies"), CheckState.FAIL, "the CRD of GPUPolicy is not installed"),
    "no policies": Case(replace(HEALTHY, policies=[]), CheckState.WARN, "no policies"),
    "an invalid policy": Case(
        replace(HEALTHY, policies=[policy(mode="enforced")]), CheckState.FAIL, "GPUPolicy guard: GPU-P103"
    ),
    "a policy in a file and as an object": Case(
        replace(HEALTHY, settings={"data": {"guard.yaml": policy_text("guard")}}),
        CheckState.WARN,
        "policy guard exists in the ConfigMap and as an object",
    ),
    "no GPU nodes": Case(replace(HEALTHY, nodes=[make_node("cpu")]), CheckState.WARN, "no node advertises GPUs"),
    "a node without product label": Case(
        replace(HEALTHY, nodes=[gpu_node(), {**gpu_node(), "metadata": {"name": "n1"}}]),
        CheckState.FAIL,
        "1 of 2 GPU nodes without nvidia.com/gpu.product",
    ),
    "nodes that cannot be parsed": Case(
        replace(HEALTHY, policies=[policy(**MIG)], nodes=[{**gpu_node(), "spec": {"taints": "none"}}]),
        CheckState.SKIP,
        "the GPUs that nodes advertise cannot be read",
    ),
    "slices that no node offers": Case(
        replace(HEALTHY, policies=[policy(**MIG)]), CheckState.WARN, "policy guard allocates mig"
    ),
    "accounting that no node advertises": Case(COUNTED, CheckState.WARN, "a policy has native accounting"),
    "accounting that one of two nodes advertises": Case(
        replace(COUNTED, nodes=[COUNTING, gpu_node()]),
        CheckState.WARN,
        "1 of 2 GPU nodes do not advertise its resource",
    ),
    "an invalid scheduler configuration": Case(
        replace(COUNTED, scheduler="extenders: ["), CheckState.WARN, "a policy has native accounting"
    ),
    "pods that wait for the accounting resource": Case(
        replace(COUNTED, scheduler=json.dumps(second_scheduler_config()), waiting=[WAITING]),
        CheckState.FAIL,
        "1 pod waits for rightslice.dev/gpu-milli",
    ),
    "a replica of the extender is missing": Case(
        replace(HEALTHY, extender={"spec": {"replicas": 2}, "status": {}}),
        CheckState.FAIL,
        "0 of 2 replicas of the extender",
    ),
    "an extender that may not be read": Case(
        without("extender", FORBIDDEN), CheckState.SKIP, "extender cannot be read"
    ),
    "an extender that cannot be reached": Case(without("extender_ready"), CheckState.SKIP, "the extender could not be"),
    "a problem reported by the extender": Case(
        replace(HEALTHY, extender_ready="[-]pods not synced\nready\n"), CheckState.WARN, "extender: pods not synced"
    ),
    "no agents": Case(without("agents"), CheckState.SKIP, "no agent reports the GPUs of its node"),
    "agents that may not be read": Case(without("agents", FORBIDDEN), CheckState.SKIP, "agents cannot be read"),
    "a node without an agent": Case(
        replace(HEALTHY, nodes=[gpu_node("n1"), gpu_node("n2")]), CheckState.WARN, "1 GPU node without GPUNode: n2"
    ),
    "a silent agent": Case(
        replace(HEALTHY, leases=[lease("n1", NOW - timedelta(minutes=7))]),
        CheckState.WARN,
        "1 of 1 GPUNode outdated: n1",
    ),
    "an agent that has just started": Case(
        replace(HEALTHY, leases=[], agents=[gpu_node_report(NOW - timedelta(seconds=20))]),
        CheckState.SKIP,
        "1 of 1 GPUNode created less than 6 minutes ago",
    ),
    "an agent that never reported after its GPUNode was created": Case(
        replace(HEALTHY, leases=[], agents=[gpu_node_report(NOW - timedelta(minutes=7))]),
        CheckState.WARN,
        "1 of 1 GPUNode outdated: n1",
    ),
    "an agent that never reported": Case(replace(HEALTHY, leases=[]), CheckState.WARN, "1 of 1 GPUNode outdated: n1"),
    "leases that may not be read": Case(
        without("leases", FORBIDDEN), CheckState.SKIP, "1 GPUNode; whether they are current is unknown"
    ),
    "an agent that reports an error": Case(
        replace(HEALTHY, agents=[{"metadata": {"name": "n1"}, "status": {"message": "NVML does not answer"}}]),
        CheckState.WARN,
        "GPUNode n1: NVML does not answer",
    ),
    "a LimitRange maximum that sets a default": Case(
        replace(
            HEALTHY,
            limit_ranges=[{**LIMIT_RANGE, "spec": {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "4"}}]}}],
        ),
        CheckState.WARN,
        "LimitRange team/lr",
    ),
    "a LimitRange with a minimum": Case(
        replace(
            HEALTHY,
            limit_ranges=[{**LIMIT_RANGE, "spec": {"limits": [{"type": "Container", "min": {"nvidia.com/gpu": 1}}]}}],
        ),
        CheckState.WARN,
        "LimitRange team/lr",
    ),
    "a quota without effect": Case(
        replace(HEALTHY, quotas=[{**QUOTA, "spec": {"hard": {"limits.nvidia.com/mig-1g.10gb": "4"}}}]),
        CheckState.WARN,
        "ResourceQuota team/q",
    ),
    "a quota on devices of a missing class": Case(
        replace(
            HEALTHY,
            quotas=[{**QUOTA, "spec": {"hard": {"gpus.deviceclass.resource.k8s.io/devices": "4"}}}],
            device_classes=[{"metadata": {"name": "gpu.nvidia.com"}}],
        ),
        CheckState.WARN,
        "ResourceQuota team/q",
    ),
    "a quota that slices bypass": Case(
        replace(HEALTHY, quotas=[{**QUOTA, "spec": {"hard": {"requests.nvidia.com/gpu": "4"}}}]),
        CheckState.WARN,
        "ResourceQuota team/q",
    ),
    "a webhook that failed open": Case(
        replace(HEALTHY, metrics=f'{FAIL_OPEN_METRIC}{{name="mutate.rightslice.dev",type="admit"}} 3\n'),
        CheckState.WARN,
        "mutate.rightslice.dev did not answer and failed open 3 times",
    ),
    "callers that are not authenticated": Case(
        without("client_ca"), CheckState.SKIP, "callers need no client certificate"
    ),
    "an authority of clients that has issued no certificate": Case(
        replace(
            HEALTHY, ready="[+]clients any certificate or none, until a client connects with a certificate of /x\n"
        ),
        CheckState.WARN,
        "no API server has presented the client certificate yet",
    ),
    "a ConfigMap of client authorities that may not be read": Case(
        without("client_ca", FORBIDDEN), CheckState.SKIP, "client_ca cannot be read"
    ),
    "a webhook that failed open once": Case(
        replace(HEALTHY, metrics=f'{FAIL_OPEN_METRIC}{{name="mutate.rightslice.dev",type="admit"}} 1\n'),
        CheckState.WARN,
        "mutate.rightslice.dev did not answer and failed open 1 time",
    ),
}


FAIL_OPEN_UNKNOWN = "whether webhooks fail open is unknown"


@pytest.mark.parametrize("answer", ["validate, but not mutate", 'failed calling webhook "validate.rightslice.dev"', ""])
def test_failing_open_is_unknown_while_the_dry_run_pod_is_not_answered(answer: str) -> None:
    found = diagnose(replace(HEALTHY, answer=answer and f"rightslice answers: {answer}"), NOW)
    (problem,) = (each for each in found if each.state is CheckState.FAIL)
    (unknown,) = (each for each in found if each.check == "fail-open")

    assert unknown.state is CheckState.SKIP
    assert unknown.summary == f"{FAIL_OPEN_UNKNOWN}: {problem.summary}"
    assert problem.advice in unknown.advice


def test_healthy_installation_has_no_problem() -> None:
    lines = diagnose(HEALTHY, NOW)

    assert {line.state for line in lines} == {CheckState.OK}, lines
    assert len(lines) > 10


RESULTS = [
    DiagnosticResult.ok("certificates are valid")._replace(check="certificates"),
    DiagnosticResult.warn("one replica is not ready", "wait")._replace(check="replicas"),
    DiagnosticResult.fail("no policies", "add one")._replace(check="policies"),
    DiagnosticResult.fail("a policy is broken", "fix it")._replace(check="policies"),
]
REPORTS = {
    "rows": (
        ("table", RowFlags(no_headers=True)),
        """\
ok    certificates are valid
warn  one replica is not ready                        wait
fail  no policies                                     add one
fail  a policy is broken                              fix it
""",
    ),
    "with the names of checks, sorted": (
        ("wide", RowFlags("check", no_headers=True)),
        """\
ok    certificates  certificates are valid
fail  policies      no policies                                     add one
fail  policies      a policy is broken                              fix it
warn  replicas      one replica is not ready                        wait
""",
    ),
    "names of checks with problems": (("name", RowFlags()), "check/replicas\ncheck/policies\n"),
}


@pytest.mark.parametrize(("flags", "text"), REPORTS.values(), ids=REPORTS)
def test_results_are_written_as_rows_and_names(flags: tuple[str, RowFlags], text: str) -> None:
    form, rows = flags
    assert diagnosis_reports(RESULTS, without_style, rows)[form]() == text


def test_every_result_has_the_name_of_its_check() -> None:
    found = {line.check for line in diagnose(HEALTHY, NOW)}
    assert {"registration", "certificates", "replicas", "policies", "nodes"} <= found
    assert "" not in found


def test_other_keys_of_the_config_map_are_ignored() -> None:
    others = {"README.txt": "see: [the wiki", ".hidden.yaml": policy_text("guard"), "notes": "kind: GPUPolicy"}
    assert diagnose(replace(HEALTHY, settings={"data": others}), NOW) == diagnose(HEALTHY, NOW)


KNOWN = {
    "all nodes advertise it": replace(COUNTED, nodes=[COUNTING]),
    "the second scheduler ignores it": replace(COUNTED, scheduler=yaml_text(second_scheduler_config())),
}


@pytest.mark.parametrize("facts", KNOWN.values(), ids=KNOWN)
def test_accounting_resource_check(facts: ClusterFacts) -> None:
    (line,) = [line for line in diagnose(facts, NOW) if ACCOUNTING_RESOURCE in line.summary]
    assert line.state is CheckState.OK


def test_missing_extender_has_no_result() -> None:
    assert not [line for line in diagnose(without("extender"), NOW) if "extender" in line.summary]


USED_SLICES: dict[str, tuple[list[Json], list[Json], str]] = {
    "slices in use while a pod waits for a whole GPU": (
        [gpu_pod("nvidia.com/gpu")],
        [gpu_pod(SLICE, nodeName="n1"), gpu_pod("nvidia.com/gpu", nodeName="n1")],
        "pods use the slices of 1 of 1 node that have some",
    ),
    "idle slices while nobody waits": ([], [], "pods use the slices of 0 of 1 node that have some"),
}


@pytest.mark.parametrize(("waiting", "running", "expected"), USED_SLICES.values(), ids=USED_SLICES)
def test_layouts_in_use(waiting: list[Json], running: list[Json], expected: str) -> None:
    facts = replace(HEALTHY, nodes=[PARTITIONED], waiting=waiting, partitioned_pods=running)
    [line] = [line for line in diagnose(facts, NOW) if "slices" in line.summary]

    assert (line.state, line.summary) == (CheckState.OK, expected)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_problem_is_reported_and_nothing_else(case: Case) -> None:
    found = [line for line in diagnose(case.facts, NOW) if line.state is not CheckState.OK]
    lines = [line for line in found if not line.summary.startswith(FAIL_OPEN_UNKNOWN)]

    assert [line.state for line in lines] == [case.state], lines
    assert lines[0].summary.startswith(case.summary) or case.summary in lines[0].summary
    assert lines[0].advice or case.state is CheckState.SKIP


OUTSIDE = without("deployment")
OUTSIDE_CASES = {
    "policies in files only": (
        replace(OUTSIDE, policies=[]),
        CheckState.SKIP,
        "policy files of a server outside the cluster are unknown",
    ),
    "an exception in use": (
        replace(OUTSIDE, exceptions=[with_condition(exception(), "True", "Active")]),
        CheckState.OK,
        "GPUPolicyException e1 is in use",
    ),
    "an exception without status": (
        replace(OUTSIDE, exceptions=[exception()]),
        CheckState.SKIP,
        "GPUPolicyException e1: no server has reported",
    ),
    "an exception with an outdated status": (
        replace(OUTSIDE, exceptions=[with_condition(exception(), "True", "Active", generation=2)]),
        CheckState.SKIP,
        "GPUPolicyException e1: no server has reported",
    ),
    "an exception that a server cannot use": (
        replace(OUTSIDE, exceptions=[with_condition(exception(), "False", "Invalid")]),
        CheckState.FAIL,
        "GPUPolicyException e1: Invalid",
    ),
    "a policy that a file overrides": (
        replace(OUTSIDE, policies=[with_condition(policy(), "False", "OverriddenByFile")]),
        CheckState.WARN,
        "GPUPolicy guard: OverriddenByFile",
    ),
    "an invalid policy": (
        replace(OUTSIDE, policies=[policy(mode="enforced")]),
        CheckState.FAIL,
        "GPUPolicy guard: GPU-P103",
    ),
    "a backstop": (OUTSIDE, CheckState.OK, "the backstop denies"),
}


@pytest.mark.parametrize(("facts", "state", "summary"), OUTSIDE_CASES.values(), ids=OUTSIDE_CASES)
def test_server_outside_the_cluster(facts: ClusterFacts, state: CheckState, summary: str) -> None:
    lines = diagnose(facts, NOW)

    assert [line.state for line in lines if line.summary.startswith(summary)] == [state]
    problems = [line for line in lines if line.state in (CheckState.WARN, CheckState.FAIL)]
    assert len(problems) == (1 if state in (CheckState.WARN, CheckState.FAIL) else 0), problems
    assert any(line.summary == "no Deployment" and line.state is CheckState.SKIP for line in lines)


@pytest.mark.parametrize(("days", "state"), [(1, CheckState.OK), (-1, CheckState.FAIL)])
def test_certificate_must_be_valid_for_a_week(days: int, state: CheckState) -> None:
    expires = x509.load_pem_x509_certificate(PAIR.certificate).not_valid_after_utc
    moment = expires - timedelta(days=7) - timedelta(days=days)

    lines = [line for line in diagnose(HEALTHY, moment) if "serving certificate expires" in line.summary]

    assert [line.state for line in lines] == [state]


def test_expired_certificate_is_reported() -> None:
    expires = x509.load_pem_x509_certificate(PAIR.certificate).not_valid_after_utc

    lines = diagnose(HEALTHY, expires + timedelta(hours=1))

    [line] = [line for line in lines if "serving certificate" in line.summary and "caBundle" not in line.summary]
    assert (line.state, line.summary) == (CheckState.FAIL, f"serving certificate has expired ({expires:%Y-%m-%d})")
    assert "see the leader's log" in line.advice


def test_advice_for_cert_manager() -> None:
    issued = deployment()
    issued["spec"]["template"]["spec"]["containers"][1]["args"] = ["serve", "--tls-cert=/tls/tls.crt"]
    lines = diagnose(
        replace(HEALTHY, deployment=issued, mutating=webhook_configurations()[0]), NOW + timedelta(days=300)
    )

    wrong = [line for line in lines if line.summary.startswith(("caBundle", "serving certificate"))]
    assert len(wrong) == 2
    assert all("describe certificates,issuers" in line.advice for line in wrong)


def with_urls(configuration: Json) -> Json:
    """A configuration with URLs, as in the overlay out-of-cluster."""
    webhooks = [{**webhook, "clientConfig": {"url": "https://10.0.0.1:8443"}} for webhook in configuration["webhooks"]]
    return {**configuration, "webhooks": webhooks}


IN, OUT = "rightslice install", "kubectl apply --server-side -k manifests/overlays/out-of-cluster"
OUTSIDE = replace(without("deployment"), mutating=with_urls(MUTATING), validating=with_urls(VALIDATING))


@pytest.mark.parametrize("part", ["mutating", "validating", "backstop", "policies"])
@pytest.mark.parametrize(("facts", "command"), [(HEALTHY, IN), (OUTSIDE, OUT)], ids=["inside", "outside"])
def test_repair_command_by_location(facts: ClusterFacts, command: str, part: str) -> None:
    missing: Json = {part: None, "refused": {**facts.refused, part: ABSENT}}
    [line] = [line for line in diagnose(replace(facts, **missing), NOW) if IN in line.advice or OUT in line.advice]

    assert line.state is CheckState.FAIL
    assert line.advice.startswith(command)


def test_repair_command_without_any_installation() -> None:
    nothing = ("mutating", "validating", "deployment")
    missing: Json = {**dict.fromkeys(nothing), "refused": dict.fromkeys(nothing, ABSENT)}
    facts = replace(HEALTHY, **missing)
    advice = {line.advice for line in diagnose(facts, NOW) if "configuration" in line.summary}

    assert len(advice) == 1
    assert all(text.startswith(f"{IN}, or helm install rightslice ") and OUT in text for text in advice)


def test_a_backstop_that_helm_took_over_is_replaced() -> None:
    ours = {**deployment(mode="audit"), "metadata": {"annotations": {"meta.helm.sh/release-name": "gpu"}}}
    facts = replace(HEALTHY, deployment=ours, backstop=binding("Deny", "Audit"))
    [line] = [line for line in diagnose(facts, NOW) if line.summary == "the backstop denies, but the mode is audit"]

    assert line.advice == (
        "kubectl delete validatingadmissionpolicybinding rightslice-pods, then helm upgrade gpu CHART "
        "--namespace rightslice-system --reset-then-reuse-values --set mode=audit --force-conflicts"
    )


def test_an_error_of_the_api_server_is_shown_in_full() -> None:
    told = "policies.rightslice.dev is forbidden: " + "no rule of the role reader allows it; " * 20
    facts = without("policies", ApiError("GET /x", 403, "Forbidden", told))
    shown = [line.advice for line in diagnose(facts, NOW) if line.summary == "policies cannot be read"]
    assert shown == [told]


PROXY = {"requestheader-client-ca-file": "PROXY", "client-ca-file": "CLUSTER"}
CREATE = "kubectl -n rightslice-system create configmap rightslice-client-ca --from-file=ca.crt="
PIPED = f".data.requestheader-client-ca-file}}' | {CREATE}/dev/stdin"
COMMANDS = {
    "with a name": (
        PROXY | {"requestheader-allowed-names": '["aggregator"]'},
        f"{PIPED} --from-literal=name=aggregator",
    ),
    "with several names, any of the authority": (PROXY | {"requestheader-allowed-names": '["a","b"]'}, PIPED),
    "other clients have certificates of it, too": (PROXY | {"client-ca-file": "PROXY\n"}, f" run: {CREATE}CA.crt"),
    "nothing is published": ({}, f" run: {CREATE}CA.crt"),
}


@pytest.mark.parametrize(("data", "want"), COMMANDS.values(), ids=COMMANDS)
def test_doctor_prints_how_to_require_the_certificates_that_api_servers_have(data: dict[str, str], want: str) -> None:
    (line,) = check_callers(replace(without("client_ca"), authentication={"data": data}))

    assert line.advice.endswith(want)
