"""decide: what it looks at, which policies speak, what is taken back, and what a workload is told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest

from tests.make import Json, PodMaker, make_namespace, make_pod
from tests.world import NO_USAGE, NOW, ask, codes, mig_node, policies_of, policy, request_of, view_of, whole_node
from webhook.engine.decide import decide
from webhook.model.cluster import ClusterView
from webhook.model.decisions import Decision, Fit, Keep, Why
from webhook.model.modes import Mode
from webhook.model.paths import dotted

ENV = "mode: enforce\nsecurity: {deny: [visibleDevicesEnv]}"
FOUR = "mode: enforce\nlimits: {perPod: [{resource: nvidia.com/gpu, max: 4}]}"
SIZING = "mode: enforce\nrightSizing: {}"
NODES = (whole_node(), mig_node())


def bad() -> PodMaker:
    """A pod that opens every GPU of its node and asks for eight besides."""
    return make_pod().gpus(8).env("NVIDIA_VISIBLE_DEVICES", "all")


# Operations


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
def test_an_operation_that_brings_no_object_comes_to_nothing(operation: str) -> None:
    everywhere = "match: {operations: [CREATE, UPDATE, DELETE, CONNECT]}\n"
    assert ask(bad(), everywhere + ENV, operation=operation) == Decision()


def test_an_update_is_judged_for_security_only() -> None:
    assert codes(ask(bad(), ENV, FOUR)) == ["enforce GPU-S101", "enforce GPU-L103"]
    assert codes(ask(bad(), ENV, FOUR, operation="UPDATE")) == ["enforce GPU-S101"]


def test_an_update_is_never_patched() -> None:
    pod, sizing = make_pod().gpus(1).needs("8Gi"), SIZING + "\ninjection: {runtimeClassName: nvidia}"
    assert ask(pod, sizing, nodes=NODES).patch
    updated = ask(pod, sizing, nodes=NODES, operation="UPDATE")
    assert (updated.patch, updated.applied) == ((), False)
    assert updated.gpu_milli_after == updated.gpu_milli_before == 1000


def test_a_policy_for_one_operation_is_silent_at_the_other() -> None:
    only_updates = "match: {operations: [UPDATE]}\n" + ENV
    assert codes(ask(bad(), only_updates)) == []
    assert codes(ask(bad(), only_updates, operation="UPDATE")) == ["enforce GPU-S101"]


def test_a_pod_without_gpus_under_a_policy_about_gpus_comes_to_nothing() -> None:
    decision = ask(make_pod(), FOUR, SIZING, nodes=NODES)
    assert decision.findings == ()
    assert decision.patch == ()
    assert decision.outcome == Keep(Why.NOT_ASKED)
    assert not decision.touches_gpus


# Match


LABELLED = make_namespace("team", tier="research")


class Matched(NamedTuple):
    match: str
    speaks: bool
    pod: PodMaker = bad()


MATCHES = {
    "everything that is not excluded": Matched("{}", True),
    "a label that the object has": Matched(
        "{objectSelector: {matchLabels: {app: train}}}", True, bad().label("app", "train")
    ),
    "a label of another value": Matched(
        "{objectSelector: {matchLabels: {app: train}}}", False, bad().label("app", "serve")
    ),
    "an object without labels": Matched("{objectSelector: {matchLabels: {app: train}}}", False),
    "an object without the label that must not be": Matched(
        "{objectSelector: {matchExpressions: [{key: app, operator: DoesNotExist}]}}", True
    ),
    "the namespace's name": Matched("{namespaces: ['te*']}", True),
    "another namespace's name": Matched("{namespaces: ['other']}", False),
    "a namespace that is left out": Matched("{excludeNamespaces: [team]}", False),
    "kube-system is left out unless said otherwise": Matched("{}", False, bad().namespace("kube-system")),
    "the namespace's label": Matched("{namespaceSelector: {matchLabels: {tier: research}}}", True),
    "a label that the namespace lacks": Matched("{namespaceSelector: {matchLabels: {tier: batch}}}", False),
    "a namespace that nobody knows has its name": Matched(
        "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: far}}}", True, bad().namespace("far")
    ),
    "a resource that is asked for": Matched("{resources: ['nvidia.com/*']}", True),
    "a resource that is not": Matched("{resources: ['nvidia.com/mig-*']}", False),
    "a condition that holds": Matched("{matchConditions: [{name: a, expression: 'object.kind == \"Pod\"'}]}", True),
    "a condition that does not": Matched(
        "{matchConditions: [{name: a, expression: 'request.namespace == \"x\"'}]}", False
    ),
    "two conditions of which one does not hold": Matched(
        "{matchConditions: [{name: a, expression: 'true'}, {name: b, expression: 'request.dryRun'}]}", False
    ),
    "a condition on the namespace's labels": Matched(
        "{matchConditions: [{name: a, expression: 'namespaceObject.metadata.labels.tier == \"research\"'}]}", True
    ),
}


@pytest.mark.parametrize("case", MATCHES.values(), ids=MATCHES)
def test_a_policy_speaks_about(case: Matched) -> None:
    decision = ask(case.pod, f"match: {case.match}\n{ENV}", view=view_of(LABELLED))
    assert bool(decision.policies) is case.speaks
    assert codes(decision) == (["enforce GPU-S101"] if case.speaks else [])


def test_a_namespace_that_a_live_cluster_does_not_have_has_its_name_still() -> None:
    live = ClusterView(view_of().fleet, complete=True)
    match = "match: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: team}}}\n"
    assert codes(ask(bad(), match + ENV, view=live)) == ["enforce GPU-S101"]


FAILING = "match: {matchConditions: [{name: a, expression: 'object.spec.nodeName == \"n\"'}]}\n"


def test_a_condition_that_fails_silences_its_policy_with_a_warning() -> None:
    decision = ask(bad(), FAILING + ENV, FOUR)
    assert codes(decision) == ["warn GPU-P201", "enforce GPU-L103"]
    assert "policy test-0 failed" in decision.findings[0].message
    assert "does not speak" in decision.findings[0].message
    assert decision.policies == ("test-1",)


def test_a_condition_that_fails_under_failure_policy_fail_denies() -> None:
    decision = ask(bad(), "failurePolicy: Fail\n" + FAILING + ENV)
    assert codes(decision) == ["enforce GPU-P201"]
    assert decision.denials[0].message.endswith("so the policy refuses it")
    assert decision.policies == ()


# Exemptions


def exempt(codes: str = "[GPU-S101]", match: str = "{namespaces: [team]}", until: str = "2026-12-01T00:00:00Z") -> str:
    """An exemption to write into a policy."""
    parts = f"name: here, codes: {codes}, match: {match}, reason: INC-1, expirationTime: '{until}'"
    return f"\nexemptions: [{{{parts}}}]"


class Taken(NamedTuple):
    exemption: str
    holds: bool
    pod: PodMaker = bad()
    now: datetime = NOW


EXEMPTIONS = {
    "in its namespace": Taken(exempt(), True),
    "by a glob": Taken(exempt(match="{namespaces: ['te*']}"), True),
    "in another namespace": Taken(exempt(match="{namespaces: [other]}"), False),
    "for another code": Taken(exempt("[GPU-S102]"), False),
    "for one of several codes": Taken(exempt("[GPU-S102, GPU-S101]"), True),
    "expired": Taken(exempt(until="2026-05-31T23:59:59Z"), False),
    "a second before its end": Taken(
        exempt(until="2026-06-01T00:00:01Z"), True, now=datetime(2026, 6, 1, 0, 0, 0, tzinfo=UTC)
    ),
    "at its very end": Taken(exempt(until="2026-06-01T00:00:00Z"), False),
    "at its very end in another zone": Taken(exempt(until="2026-06-01T02:00:00+02:00"), False),
    "for the pod's service account": Taken(
        exempt(match="{namespaces: [team], serviceAccounts: [bench]}"), True, bad().spec(serviceAccountName="bench")
    ),
    "for another service account": Taken(
        exempt(match="{namespaces: [team], serviceAccounts: [bench]}"), False, bad().spec(serviceAccountName="web")
    ),
    "a pod that names no account has the default one": Taken(
        exempt(match="{namespaces: [team], serviceAccounts: [default]}"), True
    ),
    "for the pod's labels": Taken(
        exempt(match="{namespaces: [team], objectSelector: {matchLabels: {app: bench}}}"),
        True,
        bad().label("app", "bench"),
    ),
    "for other labels": Taken(exempt(match="{namespaces: [team], objectSelector: {matchLabels: {app: bench}}}"), False),
}


@pytest.mark.parametrize("case", EXEMPTIONS.values(), ids=EXEMPTIONS)
def test_an_exemption_holds(case: Taken) -> None:
    decision = ask(case.pod, ENV + case.exemption, now=case.now)
    assert codes(decision) == ([] if case.holds else ["enforce GPU-S101"])
    assert [taken.exemption for taken in decision.exempted] == (["here"] if case.holds else [])


def test_what_was_exempted_is_told_with_its_end() -> None:
    (taken,) = ask(bad(), ENV + exempt()).exempted
    assert (taken.finding.code, taken.finding.mode) == ("GPU-S101", Mode.ENFORCE)
    assert taken.expires == "2026-12-01T00:00:00+00:00"


def test_an_exemption_takes_back_its_own_policys_finding_only() -> None:
    decision = ask(bad(), ENV + exempt(), ENV)
    assert [(found.code, found.policy) for found in decision.denials] == [("GPU-S101", "test-1")]
    assert [taken.finding.policy for taken in decision.exempted] == ["test-0"]


def test_an_exempted_pod_without_gpus_still_counts_as_touching_them() -> None:
    pod = make_pod().env("NVIDIA_VISIBLE_DEVICES", "all")
    assert ask(pod, ENV + exempt()).touches_gpus
    assert not ask(make_pod(), ENV + exempt()).touches_gpus


EXCEPTION = """
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicyException
metadata: {{name: incident, namespace: {namespace}}}
spec:
  policyName: {policy}
  codes: [GPU-S101]
  match: {{namespaces: [{namespace}]}}
  reason: INC-2
  expirationTime: "2026-12-01T00:00:00Z"
