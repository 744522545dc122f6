"""The CEL conditions match every pod for which the engine has findings."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from cel_expr_python import cel
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.builders import Json, PodMaker, make_pod
from tests.cluster.test_validating_admission_policies import REJECTED
from tests.conftest import ROOT
from tests.engine.invariants import Scenario, any_pods, scenarios
from tests.engine.test_guard_host import HOST_PATHS
from tests.example_cluster import policies_of, request_of, view_of
from tests.manifests.generated import files
from tests.strategies import RESOURCE_NAMES
from webhook.engine.decide import decide
from webhook.engine.guarding.bypasses import BYPASS_CODES
from webhook.engine.guarding.host_access import (
    DEVICE_TREES,
    GUARDED_PREFIXES,
    GUARDED_TREES,
    PROCESS_LINKS,
    path_reaches_gpus,
)
from webhook.manifests.backstop import OPT_OUT_LABEL, POD_VALIDATIONS, backstop_policies
from webhook.manifests.backstop import SHARE_LABEL as SHARE
from webhook.manifests.cel_conditions import (
    DEVICE_PATHS,
    MAX_ENTRIES,
    gpu_request_cel,
    host_mount_cel,
    may_be_changed_cel,
    touches_gpus_cel,
    wide_host_mount_cel,
)
from webhook.manifests.webhooks import webhook_configurations
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX, parse_gpu_resource
from webhook.model.usage import UsageView
from webhook.policy.workload_kinds import WORKLOAD_KINDS
from webhook.policy.written.sections import Bypass
from webhook.well_known import EXCLUDED_NAMESPACES

CEL = cel.NewEnv(variables=dict.fromkeys(("object", "request"), cel.Type.DYN))
TOUCHES = CEL.compile(touches_gpus_cel("object"))
MAY_BE_CHANGED = CEL.compile(may_be_changed_cel("object"))
MOUNTS_HOST = CEL.compile(f"{host_mount_cel('object.spec', DEVICE_PATHS)} || {wide_host_mount_cel('object.spec')}")

SEGMENTS = {segment for tree in (*GUARDED_TREES, *GUARDED_PREFIXES) for segment in tree.split("/")}
ODD = {"..", ".", "x", "1", "self", "var", "nvidia0", "nvidia-caps", *PROCESS_LINKS}
STEPS = st.sampled_from(sorted(SEGMENTS | ODD))
PATHS = st.lists(STEPS, min_size=1, max_size=6).map("/".join)
DETOURS = st.sampled_from([[], [], ["."], [""], ["x", ".."], ["..", "var"]])


@st.composite
def guarded_paths(draw: st.DrawFn) -> str:
    """Draw guarded paths, their parents and children, often with detours."""
    steps = draw(st.sampled_from([*GUARDED_TREES, *GUARDED_PREFIXES])).split("/")[1:]
    steps = steps[: draw(st.integers(1, len(steps)))] + draw(st.lists(STEPS, max_size=2))
    at = draw(st.integers(0, len(steps)))
    steps[at:at] = draw(DETOURS)
    return draw(st.sampled_from(["/", "/", "/var/", "//", ""])) + "/".join(steps) + draw(st.sampled_from(["", "", "/"]))


def condition_matches(expression: Any, pod: Json) -> bool:
    """Evaluate a condition for a new pod."""
    value = expression.eval(data={"object": pod, "request": {"userInfo": {"username": "alice"}}}).plain_value()
    if str(value).startswith(("NOT_FOUND", "ALREADY_EXISTS")):
        # A required field is missing, or two keys are equal up to a NUL, which no API server sends.
        # A condition that fails closed would reject it.
        return True
    assert isinstance(value, bool), value
    return value


def pod_with_host_path(path: str) -> Json:
    return make_pod().spec(volumes=[{"name": "v", "hostPath": {"path": path}}]).build()


IN_A_LOOP = [CEL.compile(build("(object)")) for build in (touches_gpus_cel, may_be_changed_cel)]
"""The same conditions for an expression that is no name, as for pod templates."""


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(any_pods())
def test_conditions_about_the_object_and_about_an_expression_agree(pod: Json) -> None:
    written_out = [condition_matches(condition, pod) for condition in (TOUCHES, MAY_BE_CHANGED)]

    assert written_out == [condition_matches(condition, pod) for condition in IN_A_LOOP]


WITH_OLD_OBJECT = cel.NewEnv(variables=dict.fromkeys(("object", "oldObject", "request"), cel.Type.DYN))
PLAIN, GPU_POD = make_pod().build(), make_pod().gpus(1).build()
HOST_POD = pod_with_host_path("/")
SENT = {
    "a plain pod": ("validate", PLAIN, None, "team", False),
    "a pod with a GPU": ("validate", GPU_POD, None, "team", True),
    "a pod with a GPU, to be changed": ("mutate", GPU_POD, None, "team", True),
    "a pod with a GPU in an excluded namespace": ("validate", GPU_POD, None, "gpu-operator", False),
    "a pod with a GPU in an excluded namespace, to be changed": ("mutate", GPU_POD, None, "kube-system", False),
    "a pod with the root of the host": ("host", HOST_POD, None, "team", True),
    "a pod with the root of the host in an excluded namespace": ("host", HOST_POD, None, "kube-system", False),
    "an update that changes no field of the spec": ("validate", GPU_POD, GPU_POD, "team", False),
    "an update that adds a GPU": ("validate", GPU_POD, PLAIN, "team", True),
    "an update of a plain pod": ("validate", PLAIN, HOST_POD, "team", False),
}


@pytest.mark.parametrize(("name", "pod", "old", "namespace", "sent"), SENT.values(), ids=SENT)
def test_one_condition_decides_what_is_sent(name: str, pod: Json, old: Json | None, namespace: str, sent: bool) -> None:
    hooks = [hook for one in webhook_configurations() for hook in one["webhooks"]]
    [[condition]] = [hook["matchConditions"] for hook in hooks if hook["name"] == f"{name}.rightslice.dev"]
    operation = "CREATE" if old is None else "UPDATE"
    request = {"operation": operation, "namespace": namespace, "userInfo": {"username": "alice"}}
    data = {"object": pod, "oldObject": old, "request": request}

    assert WITH_OLD_OBJECT.compile(condition["expression"]).eval(data=data).plain_value() is sent


@settings(max_examples=500)
@given(guarded_paths() | st.builds(str.__add__, st.sampled_from(["", "/", "//"]), PATHS))
def test_host_paths_that_reach_gpus_match(path: str) -> None:
    assert condition_matches(MOUNTS_HOST, pod_with_host_path(path)) or not path_reaches_gpus(path)


@pytest.mark.parametrize("path", [path for path, bad in HOST_PATHS.values() if bad])
def test_guarded_host_paths_match(path: str) -> None:
    assert condition_matches(MOUNTS_HOST, pod_with_host_path(path))


@pytest.mark.parametrize("path", [*DEVICE_TREES, *GUARDED_PREFIXES])
def test_device_paths_always_match(path: str) -> None:
    for below in (path, f"{path}/x", f"/var{path}"):
        assert condition_matches(TOUCHES, pod_with_host_path(below)) or not path_reaches_gpus(below)


@pytest.mark.parametrize("path", ["/var/log", "/etc/cni/net.d", "/sys", "/lib/modules", "/opt/cni/bin", "/etc/hosts"])
def test_paths_of_network_plug_ins_do_not_match(path: str) -> None:
    assert not condition_matches(MOUNTS_HOST, pod_with_host_path(path))


@pytest.mark.parametrize("path", [path for path, bad in HOST_PATHS.values() if not bad and ".." not in path])
def test_unguarded_host_paths_do_not_match(path: str) -> None:
    assert not condition_matches(MOUNTS_HOST, pod_with_host_path(path))


SPELLINGS = ["/dev//nvidia0", "/dev/./nvidia0", "//dev/nvidia0", "dev/nvidia0", "/./dev/nvidia0", "/opt/../dev/nvidia0"]
MOUNTS_DEVICES = CEL.compile(next(rule for rule, message in POD_VALIDATIONS if "host paths" in message))


@pytest.mark.parametrize("path", SPELLINGS)
def test_the_backstop_rejects_all_spellings_of_a_device(path: str) -> None:
    request = {"operation": "CREATE", "userInfo": {"username": "alice"}}

    assert path_reaches_gpus(path)
    assert condition_matches(TOUCHES, pod_with_host_path(path))
    assert MOUNTS_DEVICES.eval(data={"object": pod_with_host_path(path), "request": request}).plain_value() is False


VARIABLE = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
TOUCHING = {
    "envFrom with prefix NVIDIA_V": make_pod().container("more", envFrom=[{"prefix": "NVIDIA_V", "secretRef": {}}]),
    "envFrom whose prefix begins CUDA_": make_pod().container("more", envFrom=[{"prefix": "CU", "secretRef": {}}]),
    "a CUDA variable": make_pod().env("CUDA_VISIBLE_DEVICES", "0"),
    "an extended resource of a device class": make_pod().requests("deviceclass.resource.kubernetes.io/gpu", 1),
    "a debug container": make_pod().container("debug", kind="ephemeralContainers", image="i", env=VARIABLE),
}


@pytest.mark.parametrize("maker", TOUCHING.values(), ids=TOUCHING)
def test_rare_pods_match(maker: PodMaker) -> None:
    assert condition_matches(TOUCHES, maker.build())
    assert not condition_matches(TOUCHES, make_pod().build())


GUARD = policies_of(
    "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: g}\n"
    f"spec: {{mode: enforce, security: {{deny: [{', '.join(Bypass.__args__)}]}}}}\n"  # type: ignore[attr-defined]  # a Literal
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(any_pods())
def test_rejected_pods_match(pod: Json) -> None:
    decision = decide(request_of(pod), GUARD, view_of(), UsageView(), datetime(2026, 6, 1, tzinfo=UTC))
    assume(decision.findings)

    if not condition_matches(TOUCHES, pod):  # then it fails open: acceptable for wide mounts only
        assert condition_matches(MOUNTS_HOST, pod)
        assert {found.code for found in decision.findings} == {BYPASS_CODES["hostPathDevices"]}


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(any_pods(), scenarios())
def test_changed_pods_match_the_condition_of_the_mutating_webhook(pod: Json, scenario: Scenario) -> None:
    assume(scenario.decide(pod).patch)

    assert condition_matches(MAY_BE_CHANGED, pod)


def pod_with_entries(count: int) -> dict[str, Json]:
    """Return pods without GPUs, each with one list or map of this length, by its field."""
    env = [{"name": f"V{index}", "value": "x"} for index in range(count)]
    mounts = [{"name": "v", "mountPath": f"/m{index}"} for index in range(count)]
    sources = [{"prefix": f"P{index}", "secretRef": {"name": "s"}} for index in range(count)]
    amounts = {f"example.com/r{index}": "1" for index in range(count)}
    annotated = make_pod()
    for index in range(count):
        annotated.annotate(f"a{index}", "x")
    return {
        "env": make_pod().container("more", image="i", env=env).build(),
        "envFrom": make_pod().container("more", image="i", envFrom=sources).build(),
        "volumeMounts": make_pod().container("more", image="i", volumeMounts=mounts).build(),
        "limits": make_pod().container("more", image="i", resources={"limits": amounts}).build(),
        "volumes": make_pod().spec(volumes=[{"name": f"v{index}", "emptyDir": {}} for index in range(count)]).build(),
        "containers": make_pod().spec(containers=[{"name": f"c{index}"} for index in range(count)]).build(),
        "annotations": annotated.build(),
    }


LONGEST, TOO_LONG = pod_with_entries(MAX_ENTRIES - 1), pod_with_entries(MAX_ENTRIES + 1)


@pytest.mark.parametrize("field", TOO_LONG)
def test_a_list_that_is_too_long_to_iterate_over_matches(field: str) -> None:
    assert condition_matches(TOUCHES, TOO_LONG[field])
    assert not condition_matches(TOUCHES, LONGEST[field])


@pytest.mark.parametrize("field", sorted(TOO_LONG.keys() - {"envFrom", "limits"}))
def test_the_backstop_rejects_lists_that_are_too_long_to_iterate_over(field: str) -> None:
    assert condition_matches(BYPASSES, TOO_LONG[field])
    assert backstop_rejects(TOO_LONG[field])
    assert not condition_matches(BYPASSES, LONGEST[field])
    assert not backstop_rejects(LONGEST[field])


REQUESTS_GPU = CEL.compile(f"object.containers.exists(c, {gpu_request_cel('c')})")
PARTS = ["nvidia.com/", "gpu", "mig-", "1g.10gb", "7g.80", "g.", "gb", ".me", "-me", ".me.all", ".gfx", ".shared", "x"]
NAMES = st.builds(
    "nvidia.com/{}".format, st.lists(st.sampled_from(PARTS), max_size=5).map("".join) | st.text(max_size=5)
)


@settings(max_examples=500)
@given(NAMES | RESOURCE_NAMES, st.sampled_from(["0", "1", 0, 1]), st.sampled_from(["limits", "requests"]))
def test_the_expression_and_the_engine_agree_on_gpu_requests(name: str, amount: object, side: str) -> None:
    requests_gpu = parse_gpu_resource(name) is not None or name.startswith(DEVICE_CLASS_PREFIX)
    container = {"name": "main", "resources": {side: {name: amount}}}

    assert condition_matches(REQUESTS_GPU, {"containers": [container]}) == (requests_gpu and amount not in ("0", 0))


BACKSTOP = next(one["spec"] for one in backstop_policies() if one["metadata"]["name"] == "rightslice-pods")
WITH_VARIABLES = cel.NewEnv(variables=dict.fromkeys(("object", "request", "variables"), cel.Type.DYN))
VARIABLES = {one["name"]: WITH_VARIABLES.compile(one["expression"]) for one in BACKSTOP["variables"]}
MUST_HOLD = [WITH_VARIABLES.compile(one["expression"]) for one in BACKSTOP["validations"]]
[CONDITION] = BACKSTOP["matchConditions"]
BYPASSES = CEL.compile(CONDITION["expression"])


def backstop_rejects(pod: Json) -> bool:
    """Evaluate the rules of the backstop for a new pod, without its match condition."""
    facts: Json = {"object": pod, "request": {"operation": "CREATE", "userInfo": {"username": "alice"}}}
    variables: Json = {}
    for name, one in VARIABLES.items():
        variables[name] = one.eval(data=facts | {"variables": variables}).plain_value()
    facts["variables"] = variables
    return any(rule.eval(data=facts).plain_value() is False for rule in MUST_HOLD)


@settings(max_examples=300)
@given(any_pods())
def test_the_match_condition_covers_rejected_pods(pod: Json) -> None:
    assert condition_matches(BYPASSES, pod) or not backstop_rejects(pod)
    assert condition_matches(TOUCHES, pod) or not condition_matches(BYPASSES, pod)


@pytest.mark.parametrize("maker", [maker for maker, _ in REJECTED.values()], ids=REJECTED)
def test_the_match_condition_covers_bypasses(maker: PodMaker) -> None:
    pod = maker.build()

    assert backstop_rejects(pod)
    assert condition_matches(BYPASSES, pod)
    assert condition_matches(TOUCHES, pod)


ORDINARY = {
    "requests a GPU": make_pod().gpus(1),
    "requests a GPU, with driver capabilities": make_pod().gpus(1).env("NVIDIA_DRIVER_CAPABILITIES", "compute"),
    "requests a GPU, with Rightslice's annotations": make_pod().gpus(1).annotate("rightslice.dev/gpu-memory", "8Gi"),
    "requests a slice": make_pod().requests("nvidia.com/mig-1g.10gb", 1),
}


@pytest.mark.parametrize("maker", ORDINARY.values(), ids=ORDINARY)
def test_pods_that_only_request_gpus_do_not_match_the_backstop(maker: PodMaker) -> None:
    assert condition_matches(TOUCHES, maker.build())
    assert not condition_matches(BYPASSES, maker.build())


@pytest.mark.parametrize("name", ["validate.rightslice.dev", "host.rightslice.dev"])
def test_pods_are_evaluated_on_create_and_on_changes(name: str) -> None:
    [hook] = [hook for one in webhook_configurations() for hook in one["webhooks"] if hook["name"] == name]
    judged = {(what, when) for rule in hook["rules"] for what in rule["resources"] for when in rule["operations"]}

    changes = {(what, "UPDATE") for what in ("pods", "pods/ephemeralcontainers", "pods/resize")}
    assert judged == {("pods", "CREATE")} | changes


@pytest.mark.parametrize(("name", "text"), files().items(), ids=files())
def test_generated_files_are_current(name: str, text: str) -> None:
    assert (ROOT / "manifests" / name).read_text(encoding="utf-8") == text, "run make manifests"


def test_all_known_workloads_are_sent() -> None:
    rules = [rule for one in webhook_configurations() for hook in one["webhooks"] for rule in hook["rules"]]
    sent = {(group, plural) for rule in rules for group in rule["apiGroups"] for plural in rule["resources"]}

    assert {(group, f"{kind.lower()}s") for group, kind in WORKLOAD_KINDS} <= sent


def test_system_namespaces_are_excluded() -> None:
    hooks = [hook for one in webhook_configurations() for hook in one["webhooks"]]
    rules = [rule for hook in hooks for rule in hook["rules"]]
    resources = {resource for rule in rules for resource in rule["resources"]}

    assert {operation for rule in rules for operation in rule["operations"]} == {"CREATE", "UPDATE"}
    assert not resources & {"*", "pods/*", "*/*", "pods/status", "pods/eviction", "pods/binding", "nodes", "leases"}
    pods = [hook["namespaceSelector"] for hook in hooks if "namespaceSelector" in hook]
    assert {tuple(each["matchExpressions"][0]["values"]) for each in pods} == {EXCLUDED_NAMESPACES}
    failing = {hook["name"] for hook in hooks if hook["failurePolicy"] == "Fail"}
    assert failing == {"validate.rightslice.dev", "policies.rightslice.dev"}
    assert all(hook["timeoutSeconds"] <= 3 for hook in hooks)


NAMESPACES = next(
    one["spec"] for one in backstop_policies() if one["metadata"]["name"] == "rightslice-namespace-opt-out"
)
WITH_OLD = cel.NewEnv(variables=dict.fromkeys(("object", "oldObject", "request"), cel.Type.DYN))
NEEDS_RIGHT = WITH_OLD.compile(NAMESPACES["matchConditions"][0]["expression"])

RELABELED = {
    "a new namespace without labels": (None, {}, False),
    "another label": ({"team": "a"}, {"team": "b"}, False),
    "the same share": ({SHARE: "a"}, {SHARE: "a", "team": "b"}, False),
    "leaves a shared quota": ({SHARE: "a"}, {}, True),
    "changes to another shared quota": ({SHARE: "a"}, {SHARE: "b"}, True),
    "joins a shared quota": ({}, {SHARE: "a"}, True),
    "an empty value": ({}, {SHARE: ""}, True),
    "a new namespace of a shared quota": (None, {SHARE: "a"}, True),
    "leaves the backstop": ({}, {OPT_OUT_LABEL: "off"}, True),
}


@pytest.mark.parametrize(("before", "after", "needs_right"), RELABELED.values(), ids=RELABELED)
def test_labels_that_end_a_rule_need_a_right(before: Json | None, after: Json, needs_right: bool) -> None:
    old = None if before is None else {"metadata": {"name": "n", "labels": before}}
    request = {"operation": "CREATE" if old is None else "UPDATE"}
    facts: Json = {"object": {"metadata": {"name": "n", "labels": after}}, "oldObject": old, "request": request}

    assert NEEDS_RIGHT.eval(data=facts).plain_value() is needs_right


def test_every_binding_has_a_policy() -> None:
    kinds: dict[str, set[str]] = {}
    for one in backstop_policies():
        kinds.setdefault(one["kind"], set()).add(one["metadata"]["name"])

    assert kinds["ValidatingAdmissionPolicy"] == kinds["ValidatingAdmissionPolicyBinding"]
