"""Builders of what a Secret can hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from tests.certs.cluster import HOOKS, NAMES, START
from webhook.certs.held import Held, distinct
from webhook.certs.making import held_after
from webhook.certs.plan import Hook, Issue, NewAuthority, Seen

DAY = timedelta(days=1)
NOTHING = timedelta(0)


def make_held(*, authority: timedelta = DAY, leaf: timedelta | None = DAY, names: Sequence[str] = NAMES) -> Held:
    """An authority and a certificate that were made so long ago."""
    held = held_after(NewAuthority("test"), Held(), (), START - authority)
    return held if leaf is None else held_after(Issue("test"), held, names, START - leaf)


def rotated(old: Held) -> Held:
    """The same after a new authority was put in, before anything is signed by it."""
    return held_after(NewAuthority("test", old.trusted, old.leaf), old, (), START)


def make_seen(
    held: Held | None,
    *bundles: bytes,
    steady: timedelta = NOTHING,
    leads: bool = True,
    names: Sequence[str] = NAMES,
) -> Seen:
    """What a leader sees of a Secret and of one configuration with webhooks of these bundles."""
    return Seen(held, (Hook(HOOKS[0], "1", bundles),), START, steady, frozenset(names), leads)


def trusting(held: Held, *, steady: timedelta = NOTHING, names: Sequence[str] = NAMES) -> Seen:
    """The same where every webhook trusts what the Secret holds."""
    return make_seen(held, held.bundle, held.bundle, steady=steady, names=names)


def with_authorities(*helds: Held) -> Held:
    """The first, that also trusts the authorities of the others."""
    return replace(helds[0], trusted=distinct(each for held in helds for each in held.trusted))
