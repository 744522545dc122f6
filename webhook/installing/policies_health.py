"""`doctor` on the policies: are they well, is each name there once, and does a server use them?

Where no Deployment is there, a server outside the cluster may have policies in files, which are not known here. So
what depends on them, exceptions above all, is taken from the status that the server writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from webhook.cache.policies import policy_text
from webhook.documents.names import is_document
from webhook.documents.reading import read
from webhook.errors import RightsliceError, shorten
from webhook.installing.facts import Facts, is_outside, putting_right
from webhook.installing.lines import Line, State, unread
from webhook.model.conditions import READY, condition_in
from webhook.policy.loading import Loaded, load
from webhook.report.words import count

Json = dict[str, Any]

FILE_WINS = "FileWins"
"""The reason of an object whose name a file has too: somebody chose that."""


def loaded_from(facts: Facts) -> Loaded:
    """The policies of the ConfigMap, and those that are objects and have a name of their own."""
    known = _names_in_files(facts)
    policies = [("GPUPolicy", one) for one in facts.policies or () if one["metadata"]["name"] not in known]
    exceptions = () if is_outside(facts) else [("GPUPolicyException", one) for one in facts.exceptions or ()]
    objects = [*policies, *exceptions]
    return load([*_files(facts), *((_named(kind, one), policy_text(kind, one)) for kind, one in objects)])


def policies(facts: Facts, loaded: Loaded) -> Iterator[Line]:
    """Are the policies well, and is each name there once?"""
    if facts.policies is None:
        yield unread(facts, "policies", "the API server does not know GPUPolicy", putting_right(facts))
        return
    yield from (Line(State.FAIL, f"{error.place.file}: {error.code}", error.sentence) for error in loaded.errors)
    if is_outside(facts):
        yield from _told_by_a_server(facts, {error.place.file for error in loaded.errors})
        return
    files = _names_in_files(facts)
    if not facts.policies and not files:
        yield Line(State.WARN, "no policies", "rightslice policy new NAME | kubectl apply -f -")
    elif not loaded.errors:
        objects = count(len(facts.policies), "policy as an object", "policies as objects")
        yield Line(State.OK, f"{objects}, {len(files)} in the ConfigMap")
    for name in sorted(files & {one["metadata"]["name"] for one in facts.policies}):
        yield Line(State.WARN, f"policy {name} is in the ConfigMap and an object", "the one in the ConfigMap is in use")


def _told_by_a_server(facts: Facts, wrong: set[str]) -> Iterator[Line]:
    """What the objects' own status says, but for those that are wrong anyway."""
    advice = "`rightslice doctor` sees objects only; /readyz?verbose of the server counts all"
    yield Line(State.SKIP, "a server's policy files cannot be seen", advice)
    objects = [("GPUPolicy", one) for one in facts.policies or ()]
    objects += [("GPUPolicyException", one) for one in facts.exceptions or ()]
    yield from (_told(_named(kind, one), one) for kind, one in objects if _named(kind, one) not in wrong)


def _told(name: str, one: Json) -> Line:
    ready = condition_in(one, READY)
    if ready is None:
        return Line(State.SKIP, f"{name}: no server has said yet whether it is in use", "is one running?")
    if ready.get("status") == "True":
        return Line(State.OK, f"{name} is in use")
    state = State.WARN if ready.get("reason") == FILE_WINS else State.FAIL
    return Line(state, f"{name}: {ready.get('reason')}", shorten(str(ready.get("message", "")), 300))


def _named(kind: str, one: Json) -> str:
    return f"{kind} {one['metadata']['name']}"


def _names_in_files(facts: Facts) -> set[str]:
    names: set[str] = set()
    for file, text in _files(facts):
        try:
            names |= {one.data["metadata"]["name"] for one in read(text, file) if one.data.get("kind") == "GPUPolicy"}
        except (RightsliceError, KeyError, TypeError, AttributeError):
            continue
    return names


def _files(facts: Facts) -> list[tuple[str, str]]:
    """The keys of the ConfigMap that a server reads as files, and their texts."""
    data: Mapping[str, str] = (facts.settings or {}).get("data") or {}
    return [(key, text) for key, text in data.items() if is_document([key])]
