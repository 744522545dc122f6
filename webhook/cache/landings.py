"""Who has come, and who is on a node now: what was reserved or assumed for a pod that was admitted ends with that."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from webhook.cache.gathering import namespace_of
from webhook.cache.holdings import Holdings, HoldingsWriter
from webhook.cache.objects import made_at
from webhook.model.effective import effective_requests
from webhook.model.ledger import Landing
from webhook.model.lines import Line
from webhook.model.pods import Pod
from webhook.model.resources import gpu_resource

Called = tuple[str, str]
"""Namespace and name, or the beginning of a name that the API server made."""


class LandingsWriter:
    """What the one task has that writes: pods in, sums out, and who came."""

    def __init__(
        self,
        holdings: Holdings,
        touched: Callable[[str, str], None],
        landed: Callable[[Iterable[Landing]], None],
        arrived: Callable[[Iterable[str]], None],
        relisted: Callable[[], None],
    ) -> None:
        """Take the sums in charge.

        Args:
            holdings: Written by nobody else.
            touched: Told the namespace in which a pod changed, and the node, "" for none.
            landed: Told of each pod that was not on a node before, or not known; of those of a list when it is whole.
            arrived: Told the uids of pods that were not known before; of a list, those of all when it is whole.
            relisted: Told that all nodes may have changed.
        """
        self._sums = HoldingsWriter(holdings, touched, relisted)
        self._landed, self._arrived = landed, arrived
        self._listing = False
        self._landing: list[Landing] = []
        self._arriving: list[str] = []

    def begin(self) -> None:
        """A list begins."""
        self._listing, self._landing, self._arriving = True, [], []
        self._sums.begin()

    def put(self, pod: Pod) -> None:
        """A pod is there."""
        self._set(pod, self._sums.line(pod))

    def remove(self, pod: Pod) -> None:
        """A pod is gone."""
        self._set(pod, None)

    def swap(self) -> None:
        """The list is whole."""
        self._sums.swap()
        self._landed(self._landing)
        self._arrived(self._arriving)
        self._listing, self._landing, self._arriving = False, [], []

    def _set(self, pod: Pod, after: Line | None) -> None:
        before = self._sums.set(pod, after)
        landing = _landings_after(pod, before, after)
        if self._listing:
            self._landing += landing
            self._arriving += [pod.metadata.uid]
            return
        self._landed(landing)
        if before is None:
            self._arrived((pod.metadata.uid,))


def calls(pod: Pod) -> tuple[Called, ...]:
    """What a pod may have been called when it was admitted: by its name, or before it was given one."""
    namespace, metadata = namespace_of(pod), pod.metadata
    made = metadata.generate_name and metadata.name.startswith(metadata.generate_name)
    return ((namespace, metadata.name), *([(namespace, f"{metadata.generate_name}*")] if made else []))


def _landings_after(pod: Pod, before: Line | None, after: Line | None) -> list[Landing]:
    """What a pod releases that is on a node now and was on none, or not known."""
    lands = after is not None and after.node and (before is None or not before.node)
    return landings(pod) if lands else []


def landings(pod: Pod) -> list[Landing]:
    """What a pod may release that was assumed for it: each name by each GPU resource.

    Pods of one template begin with the same name: which of them it is, its own making tells.
    """
    made, (own, *begun) = made_at(pod), calls(pod)
    gpus = [name for name in effective_requests(pod) if gpu_resource(name)]
    return [
        landing for name in gpus for landing in (Landing(own, name), *(Landing(called, name, made) for called in begun))
    ]
