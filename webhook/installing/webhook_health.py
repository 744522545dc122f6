"""`doctor` on the webhook itself: is it registered, trusted, answering, and not passed by?"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from webhook import __version__
from webhook.errors import shorten_text
from webhook.installing.current_install import parse_deployment
from webhook.installing.facts import (
    FAIL_OPEN_METRIC,
    CheckState,
    ClusterFacts,
    DiagnosticResult,
    repair_command,
    runs_outside_cluster,
    unread_part_result,
)
from webhook.installing.probe import BOTH_ANSWERED, is_rejected_by_others
from webhook.manifests.webhooks import webhook_configurations
from webhook.model.annotations import PROBE_ANSWER
from webhook.report.text import pluralize
from webhook.well_known import SYSTEM_NAMESPACE

DENY_BY_MODE = {"audit": False, "enforce": True}


JsonObject = Mapping[str, Any]


class CertificateTrust(NamedTuple):
    """What is wrong ("": nothing), and when the serving certificate ends (None: it cannot be read)."""

    error: str
    expires: datetime | None


Json = dict[str, Any]

OLDEST, NEWEST = 30, 37
"""Minor versions of Kubernetes: matchConditions and ValidatingAdmissionPolicy are there from 1.30 on."""

CERTIFICATE_DAYS = 7
LEADER_HINT = "the leader's log says why"
CERT_MANAGER_COMMAND = f"kubectl -n {SYSTEM_NAMESPACE} describe certificates,issuers"
CONTAINER = "webhook"
"""Ours in the Deployment; others may put a proxy or a collector beside it."""


def check_version(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Is the API server one that has what we need?"""
    found = facts.version.get("gitVersion", "?")
    digits = re.match(r"\d+", facts.version.get("minor", ""))
    minor = int(digits[0]) if digits else 0
    if minor < OLDEST:
        yield DiagnosticResult(
            CheckState.FAIL, f"Kubernetes {found}", f"at least 1.{OLDEST} is needed: older ones have no matchConditions"
        )
    elif minor > NEWEST:
        yield DiagnosticResult(
            CheckState.WARN, f"Kubernetes {found}", f"newer than this version was tested with (1.{NEWEST})"
        )
    else:
        yield DiagnosticResult(CheckState.OK, f"Kubernetes {found} answers")


