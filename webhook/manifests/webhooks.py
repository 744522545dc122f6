"""The mutating and the validating webhook configuration.

The webhook that changes pods and those that only warn fail open. The one that evaluates pods which touch GPUs fails
closed. Pods that mount wide parts of the host, such as network plug-ins and node exporters, are evaluated too, but fail
open, because a node may need them before it can run Rightslice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from webhook.engine.claim_review import CLAIM_GROUP
from webhook.manifests.cel_conditions import (
    ANNOTATIONS_CEL,
    SPEC_OR_ANNOTATIONS_CHANGED,
    may_be_changed_cel,
    touches_gpus_cel,
    wide_host_mount_cel,
)
from webhook.model.annotations import GPU_MEMORY_ANNOTATION
from webhook.model.claims import MADE_CLAIM_ANNOTATIONS
from webhook.model.queues import QUEUE_NAME_LABEL
from webhook.model.volcano_queues import VOLCANO_GROUP
from webhook.policy.workload_kinds import WORKLOAD_KINDS, WorkloadKind
from webhook.well_known import APP_NAME, EXCLUDED_NAMESPACES, GROUP, SYSTEM_NAMESPACE, Json

MUTATE_SECONDS, VALIDATE_SECONDS = 2, 3

_MAY_BE_CHANGED = {"name": "may-be-changed", "expression": may_be_changed_cel("object")}
_POD_TOUCHES_GPUS = {"name": "touches-gpus", "expression": touches_gpus_cel("object")}
_NOT_SYSTEM_NAMESPACE = {
    "name": "not-system-namespace",
    "expression": f"!(has(request.namespace) && request.namespace in [{', '.join(map(repr, EXCLUDED_NAMESPACES))}])",
}
_POD_CHANGED = {"name": "spec-or-annotations-changed", "expression": SPEC_OR_ANNOTATIONS_CHANGED}
_MOUNTS_WIDE_HOST_PATHS = {"name": "mounts-wide-host-paths", "expression": wide_host_mount_cel("object.spec")}
"""Pods that touch GPUs also match and are evaluated twice: the cost of excluding them would depend on the pod."""
_SPEC_CHANGED = {
    "name": "spec-changed",
    "expression": "request.operation != 'UPDATE' || object.spec != oldObject.spec",
}
_NOT_MADE_FOR_A_POD = {
    "name": "not-made-for-a-pod",
    "expression": f"!{ANNOTATIONS_CEL.format('object')}.exists(key, key in {[*MADE_CLAIM_ANNOTATIONS]})",
}
"""Claims of templates were reviewed with their template and their pod; no user reads warnings about them."""

_NEEDS_A_DEVICE = {
    "name": "declares-its-need",
    "expression": f"'{GPU_MEMORY_ANNOTATION}' in {ANNOTATIONS_CEL.format('object')} || (has(object.spec.metadata) && "
    f"'{GPU_MEMORY_ANNOTATION}' in {ANNOTATIONS_CEL.format('object.spec')})",
}
"""Claims and templates without a declared need stay as they are. A template may give it to its claims."""

_TEMPLATE_CEL = (
    "has(object.template) ? object.template"
    " : has(object.spec.jobTemplate) ? object.spec.jobTemplate.spec.template"
    " : object.spec.template"
)
"""The pod template of a built-in kind: PodTemplate, CronJob, all others."""


def webhook_configurations() -> list[Json]:
    """Return both configurations, which call a Service. The certificate manager adds the caBundle."""
    new_pods = [_webhook_rule("", ["pods"], ["CREATE"])]
    pod_changes = [
        _webhook_rule("", ["pods"], ["CREATE", "UPDATE"]),
        _webhook_rule("", ["pods/ephemeralcontainers", "pods/resize"], ["UPDATE"]),
    ]
    limits = [_webhook_rule("", ["limitranges", "resourcequotas"], ["CREATE", "UPDATE"])]
    policies = [_webhook_rule(GROUP, ["gpupolicies", "gpupolicyexceptions"], ["CREATE", "UPDATE"])]
    mutate = _webhook_entry("mutate", "/mutate", new_pods, [_MAY_BE_CHANGED], seconds=MUTATE_SECONDS)
    validate = _webhook_entry(
        "validate", "/validate", pod_changes, [_POD_CHANGED, _POD_TOUCHES_GPUS], failure_policy="Fail"
    )
    return [
        _webhook_configuration(
            "Mutating",
            [
                mutate | {"reinvocationPolicy": "IfNeeded"},
                _queued_templates_entry(),
                _volcano_jobs_entry(),
                _webhook_entry(
                    "claims", "/mutate", [_CLAIMS], [_NEEDS_A_DEVICE, _NOT_MADE_FOR_A_POD], seconds=MUTATE_SECONDS
                )
                | {"reinvocationPolicy": "IfNeeded"},
                # It changes nothing, but runs before schema validation and has better messages.
                _webhook_entry("policies", "/policies", policies) | {"reinvocationPolicy": "Never"},
            ],
        ),
        _webhook_configuration(
            "Validating",
            [
                validate,
                _webhook_entry("host", "/validate", pod_changes, [_POD_CHANGED, _MOUNTS_WIDE_HOST_PATHS]),
                _webhook_entry(
                    "templates", "/validate", _workload_rules(built_in=True), [_SPEC_CHANGED, _TEMPLATE_TOUCHES_GPUS]
                ),
                _webhook_entry("workloads", "/validate", _workload_rules(built_in=False), [_SPEC_CHANGED]),
                _webhook_entry("namespace-limits", "/validate", limits, [_SPEC_CHANGED]),
                _webhook_entry("claims", "/validate", [_CLAIMS], [_NOT_MADE_FOR_A_POD]),
                _webhook_entry("policies", "/policies", policies, failure_policy="Fail"),
            ],
        ),
    ]


def _queued_templates_entry() -> Json:
    """Return the webhook that changes templates before Kueue charges them: it gets new workloads with a queue only."""
    kinds = [kind for kind, templates in WORKLOAD_KINDS.items() if templates.queued and kind[0] != VOLCANO_GROUP]
    rules = [rule | {"scope": "Namespaced"} for rule in _rules_of_kinds(kinds, ["CREATE"])]
    selector = {"matchExpressions": [{"key": QUEUE_NAME_LABEL, "operator": "Exists"}]}
    entry = _webhook_entry("queued-templates", "/mutate", rules, seconds=MUTATE_SECONDS)
    return entry | {"objectSelector": selector, "reinvocationPolicy": "IfNeeded"}


def _volcano_jobs_entry() -> Json:
    """Return the webhook that changes the templates of Jobs of Volcano before its controller sums their requests."""
    rules = [_webhook_rule(VOLCANO_GROUP, ["jobs"], ["CREATE"])]
    entry = _webhook_entry("volcano-jobs", "/mutate", rules, seconds=MUTATE_SECONDS)
    return entry | {"reinvocationPolicy": "IfNeeded"}


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
    failure_policy: str = "Ignore",
    seconds: int = VALIDATE_SECONDS,
) -> Json:
    selector = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(EXCLUDED_NAMESPACES)}
    webhook: Json = {
        "name": f"{name}.{GROUP}",
        "clientConfig": {"service": {"name": APP_NAME, "namespace": SYSTEM_NAMESPACE, "path": path, "port": 443}},
        "rules": rules,
        "matchPolicy": "Equivalent",
    }
    if path != "/policies":
        webhook |= {
            "namespaceSelector": {"matchExpressions": [selector]},
            "matchConditions": [_join_conditions([*reversed(conditions), _NOT_SYSTEM_NAMESPACE])],
        }
    return webhook | {
        "failurePolicy": failure_policy,
        "timeoutSeconds": seconds,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }


def _join_conditions(conditions: Sequence[Json]) -> Json:
    """Join match conditions to one that holds if all hold, named after the first.

    An API server evaluates every condition of a list, but only as much of a conjunction as it takes to know that it is
    false. So the first should be the one that excludes most objects.
    """
    return {**conditions[0], "expression": "\n&& ".join(f"({one['expression']})" for one in conditions)}


def _webhook_rule(group: str, resources: list[str], operations: list[str]) -> Json:
    scope = "*" if group == GROUP else "Namespaced"
    return {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": operations,
        "resources": resources,
        "scope": scope,
    }


_CLAIMS = _webhook_rule(CLAIM_GROUP, ["resourceclaims", "resourceclaimtemplates"], ["CREATE"]) | {"apiVersions": ["v1"]}
"""New claims and templates; the API server converts those of other versions, whose requests have other fields."""

BUILT_IN_GROUPS = frozenset({"", "apps", "batch"})


def _workload_rules(*, built_in: bool) -> list[Json]:
    kinds = [kind for kind in WORKLOAD_KINDS if (kind[0] in BUILT_IN_GROUPS) == built_in]
    return [rule | {"scope": "*"} for rule in _rules_of_kinds(kinds, ["CREATE", "UPDATE"])]


def _rules_of_kinds(kinds: Iterable[WorkloadKind], operations: list[str]) -> list[Json]:
    plurals: dict[str, list[str]] = defaultdict(list)
    for group, kind in kinds:
        plurals[group].append(f"{kind.lower()}s")
    return [_webhook_rule(group, names, operations) for group, names in plurals.items()]
