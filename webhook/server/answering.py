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

from webhook.errors import shorten
from webhook.model.codes import SHAPING
from webhook.model.decisions import Decision
from webhook.model.findings import Finding
from webhook.model.modes import Mode
from webhook.model.pods import name_of
from webhook.model.requests import Request
from webhook.server.keeping import kept
from webhook.web.plaintext import ascii_line, one_line

WARNING_MOST = 256
WARNINGS_MOST = 4000
"""Characters in all; the room up to 4096 is for the line that says how many were left out."""

REASON_MOST = 1024
MESSAGE_MOST = 8192
ANNOTATION_MOST = 1024

Face = Callable[[Request, Decision, str], bytes]
"""Request, decision and policy digest to the bytes of one AdmissionReview."""

_HEAD = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
_MUTATED = orjson.dumps(_HEAD)[:-1] + b',"response":{"uid":'


def mutation(request: Request, decision: Decision, digest: str) -> bytes:
    """The face of /mutate: always allowed, with the patch and what the shaping has to say."""
    return b"%b%b,%b}" % (_MUTATED, orjson.dumps(request.uid), _shaping(decision, digest))


@kept
def _shaping(decision: Decision, digest: str) -> bytes:
    """The response of /mutate without its opening brace and its uid: the same for every copy of a pod."""
    response: dict[str, Any] = {"allowed": True}
    if decision.patch:
        response["patch"] = b64encode(orjson.dumps(decision.patch)).decode()
        response["patchType"] = "JSONPatch"
    if decision.findings or decision.policies:
        said = [found for found in decision.findings if found.code in SHAPING]
        _tell(response, [found for found in said if found.mode is not Mode.AUDIT])
        response["auditAnnotations"] = notes = _annotations(decision, said, digest)
        if decision.patch:
            notes["patched"] = str(len(decision.patch))
    return orjson.dumps(response)[1:]


def verdict(request: Request, decision: Decision, digest: str) -> bytes:
    """The face of /validate: allowed, or every reason why not.

    A workload is only ever warned about its pods, and by this face alone, so it hears everything here.
    """
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if decision.findings or decision.policies:
        everything = request.pod is None
        said = [found for found in decision.findings if everything or found.code not in SHAPING]
        denials = [found for found in said if found.mode is Mode.ENFORCE and found.code not in SHAPING]
        if denials:
            response["allowed"] = False
            message = denial_message(request, denials)
            response["status"] = {"code": 403, "reason": "Forbidden", "message": message}
        _tell(response, [found for found in said if found.mode is Mode.WARN])
        response["auditAnnotations"] = _annotations(decision, said, digest)
    return orjson.dumps({**_HEAD, "response": response})


def denial_message(request: Request, denials: Sequence[Finding]) -> str:
    """What the user reads: how many problems, where, by which policies, each with its fix, and where to go on."""
    count = "1 problem" if len(denials) == 1 else f"{len(denials)} problems"
    policies = ", ".join(sorted({found.policy for found in denials if found.policy}))
    of_policies = f" (policy {policies})" if policies else ""
    name = request.name or (name_of(request.pod) if request.pod else "")
    where = f"{request.namespace}/{name}" if request.namespace else name
    lines = [shorten(one_line(f"{count} in {request.kind} {where}{of_policies}"), REASON_MOST)]
    left = MESSAGE_MOST - len(lines[0])
    for index, found in enumerate(denials):
        line = shorten(one_line(str(found)), REASON_MOST)
        left -= len(line) + 1
        if left < 0:
            lines.append(f"and {len(denials) - index} more")
            break
        lines.append(line)
    lines.append("Try: kubectl rightslice explain -f FILE")
    return "\n".join(lines)


def warning_lines(findings: Iterable[Finding]) -> list[str]:
    """One line of ASCII for each finding, none twice, as many as an API server passes on whole."""
    lines = list(dict.fromkeys(map(_warning, findings)))
    left = WARNINGS_MOST
    for index, line in enumerate(lines):
        left -= len(line)
        if left < 0:
            return [*lines[:index], f"and {len(lines) - index} more"]
    return lines


def _warning(found: Finding) -> str:
    """Message and fix where both fit into one line; else the message alone: `explain CODE` tells the fix too."""
    whole = ascii_line(str(found))
    if len(whole) <= WARNING_MOST:
        return whole
    return _bounded(ascii_line(str(Finding(found.code, found.mode, found.path, found.message))))


def _bounded(line: str) -> str:
    return line if len(line) <= WARNING_MOST else f"{line[: WARNING_MOST - 3]}..."


def _tell(response: dict[str, Any], findings: list[Finding]) -> None:
    if findings:
        response["warnings"] = warning_lines(findings)


def _annotations(decision: Decision, said: list[Finding], digest: str) -> dict[str, str]:
    """For the audit log: short keys without a slash, values of printable ASCII."""
    notes = {"policies": ",".join(decision.policies), "digest": digest}
    if said:
        notes["codes"] = ",".join(sorted({f"{found.code}={found.mode}" for found in said}))
    return {key: ascii_line(value)[:ANNOTATION_MOST] for key, value in notes.items() if value}
