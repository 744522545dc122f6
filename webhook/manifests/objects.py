"""Manifests as objects: where an API server keeps each, in which order they go in, and in which they come out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from webhook.manifests.hooks import NAME, NAMESPACE

Json = dict[str, Any]

HOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
CRD = "CustomResourceDefinition"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAME}"

_BEFORE = (
    "Namespace",
    CRD,
    "PriorityClass",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
)
"""What others need to be there. Webhook configurations go in last of all, and come out first."""

_PLURALS = {
    "NetworkPolicy": "networkpolicies",
    "PriorityClass": "priorityclasses",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
}


def in_order(objects: Iterable[Json]) -> list[Json]:
    """In the order to apply them."""
    return sorted(objects, key=_rank)


def _rank(one: Json) -> int:
    kind = one["kind"]
    if kind in HOOKS:
        return len(_BEFORE) + 1
    return _BEFORE.index(kind) if kind in _BEFORE else len(_BEFORE)


def path_of(one: Json) -> str:
    """Where an API server keeps an object of the kinds that our manifests are made of."""
    version, kind, metadata = one["apiVersion"], one["kind"], one["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    space = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    return f"{root}{space}/{_PLURALS.get(kind, f'{kind.lower()}s')}/{metadata['name']}"


def named(one: Json) -> str:
    """As people call it.

    >>> named({"kind": "Service", "metadata": {"name": "web", "namespace": "shop"}})
    'Service shop/web'
    """
    metadata = one["metadata"]
    space = f"{metadata['namespace']}/" if "namespace" in metadata else ""
    return f"{one['kind']} {space}{metadata['name']}"


TAKES_TIME = (CRD, "Namespace")
"""Kinds that the API server empties before it lets them go, and policies with them."""

MADE_IN_SERVICE: tuple[Json, ...] = (
    {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{NAME}-tls", "namespace": NAMESPACE}},
    {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": NAME, "namespace": NAMESPACE}},
)
"""What replicas make for themselves."""

_OF_OVERLAYS = (
    ("v1", "ConfigMap", f"{NAME}-address"),
    ("monitoring.coreos.com/v1", "ServiceMonitor", NAME),
    ("monitoring.coreos.com/v1", "PrometheusRule", NAME),
    ("cert-manager.io/v1", "Certificate", f"{NAME}-tls"),
    ("cert-manager.io/v1", "Certificate", f"{NAME}-authority"),
    ("cert-manager.io/v1", "Issuer", NAME),
    ("cert-manager.io/v1", "Issuer", f"{NAME}-self"),
    ("v1", "Secret", f"{NAME}-authority"),  # cert-manager leaves it behind
)
MADE_BY_OVERLAYS: tuple[Json, ...] = tuple(
    {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}}
    for version, kind, name in _OF_OVERLAYS
)
"""What is in no manifest that `install` applies, but in those that people apply beside them or in their place."""


_RBAC, _ADMISSION = "rbac.authorization.k8s.io/v1", "admissionregistration.k8s.io/v1"
_CLUSTER_WIDE = (
    (_RBAC, "ClusterRoleBinding", f"{NAME}-agent"),
    (_RBAC, "ClusterRoleBinding", f"{NAME}-extender"),
    (_RBAC, "ClusterRoleBinding", f"{NAME}-scheduler"),
    (_RBAC, "ClusterRoleBinding", f"{NAME}-scheduler-volumes"),
    (_RBAC, "ClusterRole", f"{NAME}-agent"),
    (_RBAC, "ClusterRole", f"{NAME}-extender"),
    (_ADMISSION, "ValidatingAdmissionPolicyBinding", f"{NAME}-agent"),
    (_ADMISSION, "ValidatingAdmissionPolicy", f"{NAME}-agent"),
)
CLUSTER_WIDE_BESIDE: tuple[Json, ...] = tuple(
    {"apiVersion": version, "kind": kind, "metadata": {"name": name}} for version, kind, name in _CLUSTER_WIDE
)
"""What the agent and the extender have outside the namespace: it goes when the namespace goes, with all that is theirs
in it, so that no right and no rule is left for a service account that anybody may make again."""


def to_remove(objects: Sequence[Json], *, with_policies: bool) -> list[Json]:
    """What an uninstall takes out, in order: hooks first, so that no request waits for what is going.

    Args:
        objects: Everything that was installed.
        with_policies: True: the CRDs and the namespace too, and with them every policy and every exception, the agent
            and the extender.
    """
    installed = [one for one in reversed(in_order(objects)) if with_policies or one["kind"] not in TAKES_TIME]
    holds_policies = [one for one in installed if one["kind"] in TAKES_TIME]
    rest = [one for one in installed if one["kind"] not in TAKES_TIME]
    beside = CLUSTER_WIDE_BESIDE if with_policies else ()
    return [*rest, *MADE_BY_OVERLAYS, *MADE_IN_SERVICE, *beside, *holds_policies]


def with_image(objects: Iterable[Json], image: str) -> list[Json]:
    """The manifests with another image in the Deployment."""
    return [_with_image(one, image) if image and one["kind"] == "Deployment" else one for one in objects]


def _with_image(deployment: Json, image: str) -> Json:
    spec = deployment["spec"]
    pod = spec["template"]["spec"]
    containers = [{**container, "image": image} for container in pod["containers"]]
    template = {**spec["template"], "spec": {**pod, "containers": containers}}
    return {**deployment, "spec": {**spec, "template": template}}
