"""What an API server refuses by itself, in its own process, also while nobody answers its calls: the worst of the
ways round GPU accounting, and what only the admins of Rightslice may write.

A cluster admin takes a namespace out with the label `rightslice.dev/backstop: "off"`, which nobody else may write;
nor may anybody else make a namespace of a name that is left out.
"""

from __future__ import annotations

from typing import Any

from webhook.engine.guarding.variables import VISIBLE_DEVICES
from webhook.manifests.hooks import LEFT_OUT, NAMESPACE
from webhook.manifests.touching import DEVICE_PATHS, asks_for_gpus, containers_of, goes_round, mounts_host
from webhook.model.records import MIRROR
from webhook.policy.written.base import GROUP

Json = dict[str, Any]

SWITCH = f"{GROUP}/backstop"

DEVICE_VARIABLES = (VISIBLE_DEVICES, "NVIDIA_IMEX_CHANNELS", "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES")
_LISTED = ", ".join(map(repr, DEVICE_VARIABLES))

_NEW_CONTAINERS = (
    "request.operation == 'CREATE' ? "
    "object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])"
    " : (has(object.spec.ephemeralContainers) ? object.spec.ephemeralContainers : [])"
)
_NEW_ANNOTATIONS = (
    "request.operation == 'CREATE' && has(object.metadata.annotations) ? object.metadata.annotations : {}"
)

PODS = (
    (
        f"variables.containers.all(c, !has(c.env) || c.env.all(e, !(e.name in [{_LISTED}])"
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
        f"request.operation != 'CREATE' || !({mounts_host('object.spec', DEVICE_PATHS)})",
        "must not mount host paths of GPU devices, of the driver, or of what hands devices out;"
        " write paths from / on, without //, /./ and /../, which hide one",
    ),
    (
        f"!('{MIRROR}' in variables.annotations) || request.userInfo.username.startsWith('system:node:')",
        f"must not have the annotation {MIRROR}: only nodes write it",
    ),
)
"""Pairs of what must hold and the sentence that says so."""


def _label(of: str) -> str:
    """In CEL: the switch on a namespace, "" where there is none."""
    labels = f"{of}.metadata.labels"
    return f"{of} != null && has({labels}) && '{SWITCH}' in {labels} ? {labels}['{SWITCH}'] : ''"


_TURNS = f"(({_label('object')}) != ({_label('oldObject')}))"
_IS_LEFT_OUT = f"(request.operation == 'CREATE' && object.metadata.name in [{', '.join(map(repr, LEFT_OUT))}])"
_MAY_UPDATE_POLICIES = f"authorizer.group('{GROUP}').resource('gpupolicies').check('update').allowed()"


_GOES_ROUND = {"name": "goes-round-asking", "expression": goes_round("object", DEVICE_VARIABLES)}
"""All that is refused goes round asking for GPUs. Of every other pod, most of those with GPUs among them, an API server
converts the object for this condition alone, and three times more for what would have to hold."""


def backstop() -> list[Json]:
    """The ValidatingAdmissionPolicies and their bindings."""
    return [
        _policy(
            "rightslice-pods",
            rules=[
                _rule([""], ["pods"], ["CREATE"]),
                _rule([""], ["pods/ephemeralcontainers"], ["UPDATE"]),
            ],
            conditions=[_GOES_ROUND],
            variables={
                "containers": _NEW_CONTAINERS,
                "annotations": _NEW_ANNOTATIONS,
                "asks": f"{containers_of('object.spec')}.exists(c, {asks_for_gpus('c')})",
            },
            validations=PODS,
        ),
        _binding("rightslice-pods", elsewhere=True),
        _policy(
            "rightslice-exceptions",
            rules=[_rule([GROUP], ["gpupolicyexceptions"], ["CREATE", "UPDATE"])],
            validations=(
                (
                    f"request.namespace == '{NAMESPACE}'",
                    f"must be in namespace {NAMESPACE}: exceptions are the admins' to give",
                ),
            ),
        ),
        _binding("rightslice-exceptions"),
        _policy(
            "rightslice-switch",
            rules=[_rule([""], ["namespaces"], ["CREATE", "UPDATE"])],
            conditions=[{"name": "takes-a-namespace-out", "expression": f"{_TURNS} || {_IS_LEFT_OUT}"}],
            validations=(
                (
                    f"!{_TURNS} || {_MAY_UPDATE_POLICIES}",
                    f"must not change the label {SWITCH}: it takes who may update gpupolicies",
                ),
                (
                    f"!{_IS_LEFT_OUT} || {_MAY_UPDATE_POLICIES}",
                    "must not have this name: pods of that namespace are not judged, so it takes who may update"
                    " gpupolicies",
                ),
            ),
        ),
        _binding("rightslice-switch"),
    ]


def _rule(groups: list[str], resources: list[str], operations: list[str]) -> Json:
    return {"apiGroups": groups, "apiVersions": ["*"], "operations": operations, "resources": resources}


def _policy(
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
    return _object("ValidatingAdmissionPolicy", name, spec)


def _binding(name: str, *, elsewhere: bool = False) -> Json:
    spec: Json = {"policyName": name, "validationActions": ["Deny"]}
    if elsewhere:
        names = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(LEFT_OUT)}
        switch = {"key": SWITCH, "operator": "NotIn", "values": ["off"]}
        spec["matchResources"] = {"namespaceSelector": {"matchExpressions": [names, switch]}}
    return _object("ValidatingAdmissionPolicyBinding", name, spec)


def _object(kind: str, name: str, spec: Json) -> Json:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }
