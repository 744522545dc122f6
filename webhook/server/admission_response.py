"""Renders a decision as an AdmissionReview response.

* /mutate returns the patch, the findings of right-sizing, and warnings about what the API server rejects before it
  calls /validate; it never denies.
* /validate returns every reason for a denial, and never patches.

Lengths follow the API server's rules for warnings: one with a control character is dropped, and beyond 4096 characters
in total each is truncated to 256. The API recommends 120, but shorter lines would have no room for the fix.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import orjson

from webhook.errors import shorten_text
from webhook.model.admission import AdmissionRequest
from webhook.model.annotations import PROBE_ANNOTATION, PROBE_ANSWER
from webhook.model.bounded_cache import BoundedCache
from webhook.model.codes import LIMIT_RANGE_CODES, MUTATION_CODES
from webhook.model.decisions import Decision, patch_replace
from webhook.model.enums import PolicyMode
from webhook.model.findings import Finding
from webhook.model.pods import pod_display_name
from webhook.web.http_messages import escape_to_ascii, strip_control_characters

MAX_WARNING_LENGTH = 256
MAX_WARNINGS_LENGTH = 4000
"""Characters in total; the rest up to 4096 is for the line that counts omitted warnings."""

MAX_REASON_LENGTH = 1024
MAX_MESSAGE_LENGTH = 8192
MAX_ANNOTATION_LENGTH = 1024

CACHE_ENTRIES = 512
MAX_CACHED_BYTES = 8 * 1024

MUTATE_REACHED = "mutate answers"
_MUTATE_REPORTS = MUTATION_CODES | LIMIT_RANGE_CODES

DecisionRenderer = Callable[[Decision, str], bytes]
"""Renders the part of a response that depends only on decision and policy digest."""

DENIED_STATUS: dict[str, Any] = {"code": 403, "reason": "Forbidden"}
RETRY_STATUS: dict[str, Any] = {"code": 429, "reason": "TooManyRequests", "details": {"retryAfterSeconds": 1}}
"""The API server sends the seconds as Retry-After, and client-go repeats a request with both, up to ten times."""

_REVIEW_HEADER = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
_MUTATION_PREFIX = orjson.dumps(_REVIEW_HEADER)[:-1] + b',"response":{"uid":'


def cache_by_decision(render: DecisionRenderer) -> DecisionRenderer:
    """Cache the result per decision object; entries are found by identity, so nothing is compared or hashed.

    A short response may come from a large decision, so the cache counts among those of `CacheBudget`.
    """
    cache: BoundedCache[int, tuple[Decision, str, bytes]] = BoundedCache(CACHE_ENTRIES)

    def cached_render(decision: Decision, digest: str) -> bytes:
        entry = cache.get(id(decision))
        if entry is not None and entry[0] is decision and entry[1] == digest:
            return entry[2]
        content = render(decision, digest)
        if len(content) <= MAX_CACHED_BYTES:
            cache.store(id(decision), (decision, digest, content))
        return content

    return cached_render


def render_mutation(request: AdmissionRequest, decision: Decision, digest: str) -> bytes:
    """Render the response of /mutate: always allowed, with the patch and what only it reports."""
    return b"%b%b,%b}" % (_MUTATION_PREFIX, orjson.dumps(request.uid), _render_mutation_body(decision, digest))


@cache_by_decision
def _render_mutation_body(decision: Decision, digest: str) -> bytes:
    """Render the response without its opening brace and uid, which is identical for every copy of a pod."""
    response: dict[str, Any] = {"allowed": True}
    if decision.patch:
        response["patch"] = b64encode(_encode_patch(decision.patch)).decode()
        response["patchType"] = "JSONPatch"
    if decision.findings or decision.policies:
        findings = [finding for finding in decision.findings if finding.code in _MUTATE_REPORTS]
        if warnings := warning_lines(finding for finding in findings if finding.mode is not PolicyMode.AUDIT):
            response["warnings"] = warnings
        response["auditAnnotations"] = annotations = _audit_annotations(decision, findings, digest)
        if decision.patch:
            annotations["patched"] = str(len(decision.patch))
    return orjson.dumps(response)[1:]


def _encode_patch(patch: object) -> bytes:
    """Encode a patch, which may repeat integers of the object beyond the 64 bits that orjson supports."""
    try:
        return orjson.dumps(patch)
    except orjson.JSONEncodeError:
        return json.dumps(patch, separators=(",", ":")).encode()


def render_validation(request: AdmissionRequest, decision: Decision, digest: str) -> bytes:
    """Render the response of /validate: allowed, or every reason for the denial.

    Only this response reports findings about a workload's pods, and only as warnings, so it includes all of them.
    """
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if decision.findings or decision.policies:
        is_workload = request.pod is None
        findings = [each for each in decision.findings if is_workload or each.code not in MUTATION_CODES]
        denials = [each for each in findings if each.mode is PolicyMode.ENFORCE]
        if denials:
            response["allowed"] = False
            message = denial_message(request, denials)
            again = decision.is_retried and not is_workload
            response["status"] = (RETRY_STATUS if again else DENIED_STATUS) | {"message": message}
        if warnings := warning_lines(finding for finding in findings if finding.mode is PolicyMode.WARN):
            response["warnings"] = warnings
        response["auditAnnotations"] = _audit_annotations(decision, findings, digest)
    return orjson.dumps({**_REVIEW_HEADER, "response": response})


def denial_message(request: AdmissionRequest, denials: Sequence[Finding]) -> str:
    """Return the message for the user: number of problems, object, policies, and each problem with its fix."""
    count = "1 problem" if len(denials) == 1 else f"{len(denials)} problems"
    policies = ", ".join(sorted({finding.policy for finding in denials if finding.policy}))
    of_policies = f" (policy {policies})" if policies else ""
    name = request.name or (pod_display_name(request.pod) if request.pod else "")
    full_name = f"{request.namespace}/{name}" if request.namespace else name
    title = strip_control_characters(f"{count} in {request.kind} {full_name}{of_policies}")
    lines = [shorten_text(title, MAX_REASON_LENGTH)]
    left = MAX_MESSAGE_LENGTH - len(lines[0])
    for index, finding in enumerate(denials):
        line = shorten_text(strip_control_characters(str(finding)), MAX_REASON_LENGTH)
        left -= len(line) + 1
        if left < 0:
            lines.append(f"and {len(denials) - index} more")
            break
        lines.append(line)
    lines.append("Try: kubectl rightslice explain -f FILE")
    return "\n".join(lines)


def warning_lines(findings: Iterable[Finding]) -> list[str]:
    """Return one or two ASCII lines per finding, without duplicates, up to the API server's limit."""
    lines = list(dict.fromkeys(line for finding in findings for line in _lines_of_finding(finding)))
    left = MAX_WARNINGS_LENGTH
    for index, line in enumerate(lines):
        left -= len(line)
        if left < 0:
            return [*lines[:index], f"and {len(lines) - index} more"]
    return lines


