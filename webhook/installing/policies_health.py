"""`doctor` on the policies: are they well, is each name there once, and does a server use them?

Where no Deployment is there, a server outside the cluster may have policies in files, which are not known here. So
what depends on them, exceptions above all, is taken from the status that the server writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from webhook.cache.policy_objects import policy_text
from webhook.documents.reader import is_document_file, read_documents
from webhook.errors import RightsliceError, shorten_text
from webhook.installing.facts import (
    CheckState,
    ClusterFacts,
    DiagnosticResult,
    repair_command,
    runs_outside_cluster,
    unread_part_result,
)
from webhook.model.conditions import READY, find_condition
from webhook.policy.loader import LoadResult, load_policies
from webhook.report.text import pluralize

Json = dict[str, Any]

FILE_WINS = "OverriddenByFile"
"""The reason of an object whose name a file has too: somebody chose that."""


def load_installed_policies(facts: ClusterFacts) -> LoadResult:
    """The policies of the ConfigMap, and those that are objects and have a name of their own."""
    known = _file_policy_names(facts)
    policies = [("GPUPolicy", one) for one in facts.policies or () if one["metadata"]["name"] not in known]
    exceptions = () if runs_outside_cluster(facts) else [("GPUPolicyException", one) for one in facts.exceptions or ()]
    objects = [*policies, *exceptions]
    return load_policies(
        [*_config_map_files(facts), *((_policy_title(kind, one), policy_text(kind, one)) for kind, one in objects)]
    )


def check_policies(facts: ClusterFacts, loaded: LoadResult) -> Iterator[DiagnosticResult]:
    """Are the policies well, and is each name there once?"""
    if facts.policies is None:
        yield unread_part_result(facts, "policies", "the API server does not know GPUPolicy", repair_command(facts))
        return
    yield from (
        DiagnosticResult(CheckState.FAIL, f"{error.location.file}: {error.code}", error.message)
        for error in loaded.errors
    )
    if runs_outside_cluster(facts):
        yield from _status_results(facts, {error.location.file for error in loaded.errors})
        return
    files = _file_policy_names(facts)
    if not facts.policies and not files:
        yield DiagnosticResult(CheckState.WARN, "no policies", "rightslice policy new NAME | kubectl apply -f -")
    elif not loaded.errors:
        objects = pluralize(len(facts.policies), "policy as an object", "policies as objects")
        yield DiagnosticResult(CheckState.OK, f"{objects}, {len(files)} in the ConfigMap")
    for name in sorted(files & {one["metadata"]["name"] for one in facts.policies}):
        yield DiagnosticResult(
            CheckState.WARN, f"policy {name} is in the ConfigMap and an object", "the one in the ConfigMap is in use"
        )


def _status_results(facts: ClusterFacts, wrong: set[str]) -> Iterator[DiagnosticResult]:
    """What the objects' own status says, but for those that are wrong anyway."""
    advice = "`rightslice doctor` sees objects only; /readyz?verbose of the server counts all"
    yield DiagnosticResult(CheckState.SKIP, "a server's policy files cannot be seen", advice)
    objects = [("GPUPolicy", one) for one in facts.policies or ()]
    objects += [("GPUPolicyException", one) for one in facts.exceptions or ()]
    yield from (
        _status_result(_policy_title(kind, one), one) for kind, one in objects if _policy_title(kind, one) not in wrong
    )


def _status_result(name: str, one: Json) -> DiagnosticResult:
    ready = find_condition(one, READY)
    if ready is None:
        return DiagnosticResult(
            CheckState.SKIP, f"{name}: no server has said yet whether it is in use", "is one running?"
        )
    if ready.get("status") == "True":
        return DiagnosticResult(CheckState.OK, f"{name} is in use")
    state = CheckState.WARN if ready.get("reason") == FILE_WINS else CheckState.FAIL
    return DiagnosticResult(state, f"{name}: {ready.get('reason')}", shorten_text(str(ready.get("message", "")), 300))


def _policy_title(kind: str, one: Json) -> str:
    return f"{kind} {one['metadata']['name']}"


def _file_policy_names(facts: ClusterFacts) -> set[str]:
    names: set[str] = set()
    for file, text in _config_map_files(facts):
        try:
            names |= {
                one.data["metadata"]["name"]
                for one in read_documents(text, file)
                if one.data.get("kind") == "GPUPolicy"
            }
        except (RightsliceError, KeyError, TypeError, AttributeError):
            continue
    return names


def _config_map_files(facts: ClusterFacts) -> list[tuple[str, str]]:
    """The keys of the ConfigMap that a server reads as files, and their texts."""
    data: Mapping[str, str] = (facts.settings or {}).get("data") or {}
    return [(key, text) for key, text in data.items() if is_document_file([key])]
