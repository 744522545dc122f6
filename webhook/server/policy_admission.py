"""The HTTP route of policies: a policy or exception is validated like a file, together with the active ones.

What was accepted a moment ago counts like an active one although no watch has delivered it: contradicting policies are
often applied with one command. Two replicas may still accept one each; then only the older stays active, and the
condition `Ready` of the other says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic
from typing import Any, NamedTuple

import orjson

from webhook.errors import PolicyFileError, ReviewError, shorten_text
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.policy.impossible_limits import find_impossible_limits
from webhook.policy.lint import find_unmatched
from webhook.policy.loader import (
    POLICY_MODELS,
    PolicySource,
    check_with_others,
    document_from_object,
    is_being_deleted,
    is_spec_unchanged,
    validate_policy,
)
from webhook.policy.policy_set import PolicySet
from webhook.policy.written.kinds import GPUPolicy, GPUPolicyException
from webhook.server.admission_request import REVIEW_API_VERSION, REVIEW_KIND, parse_review
from webhook.server.admission_response import MAX_MESSAGE_LENGTH, MAX_REASON_LENGTH, MAX_WARNING_LENGTH
from webhook.server.admission_state import AdmissionState
from webhook.telemetry.telemetry import Telemetry
from webhook.web.http_messages import (
    HttpRequest,
    HttpResponse,
    error_response,
    escape_to_ascii,
    strip_control_characters,
)
from webhook.web.limits import CpuLimit, CpuLimitError
from webhook.well_known import GROUP

ROUTE_NAME = "policies"

MAX_BODY = 256 * 1024
"""Bytes of the review of a policy, with its old version; the largest shipped one has 5 KiB."""

ACCEPTED_SECONDS = 10.0
"""How long an accepted object counts that no watch delivers; another webhook may have rejected it."""


class ObjectKey(NamedTuple):
    """Kind, namespace ("" for none) and name of a policy or exception."""

    kind: str
    namespace: str
    name: str


class AcceptedObject(NamedTuple):
    """A policy or exception that was accepted a moment ago.

    Attributes:
        replaced: The active one of that name at that time, if any; a later one with another spec, or none, means that a
            watch has delivered the object or a change of it.
        expires: When it counts no longer, in seconds.
    """

    source: PolicySource
    replaced: PolicySource | None
    expires: float


@dataclass(slots=True)
class PolicyAdmissionHandler:
    """Handles the route of policies; `seconds` is a clock that never jumps."""

    state: AdmissionState
    telemetry: Telemetry
    cpu_limit: CpuLimit = field(default_factory=CpuLimit)
    seconds: Callable[[], float] = monotonic
    _accepted: dict[ObjectKey, AcceptedObject] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.state.on_policies = self._forget_delivered

    def handle(self, http_request: HttpRequest) -> HttpResponse:
        """Validate a policy or exception together with the active ones, or stop."""
        if len(http_request.body) > MAX_BODY:
            return self._reject_large("object_too_large", f"a review must have at most {MAX_BODY // 1024} KiB")
        try:
            return self.cpu_limit.run(self._respond, http_request.body)
        except CpuLimitError:
            return self._reject_large("cpu_limit", f"checking the object took more than {self.cpu_limit}")
        except ReviewError as error:
            self.telemetry.record_rejection("invalid_review")
            return error_response(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:
            self.telemetry.record_internal_error(ROUTE_NAME, error)
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; see the log")

    def _respond(self, body: bytes) -> HttpResponse:
        review = {"apiVersion": REVIEW_API_VERSION, "kind": REVIEW_KIND, "response": self._review(parse_review(body))}
        return HttpResponse(HTTPStatus.OK, orjson.dumps(review))

    def _reject_large(self, reason: str, message: str) -> HttpResponse:
        self.telemetry.record_rejection(reason)
        return error_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"could not evaluate: {message}")

    def _review(self, request: AdmissionRequest) -> Mapping[str, Any]:
        """Review a changed spec. An object with an unchanged spec may still get a status, labels, or be deleted."""
        if request.group != GROUP or request.kind not in POLICY_MODELS:
            raise ReviewError(f"request.kind must be a kind of {GROUP}: {', '.join(POLICY_MODELS)}")
        admitted = {"uid": request.uid, "allowed": True}
        if request.operation not in ("CREATE", "UPDATE") or request.sub_resource:
            return admitted
        data: Mapping[str, Any] = request.load_object()
        if is_being_deleted(data) or is_spec_unchanged(data, request.load_old_object()):
            return admitted
        errors: list[PolicyFileError] = []
        source = validate_policy(document_from_object(data), errors)
        active = sources_by_key(self.state.policies)
        if source is not None:
            errors += check_with_others(source, tuple(self._known_sources(active).values()))
        if errors or source is None:
            status = {"code": 403, "reason": "Forbidden", "message": policy_error_message(request, errors)}
            return {"uid": request.uid, "allowed": False, "status": status}
        warnings = [_warning_text(text) for text in policy_warnings(source, active, self.state.view)]
        self.cpu_limit.lift()
        if not request.dry_run:
            self._remember(source, active)
        return admitted | ({"warnings": warnings} if warnings else {})

    def _known_sources(self, active: Mapping[ObjectKey, PolicySource]) -> Mapping[ObjectKey, PolicySource]:
        """Return the active sources, and instead of them those that were accepted a moment ago."""
        now = self.seconds()
        self._accepted = {key: accepted for key, accepted in self._accepted.items() if now < accepted.expires}
        return {**active, **{key: accepted.source for key, accepted in self._accepted.items()}}

    def _forget_delivered(self, policies: PolicySet) -> None:
        """Forget what these policies contain: if they lose it, it was deleted."""
        active = sources_by_key(policies)
        self._accepted = {
            key: accepted
            for key, accepted in self._accepted.items()
            if _written_spec(active.get(key)) == _written_spec(accepted.replaced)
        }

    def _remember(self, source: PolicySource, active: Mapping[ObjectKey, PolicySource]) -> None:
        key = object_key(source.model)
        self._accepted[key] = AcceptedObject(source, active.get(key), self.seconds() + ACCEPTED_SECONDS)


def object_key(model: GPUPolicy | GPUPolicyException) -> ObjectKey:
    """Return what identifies an object in a cluster."""
    return ObjectKey(model.kind, getattr(model.metadata, "namespace", None) or "", model.metadata.name)


def sources_by_key(policies: PolicySet) -> Mapping[ObjectKey, PolicySource]:
    """Return the written policies and exceptions of a set."""
    return {object_key(one.model): one for one in policies.sources}


def _written_spec(source: PolicySource | None) -> object:
    return source.document.data.get("spec") if source is not None else None


def policy_warnings(source: PolicySource, active: Mapping[ObjectKey, PolicySource], view: ClusterView) -> Iterator[str]:
    """Yield why a valid object has no effect, or denies every pod together with others."""
    present = active.get(object_key(source.model))
    if present is not None and not present.document.file.startswith(f"{source.model.kind}/"):
        file = f"has the same name as one in {present.document.file}, which takes precedence"
        yield f"{source.model.kind} {source.name} {file}. Write another metadata.name, or remove the one in the file"
    if isinstance(source.model, GPUPolicy):
        yield from find_unmatched(source.model, view)
        others = [one.model for key, one in active.items() if key != object_key(source.model)]
        yield from find_impossible_limits(source.model, (one for one in others if isinstance(one, GPUPolicy)))


def policy_error_message(request: AdmissionRequest, errors: Sequence[PolicyFileError]) -> str:
    """Return the message for the author: the errors of `policy lint`, without file and line."""
    count = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
    lines = [f"{count} in {request.kind} {document_from_object(request.load_object()).data['metadata']['name']}"]
    lines += [f"[{error.code}] {error.message}" for error in errors]
    lines = [shorten_text(strip_control_characters(line), MAX_REASON_LENGTH) for line in lines]
    return shorten_text("\n".join(lines), MAX_MESSAGE_LENGTH)


def _warning_text(text: str) -> str:
    line = escape_to_ascii(text)
    return line if len(line) <= MAX_WARNING_LENGTH else f"{line[: MAX_WARNING_LENGTH - 3]}..."
