"""The two webhook configurations: which requests an API server sends where, and what it does while nobody answers.

The hook that changes pods, and those that can only warn, fail open. The one that judges pods which touch GPUs fails
closed. Pods that reach for wide parts of the host, as network plug-ins and node exporters do, are judged too, but
never held up by our absence: a node may need them before it can run us.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from webhook.manifests.touching import SAYS_SOMETHING_NEW, reaches_host, touches_gpus
from webhook.policy.workloads import WORKLOADS
from webhook.policy.written.base import GROUP

Json = dict[str, Any]

NAME = "rightslice"
NAMESPACE = "rightslice-system"
LEFT_OUT = (
    "kube-system",
    "kube-public",
    "kube-node-lease",
    NAMESPACE,
    "gpu-operator",
    "nvidia-gpu-operator",
    "nvidia-device-plugin",
)
"""Namespaces of what a cluster and its GPUs need to start, and our own: none of them may ever wait for us."""

MUTATE_SECONDS, JUDGE_SECONDS = 2, 3

_POD_TOUCHES = {"name": "touches-gpus", "expression": touches_gpus("object")}
_OTHER_NAMESPACE = {
    "name": "not-of-the-system",
    "expression": f"!(has(request.namespace) && request.namespace in [{', '.join(map(repr, LEFT_OUT))}])",
}
_NEW = {"name": "says-something-new", "expression": SAYS_SOMETHING_NEW}
_REACHES_HOST = {"name": "reaches-for-the-host", "expression": reaches_host("object.spec")}
"""Also where the pod touches GPUs, and is judged twice then: what it costs to find that out is the pod's to choose."""
_OTHER_SPEC = {
    "name": "has-another-spec",
    "expression": "request.operation != 'UPDATE' || object.spec != oldObject.spec",
}

_TEMPLATE = (
    "has(object.template) ? object.template"
    " : has(object.spec.jobTemplate) ? object.spec.jobTemplate.spec.template"
    " : object.spec.template"
)
"""Where the pod template of a built-in kind stands: PodTemplate, CronJob, all others."""


def configurations() -> list[Json]:
    """Both configurations, calling a Service. Who keeps the certificates fills in the caBundle."""
    pods_made = [_rule("", ["pods"], ["CREATE"])]
    pods_judged = [
        _rule("", ["pods"], ["CREATE", "UPDATE"]),
        _rule("", ["pods/ephemeralcontainers", "pods/resize"], ["UPDATE"]),
    ]
    limits = [_rule("", ["limitranges", "resourcequotas"], ["CREATE", "UPDATE"])]
    policies = [_rule(GROUP, ["gpupolicies", "gpupolicyexceptions"], ["CREATE", "UPDATE"])]
    shape = _hook("mutate", "/mutate", pods_made, [_POD_TOUCHES], seconds=MUTATE_SECONDS)
    judge = _hook("validate", "/validate", pods_judged, [_NEW, _POD_TOUCHES], fails="Fail")
    return [
        _configuration(
            "Mutating",
            [
                shape | {"reinvocationPolicy": "IfNeeded"},
                # It changes nothing; but it comes before the schema is looked at, and its sentences are better.
                _hook("policies", "/policies", policies) | {"reinvocationPolicy": "Never"},
            ],
        ),
        _configuration(
            "Validating",
            [
                judge,
                _hook("host", "/validate", pods_judged, [_NEW, _REACHES_HOST]),
                _hook("templates", "/validate", _built_in(), [_OTHER_SPEC, _TEMPLATE_TOUCHES]),
                _hook("workloads", "/validate", _custom(), [_OTHER_SPEC]),
                _hook("namespace-limits", "/validate", limits, [_OTHER_SPEC]),
                _hook("policies", "/policies", policies, fails="Fail"),
            ],
        ),
    ]


_TEMPLATE_TOUCHES = {"name": "touches-gpus", "expression": touches_gpus(_TEMPLATE)}


def _configuration(kind: str, webhooks: Sequence[Json]) -> Json:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": list(webhooks),
    }


def _hook(
    name: str,
    path: str,
    rules: list[Json],
    conditions: Sequence[Json] = (),
    *,
    fails: str = "Ignore",
    seconds: int = JUDGE_SECONDS,
) -> Json:
    namespaced = path != "/policies"
    selector = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(LEFT_OUT)}
    hook: Json = {
        "name": f"{name}.{GROUP}",
        "clientConfig": {"service": {"name": NAME, "namespace": NAMESPACE, "path": path, "port": 443}},
        "rules": rules,
        "matchPolicy": "Equivalent",
    }
    if namespaced:
        hook |= {
            "namespaceSelector": {"matchExpressions": [selector]},
            "matchConditions": [_OTHER_NAMESPACE, *conditions],
        }
    return hook | {
        "failurePolicy": fails,
        "timeoutSeconds": seconds,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }


def _rule(group: str, resources: Sequence[str], operations: Sequence[str], versions: str = "*") -> Json:
    scope = "*" if group == GROUP else "Namespaced"
    return {
        "apiGroups": [group],
        "apiVersions": [versions],
        "operations": list(operations),
        "resources": list(resources),
        "scope": scope,
    }


BUILT_IN = frozenset({"", "apps", "batch"})


def _built_in() -> list[Json]:
    return _workloads(group for group in _groups() if group in BUILT_IN)


def _custom() -> list[Json]:
    return _workloads(group for group in _groups() if group not in BUILT_IN)


def _workloads(groups: Iterable[str]) -> list[Json]:
    plurals = _groups()
    return [_rule(group, plurals[group], ["CREATE", "UPDATE"]) | {"scope": "*"} for group in groups]


def _groups() -> dict[str, list[str]]:
    """The plural names of the workload kinds that we know, by API group."""
    found: dict[str, list[str]] = defaultdict(list)
    for group, kind in WORKLOADS:
        found[group].append(f"{kind.lower()}s")
    return found
