"""Divide shared quotas among replicas: each holds an escrow, the amount that it may admit without asking.

A stored record has one entry per replica. For each quota, pods that exist and all escrows never exceed the ceiling:

* An escrow covers pods that the replica admitted and has not observed yet (in flight), and what it may still admit
  (unspent). It falls by a pod only when the replica has observed the pod.
* Each entry names the resource version of the pods up to which its replica has observed them. Only a replica whose own
  view is at least as new as all entries may raise its escrow, so a pod is always in its view or in an escrow.
* A record is changed only if nobody changed it meanwhile (compare and swap on its resource version).

Amounts are thousandths of a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

EVERYTHING = 1 << 50
"""The escrow of a replica that is alone in the record: it needs no other bound than the quota."""

UNIT_MILLI = 1000
"""Escrows are divided in whole GPUs."""


class PodVersions(NamedTuple):
    """The age of a view's pods, as resource versions of the API server: ordered integers.

    Attributes:
        changed: The latest of any pod that it has observed; the other replicas will observe it too.
        complete: It has observed everything up to this version.
    """

    changed: int = 0
    complete: int = 0


class EscrowEntry(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The entry of one replica in the record.

    Attributes:
        renewals: Incremented with every write of its replica.
        pods_version: Pods up to this version have left the escrows and are in the view of its replica.
        escrows: By quota, pods in flight and unspent.
        wanted: By quota, what it lacked for pods that it turned away, after the number that orders all of these.
        released: True if the replica has stopped, so that it gets no share.
    """

    renewals: int = 0
    pods_version: int = 0
    escrows: dict[str, int] = {}
    wanted: dict[str, tuple[int, int]] = {}
    released: bool = False

    def has_same_amounts(self, other: EscrowEntry) -> bool:
        """Return whether another entry differs only in its age."""
        return (self.escrows, self.wanted, self.released) == (other.escrows, other.wanted, other.released)


EscrowRecord = Mapping[str, EscrowEntry]
"""The entries by replica."""


class QuotaBalance(NamedTuple):
    """A shared quota as one replica sees it.

    Attributes:
        ceiling: The quota.
        usage: Observed pods, and own pods in flight.
        in_flight: Pods that this replica admitted and has not observed.
        unspent: What it may still admit.
        wanted: What it lacked for pods that it turned away a moment ago.
        kept: The part of `unspent` that is kept for these pods, although others wait.
    """

    ceiling: int
    usage: int
    in_flight: int = 0
    unspent: int = 0
    wanted: int = 0
    kept: int = 0


class EscrowPlan(NamedTuple):
    """The next entry of a replica.

    Attributes:
        unspent: By quota; amounts that fall apply at once, amounts that rise once the entry is stored.
    """

    entry: EscrowEntry
    unspent: Mapping[str, int]


def plan_escrows(
    replica: str, record: EscrowRecord, balances: Mapping[str, QuotaBalance], versions: PodVersions
) -> EscrowPlan:
    """Return the next entry of a replica.

    Args:
        replica: Its name.
        record: All entries, without those of replicas that certainly stopped.
        balances: The quotas by name.
        versions: How new the view is that the balances were taken from.
    """
    own = record.get(replica, EscrowEntry())
    others = {name: entry for name, entry in record.items() if name != replica}
    is_current = all(entry.pods_version <= versions.complete for entry in record.values())
    entry = EscrowEntry(own.renewals + 1, max(own.pods_version, versions.changed))
    unspent: dict[str, int] = {}
    for key, balance in balances.items():
        if not others and is_current:
            unspent[key] = entry.escrows[key] = EVERYTHING
            continue
        ticket = _ticket(key, own, others)
        amount = _choose_unspent(balance, key, (ticket, replica), others)
        unspent[key] = amount if is_current else min(amount, balance.unspent)
        if escrow := balance.in_flight + unspent[key]:
            entry.escrows[key] = escrow
        if balance.wanted > unspent[key]:
            entry.wanted[key] = ticket, balance.wanted
    return EscrowPlan(entry, unspent)


def _choose_unspent(balance: QuotaBalance, key: str, turn: tuple[int, str], others: EscrowRecord) -> int:
    """Return the best amount: what others wait for is left free, and the rest is divided evenly."""
    held = sum(entry.escrows.get(key, 0) for entry in others.values())
    free = max(0, balance.ceiling - balance.usage - held)
    before = [
        entry.wanted[key][1]
        for name, entry in others.items()
        if key in entry.wanted and (not balance.wanted or (entry.wanted[key][0], name) < turn)
    ]
    sharing = 1 + sum(not entry.released for entry in others.values())
    share = free if sharing == 1 else (free + held) // sharing // UNIT_MILLI * UNIT_MILLI
    amount = max(balance.wanted, share, min(balance.unspent, UNIT_MILLI))
    return min(free, max(balance.kept, min(amount, free - sum(before))))


def _ticket(key: str, own: EscrowEntry, others: EscrowRecord) -> int:
    """Return the number of a replica that waits: the one it has, or the next."""
    if key in own.wanted:
        return own.wanted[key][0]
    return 1 + max((entry.wanted[key][0] for entry in others.values() if key in entry.wanted), default=0)
