"""Checks of `doctor` for the webhook: registration, certificates, answers, replicas, fail-open, and the backstop."""

from __future__ import annotations

import re
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from webhook import __version__
from webhook.errors import shorten_text
from webhook.installing.facts import (
    BOTH_ANSWERED,
    CONTAINER,
    FAIL_OPEN_METRIC,
    CheckState,
    ClusterFacts,
    CurrentInstall,
    DiagnosticResult,
    is_rejected_by_others,
    parse_deployment,
    repair_command,
    runs_outside_cluster,
    unread_part_result,
)
from webhook.manifests.webhooks import webhook_configurations
from webhook.model.annotations import PROBE_ANSWER
from webhook.report.text import pluralize
from webhook.well_known import APP_NAME, CERTIFICATE_NOT_REQUIRED_YET

JsonObject = Mapping[str, Any]

OLDEST, NEWEST = 30, 37
"""Supported minor versions of Kubernetes; matchConditions and ValidatingAdmissionPolicy exist from 1.30."""

CERTIFICATE_DAYS = 7
_PROXY_AUTHORITY = "kubectl -n kube-system get configmap extension-apiserver-authentication"
DENY_BY_MODE = {"audit": False, "enforce": True}

_FAIL_OPEN_SAMPLE = re.compile(
    rf'^{FAIL_OPEN_METRIC}\{{[^}}]*name="([^"]+[.]rightslice[.]dev)"[^}}]*\}} ([0-9.e+]+)$', re.MULTILINE
)


