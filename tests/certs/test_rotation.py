"""The next rotation step, case by case."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.certs.make_certificates import DAY, make_held, make_seen, rotated, trusting, with_authorities
from webhook.certs.reconciler import state_after_step
from webhook.certs.rotation import (
    AUTHORITY_OVERLAP,
    BUNDLE_SETTLE_TIME,
    MAX_AUTHORITIES,
    CreateAuthority,
    IssueCertificate,
    NoAction,
    PruneAuthorities,
    RotationInput,
    RotationStep,
    UpdateBundles,
    next_rotation_step,
)
from webhook.certs.secret_state import SecretState

GOOD = make_held()
OLD = make_held(authority=250 * DAY)
ROTATING = rotated(OLD)
BROKEN_KEY = replace(GOOD, authority_key=None)
UNTRUE = make_held(names=["elsewhere.svc"])

CASES: dict[str, tuple[RotationInput, type[RotationStep], str]] = {
    "nothing there yet": (make_seen(None), CreateAuthority, "does not exist"),
    "nothing there yet, and not the leader: whoever is first": (make_seen(None, leads=False), CreateAuthority, ""),
    "somebody else's Secret": (trusting(replace(GOOD, foreign=True)), NoAction, "another application"),
    "all is well": (trusting(GOOD), NoAction, "up to date"),
    "not the leader": (make_seen(BROKEN_KEY, leads=False), NoAction, "leader manages"),
    "the authority's key is lost": (trusting(BROKEN_KEY), CreateAuthority, "no authority with its key"),
    "ca.crt was edited": (trusting(replace(GOOD, bundle_modified=True)), CreateAuthority, "ca.crt"),
    "two thirds of the authority's life are over": (trusting(OLD), CreateAuthority, "two thirds of the lifetime"),
    "not quite two thirds": (trusting(make_held(authority=243 * DAY)), NoAction, "up to date"),
    "an authority of tomorrow": (trusting(make_held(authority=-2 * DAY)), CreateAuthority, "not valid before"),
    "a webhook that trusts nobody": (make_seen(GOOD, GOOD.bundle, b""), UpdateBundles, "caBundle"),
    "a webhook that trusts another": (make_seen(GOOD, UNTRUE.bundle), UpdateBundles, "caBundle"),
    "a webhook that trusts too many": (make_seen(GOOD, GOOD.bundle + UNTRUE.bundle), UpdateBundles, "caBundle"),
    "no webhook at all": (make_seen(GOOD), NoAction, "up to date"),
    "the first certificate": (trusting(make_held(leaf=None)), IssueCertificate, "no serving certificate"),
    "bundles come before a certificate": (make_seen(make_held(leaf=None), b""), UpdateBundles, "caBundle"),
    "a certificate lost while others may be served": (
        trusting(with_authorities(make_held(leaf=None), OLD)),
        NoAction,
        "waiting for API servers",
    ),
    "a new authority is trusted before it signs": (make_seen(ROTATING, OLD.bundle), UpdateBundles, "caBundle"),
    "a new authority signs nothing at once": (trusting(ROTATING), NoAction, "waiting for API servers"),
    "a new authority signs when API servers know it": (
        trusting(ROTATING, steady=BUNDLE_SETTLE_TIME),
        IssueCertificate,
        "older authority",
    ),
    "a certificate that ends in ten days waits like any other": (
        trusting(rotated(make_held(authority=250 * DAY, leaf=80 * DAY))),
        NoAction,
        "waiting for API servers",
    ),
    "a certificate that ends within nine days does not wait": (
        trusting(rotated(make_held(authority=250 * DAY, leaf=81 * DAY + BUNDLE_SETTLE_TIME))),
        IssueCertificate,
        "older authority",
    ),
    "a certificate that has ended does not wait": (trusting(make_held(leaf=91 * DAY)), IssueCertificate, "two thirds"),
    "a certificate of tomorrow does not wait": (
        trusting(make_held(leaf=-2 * DAY)),
        IssueCertificate,
        "not valid before",
    ),
    "two thirds of the certificate's life are over": (
        trusting(make_held(leaf=61 * DAY), steady=BUNDLE_SETTLE_TIME),
        IssueCertificate,
        "two thirds of the lifetime of the certificate",
    ),
    "a certificate for other names": (
        trusting(UNTRUE, steady=BUNDLE_SETTLE_TIME),
        IssueCertificate,
        "lacks the names 127.0.0.1, rightslice.rightslice.svc",
    ),
    "a certificate for more names than asked for": (
        trusting(GOOD, names=["127.0.0.1"], steady=BUNDLE_SETTLE_TIME),
        NoAction,
        "",
    ),
    "old authorities stay for a day": (
        trusting(with_authorities(GOOD, OLD), steady=AUTHORITY_OVERLAP - BUNDLE_SETTLE_TIME),
        NoAction,
        "",
    ),
    "old authorities leave after a day": (
        trusting(with_authorities(GOOD, OLD), steady=AUTHORITY_OVERLAP),
        PruneAuthorities,
        "old",
    ),
}


@pytest.mark.parametrize(("seen", "kind", "why"), CASES.values(), ids=CASES)
def test_next_step(seen: RotationInput, kind: type[RotationStep], why: str) -> None:
    step = next_rotation_step(seen)

    assert isinstance(step, kind)
    assert why in step.reason


def carried(seen: RotationInput) -> bytes:
    """The previous authorities of a new one."""
    step = next_rotation_step(seen)
    assert isinstance(step, CreateAuthority)
    return b"".join(authority.pem for authority in step.previous)


def test_after_a_lost_secret_the_bundled_authorities_stay_trusted() -> None:
    assert carried(make_seen(None, OLD.bundle, GOOD.bundle + b"junk")) == OLD.bundle + GOOD.bundle


def test_a_foreign_bundle_is_not_kept() -> None:
    stranger = GOOD.bundle.replace(b"MI", b"XX", 1)

    assert carried(make_seen(None, stranger, b"junk")) == b""


def test_with_too_many_authorities_that_of_the_served_certificate_stays() -> None:
    crowd = with_authorities(*(make_held(authority=n * DAY, leaf=None) for n in range(MAX_AUTHORITIES)))
    held = replace(crowd, authority_key=None, authorities=(*crowd.authorities, *GOOD.authorities), serving=GOOD.serving)

    after = state_after_step(next_secret_step(trusting(held)), held, (), trusting(held).now)

    assert len(after.authorities) == MAX_AUTHORITIES
    assert GOOD.authorities[0] in after.authorities
    assert after.serving == GOOD.serving


def next_secret_step(seen: RotationInput) -> CreateAuthority:
    step = next_rotation_step(seen)
    assert isinstance(step, CreateAuthority)
    return step


def test_a_certificate_never_outlives_its_authority() -> None:
    held = make_held(authority=timedelta(days=300))

    assert held.serving is not None
    assert held.serving.not_after == held.authorities[0].not_after


def test_no_key_is_shown() -> None:
    assert "PRIVATE" in str(GOOD.data()) or GOOD.authority_key is not None
    assert "PRIVATE KEY" not in repr(SecretState(GOOD.authorities, GOOD.authority_key, GOOD.serving))
