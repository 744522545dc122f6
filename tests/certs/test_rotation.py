"""The next rotation step, case by case."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.certs.make_certificates import (
    DAY,
    make_input,
    make_state,
    trusted_input,
    with_authorities,
    with_new_authority,
)
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

GOOD = make_state()
OLD = make_state(authority=250 * DAY)
ROTATING = with_new_authority(OLD)
BROKEN_KEY = replace(GOOD, authority_key=None)
UNTRUE = make_state(names=["elsewhere.svc"])

CASES: dict[str, tuple[RotationInput, type[RotationStep], str]] = {
    "no Secret": (make_input(None), CreateAuthority, "does not exist"),
    "no Secret, and not the leader: any replica creates it": (make_input(None, leads=False), CreateAuthority, ""),
    "the Secret of another application": (trusted_input(replace(GOOD, foreign=True)), NoAction, "another application"),
    "up to date": (trusted_input(GOOD), NoAction, "up to date"),
    "not the leader": (make_input(BROKEN_KEY, leads=False), NoAction, "leader manages"),
    "the authority's key is missing": (trusted_input(BROKEN_KEY), CreateAuthority, "no authority with its key"),
    "ca.crt was edited": (trusted_input(replace(GOOD, bundle_modified=True)), CreateAuthority, "ca.crt"),
    "two thirds of the authority's life are over": (trusted_input(OLD), CreateAuthority, "two thirds of the lifetime"),
    "not quite two thirds": (trusted_input(make_state(authority=243 * DAY)), NoAction, "up to date"),
    "an authority that is not valid yet": (
        trusted_input(make_state(authority=-2 * DAY)),
        CreateAuthority,
        "not valid before",
    ),
    "a webhook without a bundle": (make_input(GOOD, GOOD.bundle, b""), UpdateBundles, "caBundle"),
    "a webhook that trusts another authority": (make_input(GOOD, UNTRUE.bundle), UpdateBundles, "caBundle"),
    "a webhook that trusts an additional authority": (
        make_input(GOOD, GOOD.bundle + UNTRUE.bundle),
        UpdateBundles,
        "caBundle",
    ),
    "no webhook": (make_input(GOOD), NoAction, "up to date"),
    "the first certificate": (trusted_input(make_state(leaf=None)), IssueCertificate, "no serving certificate"),
    "bundles are updated before a certificate is issued": (
        make_input(make_state(leaf=None), b""),
        UpdateBundles,
        "caBundle",
    ),
    "a missing certificate while others may be served": (
        trusted_input(with_authorities(make_state(leaf=None), OLD)),
        NoAction,
        "waiting for API servers",
    ),
    "a new authority is trusted before it signs": (make_input(ROTATING, OLD.bundle), UpdateBundles, "caBundle"),
    "a new authority does not sign at once": (trusted_input(ROTATING), NoAction, "waiting for API servers"),
    "a new authority signs when API servers have loaded it": (
        trusted_input(ROTATING, steady=BUNDLE_SETTLE_TIME),
        IssueCertificate,
        "older authority",
    ),
    "a certificate that expires in ten days waits": (
        trusted_input(with_new_authority(make_state(authority=250 * DAY, leaf=80 * DAY))),
        NoAction,
        "waiting for API servers",
    ),
    "a certificate that expires within nine days does not wait": (
        trusted_input(with_new_authority(make_state(authority=250 * DAY, leaf=81 * DAY + BUNDLE_SETTLE_TIME))),
        IssueCertificate,
        "older authority",
    ),
    "an expired certificate does not wait": (
        trusted_input(make_state(leaf=91 * DAY)),
        IssueCertificate,
        "two thirds",
    ),
    "a certificate that is not valid yet does not wait": (
        trusted_input(make_state(leaf=-2 * DAY)),
        IssueCertificate,
        "not valid before",
    ),
    "two thirds of the certificate's life are over": (
        trusted_input(make_state(leaf=61 * DAY), steady=BUNDLE_SETTLE_TIME),
        IssueCertificate,
        "two thirds of the lifetime of the certificate",
    ),
    "a certificate for other names": (
        trusted_input(UNTRUE, steady=BUNDLE_SETTLE_TIME),
        IssueCertificate,
        "lacks the names 127.0.0.1, rightslice.rightslice.svc",
    ),
    "a certificate for more names than required": (
        trusted_input(GOOD, names=["127.0.0.1"], steady=BUNDLE_SETTLE_TIME),
        NoAction,
        "",
    ),
    "old authorities stay for a day": (
        trusted_input(with_authorities(GOOD, OLD), steady=AUTHORITY_OVERLAP - BUNDLE_SETTLE_TIME),
        NoAction,
        "",
    ),
    "old authorities are removed after a day": (
        trusted_input(with_authorities(GOOD, OLD), steady=AUTHORITY_OVERLAP),
        PruneAuthorities,
        "old",
    ),
}


@pytest.mark.parametrize(("observed", "kind", "why"), CASES.values(), ids=CASES)
def test_next_step(observed: RotationInput, kind: type[RotationStep], why: str) -> None:
    step = next_rotation_step(observed)

    assert isinstance(step, kind)
    assert why in step.reason


def previous_authorities(observed: RotationInput) -> bytes:
    """Return the previous authorities that are kept with a new one."""
    step = next_rotation_step(observed)
    assert isinstance(step, CreateAuthority)
    return b"".join(authority.pem for authority in step.previous)


def test_after_a_lost_secret_the_bundled_authorities_stay_trusted() -> None:
    assert previous_authorities(make_input(None, OLD.bundle, GOOD.bundle + b"junk")) == OLD.bundle + GOOD.bundle


def test_a_foreign_bundle_is_not_kept() -> None:
    foreign_bundle = GOOD.bundle.replace(b"MI", b"XX", 1)

    assert previous_authorities(make_input(None, foreign_bundle, b"junk")) == b""


def test_the_served_certificates_authority_stays_if_there_are_too_many() -> None:
    many = with_authorities(*(make_state(authority=n * DAY, leaf=None) for n in range(MAX_AUTHORITIES)))
    state = replace(many, authority_key=None, authorities=(*many.authorities, *GOOD.authorities), serving=GOOD.serving)

    after = state_after_step(next_secret_step(trusted_input(state)), state, (), trusted_input(state).now)

    assert len(after.authorities) == MAX_AUTHORITIES
    assert GOOD.authorities[0] in after.authorities
    assert after.serving == GOOD.serving


def next_secret_step(observed: RotationInput) -> CreateAuthority:
    step = next_rotation_step(observed)
    assert isinstance(step, CreateAuthority)
    return step


def test_a_certificate_never_outlives_its_authority() -> None:
    state = make_state(authority=timedelta(days=300))

    assert state.serving is not None
    assert state.serving.not_after == state.authorities[0].not_after


def test_keys_are_not_in_the_repr() -> None:
    assert "PRIVATE" in str(GOOD.data()) or GOOD.authority_key is not None
    assert "PRIVATE KEY" not in repr(SecretState(GOOD.authorities, GOOD.authority_key, GOOD.serving))
