"""ValidatingAdmissionPolicies that the API server enforces even when no replica answers.

They reject the worst ways to bypass GPU accounting, and protect what only admins of Rightslice may write. Admins can
exclude a namespace with the label `rightslice.dev/backstop: "off"`, and add it to a shared quota with
`rightslice.dev/share`; only they may change these labels, or create a namespace with an excluded name.
"""

from __future__ import annotations

from webhook.engine.guarding.annotations import INJECTOR_PATTERN
from webhook.engine.guarding.environment import FEATURE_VARIABLES, VISIBLE_DEVICES
from webhook.manifests.cel_conditions import (
    DEVICE_PATHS,
    MAX_ENTRIES,
    bypasses_request_cel,
    containers_cel,
    gpu_request_cel,
    host_mount_cel,
)
from webhook.model.annotations import MIRROR_ANNOTATION
from webhook.well_known import EXCLUDED_NAMESPACES, GROUP, SYSTEM_NAMESPACE, Json

OPT_OUT_LABEL = f"{GROUP}/backstop"
SHARE_LABEL = f"{GROUP}/share"
GUARDED_LABELS = (OPT_OUT_LABEL, SHARE_LABEL)
"""Namespace labels that end a rule: whoever labels a namespace could leave the backstop, or a shared quota."""

DEVICE_VARIABLES = (VISIBLE_DEVICES, "NVIDIA_IMEX_CHANNELS", "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES")
_FEATURE_VARIABLE_LIST = ", ".join(map(repr, FEATURE_VARIABLES))
_DEVICE_VARIABLE_LIST = ", ".join(map(repr, DEVICE_VARIABLES))

_NEW_CONTAINERS = (
    "request.operation == 'CREATE' ? "
    "object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])"
    " : (has(object.spec.ephemeralContainers) ? object.spec.ephemeralContainers : [])"
)
_NEW_ANNOTATIONS = (
    "request.operation == 'CREATE' && has(object.metadata.annotations) ? object.metadata.annotations : {}"
)

_TOO_LONG = " || ".join(
    (
        f"size(variables.containers) > {MAX_ENTRIES}",
        f"variables.containers.exists(c, has(c.env) && size(c.env) > {MAX_ENTRIES}"
        f" || has(c.volumeMounts) && size(c.volumeMounts) > {MAX_ENTRIES})",
        f"size(variables.annotations) > {MAX_ENTRIES}",
        f"request.operation == 'CREATE' && has(object.spec.volumes) && size(object.spec.volumes) > {MAX_ENTRIES}",
    )
)
"""CEL: whether a list is too long to iterate over: each entry costs more the longer the list is."""

POD_VALIDATIONS = (
    (
        f"variables.containers.all(c, !has(c.env) || c.env.all(e, !(e.name in [{_DEVICE_VARIABLE_LIST}])"
        " || (!has(e.valueFrom) && (!has(e.value) || e.value in ['', 'void', 'none']))))",
        f"must not set {', '.join(DEVICE_VARIABLES)}: request nvidia.com resources instead",
    ),
    (
        f"variables.containers.all(c, !has(c.env) || c.env.all(e, !(e.name in [{_FEATURE_VARIABLE_LIST}])"
        " || (!has(e.valueFrom) && (!has(e.value) || !(e.value == 'enabled' || e.value.contains('$('))))))",
        f"must not enable {' or '.join(FEATURE_VARIABLES)}, which add devices that were not requested",
    ),
    (
        "variables.containers.all(c, !has(c.volumeMounts)"
        " || c.volumeMounts.all(m, !m.mountPath.contains('nvidia-container-devices')))",
        "must not mount anything at /var/run/nvidia-container-devices, which is read as a list of GPUs",
    ),
    (
        "variables.annotations.all(key, !key.matches('^([a-z0-9.-]+[.])?cdi[.]k8s[.]io(/|$)'))",
        "must not have cdi.k8s.io annotations, which inject devices",
    ),
    (
        f"variables.annotations.all(key, !key.matches('{INJECTOR_PATTERN}'))",
        "must not have annotations of NRI plug-ins, which inject devices",
    ),
    (
        "request.operation != 'CREATE' || variables.requests_gpu"
        " || !(has(object.spec.runtimeClassName) && object.spec.runtimeClassName.startsWith('nvidia'))",
        "must request a GPU to use a GPU runtime class",
    ),
    (
        f"request.operation != 'CREATE' || !({host_mount_cel('object.spec', DEVICE_PATHS)})",
        "must not mount host paths of GPU devices, the driver or device sockets;"
        " write absolute paths without //, /./ and /../",
    ),
    (
        f"!('{MIRROR_ANNOTATION}' in variables.annotations) || request.userInfo.username.startsWith('system:node:')",
        f"must not have the annotation {MIRROR_ANNOTATION}, which only nodes may write",
    ),
)
"""Pairs of a CEL expression that must be true and its message."""


