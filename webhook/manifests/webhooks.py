"""The two webhook configurations: which requests an API server sends where, and what it does while nobody answers.

The hook that changes pods, and those that can only warn, fail open. The one that judges pods which touch GPUs fails
closed. Pods that reach for wide parts of the host, as network plug-ins and node exporters do, are judged too, but
never held up by our absence: a node may need them before it can run us.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from webhook.manifests.cel_conditions import SPEC_OR_ANNOTATIONS_CHANGED, touches_gpus_cel, wide_host_mount_cel
from webhook.policy.template_paths import WORKLOAD_TEMPLATES
from webhook.well_known import APP_NAME, GROUP, SYSTEM_NAMESPACE

Json = dict[str, Any]

EXCLUDED_NAMESPACES = (
    "kube-system",
    "kube-public",
    "kube-node-lease",
    SYSTEM_NAMESPACE,
    "gpu-operator",
    "nvidia-gpu-operator",
    "nvidia-device-plugin",
)
"""Namespaces of what a cluster and its GPUs need to start, and our own: none of them may ever wait for us."""

MUTATE_SECONDS, JUDGE_SECONDS = 2, 3

_POD_TOUCHES_GPUS = {"name": "touches-gpus", "expression": touches_gpus_cel("object")}
_NOT_SYSTEM_NAMESPACE = {
    "name": "not-of-the-system",
    "expression": f"!(has(request.namespace) && request.namespace in [{', '.join(map(repr, EXCLUDED_NAMESPACES))}])",
}
_POD_CHANGED = {"name": "says-something-new", "expression": SPEC_OR_ANNOTATIONS_CHANGED}
_MOUNTS_WIDE_HOST_PATHS = {"name": "reaches-for-the-host", "expression": wide_host_mount_cel("object.spec")}
"""Also where the pod touches GPUs, and is judged twice then: what it costs to find that out is the pod's to choose."""
_SPEC_CHANGED = {
    "name": "has-another-spec",
    "expression": "request.operation != 'UPDATE' || object.spec != oldObject.spec",
}

_TEMPLATE_CEL = (
    "has(object.template) ? object.template"
    " : has(object.spec.jobTemplate) ? object.spec.jobTemplate.spec.template"
    " : object.spec.template"
)
"""Where the pod template of a built-in kind stands: PodTemplate, CronJob, all others."""


def webhook_configurations() -> list[Json]:
    """Both configurations, calling a Service. Who keeps the certificates fills in the caBundle."""
    pods_made = [_webhook_rule("", ["pods"], ["CREATE"])]
    pods_judged = [
        _webhook_rule("", ["pods"], ["CREATE", "UPDATE"]),
        _webhook_rule("", ["pods/ephemeralcontainers", "pods/resize"], ["UPDATE"]),
    ]
    limits = [_webhook_rule("", ["limitranges", "resourcequotas"], ["CREATE", "UPDATE"])]
    policies = [_webhook_rule(GROUP, ["gpupolicies", "gpupolicyexceptions"], ["CREATE", "UPDATE"])]
    shape = _webhook_entry("mutate", "/mutate", pods_made, [_POD_TOUCHES_GPUS], seconds=MUTATE_SECONDS)
    judge = _webhook_entry("validate", "/validate", pods_judged, [_POD_CHANGED, _POD_TOUCHES_GPUS], fails="Fail")
    return [
        _webhook_configuration(
            "Mutating",
            [
                shape | {"reinvocationPolicy": "IfNeeded"},
                # It changes nothing; but it comes before the schema is looked at, and its sentences are better.
                _webhook_entry("policies", "/policies", policies) | {"reinvocationPolicy": "Never"},
            ],
        ),
        _webhook_configuration(
            "Validating",
            [
                judge,
                _webhook_entry("host", "/validate", pods_judged, [_POD_CHANGED, _MOUNTS_WIDE_HOST_PATHS]),
                _webhook_entry("templates", "/validate", _built_in_rules(), [_SPEC_CHANGED, _TEMPLATE_TOUCHES_GPUS]),
                _webhook_entry("workloads", "/validate", _custom_resource_rules(), [_SPEC_CHANGED]),
                _webhook_entry("namespace-limits", "/validate", limits, [_SPEC_CHANGED]),
                _webhook_entry("policies", "/policies", policies, fails="Fail"),
            ],
        ),
    ]


_TEMPLATE_TOUCHES_GPUS = {"name": "touches-gpus", "expression": touches_gpus_cel(_TEMPLATE_CEL)}


def _webhook_configuration(kind: str, webhooks: Sequence[Json]) -> Json:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": APP_NAME},
        "webhooks": list(webhooks),
    }


def _webhook_entry(
    name: str,
    path: str,
    rules: list[Json],
    conditions: Sequence[Json] = (),
    *,
    fails: str = "Ignore",
    seconds: int = JUDGE_SECONDS,
) -> Json:
    namespaced = path != "/policies"
    selector = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(EXCLUDED_NAMESPACES)}
    hook: Json = {
        "name": f"{name}.{GROUP}",
        "clientConfig": {"service": {"name": APP_NAME, "namespace": SYSTEM_NAMESPACE, "path": path, "port": 443}},
        "rules": rules,
        "matchPolicy": "Equivalent",
    }
    if namespaced:
        hook |= {
            "namespaceSelector": {"matchExpressions": [selector]},
            "matchConditions": [_NOT_SYSTEM_NAMESPACE, *conditions],
        }
    return hook | {
        "failurePolicy": fails,
        "timeoutSeconds": seconds,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }


def _webhook_rule(group: str, resources: Sequence[str], operations: Sequence[str], versions: str = "*") -> Json:
    scope = "*" if group == GROUP else "Namespaced"
    return {
        "apiGroups": [group],
        "apiVersions": [versions],
        "operations": list(operations),
        "resources": list(resources),
        "scope": scope,
    }


BUILT_IN_GROUPS = frozenset({"", "apps", "batch"})


def _built_in_rules() -> list[Json]:
    return _workload_rules(group for group in _plurals_by_group() if group in BUILT_IN_GROUPS)


def _custom_resource_rules() -> list[Json]:
    return _workload_rules(group for group in _plurals_by_group() if group not in BUILT_IN_GROUPS)


def _workload_rules(groups: Iterable[str]) -> list[Json]:
    plurals = _plurals_by_group()
    return [_webhook_rule(group, plurals[group], ["CREATE", "UPDATE"]) | {"scope": "*"} for group in groups]


def _plurals_by_group() -> dict[str, list[str]]:
    """The plural names of the workload kinds that we know, by API group."""
    found: dict[str, list[str]] = defaultdict(list)
    for group, kind in WORKLOAD_TEMPLATES:
        found[group].append(f"{kind.lower()}s")
    return found
