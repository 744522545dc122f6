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
from webhook.model.cluster import ClusterView
from webhook.model.decisions import Decision
from webhook.model.fleet import Fleet
from webhook.model.holders import PoolHolders
from webhook.model.objects import ResourceQuota
from webhook.model.pods import Metadata, OwnerReference, Pod, PodSpec
from webhook.model.pools import Pool
from webhook.model.quota_keys import Counted
from webhook.model.quota_room import Holding
from webhook.model.requests import Request
from webhook.model.usage import Observed, UsageView
from webhook.policy.compiled import PolicySet

MOST = 512
"""Decisions that are kept; the oldest goes first."""

LARGEST = 16 * 1024
"""Bytes of the longest key that is kept: four times what a usual training pod comes to."""

FINDINGS = 16
"""Most findings of a decision that is kept: a long list of them may take more memory than the pod."""

NUMBERING = frozenset(
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

NUMBER_MOST = 253
"""Letters of the longest name that an object may have. What is longer is no number, and its bytes may be decided by."""

Question = tuple[Callable[..., object], tuple[object, ...]]
"""What is asked that moves between two copies: a method of `ClusterView` or `UsageView`, and what it is given."""


T = TypeVar("T")

A_UID = "any"
"""Stands for every uid: that a pod has one may be decided by, and never which."""


class Told(msgspec.Struct, frozen=True, array_like=True):
    """All that a decision about a new pod may depend on, beside policies, cluster and use.

    Attributes:
        final: True if no webhook changes the pod any more: it has its uid.
        name: The pod's name, which is its workload's where nothing controls it; else "".
        stem: What the name is made from where it is made, in the same way.
        expired: How many exemptions are past their time.
    """

    namespace: str
    sub_resource: str
    final: bool
    user: str
    groups: tuple[str, ...]
    name: str
    stem: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    owners: tuple[OwnerReference, ...]
    spec: PodSpec
    expired: int


class Kept(NamedTuple):
    """A decision, and what it holds under.

    Attributes:
        standing: What the view said of the namespace.
        heard: What was asked about room and holders, with the answers.
        seen: The same about use.
    """

    standing: tuple[object, ...]
    heard: tuple[tuple[Question, object], ...]
    seen: tuple[tuple[Question, object], ...]
    decision: Decision


class Overheard(ClusterView):
    """A view that takes down what it is asked about the room that is left, and about who holds the rest."""

    def __init__(self, view: ClusterView) -> None:
        self.__dict__.update(view.__dict__)
        self.heard: list[tuple[Question, object]] = []

    def _noted(self, method: Callable[..., T], *given: object) -> T:
        answer = method(self, *given)
        if ((method, given), answer) not in self.heard:
            self.heard.append(((method, given), answer))
        return answer

    def has_room(self, resource: str, count: int, nodes: int, cpu_milli: int, memory: int) -> bool:
        """As the view itself says."""
        return self._noted(ClusterView.has_room, resource, count, nodes, cpu_milli, memory)

    def held(self, quota: ResourceQuota, namespace: str, what: Counted) -> Sequence[Holding]:
        """As the view itself says."""
        return self._noted(ClusterView.held, quota, namespace, what)

    def claimed(self, namespace: str, key: str) -> Sequence[Holding]:
        """As the view itself says."""
        return self._noted(ClusterView.claimed, namespace, key)

    def fits(self, pool: Pool, milli: int, most: int, uid: str) -> bool:
        """As the view itself says."""
        return self._noted(ClusterView.fits, pool, milli, most, uid)

    def pooled(self, pool: Pool) -> int:
        """As the view itself says."""
        return self._noted(ClusterView.pooled, pool)

    def pool_holders(self, pool: Pool) -> PoolHolders:
        """As the view itself says."""
        return self._noted(ClusterView.pool_holders, pool)


class OverheardUse(UsageView, frozen=True):
    """Use that takes down what it is asked."""

    heard: list[tuple[Question, object]] = msgspec.field(default_factory=list)

    def of(self, namespace: str, workload: str, container: str) -> Observed | None:
        """As the view itself says."""
        answer = UsageView.of(self, namespace, workload, container)
        self.heard.append(((UsageView.of, (namespace, workload, container)), answer))
        return answer

    def price_milli(self, risk_ppm: int) -> int:
        """As the view itself says."""
        answer = UsageView.price_milli(self, risk_ppm)
        self.heard.append(((UsageView.price_milli, (risk_ppm,)), answer))
        return answer


class WholeObjectError(Exception):
    """A match condition asked for the whole object, which no key holds: there is nothing to remember."""


class Memory:
    """Decisions of the last moments, about pods that were read from JSON. One for a thread."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Kept] = {}
        self._of: tuple[PolicySet, Fleet, bool] | None = None
        self._labels_matter = True

    def decide(
        self, request: Request, policies: PolicySet, view: ClusterView, usage: UsageView, now: datetime
    ) -> Decision:
        """What `webhook.engine.decide.decide` says, with less work where a copy of the pod was judged before."""
        if request.operation != "CREATE" or request.pod is None or view.has_reserved(request.pod.metadata.uid):
            return decide(request, policies, view, usage, now)
        self._turn_to(policies, view.fleet, bool(usage.observed))
        told = _told(request, request.pod, policies, now, labels_matter=self._labels_matter)
        key = _written(told)
        if not 0 < len(key) <= LARGEST:
            return decide(request, policies, view, usage, now)
        kept = self._kept.get(key)
        if kept is not None and _still_holds(kept, view, usage, request.namespace):
            return kept.decision
        try:
            anew = _overhear(told, policies, view, usage, now)
        except WholeObjectError:
            return decide(request, policies, view, usage, now)
        self._keep(key, anew)
        return anew.decision

    def _turn_to(self, policies: PolicySet, fleet: Fleet, used: bool) -> None:
        """Forget what was decided under others, or while no use was known."""
        of = (policies, fleet, used)
        if self._of == of:
            return
        self._of = of
        self._labels_matter = _looks_at_labels(policies)
        self._kept.clear()

    def _keep(self, key: bytes, kept: Kept) -> None:
        if len(kept.decision.findings) > FINDINGS:
            return
        self._kept.pop(key, None)
        if len(self._kept) >= MOST:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = kept


_encode = msgspec.json.Encoder().encode


def _written(told: Told) -> bytes:
    """All that was told, as text; b"" where it cannot be written: too deep, or no Unicode."""
    try:
        return _encode(told)
    except (RecursionError, UnicodeEncodeError):
        return b""


def _looks_at_labels(policies: PolicySet) -> bool:
    """May a decision depend on any label of a pod there is?"""
    choosing = any(policy.match.labels is not None for policy in policies.policies)
    adding = any(policy.injection is not None and policy.injection.labels for policy in policies.policies)
    return choosing or adding or bool(policies.exemptions)


def _told(request: Request, pod: Pod, policies: PolicySet, now: datetime, *, labels_matter: bool) -> Told:
    metadata = pod.metadata
    controlled = any(owner.controller for owner in metadata.owner_references)
    return Told(
        namespace=request.namespace,
        sub_resource=request.sub_resource,
        final=bool(metadata.uid),
        user=request.user,
        groups=request.groups,
        name="" if controlled else metadata.name,
        stem="" if controlled else metadata.generate_name,
        labels=metadata.labels if labels_matter else _unnumbered(metadata.labels),
        annotations=_unnumbered(metadata.annotations),
        owners=tuple([_unnumbered_owner(owner) for owner in metadata.owner_references]),
        spec=pod.spec,
        expired=sum([now >= exemption.expires for exemption in policies.exemptions]),
    )


def _unnumbered(notes: dict[str, str]) -> dict[str, str]:
    """Numbers of copies taken out, their keys left: a patch must know what is there."""
    if NUMBERING.isdisjoint(notes):
        return notes
    return {key: "" if key in NUMBERING and len(value) <= NUMBER_MOST else value for key, value in notes.items()}


def _unnumbered_owner(owner: OwnerReference) -> OwnerReference:
    """The owner by name: no rule looks at its uid."""
    return OwnerReference(owner.kind, owner.name, owner.controller, owner.api_version)


def _overhear(told: Told, policies: PolicySet, view: ClusterView, usage: UsageView, now: datetime) -> Kept:
    """Decide, and take down what the decision holds under."""
    overheard = Overheard(view)
    use = OverheardUse(usage.observed, usage.prices)
    decision = decide(_request(told), policies, overheard, use, now)
    return Kept(view.standing(told.namespace), tuple(overheard.heard), tuple(use.heard), decision)


def _request(told: Told) -> Request:
    """The request as the key holds it."""
    return Request(
        operation="CREATE",
        group="",
        kind="Pod",
        namespace=told.namespace,
        name="",
        pod=Pod(
            Metadata(
                name=told.name,
                generate_name=told.stem,
                uid=A_UID if told.final else "",
                labels=dict(told.labels),
                annotations=dict(told.annotations),
                owner_references=told.owners,
            ),
            told.spec,
        ),
        load=_no_object,
        load_old=_no_object,
        sub_resource=told.sub_resource,
        user=told.user,
        groups=told.groups,
    )


def _no_object() -> NoReturn:
    raise WholeObjectError


def _still_holds(kept: Kept, view: ClusterView, usage: UsageView, namespace: str) -> bool:
    """Would the views say the same of the namespace, of the room there is, and of what was used?"""
    if not all(method(usage, *given) == answer for (method, given), answer in kept.seen):
        return False
    if kept.standing != view.standing(namespace):
        return False
    return all(method(view, *given) == answer for (method, given), answer in kept.heard)