def _changes_label_cel(label: str) -> str:
    """CEL: whether a request adds, changes or removes a label of a namespace."""
    return f"(({_label_value_cel('object', label)}) != ({_label_value_cel('oldObject', label)}))"


def _label_value_cel(of: str, label: str) -> str:
    """CEL: the value of a label, or one that no label can have."""
    labels = f"{of}.metadata.labels"
    return f"{of} != null && has({labels}) && '{label}' in {labels} ? {labels}['{label}'] : '/'"


_CHANGES_GUARDED_LABEL = " || ".join(map(_changes_label_cel, GUARDED_LABELS))
_IS_EXCLUDED_NAME = (
    f"(request.operation == 'CREATE' && object.metadata.name in [{', '.join(map(repr, EXCLUDED_NAMESPACES))}])"
)
_MAY_UPDATE_POLICIES = f"authorizer.group('{GROUP}').resource('gpupolicies').check('update').allowed()"


_BYPASSES_REQUEST = {
    "name": "bypasses-gpu-request",
    "expression": bypasses_request_cel("object", (*DEVICE_VARIABLES, *FEATURE_VARIABLES)),
}
"""Only pods that match can violate a rule. For all others, most pods with GPUs among them, the API server converts the
object once instead of four times."""


def backstop_policies() -> list[Json]:
    """Return the ValidatingAdmissionPolicies and their bindings."""
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
                "too_long": _TOO_LONG,
                "requests_gpu": f"{containers_cel('object.spec')}.exists(c, {gpu_request_cel('c')})",
            },
            validations=(
                ("!variables.too_long", f"must have at most {MAX_ENTRIES} entries in each list, to be checked"),
                *((f"variables.too_long || ({expression})", message) for expression, message in POD_VALIDATIONS),
            ),
        ),
        _policy_binding("rightslice-pods", with_exclusions=True),
        _admission_policy(
            "rightslice-exceptions",
            rules=[_backstop_rule([GROUP], ["gpupolicyexceptions"], ["CREATE", "UPDATE"])],
            validations=(
                (
                    f"request.namespace == '{SYSTEM_NAMESPACE}'",
                    f"must be in namespace {SYSTEM_NAMESPACE}, where only admins can create exceptions",
                ),
            ),
        ),
        _policy_binding("rightslice-exceptions"),
        _admission_policy(
            "rightslice-namespace-opt-out",
            rules=[_backstop_rule([""], ["namespaces"], ["CREATE", "UPDATE"])],
            conditions=[
                {"name": "excludes-namespace", "expression": f"{_CHANGES_GUARDED_LABEL} || {_IS_EXCLUDED_NAME}"}
            ],
            validations=(
                *(
                    (
                        f"!{_changes_label_cel(label)} || {_MAY_UPDATE_POLICIES}",
                        f"must not change the label {label} without the right to update gpupolicies",
                    )
                    for label in GUARDED_LABELS
                ),
                (
                    f"!{_IS_EXCLUDED_NAME} || {_MAY_UPDATE_POLICIES}",
                    "must not have this name without the right to update gpupolicies, because pods in this"
                    " namespace are not evaluated",
                ),
            ),
        ),
        _policy_binding("rightslice-namespace-opt-out"),
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


def _policy_binding(name: str, *, with_exclusions: bool = False) -> Json:
    spec: Json = {"policyName": name, "validationActions": ["Deny"]}
    if with_exclusions:
        names = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(EXCLUDED_NAMESPACES)}
        switch = {"key": OPT_OUT_LABEL, "operator": "NotIn", "values": ["off"]}
        spec["matchResources"] = {"namespaceSelector": {"matchExpressions": [names, switch]}}
    return _admission_object("ValidatingAdmissionPolicyBinding", name, spec)


def _admission_object(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
