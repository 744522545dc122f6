"""Validates policies and exceptions at `kubectl apply`, with the errors of `policy lint`.

The route is registered as a validating webhook, and as a mutating one that changes nothing: mutating webhooks run
before schema validation, so the author gets our message and not only the schema's.
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
    """Validates a policy or exception together with the active ones."""

    def __init__(self, active_sources: Callable[[], Sequence[PolicySource]], telemetry: Telemetry) -> None:
        self._active_sources = active_sources
        self._telemetry = telemetry

    def handle(self, http_request: HttpRequest) -> HttpResponse:
        """Evaluate one review."""
        try:
            request = parse_review(http_request.body)
            errors = _policy_errors(request, self._active_sources())
            return HttpResponse(HTTPStatus.OK, _render_policy_review(request, errors))
        except ReviewError as error:
            self._telemetry.record_rejection("invalid_review")
            return error_response(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:
            self._telemetry.record_internal_error(ROUTE_NAME, error)
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; see the log")


def _policy_errors(request: AdmissionRequest, active_sources: Sequence[PolicySource]) -> Sequence[PolicyFileError]:
    """Validate a changed spec. An object with an unchanged spec may still get a status, labels, or be deleted."""
    if request.group != GROUP or request.kind not in POLICY_MODELS:
        raise ReviewError(f"request.kind must be a kind of {GROUP}: {', '.join(POLICY_MODELS)}")
    if request.operation not in ("CREATE", "UPDATE") or request.sub_resource:
        return ()
    data: Mapping[str, Any] = request.load_object()
    if is_being_deleted(data) or is_spec_unchanged(data, request.load_old_object()):
        return ()
    return check_with_others(document_from_object(data), active_sources)


def _render_policy_review(request: AdmissionRequest, errors: Sequence[PolicyFileError]) -> bytes:
    response: dict[str, Any] = {"uid": request.uid, "allowed": not errors}
    if errors:
        response["status"] = {"code": 403, "reason": "Forbidden", "message": policy_error_message(request, errors)}
    return orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})


def policy_error_message(request: AdmissionRequest, errors: Sequence[PolicyFileError]) -> str:
    """Return the message for the author: the errors of `policy lint`, without file and line."""
    count = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
    lines = [f"{count} in {request.kind} {document_from_object(request.load_object()).data['metadata']['name']}"]
    lines += [f"[{error.code}] {error.message}" for error in errors]
    lines = [shorten_text(strip_control_characters(line), MAX_REASON_LENGTH) for line in lines]
    return shorten_text("\n".join(lines), MAX_MESSAGE_LENGTH)
