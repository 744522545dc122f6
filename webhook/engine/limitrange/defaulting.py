"""What the API server and LimitRanger add to a pod's amounts before anybody judges them.

Source: `pkg/apis/core/v1/defaults.go`, and the mutating step of `plugin/pkg/admission/limitranger`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from webhook.engine.limitrange.holding import LIMITS, REQUESTS, Holder, Holders, in_containers, names_in
from webhook.model.ranges import Amounts, Range
from webhook.model.resource_names import is_for_pods, is_huge_pages

LIMIT_RANGER_NOTE = "kubernetes.io/limit-ranger"
"""The annotation in which LimitRanger says what it put in. Anyone may write it."""

NOTE_HEAD = "LimitRanger plugin set: "


def stored(holders: Holders) -> Holders:
    """The API's own defaults: a request that is not written is its limit, in containers and in the pod as a whole."""
    after = holders._replace(
        containers=_each_with_requests(holders.containers),
        init_containers=_each_with_requests(holders.init_containers),
    )
    return after if after.whole is None else after._replace(whole=_whole(after, after.whole))


def _each_with_requests(holders: tuple[Holder, ...]) -> tuple[Holder, ...]:
    return tuple([_with_requests(holder) for holder in holders])


def _with_requests(holder: Holder) -> Holder:
    if holder.limits.keys() <= holder.requests.keys():
        return holder
    return holder._replace(requests=holder.limits | holder.requests)


def _whole(holders: Holders, whole: Holder) -> Holder:
    """Limits of huge pages follow those of the containers; then requests the containers', then the limits."""
    if not whole.limits and not whole.requests:
        return whole
    limits, requests = dict(whole.limits), dict(whole.requests)
    for name in names_in(holders, LIMITS):
        if is_huge_pages(name) and name not in requests and name not in limits:
            _put(limits, name, holders, LIMITS)
    if not limits:
        return whole
    for name in names_in(holders, REQUESTS):
        if is_for_pods(name) and not is_huge_pages(name) and name not in requests:
            _put(requests, name, holders, REQUESTS)
    for name, amount in limits.items():
        if is_for_pods(name):
            requests.setdefault(name, amount)
    return whole._replace(limits=limits, requests=requests)


def _put(amounts: Amounts, name: str, holders: Holders, side: str) -> None:
    amount = in_containers(holders, name, side)
    if amount is not None:
        amounts[name] = amount


def ranged(holders: Holders, ranges: Iterable[Range]) -> Holders:
    """LimitRanger's mutating step: each LimitRange in turn gives what no container names. "0" is a name."""
    for limit_range in ranges:
        if limit_range.limits or limit_range.requests:
            holders = holders._replace(
                containers=tuple([_given(holder, limit_range) for holder in holders.containers]),
                init_containers=tuple([_given(holder, limit_range) for holder in holders.init_containers]),
            )
    return holders


def _given(holder: Holder, limit_range: Range) -> Holder:
    limits, requests = holder.limits, holder.requests
    if limit_range.limits.keys() <= limits.keys() and limit_range.requests.keys() <= requests.keys():
        return holder
    return holder._replace(limits=limit_range.limits | limits, requests=limit_range.requests | requests)


def note_of(holders: Holders, ranges: Sequence[Range]) -> str | None:
    """The annotation that LimitRanger leaves on a pod in this order of LimitRanges: what the last one set.

    None where none sets anything.
    """
    note = None
    for limit_range in ranges:
        parts = [
            *_parts(holders.containers, limit_range, "container"),
            *_parts(holders.init_containers, limit_range, "init container"),
        ]
        note = NOTE_HEAD + "; ".join(parts) if parts else note
        holders = ranged(holders, (limit_range,))
    return note


def _parts(holders: tuple[Holder, ...], limit_range: Range, kind: str) -> Iterable[str]:
    for holder in holders:
        for side, given in ((REQUESTS, limit_range.requests), (LIMITS, limit_range.limits)):
            names = sorted(given.keys() - holder.side(side).keys())
            if names:
                yield f"{', '.join(names)} {side.removesuffix('s')} for {kind} {holder.name}"
