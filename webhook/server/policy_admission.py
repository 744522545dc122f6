"""The route for policies: what `policy lint` says of a file, it says of an object at `kubectl apply`.

It is registered twice. As a validating webhook it has the last word. As a mutating one it changes nothing, but comes
before the schema is looked at, so that the author reads our sentence and not only the schema's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson

from webhook.errors import PolicyFileError, ReviewError, shorten_text
from webhook.model.admission import AdmissionRequest
from webhook.policy.loader import (
    POLICY_MODELS,
    PolicySource,
    check_with_others,
    document_from_object,
    is_being_deleted,
    is_spec_unchanged,
)
from webhook.server.admission_request import parse_review
from webhook.server.admission_response import MAX_MESSAGE_LENGTH, MAX_REASON_LENGTH
from webhook.telemetry.telemetry import Telemetry
from webhook.web.http_messages import HttpRequest, HttpResponse, error_response, strip_control_characters
from webhook.well_known import GROUP

ROUTE_NAME = "policies"


class PolicyAdmissionHandler:
    """Judges policies and exceptions beside those in force."""

    def __init__(self, in_force: Callable[[], Sequence[PolicySource]], telemetry: Telemetry) -> None:
        self._in_force = in_force
        self._telemetry = telemetry

    def handle(self, call: HttpRequest) -> HttpResponse:
        """Judge one review."""
        try:
            request = parse_review(call.body)
            return HttpResponse(
                HTTPStatus.OK, _render_policy_review(request, _policy_errors(request, self._in_force()))
            )
        except ReviewError as error:
            self._telemetry.record_rejected_request("review")
            return error_response(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:
            self._telemetry.record_crash(ROUTE_NAME, "", error)
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault in this server; its log has the details")


def _policy_errors(request: AdmissionRequest, in_force: Sequence[PolicySource]) -> Sequence[PolicyFileError]:
    """What is new is judged: an object that stays as it was still gets its status, its labels and its end."""
    if request.group != GROUP or request.kind not in POLICY_MODELS:
        raise ReviewError(f"request.kind must be a kind of {GROUP}: {', '.join(POLICY_MODELS)}")
    if request.operation not in ("CREATE", "UPDATE") or request.sub_resource:
        return ()
    data: Mapping[str, Any] = request.load_object()
    if is_being_deleted(data) or is_spec_unchanged(data, request.load_old_object()):
        return ()
    return check_with_others(document_from_object(data), in_force)


def _render_policy_review(request: AdmissionRequest, faults: Sequence[PolicyFileError]) -> bytes:
    response: dict[str, Any] = {"uid": request.uid, "allowed": not faults}
    if faults:
        response["status"] = {"code": 403, "reason": "Forbidden", "message": policy_error_message(request, faults)}
    return orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})


def policy_error_message(request: AdmissionRequest, faults: Sequence[PolicyFileError]) -> str:
    """What the author reads: how many faults, and each as `policy lint` prints it, without file and line."""
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    lines = [f"{count} in {request.kind} {document_from_object(request.load_object()).data['metadata']['name']}"]
    lines += [f"[{fault.code}] {fault.message}" for fault in faults]
    return shorten_text(
        "\n".join(shorten_text(strip_control_characters(line), MAX_REASON_LENGTH) for line in lines), MAX_MESSAGE_LENGTH
    )
