"""Findings for the owners of pods, queued as Events: at most one per owner, code and hour.

Most users never see the response that a controller gets when it creates a pod; they look at the owner's Events.
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
    """A pending Event.

    Attributes:
        owner: The controller that created the pod, in the same namespace.
        message: The finding with its fix, after "denied a pod" or "warning about a pod".
        hour: Hours since 1970.
    """

    namespace: str
    owner: OwnerReference
    code: str
    message: str
    hour: int


class OwnerEventQueue:
    """Pending Events, the oldest first.

    Attributes:
        dropped: Number of Events dropped because the queue was full.
        enabled: True once a writer runs; before, nothing is queued.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.pending: deque[OwnerEvent] = deque()
        self.dropped = 0
        self.enabled = False
        self._clock = clock
        self._hour = 0
        self._sent: set[tuple[str, str, str, str]] = set()

    def enqueue(self, request: AdmissionRequest, decision: Decision) -> None:
        """Queue the findings that the pod's owner did not get within this hour."""
        owners = request.pod.metadata.owner_references if request.pod is not None else ()
        owner = next((each for each in owners if each.controller), None)
        if not self.enabled or owner is None or request.dry_run or request.operation != "CREATE":
            return
        hour = int(self._clock()) // SECONDS_PER_HOUR
        if hour != self._hour:
            self._hour = hour
            self._sent.clear()
        for finding in (*decision.denials, *decision.warnings):
            if finding.code not in MUTATION_CODES:
                self._enqueue_finding(request.namespace, owner, finding)

    def _enqueue_finding(self, namespace: str, owner: OwnerReference, finding: Finding) -> None:
        key = (namespace, owner.kind, owner.name, finding.code)
        if key in self._sent:
            return
        if len(self.pending) >= MAX_PENDING or len(self._sent) >= MAX_REMEMBERED:
            self.dropped += 1
            return
        self._sent.add(key)
        result = "denied a pod" if finding.mode is PolicyMode.ENFORCE else "warning about a pod"
        if "env" in finding.path:  # more people may read Events than pods, and the value may be a secret
            code = CODES[finding.code]
            finding = msgspec.structs.replace(finding, message=code.title, fix=code.fix)
        message = f"{result}: {finding}"
        self.pending.append(OwnerEvent(namespace, owner, finding.code, message, self._hour))