def check_version(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Check the version of the API server."""
    version = f"Kubernetes {facts.version.get('gitVersion', '?')}"
    digits = re.match(r"\d+", facts.version.get("minor", ""))
    minor = int(digits[0]) if digits else 0
    if minor < OLDEST:
        yield DiagnosticResult.fail(version, f"too old: 1.{OLDEST} or newer is required, for matchConditions")
    elif minor > NEWEST:
        yield DiagnosticResult.warn(version, f"newer than the last tested version (1.{NEWEST})")
    else:
        yield DiagnosticResult.ok(f"{version} answers")


def check_registration(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Check that both webhook configurations exist and are complete."""
    for expected, name in zip(webhook_configurations(), ("mutating", "validating"), strict=True):
        configuration: JsonObject | None = getattr(facts, name)
        if configuration is None:
            yield unread_part_result(facts, name, f"no {name} webhook configuration", repair_command(facts))
            continue
        present = {webhook["name"] for webhook in configuration.get("webhooks") or ()}
        missing = [webhook["name"] for webhook in expected["webhooks"] if webhook["name"] not in present]
        if missing:
            summary = f"{name} webhook configuration without {', '.join(missing)}"
            yield DiagnosticResult.fail(summary, repair_command(facts))
        else:
            yield DiagnosticResult.ok(f"{name} webhook configuration with {pluralize(len(present), 'webhook')}")


def check_certificates(facts: ClusterFacts, now: datetime) -> Iterator[DiagnosticResult]:
    """Check the caBundles, and the expiry of the serving certificate."""
    configurations = [one for one in (facts.mutating, facts.validating) if one is not None]
    if not configurations:
        return
    trust = check_ca_bundles(configurations, facts.secret, now)
    external = facts.deployment is not None and parse_deployment(facts.deployment).external_certificate
    cert_manager = f"kubectl -n {facts.namespace} describe certificates,issuers"
    if trust.error:
        managed = "the leader should fix it; its log says why it does not"
        advice = f"cert-manager's CA injector should write it: {cert_manager}" if external else managed
        yield DiagnosticResult.fail(f"caBundle: {trust.error}", advice)
    else:
        yield DiagnosticResult.ok("caBundle matches the serving certificate in every webhook")
    if trust.expires is None:
        advice = "its Secret is missing or cannot be read"
        yield DiagnosticResult.skip("the serving certificate cannot be read", advice)
        return
    days = (trust.expires - now).days
    term = f"expires in {pluralize(days, 'day')}" if days >= 0 else "has expired"
    summary = f"serving certificate {term} ({trust.expires:%Y-%m-%d})"
    if days < CERTIFICATE_DAYS:
        reason = cert_manager if external else "see the leader's log for the reason"
        yield DiagnosticResult.fail(summary, f"it should have been renewed: {reason}")
    else:
        yield DiagnosticResult.ok(summary)


def check_answers(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Check that both webhooks answered a dry-run pod."""
    answer = facts.answer or ""
    if BOTH_ANSWERED in answer:
        yield DiagnosticResult.ok("both webhooks answer a dry-run pod")
    elif PROBE_ANSWER in answer:
        advice = "pods are checked but not changed: check the mutating webhook configuration"
        yield DiagnosticResult.fail("only the validating webhook answers", advice)
    elif answer and is_rejected_by_others(answer):
        summary = "the webhooks could not be tested, because something else rejected the dry-run pod in default"
        yield DiagnosticResult.skip(summary, shorten_text(answer, 300))
    else:
        advice = shorten_text(answer or "the API server gave no reason", 300)
        yield DiagnosticResult.fail("the webhooks do not answer", advice)


def check_replicas(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Check that the replicas are ready, and run this version."""
    deployment = facts.deployment
    if deployment is None:
        if runs_outside_cluster(facts):
            advice = "the webhook runs outside the cluster, or is not installed"
            yield DiagnosticResult.skip("no Deployment", advice)
        else:
            yield unread_part_result(facts, "deployment", "", "")
        return
    list_pods = f"kubectl -n {facts.namespace} get pods,events"
    ready, wanted = deployment.get("status", {}).get("readyReplicas", 0), deployment["spec"].get("replicas", 1)
    summary = f"{ready} of {wanted} replicas ready"
    yield DiagnosticResult.ok(summary) if ready >= wanted else DiagnosticResult.fail(summary, list_pods)
    image = parse_deployment(deployment).image
    if not image:
        yield DiagnosticResult.warn(f"no container {CONTAINER} in the Deployment", list_pods)
    elif image.rpartition(":")[2] == __version__ or "@" in image:
        yield DiagnosticResult.ok(f"image {image}")
    else:
        advice = f"this program is version {__version__}: use the version that is installed"
        yield DiagnosticResult.warn(f"image {image}", advice)


def check_replica_status(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Report the status lines of a replica: policies, age of the view, and so on."""
    if facts.ready is None:
        advice = "its Service cannot be reached through the API server"
        yield DiagnosticResult.skip("no replica could be queried", advice)
        return
    for line in facts.ready.splitlines():
        summary = f"replica: {shorten_text(line[3:], 200)}"
        if line.startswith("[+]"):
            yield DiagnosticResult.ok(summary)
        elif line.startswith("[-]"):
            yield DiagnosticResult.warn(summary, "see its log")


def check_callers(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Check whether the webhook authenticates its callers."""
    if facts.deployment is None:
        return
    if f"]clients {CERTIFICATE_NOT_REQUIRED_YET}" in (facts.ready or ""):
        advice = "the replicas require it from the first one on: SECURITY.md#access-to-the-port"
        yield DiagnosticResult.warn("no API server has presented the client certificate yet", advice)
    elif facts.client_ca is not None or "--client-ca=" in str(facts.deployment["spec"]["template"]["spec"]):
        yield DiagnosticResult.ok("callers need a client certificate")
    elif facts.refused["client_ca"].status == HTTPStatus.NOT_FOUND:
        command = _proxy_authority_command(facts.authentication, facts.namespace)
        advice = (
            "no API says whether API servers present one. Let each present its proxy certificate"
            f" (SECURITY.md#access-to-the-port), and run: {command}"
        )
        yield DiagnosticResult.skip("callers need no client certificate", advice)
    else:
        yield unread_part_result(facts, "client_ca", "", "")


def _proxy_authority_command(authentication: JsonObject | None, namespace: str) -> str:
    """Return the command that requires the certificates by which API servers prove who they are to extension servers.

    Their authority and names are published in kube-system. They are of no use if other clients have certificates of the
    same authority, too.
    """
    data = (authentication or {}).get("data") or {}
    create = f"kubectl -n {namespace} create configmap {APP_NAME}-client-ca --from-file=ca.crt="
    authority = data.get("requestheader-client-ca-file") or ""
    if not authority or authority.strip() == (data.get("client-ca-file") or "").strip():
        return f"{create}CA.crt"
    name = re.fullmatch(r'\["([A-Za-z0-9.:-]+)"\]', data.get("requestheader-allowed-names") or "")
    required_name = f" --from-literal=name={name[1]}" if name else ""
    read = f"{_PROXY_AUTHORITY} -o jsonpath='{{.data.requestheader-client-ca-file}}'"
    return f"{read} | {create}/dev/stdin{required_name}"


def check_fail_open(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Check how often the API server admitted objects without an answer of a webhook."""
    if facts.metrics is None:
        advice = "without them, requests that failed open are not counted"
        yield DiagnosticResult.skip("the API server's metrics cannot be read", advice)
        return
    counts: Counter[str] = Counter()
    for name, value in _FAIL_OPEN_SAMPLE.findall(facts.metrics):
        counts[name] += int(float(value))
    for name, count in (+counts).items():
        advice = (
            "since the API server started, dry runs included. Another webhook may have rejected the object:"
            " `rightslice audit` finds what was admitted"
        )
        yield DiagnosticResult.warn(f"{name} did not answer and failed open {pluralize(count, 'time')}", advice)
    if not +counts:
        yield _result_without_fail_open(facts)


def _result_without_fail_open(facts: ClusterFacts) -> DiagnosticResult:
    """Return that none failed open; unknown if one does not answer now: the metrics are older, of one API server."""
    answer = next(check_answers(facts))
    if answer.state is CheckState.FAIL:
        advice = f"until both answer, pods may be admitted unchecked: {answer.advice}"
        return DiagnosticResult.skip(f"whether webhooks fail open is unknown: {answer.summary}", advice)
    return DiagnosticResult.ok("no webhook failed open since the API server started")


def check_backstop(facts: ClusterFacts) -> Iterator[DiagnosticResult]:
    """Check that the backstop denies if and only if the mode is enforce."""
    if facts.backstop is None:
        yield unread_part_result(facts, "backstop", "the backstop is not installed", repair_command(facts))
        return
    denies = "Deny" in facts.backstop["spec"]["validationActions"]
    summary = "the backstop denies" if denies else "the backstop denies nothing"
    current = parse_deployment(facts.deployment) if facts.deployment else CurrentInstall()
    mode = current.mode
    if mode not in DENY_BY_MODE:
        yield DiagnosticResult.ok(summary, "the mode of a server outside the cluster is unknown")
    elif denies == DENY_BY_MODE[mode]:
        yield DiagnosticResult.ok(f"{summary}, as in mode {mode}")
    else:
        yield DiagnosticResult.fail(f"{summary}, but the mode is {mode}", _backstop_advice(facts, current))


def _backstop_advice(facts: ClusterFacts, current: CurrentInstall) -> str:
    """Return the commands that set the backstop; with Helm, a field of an earlier installer would stay in it."""
    if not current.helm_release:
        return f"rightslice install --mode {current.mode}"
    return (
        f"kubectl delete validatingadmissionpolicybinding {APP_NAME}-pods, then helm upgrade {current.helm_release} "
        f"CHART --namespace {facts.namespace} --reset-then-reuse-values --set mode={current.mode} --force-conflicts"
    )


class CertificateTrust(NamedTuple):
    """The first problem of the caBundles ("" for none), and the expiry of the serving certificate (None if unread)."""

    error: str
    expires: datetime | None


def check_ca_bundles(
    configurations: Sequence[JsonObject], secret: JsonObject | None, now: datetime
) -> CertificateTrust:
    """Compare the caBundle of each webhook with the certificate in the Secret."""
    webhooks = [webhook for one in configurations for webhook in one["webhooks"]]
    bundles = [(webhook["name"], webhook["clientConfig"].get("caBundle") or "") for webhook in webhooks]
    leaf = _serving_certificate(secret)
    expires = leaf.not_valid_after_utc if leaf else None
    empty = dict.fromkeys(name for name, bundle in bundles if not bundle)
    if empty:
        return CertificateTrust(f"empty in {', '.join(empty)}", expires)
    for name, bundle in bundles:
        try:
            authorities = x509.load_pem_x509_certificates(b64decode(bundle))
        except ValueError:
            return CertificateTrust(f"{name} has no readable certificates", expires)
        if all(authority.not_valid_after_utc <= now for authority in authorities):
            return CertificateTrust(f"{name} has only expired certificates", expires)
        if leaf is not None and not any(_is_issued_by(leaf, authority) for authority in authorities):
            return CertificateTrust(f"{name} does not have the CA of the serving certificate", expires)
    return CertificateTrust("", expires)


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