def _lines_of_finding(finding: Finding) -> Iterator[str]:
    """Yield message and fix as one line if they fit, else as two. A fix that fits in no line is omitted.

    `explain CODE` shows fixes too.
    """
    line = escape_to_ascii(str(finding))
    if len(line) <= MAX_WARNING_LENGTH:
        yield line
        return
    line = escape_to_ascii(str(Finding(finding.code, finding.mode, finding.path, finding.message)))
    yield line if len(line) <= MAX_WARNING_LENGTH else f"{line[: MAX_WARNING_LENGTH - 3]}..."
    fix = escape_to_ascii(f"[{finding.code}] {finding.fix}")
    if finding.fix and len(fix) <= MAX_WARNING_LENGTH:
        yield fix


def _audit_annotations(decision: Decision, findings: list[Finding], digest: str) -> dict[str, str]:
    annotations = {"policies": ",".join(decision.policies), "digest": digest}
    if findings:
        annotations["codes"] = ",".join(sorted({f"{finding.code}={finding.mode}" for finding in findings}))
    return {key: escape_to_ascii(value)[:MAX_ANNOTATION_LENGTH] for key, value in annotations.items() if value}


def is_self_probe(request: AdmissionRequest) -> bool:
    """Return whether this is the installer's test: a dry run with the annotation `rightslice.dev/probe`.

    Its answer proves that this server responds; a webhook with `failurePolicy: Ignore` would admit the pod in any case.
    """
    return request.dry_run and request.pod is not None and PROBE_ANNOTATION in request.pod.metadata.annotations


def render_self_probe(route: str, request: AdmissionRequest) -> bytes:
    """Render the answer to a self-probe: /mutate marks the annotation, /validate denies and reports the mark."""
    assert request.pod is not None
    response: dict[str, Any] = {"uid": request.uid, "allowed": route == "mutate"}
    if route == "mutate":
        operations = [patch_replace(("metadata", "annotations", PROBE_ANNOTATION), MUTATE_REACHED)]
        response |= {"patch": b64encode(orjson.dumps(operations)).decode(), "patchType": "JSONPatch"}
    else:
        mutated = request.pod.metadata.annotations[PROBE_ANNOTATION] == MUTATE_REACHED
        message = f"{PROBE_ANSWER}: validate{' and mutate' if mutated else ', but not mutate'}"
        response["status"] = {"code": 403, "reason": "Forbidden", "message": message}
    return orjson.dumps({**_REVIEW_HEADER, "response": response})
