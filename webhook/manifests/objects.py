"""The objects of an installation: their API paths, and the order to apply and remove them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from copy import deepcopy

from webhook.well_known import AGENT_NAMESPACE, APP_NAME, SYSTEM_NAMESPACE, Json

WEBHOOK_KINDS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
CRD_KIND = "CustomResourceDefinition"
DEPLOYMENT_PATH = f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/deployments/{APP_NAME}"

_APPLIED_FIRST = (
    "Namespace",
    CRD_KIND,
    "PriorityClass",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
)
"""Kinds that others depend on. Webhook configurations are applied last and removed first."""

_PLURALS = {
    "NetworkPolicy": "networkpolicies",
    "PriorityClass": "priorityclasses",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
}


def sort_for_apply(objects: Iterable[Json]) -> list[Json]:
    """Sort objects into the order to apply them."""
    first = {kind: rank - len(_APPLIED_FIRST) for rank, kind in enumerate(_APPLIED_FIRST)}
    return sorted(objects, key=lambda one: 1 if one["kind"] in WEBHOOK_KINDS else first.get(one["kind"], 0))


def api_path(one: Json) -> str:
    """Return the API path of an object."""
    version, kind, metadata = one["apiVersion"], one["kind"], one["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    space = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    return f"{root}{space}/{_PLURALS.get(kind, f'{kind.lower()}s')}/{metadata['name']}"


def display_name(one: Json) -> str:
    """Return kind and name of an object.

    >>> display_name({"kind": "Service", "metadata": {"name": "web", "namespace": "shop"}})
    'Service shop/web'
    """
    metadata = one["metadata"]
    space = f"{metadata['namespace']}/" if "namespace" in metadata else ""
    return f"{one['kind']} {space}{metadata['name']}"


SLOW_DELETE_KINDS = (CRD_KIND, "Namespace")
"""Kinds that the API server deletes only after everything in them, including policies."""

RUNTIME_OBJECTS: tuple[Json, ...] = (
    {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{APP_NAME}-tls", "namespace": SYSTEM_NAMESPACE}},
    {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": APP_NAME, "namespace": SYSTEM_NAMESPACE},
    },
)
"""Objects that replicas create at run time."""

_OVERLAY_REFS = (
    ("v1", "ConfigMap", f"{APP_NAME}-address"),
    ("monitoring.coreos.com/v1", "ServiceMonitor", APP_NAME),
    ("monitoring.coreos.com/v1", "PodMonitor", f"{APP_NAME}-agent"),
    ("monitoring.coreos.com/v1", "PrometheusRule", APP_NAME),
    ("v1", "ConfigMap", f"{APP_NAME}-dashboard-admission"),
    ("v1", "ConfigMap", f"{APP_NAME}-dashboard-gpus"),
    ("v1", "ConfigMap", f"{APP_NAME}-dashboard-savings"),
    ("cert-manager.io/v1", "Certificate", f"{APP_NAME}-tls"),
    ("cert-manager.io/v1", "Certificate", f"{APP_NAME}-authority"),
    ("cert-manager.io/v1", "Issuer", APP_NAME),
    ("cert-manager.io/v1", "Issuer", f"{APP_NAME}-self"),
    ("v1", "Secret", f"{APP_NAME}-authority"),  # cert-manager leaves it behind
)
OVERLAY_OBJECTS: tuple[Json, ...] = tuple(
    {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE}}
    for version, kind, name in _OVERLAY_REFS
)
"""Objects of overlays that people apply besides or instead of `rightslice install`."""


_RBAC, _ADMISSION = "rbac.authorization.k8s.io/v1", "admissionregistration.k8s.io/v1"
_CLUSTER_WIDE_REFS = (
    (_RBAC, "ClusterRoleBinding", f"{APP_NAME}-agent"),
    (_RBAC, "ClusterRoleBinding", f"{APP_NAME}-extender"),
    (_RBAC, "ClusterRoleBinding", f"{APP_NAME}-scheduler"),
    (_RBAC, "ClusterRoleBinding", f"{APP_NAME}-scheduler-volumes"),
    (_RBAC, "ClusterRole", f"{APP_NAME}-agent"),
    (_RBAC, "ClusterRole", f"{APP_NAME}-extender"),
    (_ADMISSION, "ValidatingAdmissionPolicyBinding", f"{APP_NAME}-agent"),
    (_ADMISSION, "ValidatingAdmissionPolicy", f"{APP_NAME}-agent"),
    ("v1", "Namespace", AGENT_NAMESPACE),
)
_AGENT_REFS = (
    ("apps/v1", "DaemonSet"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    (_RBAC, "RoleBinding"),
    (_RBAC, "Role"),
    ("v1", "ServiceAccount"),
)
AGENT_AND_EXTENDER_OBJECTS: tuple[Json, ...] = (
    *(
        {"apiVersion": version, "kind": kind, "metadata": {"name": AGENT_NAMESPACE, "namespace": AGENT_NAMESPACE}}
        for version, kind in _AGENT_REFS
    ),
    *({"apiVersion": version, "kind": kind, "metadata": {"name": name}} for version, kind, name in _CLUSTER_WIDE_REFS),
)
"""Objects of the agent, and cluster-scoped ones of the extender. They are removed with the namespaces, so that no
rights remain for a service account that could be created again."""

PART_OF_LABEL = "app.kubernetes.io/part-of"


def may_be_foreign(one: Json) -> bool:
    """Return True for the namespace of the agent: an admin makes it if it is to have a Secret for pulling images."""
    return (one["kind"], one["metadata"]["name"]) == ("Namespace", AGENT_NAMESPACE)


def is_foreign(found: Json) -> bool:
    """Return True if the manifests and the chart did not make an object: it lacks their label."""
    labels: dict[str, str] = found["metadata"].get("labels") or {}
    return labels.get(PART_OF_LABEL) != APP_NAME


def objects_to_remove(objects: Sequence[Json], *, with_policies: bool) -> list[Json]:
    """Return the objects that an uninstall removes, in order: webhook configurations first, so that no request waits.

    Args:
        objects: Everything that was installed.
        with_policies: Also remove the CRDs and the namespaces, and with them all policies, the agent and the extender.
    """
    installed = sort_for_apply(objects)[::-1]
    others = [one for one in installed if one["kind"] not in SLOW_DELETE_KINDS]
    removed = [*others, *OVERLAY_OBJECTS, *RUNTIME_OBJECTS]
    if with_policies:
        removed += [*AGENT_AND_EXTENDER_OBJECTS, *(one for one in installed if one["kind"] in SLOW_DELETE_KINDS)]
    return removed


_DOMAIN_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_DOMAIN = rf"({_DOMAIN_LABEL}(\.{_DOMAIN_LABEL})*|\[[0-9A-Fa-f:]+\])(:[0-9]+)?"
_PATH_PART = "[a-z0-9]+((\\.|_|__|-+)[a-z0-9]+)*"
_DIGEST = "[A-Za-z][A-Za-z0-9]*([-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9A-Fa-f]{32,}"
_IMAGE = re.compile(
    rf"({_DOMAIN}/)?{_PATH_PART}(/{_PATH_PART})*(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(@{_DIGEST})?", re.ASCII
)


def is_image_reference(text: str) -> bool:
    """Return whether a container runtime can parse the name of an image.

    The grammar is that of github.com/distribution/reference.

    >>> is_image_reference("registry.example.com:5000/team/rightslice:0.1.0"), is_image_reference("bad image")
    (True, False)
    """
    return _IMAGE.fullmatch(text) is not None


def with_image(objects: Iterable[Json], image: str) -> list[Json]:
    """Return copies of the objects, with another image in the Deployment."""
    copies = deepcopy(list(objects))
    for one in copies:
        if image and one["kind"] == "Deployment":
            for container in one["spec"]["template"]["spec"]["containers"]:
                container["image"] = image
    return copies
