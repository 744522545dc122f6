"""Create a dry-run pod, to test whether both webhooks answer."""

from __future__ import annotations

from typing import Any

from webhook.errors import ApiError, ApiUnreachable
from webhook.kube.api import KubeClient
from webhook.model.annotations import PROBE_ANNOTATION, PROBE_ANSWER
from webhook.well_known import APP_NAME

Json = dict[str, Any]

BOTH_ANSWERED = f"{PROBE_ANSWER}: validate and mutate"
UNANSWERED = "the pod was admitted without an answer from the webhooks"
_WEBHOOK_NAME_END = '.rightslice.dev"'
"""End of the names of Rightslice's webhooks in messages of the API server."""

_PROBE_POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "rightslice-probe", "namespace": "default", "annotations": {PROBE_ANNOTATION: "who answers?"}},
    "spec": {
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "probe",
                "image": "rightslice/probe",
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "resources": {
                    "requests": {"cpu": "100m", "memory": "128Mi"},
                    "limits": {"cpu": "100m", "memory": "128Mi"},
                },
            }
        ],
    },
}
"""A pod that complies with the restricted Pod Security profile and common LimitRanges. It is never stored.

It is created in `default`, because the webhooks exclude Rightslice's own namespace.
"""


async def probe_webhooks(api: KubeClient) -> str:
    """Return the answer to the dry-run pod: that of the webhooks, or why they did not answer.

    Raises:
        ApiUnreachable: The API server does not answer.
    """
    try:
        await api.create("/api/v1/namespaces/default/pods", _PROBE_POD, {"dryRun": "All"})
    except ApiUnreachable:
        raise
    except ApiError as error:
        return error.message
    return UNANSWERED


def is_rejected_by_others(answer: str) -> bool:
    """Return True if something else rejected the pod (RBAC, a LimitRange, a policy), before the webhooks.

    >>> is_rejected_by_others('pods "rightslice-probe" is forbidden: exceeded quota: pods')
    True
    >>> is_rejected_by_others('failed calling webhook "validate.rightslice.dev": connection refused')
    False
    """
    return answer != UNANSWERED and PROBE_ANSWER not in answer and _WEBHOOK_NAME_END not in answer


async def all_have_ca_bundle(api: KubeClient) -> bool:
    """Return True if every webhook has a caBundle; without it the webhooks are not called."""
    for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        configuration = await api.get(f"/apis/admissionregistration.k8s.io/v1/{plural}/{APP_NAME}")
        if not all(webhook["clientConfig"].get("caBundle") for webhook in configuration["webhooks"]):
            return False
    return True