"""


@pytest.mark.parametrize(
    ("policy_name", "namespace", "holds"),
    [
        pytest.param("guard", "team", True, id="of this policy, here"),
        pytest.param("other", "team", False, id="of another policy"),
        pytest.param("guard", "far", False, id="in another namespace"),
    ],
)
def test_an_exception_object_takes_back(policy_name: str, namespace: str, holds: bool) -> None:
    exception = EXCEPTION.format(policy=policy_name, namespace=namespace)
    policies = policies_of(policy(ENV, "guard"), policy(FOUR, "other"), exception)
    decision = decide(request_of(bad().build()), policies, view_of(), NO_USAGE, NOW)
    standing = [] if holds else ["enforce GPU-S101"]
    assert codes(decision) == [*standing, "enforce GPU-L103"]
    assert [taken.exemption for taken in decision.exempted] == (["incident"] if holds else [])


# Several policies


@pytest.mark.parametrize(
    ("modes", "want"),
    [
        (("audit", "warn", "enforce"), "enforce GPU-S101"),
        (("enforce", "warn", "audit"), "enforce GPU-S101"),
        (("warn", "audit"), "warn GPU-S101"),
        (("audit", "audit"), "audit GPU-S101"),
    ],
)
def test_the_strictest_of_several_policies_is_heard_once(modes: tuple[str, ...], want: str) -> None:
    texts = [ENV.replace("enforce", mode) for mode in modes]
    decision = ask(bad(), *texts)
    assert codes(decision) == [want]
    assert decision.policies == tuple(f"test-{index}" for index in range(len(modes)))


def test_a_section_may_have_a_mode_of_its_own() -> None:
    assert codes(ask(bad(), "mode: audit\nsecurity: {mode: warn, deny: [visibleDevicesEnv]}")) == ["warn GPU-S101"]


def test_two_policies_that_say_different_things_are_both_heard() -> None:
    assert codes(ask(bad(), FOUR, FOUR.replace("max: 4", "max: 2"))) == ["enforce GPU-L103", "enforce GPU-L103"]


# Workloads


def workload(kind: str, pod: PodMaker, group: str = "apps/v1", **spec: Any) -> Json:
    """A workload whose template is a pod."""
    data = pod.build()
    template = {"metadata": {"labels": {"app": "a"}} | _notes(data), "spec": data["spec"]}
    metadata = {"name": "work", "namespace": "team"}
    whole: Json = {"apiVersion": group, "kind": kind, "metadata": metadata, "spec": {"template": template} | spec}
    if kind == "CronJob":
        whole["spec"] = {"jobTemplate": {"spec": {"template": template} | spec}}
    return whole


def _notes(data: Json) -> Json:
    notes = data["metadata"].get("annotations")
    return {"annotations": notes} if notes else {}


PLACES = {
    "Deployment": (workload("Deployment", bad()), "spec.template.spec"),
    "StatefulSet": (workload("StatefulSet", bad()), "spec.template.spec"),
    "DaemonSet": (workload("DaemonSet", bad()), "spec.template.spec"),
    "Job": (workload("Job", bad(), "batch/v1"), "spec.template.spec"),
    "CronJob": (workload("CronJob", bad(), "batch/v1"), "spec.jobTemplate.spec.template.spec"),
}


@pytest.mark.parametrize(("data", "place"), PLACES.values(), ids=PLACES)
def test_a_workload_is_warned_at_its_own_field_and_never_refused(data: Json, place: str) -> None:
    decision = ask(data, ENV, FOUR, nodes=NODES)
    assert codes(decision) == ["warn GPU-S101", "warn GPU-L103"]
    assert [dotted(found.path) for found in decision.findings] == [
        f"{place}.containers[0].env[0]",
        f"{place}.containers[0].resources.limits['nvidia.com/gpu']",
    ]
    assert decision.denials == ()
    assert decision.patch == ()


def test_an_audit_finding_of_a_workload_stays_an_audit_finding() -> None:
    assert codes(ask(workload("Deployment", bad()), ENV.replace("enforce", "audit"))) == ["audit GPU-S101"]


def test_a_workload_is_told_what_its_pods_will_become_and_is_not_changed() -> None:
    data = workload("Deployment", make_pod().gpus(1).needs("8Gi"), replicas=3)
    decision = ask(data, SIZING, nodes=NODES)
    assert codes(decision) == ["warn GPU-R101"]
    assert decision.patch == ()
    assert not decision.applied
    assert isinstance(decision.outcome, Fit)
    assert decision.outcome.resource == "nvidia.com/mig-1g.10gb"


@pytest.mark.parametrize(("replicas", "before"), [(0, 0), (1, 1000), (3, 3000)])
def test_a_workloads_thousandths_are_those_of_all_its_pods(replicas: int, before: int) -> None:
    data = workload("Deployment", make_pod().gpus(1).needs("8Gi"), replicas=replicas)
    decision = ask(data, SIZING, nodes=NODES)
    single = ask(make_pod().gpus(1).needs("8Gi"), SIZING, nodes=NODES)
    assert decision.gpu_milli_before == before
    assert decision.gpu_milli_after == single.gpu_milli_after * replicas


def test_the_pods_of_a_daemon_set_are_never_right_sized() -> None:
    decision = ask(workload("DaemonSet", make_pod().gpus(1).needs("8Gi")), SIZING, nodes=NODES)
    assert decision.outcome == Keep(Why.DAEMON_SET)
    assert codes(decision) == ["warn GPU-R103"]


def test_an_exemption_for_the_templates_labels_is_told_at_its_place() -> None:
    exemption = exempt(match="{namespaces: [team], objectSelector: {matchLabels: {app: a}}}")
    decision = ask(workload("Deployment", bad()), ENV + exemption)
    assert codes(decision) == []
    assert [dotted(taken.finding.path) for taken in decision.exempted] == ["spec.template.spec.containers[0].env[0]"]


def test_each_template_of_a_workload_is_judged_and_its_policies_are_named_once() -> None:
    template = {"spec": bad().build()["spec"]}
    tasks = [{"name": "a", "replicas": 2, "template": template}, {"name": "b", "template": template}]
    data = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {}, "spec": {"tasks": tasks}}
    decision = ask(data, ENV)
    assert [dotted(found.path) for found in decision.findings] == [
        "spec.tasks[0].template.spec.containers[0].env[0]",
        "spec.tasks[1].template.spec.containers[0].env[0]",
    ]
    assert decision.policies == ("test-0",)
    assert decision.gpu_milli_before == 24_000


NOTHING_IN_IT = {
    "a kind that makes no pods": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}},
    "a Deployment without a template": {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {}},
    "a template that is no map": {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": "x"}},
    "a template whose containers are no list": {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "spec": {"template": {"spec": {"containers": 5}}},
    },
}


@pytest.mark.parametrize("data", NOTHING_IN_IT.values(), ids=NOTHING_IN_IT)
def test_an_object_without_a_pod_in_it_comes_to_nothing(data: Json) -> None:
    decision = ask(data, ENV, FOUR)
    assert decision == Decision()


def test_a_match_condition_of_a_workload_sees_the_workload() -> None:
    condition = "match: {matchConditions: [{name: a, expression: 'object.kind == \"Deployment\"'}]}\n"
    assert codes(ask(workload("Deployment", bad()), condition + ENV)) == ["warn GPU-S101"]
    assert codes(ask(bad(), condition + ENV)) == []
