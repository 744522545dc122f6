"""What the owners of pods should hear: one notice an owner, code and hour, kept until somebody writes them as Events.

A controller that creates pods shows nobody what it was told: its owner's Events are where people look.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from webhook.model.admission import AdmissionRequest
from webhook.model.codes import CODES, MUTATION_CODES
from webhook.model.decisions import Decision
from webhook.model.enums import PolicyMode
from webhook.model.findings import Finding
from webhook.model.pods import OwnerReference

MAX_PENDING = 256
MAX_REMEMBERED = 4096
SECONDS_PER_HOUR = 3600


class OwnerEvent(NamedTuple):
    """One thing to tell.

    Attributes:
        namespace: Of the pod, and so of its owner.
        owner: The controller that created the pod.
        code: The finding's.
        message: What was found and what to write, with "denied" or "warning" before it.
        hour: Hours since 1970.
    """

    namespace: str
    owner: OwnerReference
    code: str
    message: str
    hour: int


class OwnerEventQueue:
    """Those that wait to be written, the oldest first.

    Attributes:
        dropped: How many there was no room for.
        wanted: Is there somebody who writes them? Until then none is taken.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Begin with none; the clock tells seconds since 1970."""
        self.pending: deque[OwnerEvent] = deque()
        self.dropped = 0
        self.enabled = False
        self._clock = clock
        self._hour = 0
        self._sent: set[tuple[str, str, str, str]] = set()

    def enqueue(self, request: AdmissionRequest, decision: Decision) -> None:
        """Keep what the owner of a pod has not been told in this hour."""
        owner = _controller_of(request)
        if not self.enabled or owner is None or request.dry_run or request.operation != "CREATE":
            return
        hour = int(self._clock()) // SECONDS_PER_HOUR
        if hour != self._hour:
            self._hour = hour
            self._sent.clear()
        for found in (*decision.denials, *decision.warnings):
            if found.code not in MUTATION_CODES:
                self._enqueue_finding(request.namespace, owner, found)

    def _enqueue_finding(self, namespace: str, owner: OwnerReference, found: Finding) -> None:
        key = (namespace, owner.kind, owner.name, found.code)
        if key in self._sent:
            return
        if len(self.pending) >= MAX_PENDING or len(self._sent) >= MAX_REMEMBERED:
            self.dropped += 1
            return
        self._sent.add(key)
        verdict = "denied a pod" if found.mode is PolicyMode.ENFORCE else "warning about a pod"
        self.pending.append(
            OwnerEvent(namespace, owner, found.code, f"{verdict}: {_without_secrets(found)}", self._hour)
        )


def _without_secrets(found: Finding) -> Finding:
    """Without the value of a variable: more people may read Events than pods, and it may be a secret."""
    if "env" not in found.path:
        return found
    return msgspec.structs.replace(found, message=CODES[found.code].title, fix=CODES[found.code].fix)


def _controller_of(request: AdmissionRequest) -> OwnerReference | None:
    owners = request.pod.metadata.owner_references if request.pod is not None else ()
    return next((owner for owner in owners if owner.controller), None)
