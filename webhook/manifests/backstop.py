"""What an API server refuses by itself, in its own process, also while nobody answers its calls: the worst of the
ways round GPU accounting, and what only the admins of Rightslice may write.

A cluster admin takes a namespace out with the label `rightslice.dev/backstop: "off"`, which nobody else may write;
nor may anybody else make a namespace of a name that is left out.
"""

from __future__ import annotations

from typing import Any

from webhook.engine.guarding.environment import VISIBLE_DEVICES
from webhook.manifests.cel_conditions import (
    DEVICE_PATHS,
    bypasses_request_cel,
    containers_cel,
    gpu_request_cel,
    host_mount_cel,
)
from webhook.manifests.webhooks import EXCLUDED_NAMESPACES
from webhook.model.annotations import MIRROR_ANNOTATION
from webhook.well_known import GROUP, SYSTEM_NAMESPACE

Json = dict[str, Any]

OPT_OUT_LABEL = f"{GROUP}/backstop"

DEVICE_VARIABLES = (VISIBLE_DEVICES, "NVIDIA_IMEX_CHANNELS", "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES")
_DEVICE_VARIABLE_LIST = ", ".join(map(repr, DEVICE_VARIABLES))

_NEW_CONTAINERS = (
    "request.operation == 'CREATE' ? "
    "object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])"
    " : (has(object.spec.ephemeralContainers) ? object.spec.ephemeralContainers : [])"
)
_NEW_ANNOTATIONS = (
    "request.operation == 'CREATE' && has(object.metadata.annotations) ? object.metadata.annotations : {}"
)

POD_VALIDATIONS = (
    (
        f"variables.containers.all(c, !has(c.env) || c.env.all(e, !(e.name in [{_DEVICE_VARIABLE_LIST}])"
        " || (!has(e.valueFrom) && (!has(e.value) || e.value in ['', 'void', 'none']))))",
        f"must not ask for devices with a variable ({', '.join(DEVICE_VARIABLES)}): request nvidia.com resources",
    ),
    (
        "variables.containers.all(c, !has(c.volumeMounts)"
        " || c.volumeMounts.all(m, !m.mountPath.contains('nvidia-container-devices')))",
        "must not mount anything at /var/run/nvidia-container-devices: it is read as a list of GPUs",
    ),
    (
        "variables.annotations.all(key, !key.matches('^([a-z0-9.-]+[.])?cdi[.]k8s[.]io(/|$)'))",
        "must not have annotations of cdi.k8s.io: they inject devices",
    ),
    (
        "request.operation != 'CREATE' || variables.asks"
        " || !(has(object.spec.runtimeClassName) && object.spec.runtimeClassName.startsWith('nvidia'))",
        "must request a GPU to have a GPU runtime class",
    ),
    (
        f"request.operation != 'CREATE' || !({host_mount_cel('object.spec', DEVICE_PATHS)})",
        "must not mount host paths of GPU devices, of the driver, or of what hands devices out;"
        " write paths from / on, without //, /./ and /../, which hide one",
    ),
    (
        f"!('{MIRROR_ANNOTATION}' in variables.annotations) || request.userInfo.username.startsWith('system:node:')",
        f"must not have the annotation {MIRROR_ANNOTATION}: only nodes write it",
    ),
)
"""Pairs of what must hold and the sentence that says so."""


def _opt_out_value_cel(of: str) -> str:
    """In CEL: the switch on a namespace, "" where there is none."""
    labels = f"{of}.metadata.labels"
    return f"{of} != null && has({labels}) && '{OPT_OUT_LABEL}' in {labels} ? {labels}['{OPT_OUT_LABEL}'] : ''"


_CHANGES_OPT_OUT = f"(({_opt_out_value_cel('object')}) != ({_opt_out_value_cel('oldObject')}))"
_IS_EXCLUDED_NAME = (
    f"(request.operation == 'CREATE' && object.metadata.name in [{', '.join(map(repr, EXCLUDED_NAMESPACES))}])"
)
_MAY_UPDATE_POLICIES = f"authorizer.group('{GROUP}').resource('gpupolicies').check('update').allowed()"


