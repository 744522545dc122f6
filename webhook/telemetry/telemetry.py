"""Metrics, log and Events of the webhook: records each decision after the response was sent.

Findings for the owners of pods, queued as Events: at most one per owner, code and hour.

Most users never see the response that a controller gets when it creates a pod; they look at the owner's Events.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from webhook.model.admission import AdmissionRequest
from webhook.model.codes import CODES, MUTATION_CODES
from webhook.model.decisions import NO_OFFER_REASONS, Decision, KeepReason, OfferChoice
from webhook.model.enums import EvidenceSource, PolicyMode
from webhook.model.findings import Finding
from webhook.model.pods import OwnerReference
from webhook.telemetry.logs import StructuredLogger
from webhook.telemetry.metrics import (
    DurationHistogram,
    MetricsPage,
    count_results,
    counter_family,
    gauge_family,
    histogram_family,
    info_family,
)
from webhook.telemetry.repeated_warnings import RepeatedWarnings
from webhook.telemetry.server_telemetry import ServerTelemetry

if TYPE_CHECKING:
    from webhook.telemetry.tracing import ReviewTracer

MAX_POLICY_SERIES = 100
"""Admins can create and delete any number of policies."""

OTHER_POLICIES = "(others)"
"""Not a valid policy name."""
SLICE_STATES = ("free", "full", "missing")
"""Whether there is a slice for a need: one is free, all are allocated, or no card is partitioned for it."""

USAGE_NOT_LOADED = "usage not loaded"
OPERATIONS = frozenset({"CREATE", "UPDATE", "DELETE", "CONNECT"})


class Telemetry(ServerTelemetry):
    """Metrics, log and pending Events of one webhook process.

    Attributes:
        tracer: Records a span for each review; None if tracing is off.
    """

    def __init__(self, log: StructuredLogger) -> None:
        super().__init__(log)
        self._warnings = RepeatedWarnings(log)
        self.metrics = WebhookMetrics()
        self.owner_events = OwnerEventQueue()
        self.metrics.events_dropped = lambda: self.owner_events.dropped
        self.metrics_text = MetricsPage(self, self.metrics).render
        self.tracer: ReviewTracer | None = None

    def record_decision(self, route: str, request: AdmissionRequest, decision: Decision, seconds: float) -> None:
        """Count an answered review, and log it: denials at info, others at debug."""
        metrics = self.metrics
        result = response_result(route, decision, workload=request.pod is None)
        operation = request.operation if request.operation in OPERATIONS else "other"
        metrics.requests[route, operation, result] += 1
        durations = metrics.durations.get(route)
        if durations is None:
            durations = metrics.durations[route] = DurationHistogram()
        durations.observe(seconds)
        for finding in decision.findings:
            code = CODES.get(finding.code)
            if code is not None and (request.pod is None or code.from_mutation == (route == "mutate")):
                metrics.findings[finding.code, str(finding.mode)] += 1
        is_new_pod = operation == "CREATE" and request.pod is not None and not request.dry_run
        if route == "mutate" and is_new_pod and not decision.denials:  # /validate denies for the same findings
            metrics.count_capacity(decision)
        if route == "validate":
            for policy in decision.policies:
                metrics.matches[policy] += 1
            for policy in {each.policy for each in decision.denials} if result == "denied" else ():
                metrics.denials[policy] += 1
            if result not in ("allowed", "retried"):
                self.owner_events.enqueue(request, decision)
        if result == "denied":
            self._log_denial(request, decision)
        else:
            self.log.debug(
                "request evaluated",
                result=result,
                uid=request.uid,
                operation=operation,
                kind=request.kind,
                namespace=request.namespace,
                name=request.name,
                policies=decision.policies,
                keepReason=decision.keep_reason,
            )

    def record_policies_loaded(self, digest: str, count: int, now: datetime) -> None:
        """Record that new policies are active."""
        metrics = self.metrics
        metrics.policy_loads["success"] += 1
        metrics.policies_current, metrics.policy_digest, metrics.policies_loaded_at = 1, digest, now.timestamp()
        metrics.active_policies = count
        self.log.info("policies loaded", policies=count, digest=digest)

    def record_review_cost(self, policies: int, seconds: float, limit: float, *, is_slow: bool) -> None:
        """Record the CPU time of a review of the largest usual pod, by as many policies as may match one pod."""
        self.metrics.review_cpu_seconds = seconds
        if is_slow:
            self.log.warning(
                "policies are slow to evaluate; `rightslice policy lint` names the costliest",
                policiesForOnePod=policies,
                cpuMilliseconds=round(seconds * 1000, 1),
                limitMilliseconds=round(limit * 1000),
            )

    def record_policies_rejected(self, errors: tuple[str, ...]) -> None:
        """Record that the current policies do not load; the last valid set stays active."""
        self.metrics.policy_loads["error"] += 1
        self.metrics.policies_current = 0
        self.log.error("policies not loaded, keeping the last valid ones", errors=[each[:500] for each in errors[:20]])

    def record_rollout_halted(self, policy: str, reason: str, message: str) -> None:
        """Log that a rollout was halted."""
        self.log.error("rollout halted", policy=policy, reason=reason, message=message)

    def record_certificate_step(self, step: str, reason: str, configurations: Sequence[str]) -> None:
        """Record a rotation step, with the webhook configurations that it changed."""
        self.metrics.rotation_steps[step] += 1
        changed = {"configurations": list(configurations)} if configurations else {}
        self.log.info("certificate rotation step", step=step, reason=reason, **changed)

    def set_certificate_error(self, error: str) -> None:
        """Record that certificate management fails, or, with an empty error, that it works again."""
        self.metrics.rotation_failing = int(bool(error))
        if error:
            self.log.error("certificate management failed", error=error)
        else:
            self.log.info("certificate management recovered")

    def set_leader(self, is_leader: bool) -> None:
        """Record whether this replica is the leader."""
        if self.metrics.is_leader != int(is_leader):
            self.metrics.is_leader = int(is_leader)
            self.log.info("became leader" if is_leader else "lost leadership")

    def record_usage_loaded(self, containers: int, pods: int, notes: Sequence[str]) -> None:
        """Record that new usage data is active."""
        self.metrics.usage_loads["success"] += 1
        self._warnings.forget(USAGE_NOT_LOADED)
        self.log.info("usage loaded", containers=containers, pods=pods, **({"notes": list(notes)} if notes else {}))

    def record_usage_rejected(self, error: str, advice: str) -> None:
        """Record that usage could not be loaded; the last data stays in use for some time."""
        self.metrics.usage_loads["error"] += 1
        self._warnings.warn(USAGE_NOT_LOADED, error, advice)

    def count_event(self, result: str) -> None:
        """Count an Event that was written (`success`) or not (`error`)."""
        self.metrics.events[result] += 1

    def record_status_error(self, error: str) -> None:
        """Log that the status of a policy could not be written."""
        self._warnings.warn("policy status not written", error)

    def _log_denial(self, request: AdmissionRequest, decision: Decision) -> None:
        self.log.info(
            "request denied",
            uid=request.uid,
            operation=request.operation,
            kind=request.kind,
            namespace=request.namespace,
            name=request.name,
            user=request.user,
            codes=sorted({finding.code for finding in decision.denials}),
            policies=list(decision.policies),
            keepReason=decision.keep_reason,
        )


def response_result(route: str, decision: Decision, *, workload: bool = False) -> str:
    """Return the result of a route's response: allowed, warned, patched, denied or retried.

    For a pod, /validate ignores the findings of right-sizing, which /mutate reports; for a workload it reports all.
    """
    if route == "mutate":
        return "patched" if decision.patch else "allowed"
    if not decision.findings:
        return "allowed"
    if decision.denials:
        return "retried" if decision.is_retried else "denied"
    if any(workload or finding.code not in MUTATION_CODES for finding in decision.warnings):
        return "warned"
    return "allowed"


class WebhookMetrics(Collector):
    """The metrics of the webhook that no other process has.

    Attributes:
        rollouts: Whether the rollout is halted, by the name of each policy that has one.
        matches, denials: Reviews on /validate by policy name; also written to the status of policies.
        usage_age: Seconds; None if usage is not loaded.
        right_sized: Created pods that were right-sized, by evidence.
        needs: GPU memory in MiB that created pods need, by the availability of a slice.
        largest_slice_mib: Memory of the largest MIG slice that the cluster's cards could have, in MiB.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.durations: dict[str, DurationHistogram] = {}
        self.findings: Counter[tuple[str, str]] = Counter()
        self.matches: Counter[str] = Counter()
        self.denials: Counter[str] = Counter()
        self.gpu_milli_requested = 0
        self.gpu_milli_admitted = 0
        self.right_sizing_outcomes: Counter[str] = Counter()
        self.right_sized: Counter[str] = Counter(dict.fromkeys(EvidenceSource, 0))
        self.needs: Counter[str] = Counter(dict.fromkeys(SLICE_STATES, 0))
        self.largest_slice_mib: Callable[[], int] = int
        self.policy_loads: Counter[str] = count_results()
        self.policies_current = 0
        self.active_policies = 0
        self.review_cpu_seconds = 0.0
        self.policies_loaded_at = 0.0
        self.policy_digest = ""
        self.rollouts: Mapping[str, bool] = {}
        self.events: Counter[str] = count_results()
        self.events_dropped: Callable[[], int] = int
        self.rotation_steps: Counter[str] = Counter()
        self.rotation_failing = 0
        self.is_leader = 0
        self.in_flight: Callable[[], int] = int
        self.usage_loads: Counter[str] = count_results()
        self.usage_age: Callable[[], float | None] | None = None
        self.usage_containers: Callable[[], int] = int

    def count_capacity(self, decision: Decision) -> None:
        """Count the GPUs of a created pod, and the outcome of its right-sizing."""
        self.gpu_milli_requested += decision.gpu_milli_before
        self.gpu_milli_admitted += decision.gpu_milli_after
        if decision.gpu_milli_before:
            self.right_sizing_outcomes[decision.right_sizing_outcome] += 1
            self.count_evidence(decision)
            self.count_need(decision)

    def count_evidence(self, decision: Decision) -> None:
        """Count a created pod by the evidence of its need, if it was right-sized."""
        if decision.applied and isinstance(decision.outcome, OfferChoice):
            self.right_sized[decision.outcome.need.evidence] += 1

    def count_need(self, decision: Decision) -> None:
        """Count the need of a created pod, if a slice of the cluster's cards would cover it."""
        outcome = decision.outcome
        if isinstance(outcome, OfferChoice):
            self.needs["free"] += decision.needed_mib
        elif outcome.reason in (KeepReason.NO_FREE_CAPACITY, KeepReason.NO_GROWTH):
            self.needs["full"] += decision.needed_mib
        elif outcome.reason in NO_OFFER_REASONS and decision.needed_mib <= self.largest_slice_mib():
            self.needs["missing"] += decision.needed_mib

    def collect(self) -> Iterator[Metric]:
        """Return all metrics."""
        yield counter_family("rightslice_admission_requests_total", self.requests)
        yield histogram_family("rightslice_admission_duration_seconds", self.durations)
        yield counter_family("rightslice_findings_total", self.findings)
        yield counter_family("rightslice_policy_matches_total", _policy_series(self.matches))
        yield counter_family("rightslice_policy_denials_total", _policy_series(self.denials))
        yield counter_family("rightslice_gpu_milli_requested_total", self.gpu_milli_requested)
        yield counter_family("rightslice_gpu_milli_admitted_total", self.gpu_milli_admitted)
        yield counter_family("rightslice_right_sizing_outcomes_total", self.right_sizing_outcomes)
        yield counter_family("rightslice_right_sized_pods_total", self.right_sized)
        needs = {(name,): mib << 20 for name, mib in self.needs.items()}
        yield counter_family("rightslice_right_sizable_need_bytes_total", needs)
        yield counter_family("rightslice_policy_loads_total", self.policy_loads)
        yield gauge_family("rightslice_policies_last_load_successful", self.policies_current)
        yield gauge_family("rightslice_active_policies", self.active_policies)
        yield gauge_family("rightslice_review_cpu_seconds", self.review_cpu_seconds)
        yield gauge_family("rightslice_policies_last_load_timestamp_seconds", self.policies_loaded_at)
        yield info_family("rightslice_policies_info", {"digest": self.policy_digest})
        rollouts = {name: int(halted) for name, halted in islice(self.rollouts.items(), MAX_POLICY_SERIES)}
        yield gauge_family("rightslice_rollout_halted", rollouts)
        yield counter_family("rightslice_events_total", self._events_by_result())
        yield counter_family("rightslice_certificate_rotation_steps_total", self.rotation_steps)
        yield gauge_family("rightslice_certificate_rotation_failing", self.rotation_failing)
        yield gauge_family("rightslice_leader", self.is_leader)
        yield gauge_family("rightslice_requests_in_flight", self.in_flight())
        if self.usage_age is not None:
            yield counter_family("rightslice_usage_loads_total", self.usage_loads)
            yield gauge_family("rightslice_usage_containers", self.usage_containers())
            if (age := self.usage_age()) is not None:
                yield gauge_family("rightslice_usage_age_seconds", age)

    def _events_by_result(self) -> Counter[str]:
        counts = self.events.copy()
        counts["dropped"] = self.events_dropped()
        return counts


def _policy_series(counts: Counter[str]) -> Counter[str]:
    """Return the counts of the first policies, and the sum of all others as one series."""
    named = Counter(dict(islice(counts.items(), MAX_POLICY_SERIES)))
    rest = counts.total() - named.total()
    return named + Counter({OTHER_POLICIES: rest})


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