def check_registration(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Are both webhook configurations there, whole?"""
    for wanted, name in zip(webhook_configurations(), ("mutating", "validating"), strict=True):
        found: Json | None = getattr(facts, name)
        if found is None:
            yield unread_part_result(facts, name, f"no {name} webhook configuration", repair_command(facts))
            continue
        there = {hook["name"] for hook in found.get("webhooks") or ()}
        missing = [hook["name"] for hook in wanted["webhooks"] if hook["name"] not in there]
        if missing:
            yield DiagnosticResult(
                CheckState.FAIL, f"{name} webhook configuration without {', '.join(missing)}", repair_command(facts)
            )
        else:
            yield DiagnosticResult(CheckState.OK, f"{name} webhook configuration with {pluralize(len(there), 'hook')}")


def check_certificates(facts: ClusterFacts, now: datetime) -> Iterator[DiagnosticResult]:
    """Is what is served trusted, and for how long?"""
    configurations = [one for one in (facts.mutating, facts.validating) if one is not None]
    if not configurations:
        return
    found = check_ca_bundles(configurations, facts.secret, now)
    issued = facts.deployment is not None and parse_deployment(facts.deployment).external_certificate
    if found.error:
        advice = (
            f"cert-manager's injector writes it: {CERT_MANAGER_COMMAND}"
            if issued
            else f"{LEADER_HINT} it does not put it right"
        )
        yield DiagnosticResult(CheckState.FAIL, f"caBundle: {found.error}", advice)
    else:
        yield DiagnosticResult(CheckState.OK, "caBundle is right in every hook")
    if found.expires is None:
        yield DiagnosticResult(
            CheckState.SKIP, "the serving certificate cannot be read", "its Secret, or the right to read it, is missing"
        )
        return
    days = (found.expires - now).days
    term = f"ends in {pluralize(days, 'day')}" if days >= 0 else "has ended"
    when = f"serving certificate {term} ({found.expires:%Y-%m-%d})"
    if days < CERTIFICATE_DAYS:
        advice = f"it should have been renewed: {CERT_MANAGER_COMMAND if issued else f'{LEADER_HINT} it was not'}"
        yield DiagnosticResult(CheckState.FAIL, when, advice)
    else:
        yield DiagnosticResult(CheckState.OK, when)


def check_answers(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Do the hooks truly answer?"""
    answer = facts.answer or ""
    if BOTH_ANSWERED in answer:
        yield DiagnosticResult(CheckState.OK, "both hooks answer a pod that is only tried")
    elif PROBE_ANSWER in answer:
        yield DiagnosticResult(
            CheckState.FAIL,
            "only the validating hook answers",
            "pods are not shaped: look at the mutating configuration",
        )
    elif answer and is_rejected_by_others(answer):
        what = "whether the hooks answer could not be tried, because a pod in default was refused by others"
        yield DiagnosticResult(CheckState.SKIP, what, shorten_text(answer, 300))
    else:
        yield DiagnosticResult(
            CheckState.FAIL, "the hooks do not answer", shorten_text(answer or "the API server did not say why", 300)
        )


def check_replicas(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Are the replicas ready, and of this version?"""
    found = facts.deployment
    if found is None:
        if runs_outside_cluster(facts):
            yield DiagnosticResult(
                CheckState.SKIP, "no Deployment", "the webhook runs outside the cluster, or is not installed"
            )
        else:
            yield unread_part_result(facts, "deployment", "", "")
        return
    ready, wanted = found.get("status", {}).get("readyReplicas", 0), found["spec"].get("replicas", 1)
    look = f"kubectl -n {SYSTEM_NAMESPACE} get pods,events"
    yield DiagnosticResult(
        CheckState.OK if ready >= wanted else CheckState.FAIL,
        f"{ready} of {wanted} replicas ready",
        "" if ready >= wanted else look,
    )
    images = [each["image"] for each in found["spec"]["template"]["spec"]["containers"] if each["name"] == CONTAINER]
    yield (
        _version_skew(images[0])
        if images
        else DiagnosticResult(CheckState.WARN, f"no container {CONTAINER} in the Deployment", look)
    )


def _version_skew(image: str) -> DiagnosticResult:
    """Is what runs what this program is?"""
    tag = image.rpartition(":")[2]
    if tag == __version__ or "@" in image:
        return DiagnosticResult(CheckState.OK, f"image {image}")
    return DiagnosticResult(
        CheckState.WARN,
        f"image {image}",
        f"this program is {__version__}: install and doctor with the version that runs",
    )


def check_replica_status(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """What a replica says of itself: its policies, and how old its view is."""
    if facts.ready is None:
        yield DiagnosticResult(
            CheckState.SKIP, "no replica could be asked", "its Service cannot be reached through the API server"
        )
        return
    for line in facts.ready.splitlines():
        if line.startswith(("[+]", "[-]")):
            what = f"replica: {shorten_text(line[3:], 200)}"
            yield (
                DiagnosticResult(CheckState.OK, what)
                if line[1] == "+"
                else DiagnosticResult(CheckState.WARN, what, "its log says more")
            )


def check_fail_open(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """How often did the API server go on without one of our hooks because nobody answered?"""
    if facts.metrics is None:
        yield DiagnosticResult(
            CheckState.SKIP, "the API server's metrics cannot be read", "they tell how often a hook was passed by"
        )
        return
    passed = {name: number for name, number in _fail_open_counts(facts.metrics) if number}
    for name, number in passed.items():
        often = "once" if number == 1 else f"{number} times"
        advice = (
            "since the API server started, tries included. Another hook may still have refused the object:"
            " `rightslice audit` finds what slipped through"
        )
        yield DiagnosticResult(CheckState.WARN, f"{name} was passed by {often}: nobody answered", advice)
    if not passed:
        yield DiagnosticResult(CheckState.OK, "no hook of ours was passed by since the API server started")


_SAMPLE = re.compile(
    rf'^{FAIL_OPEN_METRIC}\{{[^}}]*name="([^"]+[.]rightslice[.]dev)"[^}}]*\}} ([0-9.e+]+)$', re.MULTILINE
)


def _fail_open_counts(metrics: str) -> Iterator[tuple[str, int]]:
    totals: dict[str, int] = {}
    for name, value in _SAMPLE.findall(metrics):
        totals[name] = totals.get(name, 0) + int(float(value))
    yield from totals.items()


def check_backstop(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Does the backstop deny, and does that agree with the mode?"""
    if facts.backstop is None:
        yield unread_part_result(facts, "backstop", "no binding of the backstop", repair_command(facts))
        return
    denies = "Deny" in facts.backstop["spec"]["validationActions"]
    what = "the backstop denies" if denies else "the backstop denies nothing"
    mode = parse_deployment(facts.deployment).mode if facts.deployment else ""
    if mode not in DENY_BY_MODE:
        yield DiagnosticResult(CheckState.OK, what, "the mode of a server outside the cluster cannot be seen")
    elif denies == DENY_BY_MODE[mode]:
        yield DiagnosticResult(CheckState.OK, f"{what}, as mode {mode} has it")
    else:
        yield DiagnosticResult(CheckState.FAIL, f"{what}, but the mode is {mode}", f"rightslice install --mode {mode}")


def check_ca_bundles(
    configurations: Sequence[JsonObject], secret: JsonObject | None, now: datetime
) -> CertificateTrust:
    """Hold the caBundle of each hook against the certificate in the Secret."""
    hooks = [hook for one in configurations for hook in one["webhooks"]]
    bundles = [(hook["name"], hook["clientConfig"].get("caBundle") or "") for hook in hooks]
    leaf = _serving_certificate(secret)
    ends = leaf.not_valid_after_utc if leaf else None
    empty = dict.fromkeys(name for name, bundle in bundles if not bundle)
    if empty:
        return CertificateTrust(f"empty in {', '.join(empty)}", ends)
    for name, bundle in bundles:
        try:
            authorities = x509.load_pem_x509_certificates(b64decode(bundle))
        except ValueError:
            return CertificateTrust(f"no certificates in that of {name}", ends)
        if all(authority.not_valid_after_utc <= now for authority in authorities):
            return CertificateTrust(f"that of {name} has ended", ends)
        if leaf is not None and not any(_is_issued_by(leaf, authority) for authority in authorities):
            return CertificateTrust(f"that of {name} does not hold the authority of the serving certificate", ends)
    return CertificateTrust("", ends)


def _serving_certificate(secret: JsonObject | None) -> x509.Certificate | None:
    text = ((secret or {}).get("data") or {}).get("tls.crt")
    try:
        return x509.load_pem_x509_certificate(b64decode(text)) if text else None
    except ValueError:
        return None


def _is_issued_by(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
