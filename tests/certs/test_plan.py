"""What is done next about certificates, case by case."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.certs.make import DAY, make_held, make_seen, rotated, trusting, with_authorities
from webhook.certs.held import Held
from webhook.certs.making import held_after
from webhook.certs.plan import (
    MOST_TRUSTED,
    OVERLAP,
    SETTLE,
    Forget,
    Issue,
    NewAuthority,
    Rest,
    Seen,
    Step,
    Trust,
    next_step,
)

GOOD = make_held()
OLD = make_held(authority=250 * DAY)
ROTATING = rotated(OLD)
BROKEN_KEY = replace(GOOD, key=None)
UNTRUE = make_held(names=["elsewhere.svc"])

CASES: dict[str, tuple[Seen, type[Step], str]] = {
    "nothing there yet": (make_seen(None), NewAuthority, "no Secret yet"),
    "nothing there yet, and not the leader: whoever is first": (make_seen(None, leads=False), NewAuthority, ""),
    "somebody else's Secret": (trusting(replace(GOOD, foreign=True)), Rest, "not ours"),
    "all is well": (trusting(GOOD), Rest, "as it should be"),
    "not the leader": (make_seen(BROKEN_KEY, leads=False), Rest, "leader keeps"),
    "the authority's key is lost": (trusting(BROKEN_KEY), NewAuthority, "no authority with its key"),
    "ca.crt was edited": (trusting(replace(GOOD, faults=("ca.crt is not what we wrote",))), NewAuthority, "ca.crt"),
    "two thirds of the authority's life are over": (trusting(OLD), NewAuthority, "two thirds of the life"),
    "not quite two thirds": (trusting(make_held(authority=243 * DAY)), Rest, "as it should be"),
    "an authority of tomorrow": (trusting(make_held(authority=-2 * DAY)), NewAuthority, "not valid before"),
    "a webhook that trusts nobody": (make_seen(GOOD, GOOD.bundle, b""), Trust, "caBundle"),
    "a webhook that trusts another": (make_seen(GOOD, UNTRUE.bundle), Trust, "caBundle"),
    "a webhook that trusts too many": (make_seen(GOOD, GOOD.bundle + UNTRUE.bundle), Trust, "caBundle"),
    "no webhook at all": (make_seen(GOOD), Rest, "as it should be"),
    "the first certificate": (trusting(make_held(leaf=None)), Issue, "no serving certificate"),
    "bundles come before a certificate": (make_seen(make_held(leaf=None), b""), Trust, "caBundle"),
    "a certificate lost while others may be served": (
        trusting(with_authorities(make_held(leaf=None), OLD)),
        Rest,
        "waits for API servers",
    ),
    "a new authority is trusted before it signs": (make_seen(ROTATING, OLD.bundle), Trust, "caBundle"),
    "a new authority signs nothing at once": (trusting(ROTATING), Rest, "waits for API servers"),
    "a new authority signs when API servers know it": (trusting(ROTATING, steady=SETTLE), Issue, "older authority"),
    "a certificate that ends in ten days waits like any other": (
        trusting(rotated(make_held(authority=250 * DAY, leaf=80 * DAY))),
        Rest,
        "waits for API servers",
    ),
    "a certificate that ends within nine days does not wait": (
        trusting(rotated(make_held(authority=250 * DAY, leaf=81 * DAY + SETTLE))),
        Issue,
        "older authority",
    ),
    "a certificate that has ended does not wait": (trusting(make_held(leaf=91 * DAY)), Issue, "two thirds"),
    "a certificate of tomorrow does not wait": (trusting(make_held(leaf=-2 * DAY)), Issue, "not valid before"),
    "two thirds of the certificate's life are over": (
        trusting(make_held(leaf=61 * DAY), steady=SETTLE),
        Issue,
        "two thirds of the life of the certificate",
    ),
    "a certificate for other names": (
        trusting(UNTRUE, steady=SETTLE),
        Issue,
        "does not stand for 127.0.0.1, rightslice.rightslice.svc",
    ),
    "a certificate for more names than asked for": (trusting(GOOD, names=["127.0.0.1"], steady=SETTLE), Rest, ""),
    "old authorities stay for a day": (trusting(with_authorities(GOOD, OLD), steady=OVERLAP - SETTLE), Rest, ""),
    "old authorities leave after a day": (trusting(with_authorities(GOOD, OLD), steady=OVERLAP), Forget, "old"),
}


@pytest.mark.parametrize(("seen", "kind", "why"), CASES.values(), ids=CASES)
def test_next_step(seen: Seen, kind: type[Step], why: str) -> None:
    step = next_step(seen)

    assert isinstance(step, kind)
    assert why in step.why


def carried(seen: Seen) -> bytes:
    """What a new authority is put before."""
    step = next_step(seen)
    assert isinstance(step, NewAuthority)
    return b"".join(authority.pem for authority in step.carried)


def test_a_lost_secret_leaves_what_webhooks_trust_trusted() -> None:
    assert carried(make_seen(None, OLD.bundle, GOOD.bundle + b"junk")) == OLD.bundle + GOOD.bundle


def test_a_bundle_of_strangers_is_not_carried_on() -> None:
    stranger = GOOD.bundle.replace(b"MI", b"XX", 1)

    assert carried(make_seen(None, stranger, b"junk")) == b""


def test_with_too_many_authorities_that_of_the_served_certificate_stays() -> None:
    crowd = with_authorities(*(make_held(authority=n * DAY, leaf=None) for n in range(MOST_TRUSTED)))
    held = replace(crowd, key=None, trusted=(*crowd.trusted, *GOOD.trusted), leaf=GOOD.leaf)

    after = held_after(next_secret_step(trusting(held)), held, (), trusting(held).now)

    assert len(after.trusted) == MOST_TRUSTED
    assert GOOD.trusted[0] in after.trusted
    assert after.leaf == GOOD.leaf


def next_secret_step(seen: Seen) -> NewAuthority:
    step = next_step(seen)
    assert isinstance(step, NewAuthority)
    return step


def test_a_certificate_never_outlives_its_authority() -> None:
    held = make_held(authority=timedelta(days=300))

    assert held.leaf is not None
    assert held.leaf.ends == held.trusted[0].ends


def test_no_key_is_shown() -> None:
    assert "PRIVATE" in str(GOOD.data()) or GOOD.key is not None
    assert "PRIVATE KEY" not in repr(Held(GOOD.trusted, GOOD.key, GOOD.leaf))
