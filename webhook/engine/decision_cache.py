"""`decide` with a memory: copies of a pod that was just judged get the decision that is there already.

A ReplicaSet's or Job's pods differ in names, uids and numbers, and which they are is not decided by. Three things keep
a remembered decision the one that `decide` would make:

* A key is everything that was told about a pod, written out. On a miss `decide` is given what the key holds and
  nothing else, so nothing outside the key can have had a part in the decision.
* What moves between two copies is the room that is left, and what workloads were seen to use. What a decision asked
  about them is kept with the answers; the decision is given again only where every question is answered the same now.
* With new policies or nodes, and where use comes to be known at all, everything is forgotten.

What is remembered is bounded, and keys are compared whole: a strange pod can cost others a repeated decision, and
never another's decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, NoReturn, TypeVar

import msgspec

from webhook.engine.decide import decide
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision
from webhook.model.fleet import Fleet
from webhook.model.objects import ResourceQuota
from webhook.model.pods import ObjectMeta, OwnerReference, Pod, PodSpec
from webhook.model.pools import QuotaPool
from webhook.model.quota_keys import CountedResource
from webhook.model.quota_usage import PoolHolders
from webhook.model.remaining_quota import QuotaConsumer
from webhook.model.usage import ObservedUsage, UsageView
from webhook.policy.policy_set import PolicySet

MAX_ENTRIES = 512
"""Decisions that are kept; the oldest goes first."""

MAX_KEY_BYTES = 16 * 1024
"""Bytes of the longest key that is kept: four times what a usual training pod comes to."""

MAX_FINDINGS = 16
"""Most findings of a decision that is kept: a long list of them may take more memory than the pod."""

INDEX_KEYS = frozenset(
    {
        "apps.kubernetes.io/pod-index",
        "batch.kubernetes.io/job-completion-index",
        "jobset.sigs.k8s.io/job-global-index",
        "jobset.sigs.k8s.io/job-index",
        "jobset.sigs.k8s.io/job-key",
        "leaderworkerset.sigs.k8s.io/worker-index",
        "statefulset.kubernetes.io/pod-name",
        "training.kubeflow.org/replica-index",
    }
)
"""Labels and annotations by which controllers number the pods of one workload. Only a policy may look at them."""

MAX_INDEX_LENGTH = 253
"""Letters of the longest name that an object may have. What is longer is no number, and its bytes may be decided by."""

ViewQuery = tuple[Callable[..., object], tuple[object, ...]]
"""What is asked that moves between two copies: a method of `ClusterView` or `UsageView`, and what it is given."""


AnswerT = TypeVar("AnswerT")

PLACEHOLDER_UID = "any"
"""Stands for every uid: that a pod has one may be decided by, and never which."""


class CacheKey(msgspec.Struct, frozen=True, array_like=True):
    """All that a decision about a new pod may depend on, beside policies, cluster and use.

    Attributes:
        final: True if no webhook changes the pod any more: it has its uid.
        name: The pod's name, which is its workload's where nothing controls it; else "".
        stem: What the name is made from where it is made, in the same way.
        expired: How many exemptions are past their time.
    """

    namespace: str
    sub_resource: str
    has_uid: bool
    user: str
    groups: tuple[str, ...]
    name: str
    generate_name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    owners: tuple[OwnerReference, ...]
    spec: PodSpec
    expired_exemptions: int


class CacheEntry(NamedTuple):
    """A decision, and what it holds under.

    Attributes:
        standing: What the view said of the namespace.
        heard: What was asked about room and holders, with the answers.
        seen: The same about use.
    """

    namespace_state: tuple[object, ...]
    view_answers: tuple[tuple[ViewQuery, object], ...]
    usage_answers: tuple[tuple[ViewQuery, object], ...]
    decision: Decision


class RecordingView(ClusterView):
    """A view that takes down what it is asked about the room that is left, and about who holds the rest."""

    def __init__(self, view: ClusterView) -> None:
        self.__dict__.update(view.__dict__)
        self.answers: list[tuple[ViewQuery, object]] = []

    def _record_answer(self, method: Callable[..., AnswerT], *given: object) -> AnswerT:
        answer = method(self, *given)
        if ((method, given), answer) not in self.answers:
            self.answers.append(((method, given), answer))
        return answer

    def has_free_node(self, resource: str, count: int, nodes: int, cpu_milli: int, memory: int) -> bool:
        """As the view itself says."""
        return self._record_answer(ClusterView.has_free_node, resource, count, nodes, cpu_milli, memory)

    def quota_users(self, quota: ResourceQuota, namespace: str, what: CountedResource) -> Sequence[QuotaConsumer]:
        """As the view itself says."""
        return self._record_answer(ClusterView.quota_users, quota, namespace, what)

    def claim_users(self, namespace: str, key: str) -> Sequence[QuotaConsumer]:
        """As the view itself says."""
        return self._record_answer(ClusterView.claim_users, namespace, key)

    def fits_pool(self, pool: QuotaPool, milli: int, most: int, uid: str) -> bool:
        """As the view itself says."""
        return self._record_answer(ClusterView.fits_pool, pool, milli, most, uid)

    def pool_usage(self, pool: QuotaPool) -> int:
        """As the view itself says."""
        return self._record_answer(ClusterView.pool_usage, pool)

    def pool_holders(self, pool: QuotaPool) -> PoolHolders:
        """As the view itself says."""
        return self._record_answer(ClusterView.pool_holders, pool)


class RecordingUsage(UsageView, frozen=True):
    """Use that takes down what it is asked."""

    answers: list[tuple[ViewQuery, object]] = msgspec.field(default_factory=list)

    def find(self, namespace: str, workload: str, container: str) -> ObservedUsage | None:
        """As the view itself says."""
        answer = UsageView.find(self, namespace, workload, container)
        self.answers.append(((UsageView.find, (namespace, workload, container)), answer))
        return answer

    def price_milli(self, risk_ppm: int) -> int:
        """As the view itself says."""
        answer = UsageView.price_milli(self, risk_ppm)
        self.answers.append(((UsageView.price_milli, (risk_ppm,)), answer))
        return answer


class UncacheableError(Exception):
    """A match condition asked for the whole object, which no key holds: there is nothing to remember."""


class DecisionCache:
    """Decisions of the last moments, about pods that were read from JSON. One for a thread."""

    def __init__(self) -> None:
        self._entries: dict[bytes, CacheEntry] = {}
        self._valid_for: tuple[PolicySet, Fleet, bool] | None = None
        self._labels_matter = True

    def decide(
        self, request: AdmissionRequest, policies: PolicySet, view: ClusterView, usage: UsageView, now: datetime
    ) -> Decision:
        """What `webhook.engine.decide.decide` says, with less work where a copy of the pod was judged before."""
        if request.operation != "CREATE" or request.pod is None or view.has_reserved(request.pod.metadata.uid):
            return decide(request, policies, view, usage, now)
        self._clear_if_outdated(policies, view.fleet, bool(usage.observed))
        told = _cache_key(request, request.pod, policies, now, labels_matter=self._labels_matter)
        key = _encode_cache_key(told)
        if not 0 < len(key) <= MAX_KEY_BYTES:
            return decide(request, policies, view, usage, now)
        kept = self._entries.get(key)
        if kept is not None and _is_still_valid(kept, view, usage, request.namespace):
            return kept.decision
        try:
            anew = _decide_recording(told, policies, view, usage, now)
        except UncacheableError:
            return decide(request, policies, view, usage, now)
        self._store_entry(key, anew)
        return anew.decision

    def _clear_if_outdated(self, policies: PolicySet, fleet: Fleet, used: bool) -> None:
        """Forget what was decided under others, or while no use was known."""
        of = (policies, fleet, used)
        if self._valid_for == of:
            return
        self._valid_for = of
        self._labels_matter = _depends_on_labels(policies)
        self._entries.clear()

    def _store_entry(self, key: bytes, kept: CacheEntry) -> None:
        if len(kept.decision.findings) > MAX_FINDINGS:
            return
        self._entries.pop(key, None)
        if len(self._entries) >= MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = kept


_encode = msgspec.json.Encoder().encode


def _encode_cache_key(told: CacheKey) -> bytes:
    """All that was told, as text; b"" where it cannot be written: too deep, or no Unicode."""
    try:
        return _encode(told)
    except (RecursionError, UnicodeEncodeError):
        return b""


def _depends_on_labels(policies: PolicySet) -> bool:
    """May a decision depend on any label of a pod there is?"""
    choosing = any(policy.match.labels is not None for policy in policies.policies)
    adding = any(policy.injection is not None and policy.injection.labels for policy in policies.policies)
    return choosing or adding or bool(policies.exemptions)


def _cache_key(
    request: AdmissionRequest, pod: Pod, policies: PolicySet, now: datetime, *, labels_matter: bool
) -> CacheKey:
    metadata = pod.metadata
    controlled = any(owner.controller for owner in metadata.owner_references)
    return CacheKey(
        namespace=request.namespace,
        sub_resource=request.sub_resource,
        has_uid=bool(metadata.uid),
        user=request.user,
        groups=request.groups,
        name="" if controlled else metadata.name,
        generate_name="" if controlled else metadata.generate_name,
        labels=metadata.labels if labels_matter else _without_index_values(metadata.labels),
        annotations=_without_index_values(metadata.annotations),
        owners=tuple([_without_owner_uid(owner) for owner in metadata.owner_references]),
        spec=pod.spec,
        expired_exemptions=sum([now >= exemption.expires for exemption in policies.exemptions]),
    )


def _without_index_values(notes: dict[str, str]) -> dict[str, str]:
    """Numbers of copies taken out, their keys left: a patch must know what is there."""
    if INDEX_KEYS.isdisjoint(notes):
        return notes
    return {key: "" if key in INDEX_KEYS and len(value) <= MAX_INDEX_LENGTH else value for key, value in notes.items()}


def _without_owner_uid(owner: OwnerReference) -> OwnerReference:
    """The owner by name: no rule looks at its uid."""
    return OwnerReference(owner.kind, owner.name, owner.controller, owner.api_version)


def _decide_recording(
    told: CacheKey, policies: PolicySet, view: ClusterView, usage: UsageView, now: datetime
) -> CacheEntry:
    """Decide, and take down what the decision holds under."""
    overheard = RecordingView(view)
    use = RecordingUsage(usage.observed, usage.prices)
    decision = decide(_request_from_key(told), policies, overheard, use, now)
    return CacheEntry(view.namespace_state(told.namespace), tuple(overheard.answers), tuple(use.answers), decision)


def _request_from_key(told: CacheKey) -> AdmissionRequest:
    """The request as the key holds it."""
    return AdmissionRequest(
        operation="CREATE",
        group="",
        kind="Pod",
        namespace=told.namespace,
        name="",
        pod=Pod(
            ObjectMeta(
                name=told.name,
                generate_name=told.generate_name,
                uid=PLACEHOLDER_UID if told.has_uid else "",
                labels=dict(told.labels),
                annotations=dict(told.annotations),
                owner_references=told.owners,
            ),
            told.spec,
        ),
        load_object=_load_no_object,
        load_old_object=_load_no_object,
        sub_resource=told.sub_resource,
        user=told.user,
        groups=told.groups,
    )


def _load_no_object() -> NoReturn:
    raise UncacheableError


def _is_still_valid(kept: CacheEntry, view: ClusterView, usage: UsageView, namespace: str) -> bool:
    """Would the views say the same of the namespace, of the room there is, and of what was used?"""
    if not all(method(usage, *given) == answer for (method, given), answer in kept.usage_answers):
        return False
    if kept.namespace_state != view.namespace_state(namespace):
        return False
    return all(method(view, *given) == answer for (method, given), answer in kept.view_answers)
