"""`doctor` on the webhook itself: is it registered, trusted, answering, and not passed by?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from webhook import __version__
from webhook.errors import shorten
from webhook.installing.chosen import chosen
from webhook.installing.facts import FAIL_OPEN, Facts, is_outside, putting_right
from webhook.installing.lines import Line, State, unread
from webhook.installing.probe import BOTH, is_of_others
from webhook.installing.trust import trust
from webhook.manifests.hooks import NAMESPACE, configurations
from webhook.model.records import ANSWERED
from webhook.report.words import count

Json = dict[str, Any]

OLDEST, NEWEST = 30, 37
"""Minor versions of Kubernetes: matchConditions and ValidatingAdmissionPolicy are there from 1.30 on."""

CERTIFICATE_DAYS = 7
LEADER = "the leader's log says why"
ISSUED = f"kubectl -n {NAMESPACE} describe certificates,issuers"
CONTAINER = "webhook"
"""Ours in the Deployment; others may put a proxy or a collector beside it."""


def version(facts: Facts) -> Iterator[Line]:
    """Is the API server one that has what we need?"""
    found = facts.version.get("gitVersion", "?")
    digits = re.match(r"\d+", facts.version.get("minor", ""))
    minor = int(digits[0]) if digits else 0
    if minor < OLDEST:
        yield Line(
            State.FAIL, f"Kubernetes {found}", f"at least 1.{OLDEST} is needed: older ones have no matchConditions"
        )
    elif minor > NEWEST:
        yield Line(State.WARN, f"Kubernetes {found}", f"newer than this version was tested with (1.{NEWEST})")
    else:
        yield Line(State.OK, f"Kubernetes {found} answers")


def hooks(facts: Facts) -> Iterator[Line]:
    """Are both webhook configurations there, whole?"""
    for wanted, name in zip(configurations(), ("mutating", "validating"), strict=True):
        found: Json | None = getattr(facts, name)
        if found is None:
            yield unread(facts, name, f"no {name} webhook configuration", putting_right(facts))
            continue
        there = {hook["name"] for hook in found.get("webhooks") or ()}
        missing = [hook["name"] for hook in wanted["webhooks"] if hook["name"] not in there]
        if missing:
            yield Line(State.FAIL, f"{name} webhook configuration without {', '.join(missing)}", putting_right(facts))
        else:
            yield Line(State.OK, f"{name} webhook configuration with {count(len(there), 'hook')}")


def certificates(facts: Facts, now: datetime) -> Iterator[Line]:
    """Is what is served trusted, and for how long?"""
    configurations = [one for one in (facts.mutating, facts.validating) if one is not None]
    if not configurations:
        return
    found = trust(configurations, facts.secret, now)
    issued = facts.deployment is not None and chosen(facts.deployment).issued
    if found.fault:
        advice = f"cert-manager's injector writes it: {ISSUED}" if issued else f"{LEADER} it does not put it right"
        yield Line(State.FAIL, f"caBundle: {found.fault}", advice)
    else:
        yield Line(State.OK, "caBundle is right in every hook")
    if found.ends is None:
        yield Line(
            State.SKIP, "the serving certificate cannot be read", "its Secret, or the right to read it, is missing"
        )
        return
    days = (found.ends - now).days
    term = f"ends in {count(days, 'day')}" if days >= 0 else "has ended"
    when = f"serving certificate {term} ({found.ends:%Y-%m-%d})"
    if days < CERTIFICATE_DAYS:
        advice = f"it should have been renewed: {ISSUED if issued else f'{LEADER} it was not'}"
        yield Line(State.FAIL, when, advice)
    else:
        yield Line(State.OK, when)


def answers(facts: Facts) -> Iterator[Line]:
    """Do the hooks truly answer?"""
    answer = facts.answer or ""
    if BOTH in answer:
        yield Line(State.OK, "both hooks answer a pod that is only tried")
    elif ANSWERED in answer:
        yield Line(
            State.FAIL, "only the validating hook answers", "pods are not shaped: look at the mutating configuration"
        )
    elif answer and is_of_others(answer):
        what = "whether the hooks answer could not be tried, because a pod in default was refused by others"
        yield Line(State.SKIP, what, shorten(answer, 300))
    else:
        yield Line(State.FAIL, "the hooks do not answer", shorten(answer or "the API server did not say why", 300))


def replicas(facts: Facts) -> Iterator[Line]:
    """Are the replicas ready, and of this version?"""
    found = facts.deployment
    if found is None:
        if is_outside(facts):
            yield Line(State.SKIP, "no Deployment", "the webhook runs outside the cluster, or is not installed")
        else:
            yield unread(facts, "deployment", "", "")
        return
    ready, wanted = found.get("status", {}).get("readyReplicas", 0), found["spec"].get("replicas", 1)
    look = f"kubectl -n {NAMESPACE} get pods,events"
    yield Line(
        State.OK if ready >= wanted else State.FAIL,
        f"{ready} of {wanted} replicas ready",
        "" if ready >= wanted else look,
    )
    images = [each["image"] for each in found["spec"]["template"]["spec"]["containers"] if each["name"] == CONTAINER]
    yield _skew(images[0]) if images else Line(State.WARN, f"no container {CONTAINER} in the Deployment", look)


def _skew(image: str) -> Line:
    """Is what runs what this program is?"""
    tag = image.rpartition(":")[2]
    if tag == __version__ or "@" in image:
        return Line(State.OK, f"image {image}")
    return Line(
        State.WARN, f"image {image}", f"this program is {__version__}: install and doctor with the version that runs"
    )


def replica(facts: Facts) -> Iterator[Line]:
    """What a replica says of itself: its policies, and how old its view is."""
    if facts.ready is None:
        yield Line(State.SKIP, "no replica could be asked", "its Service cannot be reached through the API server")
        return
    for line in facts.ready.splitlines():
        if line.startswith(("[+]", "[-]")):
            what = f"replica: {shorten(line[3:], 200)}"
            yield Line(State.OK, what) if line[1] == "+" else Line(State.WARN, what, "its log says more")


def passed_by(facts: Facts) -> Iterator[Line]:
    """How often did the API server go on without one of our hooks because nobody answered?"""
    if facts.metrics is None:
        yield Line(State.SKIP, "the API server's metrics cannot be read", "they tell how often a hook was passed by")
        return
    passed = {name: number for name, number in _counted(facts.metrics) if number}
    for name, number in passed.items():
        often = "once" if number == 1 else f"{number} times"
        advice = (
            "since the API server started, tries included. Another hook may still have refused the object:"
            " `rightslice audit` finds what slipped through"
        )
        yield Line(State.WARN, f"{name} was passed by {often}: nobody answered", advice)
    if not passed:
        yield Line(State.OK, "no hook of ours was passed by since the API server started")


_SAMPLE = re.compile(rf'^{FAIL_OPEN}\{{[^}}]*name="([^"]+[.]rightslice[.]dev)"[^}}]*\}} ([0-9.e+]+)$', re.MULTILINE)


def _counted(metrics: str) -> Iterator[tuple[str, int]]:
    totals: dict[str, int] = {}
    for name, value in _SAMPLE.findall(metrics):
        totals[name] = totals.get(name, 0) + int(float(value))
    yield from totals.items()