_BYPASSES_REQUEST = {"name": "goes-round-asking", "expression": bypasses_request_cel("object", DEVICE_VARIABLES)}
"""All that is refused goes round asking for GPUs. Of every other pod, most of those with GPUs among them, an API server
converts the object for this condition alone, and three times more for what would have to hold."""


def backstop_policies() -> list[Json]:
    """The ValidatingAdmissionPolicies and their bindings."""
    return [
        _admission_policy(
            "rightslice-pods",
            rules=[
                _backstop_rule([""], ["pods"], ["CREATE"]),
                _backstop_rule([""], ["pods/ephemeralcontainers"], ["UPDATE"]),
            ],
            conditions=[_BYPASSES_REQUEST],
            variables={
                "containers": _NEW_CONTAINERS,
                "annotations": _NEW_ANNOTATIONS,
                "asks": f"{containers_cel('object.spec')}.exists(c, {gpu_request_cel('c')})",
            },
            validations=POD_VALIDATIONS,
        ),
        _policy_binding("rightslice-pods", elsewhere=True),
        _admission_policy(
            "rightslice-exceptions",
            rules=[_backstop_rule([GROUP], ["gpupolicyexceptions"], ["CREATE", "UPDATE"])],
            validations=(
                (
                    f"request.namespace == '{SYSTEM_NAMESPACE}'",
                    f"must be in namespace {SYSTEM_NAMESPACE}: exceptions are the admins' to give",
                ),
            ),
        ),
        _policy_binding("rightslice-exceptions"),
        _admission_policy(
            "rightslice-switch",
            rules=[_backstop_rule([""], ["namespaces"], ["CREATE", "UPDATE"])],
            conditions=[{"name": "takes-a-namespace-out", "expression": f"{_CHANGES_OPT_OUT} || {_IS_EXCLUDED_NAME}"}],
            validations=(
                (
                    f"!{_CHANGES_OPT_OUT} || {_MAY_UPDATE_POLICIES}",
                    f"must not change the label {OPT_OUT_LABEL}: it takes who may update gpupolicies",
                ),
                (
                    f"!{_IS_EXCLUDED_NAME} || {_MAY_UPDATE_POLICIES}",
                    "must not have this name: pods of that namespace are not judged, so it takes who may update"
                    " gpupolicies",
                ),
            ),
        ),
        _policy_binding("rightslice-switch"),
    ]


def _backstop_rule(groups: list[str], resources: list[str], operations: list[str]) -> Json:
    return {"apiGroups": groups, "apiVersions": ["*"], "operations": operations, "resources": resources}


def _admission_policy(
    name: str,
    *,
    rules: list[Json],
    validations: tuple[tuple[str, str], ...],
    variables: dict[str, str] | None = None,
    conditions: list[Json] | None = None,
) -> Json:
    spec: Json = {"failurePolicy": "Fail", "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": rules}}
    if conditions:
        spec["matchConditions"] = conditions
    if variables:
        spec["variables"] = [{"name": key, "expression": expression} for key, expression in variables.items()]
    spec["validations"] = [
        {"expression": expression, "message": message, "reason": "Forbidden"} for expression, message in validations
    ]
    return _admission_object("ValidatingAdmissionPolicy", name, spec)


def _policy_binding(name: str, *, elsewhere: bool = False) -> Json:
    spec: Json = {"policyName": name, "validationActions": ["Deny"]}
    if elsewhere:
        names = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(EXCLUDED_NAMESPACES)}
        switch = {"key": OPT_OUT_LABEL, "operator": "NotIn", "values": ["off"]}
        spec["matchResources"] = {"namespaceSelector": {"matchExpressions": [names, switch]}}
    return _admission_object("ValidatingAdmissionPolicyBinding", name, spec)


def _admission_object(kind: str, name: str, spec: Json) -> Json:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }
