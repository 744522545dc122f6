"""Tries a pod that nobody stores, to see whether our hooks answer it."""

from __future__ import annotations

from typing import Any

from webhook.errors import ApiError, ApiUnreachable
from webhook.kube.api import KubeClient
from webhook.model.annotations import PROBE_ANNOTATION, PROBE_ANSWER
from webhook.well_known import APP_NAME

Json = dict[str, Any]

BOTH_ANSWERED = f"{PROBE_ANSWER}: validate and mutate"
UNANSWERED = "the pod was let in without a word of ours"
_WEBHOOK_NAME_END = '.rightslice.dev"'
"""How the names of our hooks end, where the API server speaks of one."""

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
"""A pod that any namespace takes, restricted or not, and no common LimitRange finds too small. It is only ever tried.

It is tried in `default`: the hooks leave our own namespace out.
"""


async def probe_webhooks(api: KubeClient) -> str:
    """What came back for a pod that is only tried: our own sentence, or why it was not us.

    Raises:
        ApiUnreachable: the API server does not answer.
    """
    try:
        await api.create("/api/v1/namespaces/default/pods", _PROBE_POD, {"dryRun": "All"})
    except ApiUnreachable:
        raise
    except ApiError as error:
        return error.message
    return UNANSWERED


def is_rejected_by_others(answer: str) -> bool:
    """Did something else refuse the pod (a right, a LimitRange, a policy), so that it says nothing of our hooks?

    >>> is_of_others('pods "rightslice-probe" is forbidden: exceeded quota: pods')
    True
    >>> is_of_others('failed calling webhook "validate.rightslice.dev": connection refused')
    False
    """
    return answer != UNANSWERED and PROBE_ANSWER not in answer and _WEBHOOK_NAME_END not in answer


async def all_have_ca_bundle(api: KubeClient) -> bool:
    """Does every hook trust somebody? A pod that is tried before would be passed by."""
    for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        found = await api.get(f"/apis/admissionregistration.k8s.io/v1/{plural}/{APP_NAME}")
        if not all(hook["clientConfig"].get("caBundle") for hook in found["webhooks"]):
            return False
    return True
