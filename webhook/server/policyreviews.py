"""The route for policies: what `policy lint` says of a file, it says of an object at `kubectl apply`.

It is registered twice. As a validating webhook it has the last word. As a mutating one it changes nothing, but comes
before the schema is looked at, so that the author reads our sentence and not only the schema's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson

from webhook.errors import PolicyFileError, ReviewError, shorten
from webhook.model.requests import Request
from webhook.policy.found import Found
from webhook.policy.loading import KINDS, faults_beside
from webhook.policy.objects import document_of, is_leaving, same_words
from webhook.policy.written.base import GROUP
from webhook.server.answering import MESSAGE_MOST, REASON_MOST
from webhook.server.reading import read
from webhook.telemetry.telemetry import Telemetry
from webhook.web.plaintext import one_line
from webhook.web.replies import Call, Reply, refusal

NAME = "policies"


class PolicyAdmission:
    """Judges policies and exceptions beside those in force."""

    def __init__(self, in_force: Callable[[], Sequence[Found]], telemetry: Telemetry) -> None:
        self._in_force = in_force
        self._telemetry = telemetry

    def answer(self, call: Call) -> Reply:
        """Judge one review."""
        try:
            request = read(call.body)
            return Reply(HTTPStatus.OK, _face(request, _faults(request, self._in_force())))
        except ReviewError as error:
            self._telemetry.refused("review")
            return refusal(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:
            self._telemetry.crashed(NAME, "", error)
            return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "a fault in this server; its log has the details")


def _faults(request: Request, in_force: Sequence[Found]) -> Sequence[PolicyFileError]:
    """What is new is judged: an object that stays as it was still gets its status, its labels and its end."""
    if request.group != GROUP or request.kind not in KINDS:
        raise ReviewError(f"request.kind must be a kind of {GROUP}: {', '.join(KINDS)}")
    if request.operation not in ("CREATE", "UPDATE") or request.sub_resource:
        return ()
    data: Mapping[str, Any] = request.load()
    if is_leaving(data) or same_words(data, request.load_old()):
        return ()
    return faults_beside(document_of(data), in_force)


def _face(request: Request, faults: Sequence[PolicyFileError]) -> bytes:
    response: dict[str, Any] = {"uid": request.uid, "allowed": not faults}
    if faults:
        response["status"] = {"code": 403, "reason": "Forbidden", "message": fault_message(request, faults)}
    return orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})


def fault_message(request: Request, faults: Sequence[PolicyFileError]) -> str:
    """What the author reads: how many faults, and each as `policy lint` prints it, without file and line."""
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    lines = [f"{count} in {request.kind} {document_of(request.load()).data['metadata']['name']}"]
    lines += [f"[{fault.code}] {fault.sentence}" for fault in faults]
    return shorten("\n".join(shorten(one_line(line), REASON_MOST) for line in lines), MESSAGE_MOST)
