"""Decision to bytes: the two faces of one decision.

* /mutate shapes: it carries the patch and what the shaping has to say, and never denies.
* /validate judges: it carries every reason to say no, and never patches.

An answer is made from the request it answers, so that its uid cannot be forgotten. Lengths follow what an API
server does with warnings: one with a control character is dropped, and beyond 4096 in all every one of them is cut at
256. The API advises 120; a line that leaves out the way to mend it is shorter and useless.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson

from webhook.errors import shorten_text
from webhook.model.admission import AdmissionRequest
from webhook.model.annotations import PROBE_ANNOTATION, PROBE_ANSWER
from webhook.model.codes import MUTATION_CODES
from webhook.model.decisions import Decision, patch_replace
from webhook.model.enums import PolicyMode
from webhook.model.findings import Finding
from webhook.model.pods import pod_display_name
from webhook.web.http_messages import escape_to_ascii, strip_control_characters

CACHE_ENTRIES = 512
"""Texts that are kept; the oldest goes first."""

MAX_CACHED_BYTES = 8 * 1024
"""Bytes of the longest text that is kept."""

DecisionRenderer = Callable[[Decision, str], bytes]
"""Decision and policy digest to bytes."""


def cache_by_decision(make: DecisionRenderer) -> DecisionRenderer:
    """Make the bytes of one decision once, as long as it is the same object: nothing is compared, nothing hashed."""
    made: dict[int, tuple[Decision, str, bytes]] = {}

    def give(decision: Decision, digest: str) -> bytes:
        found = made.get(id(decision))
        if found is not None and found[0] is decision and found[1] == digest:
            return found[2]
        text = make(decision, digest)
        if len(text) <= MAX_CACHED_BYTES:
            made.pop(id(decision), None)
            if len(made) >= CACHE_ENTRIES:
                del made[next(iter(made))]
            made[id(decision)] = (decision, digest, text)
        return text

    return give


MUTATE_REACHED = "mutate answers"


MAX_WARNING_LENGTH = 256
MAX_WARNINGS_LENGTH = 4000
"""Characters in all; the room up to 4096 is for the line that says how many were left out."""

MAX_REASON_LENGTH = 1024
MAX_MESSAGE_LENGTH = 8192
MAX_ANNOTATION_LENGTH = 1024

Renderer = Callable[[AdmissionRequest, Decision, str], bytes]
"""Request, decision and policy digest to the bytes of one AdmissionReview."""

_REVIEW_HEADER = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
_MUTATION_PREFIX = orjson.dumps(_REVIEW_HEADER)[:-1] + b',"response":{"uid":'


def render_mutation(request: AdmissionRequest, decision: Decision, digest: str) -> bytes:
    """The face of /mutate: always allowed, with the patch and what the shaping has to say."""
    return b"%b%b,%b}" % (_MUTATION_PREFIX, orjson.dumps(request.uid), _render_mutation_body(decision, digest))


@cache_by_decision
def _render_mutation_body(decision: Decision, digest: str) -> bytes:
    """The response of /mutate without its opening brace and its uid: the same for every copy of a pod."""
    response: dict[str, Any] = {"allowed": True}
    if decision.patch:
        response["patch"] = b64encode(orjson.dumps(decision.patch)).decode()
        response["patchType"] = "JSONPatch"
    if decision.findings or decision.policies:
        said = [found for found in decision.findings if found.code in MUTATION_CODES]
        _add_warnings(response, [found for found in said if found.mode is not PolicyMode.AUDIT])
        response["auditAnnotations"] = notes = _audit_annotations(decision, said, digest)
        if decision.patch:
            notes["patched"] = str(len(decision.patch))
    return orjson.dumps(response)[1:]


def render_validation(request: AdmissionRequest, decision: Decision, digest: str) -> bytes:
    """The face of /validate: allowed, or every reason why not.

    A workload is only ever warned about its pods, and by this face alone, so it hears everything here.
    """
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if decision.findings or decision.policies:
        everything = request.pod is None
        said = [found for found in decision.findings if everything or found.code not in MUTATION_CODES]
        denials = [found for found in said if found.mode is PolicyMode.ENFORCE and found.code not in MUTATION_CODES]
        if denials:
            response["allowed"] = False
            message = denial_message(request, denials)
            response["status"] = {"code": 403, "reason": "Forbidden", "message": message}
        _add_warnings(response, [found for found in said if found.mode is PolicyMode.WARN])
        response["auditAnnotations"] = _audit_annotations(decision, said, digest)
    return orjson.dumps({**_REVIEW_HEADER, "response": response})


def denial_message(request: AdmissionRequest, denials: Sequence[Finding]) -> str:
    """What the user reads: how many problems, where, by which policies, each with its fix, and where to go on."""
    count = "1 problem" if len(denials) == 1 else f"{len(denials)} problems"
    policies = ", ".join(sorted({found.policy for found in denials if found.policy}))
    of_policies = f" (policy {policies})" if policies else ""
    name = request.name or (pod_display_name(request.pod) if request.pod else "")
    where = f"{request.namespace}/{name}" if request.namespace else name
    lines = [
        shorten_text(strip_control_characters(f"{count} in {request.kind} {where}{of_policies}"), MAX_REASON_LENGTH)
    ]
    left = MAX_MESSAGE_LENGTH - len(lines[0])
    for index, found in enumerate(denials):
        line = shorten_text(strip_control_characters(str(found)), MAX_REASON_LENGTH)
        left -= len(line) + 1
        if left < 0:
            lines.append(f"and {len(denials) - index} more")
            break
        lines.append(line)
    lines.append("Try: kubectl rightslice explain -f FILE")
    return "\n".join(lines)


def warning_lines(findings: Iterable[Finding]) -> list[str]:
    """One line of ASCII for each finding, none twice, as many as an API server passes on whole."""
    lines = list(dict.fromkeys(map(_warning_line, findings)))
    left = MAX_WARNINGS_LENGTH
    for index, line in enumerate(lines):
        left -= len(line)
        if left < 0:
            return [*lines[:index], f"and {len(lines) - index} more"]
    return lines


def _warning_line(found: Finding) -> str:
    """Message and fix where both fit into one line; else the message alone: `explain CODE` tells the fix too."""
    whole = escape_to_ascii(str(found))
    if len(whole) <= MAX_WARNING_LENGTH:
        return whole
    return _truncate_warning(escape_to_ascii(str(Finding(found.code, found.mode, found.path, found.message))))


def _truncate_warning(line: str) -> str:
    return line if len(line) <= MAX_WARNING_LENGTH else f"{line[: MAX_WARNING_LENGTH - 3]}..."


def _add_warnings(response: dict[str, Any], findings: list[Finding]) -> None:
    if findings:
        response["warnings"] = warning_lines(findings)


def _audit_annotations(decision: Decision, said: list[Finding], digest: str) -> dict[str, str]:
    """For the audit log: short keys without a slash, values of printable ASCII."""
    notes = {"policies": ",".join(decision.policies), "digest": digest}
    if said:
        notes["codes"] = ",".join(sorted({f"{found.code}={found.mode}" for found in said}))
    return {key: escape_to_ascii(value)[:MAX_ANNOTATION_LENGTH] for key, value in notes.items() if value}


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
