"""What a quota leaves, reckoned once: enough to see at a glance that a pod fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from webhook.model.claims import Claiming, charge
from webhook.model.lines import Line
from webhook.model.objects import ResourceQuota
from webhook.model.quantity import NANO
from webhook.model.quota_keys import Counted, counted
from webhook.model.ranges import amounts_in, plain_milli
from webhook.model.scopes import counts, is_scoped

MUST_BE_NAMED = frozenset(
    {"cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"},
)
"""Keys that every container of a pod must name where a quota counts them."""


class QuotaRoom(NamedTuple):
    """One quota.

    Attributes:
        plain: False where it is not as plain as this: it has to be looked at closely.
        scoped: True if it counts some pods only.
        left: Thousandths that are left, for everything that pods are charged for.
        named: What every container must name.
    """

    quota: ResourceQuota
    plain: bool
    scoped: bool
    left: tuple[tuple[Counted, int], ...]
    named: tuple[Counted, ...]


def room_of(quota: ResourceQuota) -> QuotaRoom:
    """Reckon what a quota leaves."""
    hard, used = amounts_in(quota.status.hard or quota.spec.hard), amounts_in(quota.status.used)
    left: list[tuple[Counted, int]] = []
    named: list[Counted] = []
    plain = True
    for key, amount in hard.items():
        what = counted(key)
        if what is None:
            continue
        most, taken = plain_milli(amount), plain_milli(used[key]) if key in used else None
        if most is None or taken is None:
            plain = False
            continue
        left.append((what, most - taken))
        if key in MUST_BE_NAMED:
            named.append(what)
    return QuotaRoom(quota, plain, is_scoped(quota), tuple(left), tuple(named))


class Holding(NamedTuple):
    """What one pod, or one namespace, takes of something that is counted; of a quota's key in nano-units."""

    amount: int
    name: str


def holdings_of(quota: ResourceQuota, what: Counted, lines: Mapping[str, Line]) -> tuple[Holding, ...]:
    """What the pods that a quota counts hold, the largest first; pods themselves are not held.

    Args:
        lines: The pods of the namespace that have not ended, by name.
    """
    if not what.resource:
        return ()
    each = (Holding(line.holds(what), name) for name, line in lines.items() if counts(quota, line.kind))
    return largest(each)


def claim_holdings(key: str, claiming: Claiming, lines: Mapping[str, Line]) -> tuple[Holding, ...]:
    """What pods hold of a key that claims fill, the largest first: by their templates as they are now, and themselves.

    Args:
        lines: The pods of the namespace that have not ended, by name.
    """
    each = {name: NANO * charge(spec, claiming.classes).get(key, 0) for name, spec in claiming.templates.items()}
    what = counted(key)
    return largest(
        Holding(sum(each.get(name, 0) for name in line.claims) + (line.holds(what) if what else 0), pod)
        for pod, line in lines.items()
    )


def largest(holdings: Iterable[Holding]) -> tuple[Holding, ...]:
    """Those that hold anything, the largest first."""
    return tuple(sorted((one for one in holdings if one.amount), key=lambda one: (-one.amount, one.name)))
