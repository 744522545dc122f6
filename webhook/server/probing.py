"""Who installs wants to know that it is us who answers, also where a hook that fails lets everything pass.

So a pod that is only tried (dry run) and has the annotation `rightslice.dev/probe` gets an answer of its own: /mutate
writes into the annotation, and /validate says no, and what it found there. A pod that is to be stored gets none.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import orjson

from webhook.model.decisions import patch_replace
from webhook.model.records import PROBE_ANSWER, PROBE_ANNOTATION
from webhook.model.requests import AdmissionRequest

MUTATE_REACHED = "mutate answers"


def is_self_probe(request: AdmissionRequest) -> bool:
    """Is this pod only there to see who answers?"""
    return request.dry_run and request.pod is not None and PROBE_ANNOTATION in request.pod.metadata.annotations


def render_self_probe(route: str, request: AdmissionRequest) -> bytes:
    """The AdmissionReview for a probe."""
    assert request.pod is not None
    response: dict[str, Any] = {"uid": request.uid, "allowed": route == "mutate"}
    if route == "mutate":
        operations = [patch_replace(("metadata", "annotations", PROBE_ANNOTATION), MUTATE_REACHED)]
        response |= {"patch": b64encode(orjson.dumps(operations)).decode(), "patchType": "JSONPatch"}
    else:
        shaped = request.pod.metadata.annotations[PROBE_ANNOTATION] == MUTATE_REACHED
        message = f"{PROBE_ANSWER}: validate{' and mutate' if shaped else ', but not mutate'}"
        response["status"] = {"code": 403, "reason": "Forbidden", "message": message}
    return orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
