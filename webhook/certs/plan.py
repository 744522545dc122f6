"""What to do next about the certificates: from what is seen to one step. No clock, no client.

The order of events is what makes a rotation unseen by anyone who calls us:

1. A new authority is put into the Secret, before the old ones. Nothing is signed by it yet.
2. Every `caBundle` of our webhook configurations becomes what the Secret holds: the new authority and the old ones.
3. When that has been so for a while, the serving certificate is signed by the new authority and put into the Secret.
   Replicas serve what they find there.
4. When no replica can serve an older certificate any more, the old authorities leave the Secret, then the bundles.

Whoever does a step first does it: each one is a write on condition that what it is based on has not changed, and
webhook configurations are read before the Secret. So a second leader, or a leader that ends between two writes,
does no harm, and there is nothing to undo: the next look goes on from what is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from webhook.certs.held import Authority, Held, Leaf, authorities_in, distinct
from webhook.certs.issuing import in_two_thirds

SETTLE = timedelta(seconds=30)
"""How long bundles must have been right before anything relies on them: API servers take up a change within a few
seconds of each other, and replicas read the Secret again within `webhook.certs.keeping.LOOK_SECONDS`."""

OVERLAP = timedelta(hours=24)
"""How long old authorities stay after the last certificate of theirs was replaced."""

URGENT = timedelta(days=9)
"""With less left than this, a new certificate no longer waits for bundles to settle: then one that is looked at once a
day, by processes that never live for half a minute, still never has less than a week left."""

MOST_TRUSTED = 8
"""Authorities at once. Two in a rotation; more only where Secrets are lost or a clock jumps again and again."""


@dataclass(frozen=True, slots=True)
class Hook:
    """One webhook configuration.

    Attributes:
        path: Where the API server has it.
        version: Its resourceVersion.
        bundles: The `caBundle` of each webhook in it, in order.
    """

    path: str
    version: str
    bundles: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that a step is chosen by.

    Attributes:
        held: What the Secret holds; None: there is none, or it is empty.
        hooks: Our webhook configurations, read before the Secret was.
        now: The API server's time: it is the one that judges certificates.
        steady: How long this replica has seen Secret and hooks as they are now.
        names: What clients call the server by.
        leads: Is this replica the leader?
    """

    held: Held | None
    hooks: tuple[Hook, ...]
    now: datetime
    steady: timedelta
    names: frozenset[str]
    leads: bool


@dataclass(frozen=True, slots=True)
class NewAuthority:
    """Write a Secret with a new authority, those that were trusted before, and the certificate that is served."""

    why: str
    carried: tuple[Authority, ...] = ()
    leaf: Leaf | None = None


@dataclass(frozen=True, slots=True)
class Trust:
    """Make every `caBundle` of these configurations what the Secret holds."""

    hooks: tuple[Hook, ...]
    why: str = "caBundle is not what the Secret holds"


@dataclass(frozen=True, slots=True)
class Issue:
    """Write a new serving certificate of the signing authority into the Secret."""

    why: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Leave only the signing authority in the Secret."""

    why: str = "no certificate of the old authorities is served any more"


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing to do. `wrong`: somebody should do something, and it is not us."""

    why: str
    wrong: bool = False


Step = NewAuthority | Trust | Issue | Forget | Rest


def next_step(seen: Seen) -> Step:
    """The one step that is due."""
    held = seen.held
    if held is None:
        return NewAuthority("there is no Secret yet, or it is empty", _known(seen))
    if held.foreign:
        return Rest("the Secret holds data that is not ours: name another one, or empty it", wrong=True)
    if not seen.leads:
        return Rest("the leader keeps the certificates")
    if fault := authority_fault(held, seen.now):
        return NewAuthority(fault, _known(seen), held.leaf)
    if wrong := tuple(hook for hook in seen.hooks if set(hook.bundles) - {held.bundle}):
        return Trust(wrong)
    if fault := leaf_fault(held, seen.names, seen.now):
        return Issue(fault) if _may_issue(held, seen) else Rest(f"waits for API servers to trust the bundles: {fault}")
    if len(held.trusted) > 1 and seen.steady >= OVERLAP:
        return Forget()
    return Rest("all is as it should be")


def authority_fault(held: Held, now: datetime) -> str:
    """Why a new authority is needed; empty: it is not."""
    if held.signing is None:
        return "the Secret holds no authority with its key"
    if held.trusted and any(fault.startswith("ca.crt") for fault in held.faults):
        return "ca.crt in the Secret is not what we wrote"
    return _life_fault("the authority", held.signing, now)


def leaf_fault(held: Held, names: frozenset[str], now: datetime) -> str:
    """Why a new serving certificate is needed; empty: it is not."""
    leaf = held.leaf
    if leaf is None:
        return "the Secret holds no serving certificate with its key"
    if leaf.signed_by != held.signing:
        return "the certificate is of an older authority"
    if missing := names - leaf.names:
        return f"the certificate does not stand for {', '.join(sorted(missing))}"
    return _life_fault("the certificate", leaf, now)


def is_valid(life: Authority | Leaf, now: datetime) -> bool:
    """Does it hold at this moment?"""
    return life.begins <= now < life.ends


def _life_fault(what: str, life: Authority | Leaf, now: datetime) -> str:
    if now < life.begins:
        return f"{what} is not valid before {life.begins:%Y-%m-%dT%H:%M:%SZ}"
    if now >= in_two_thirds(life.begins, life.ends):
        return f"two thirds of the life of {what} are over: it ends at {life.ends:%Y-%m-%dT%H:%M:%SZ}"
    return ""


def _may_issue(held: Held, seen: Seen) -> bool:
    """Only what has been trusted for a while may be served, unless nobody is served well as it is."""
    leaf = held.leaf
    if seen.steady >= SETTLE:
        return True
    if leaf is None:
        return len(held.trusted) == 1
    return not is_valid(leaf, seen.now) or leaf.ends - seen.now < URGENT


def _known(seen: Seen) -> tuple[Authority, ...]:
    """Every authority that somebody may still rely on: of what is served, of the Secret, of the bundles."""
    held = seen.held or Held()
    served = (held.leaf.signed_by,) if held.leaf and held.leaf.signed_by else ()
    bundled = [each for hook in seen.hooks for bundle in hook.bundles for each in authorities_in(bundle)]
    return distinct((*served, *held.trusted, *bundled))[: MOST_TRUSTED - 1]
