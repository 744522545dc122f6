"""Checks of `doctor` for policies: do they load, are their names unique, and does a server use them?

Without a Deployment, a server outside the cluster may load policy files that are unknown here. Then the status that the
server writes is reported, above all for exceptions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from webhook.cache.policy_objects import READY, find_condition, policy_text
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
from webhook.policy.loader import LoadResult, load_policies
from webhook.report.text import pluralize
from webhook.well_known import Json

FILE_WINS = "OverriddenByFile"
"""Condition reason of an object that a file with the same name overrides, which is intended."""


def load_installed_policies(facts: ClusterFacts) -> LoadResult:
    """Load the policies of the ConfigMap, and the objects that no file overrides."""
    known = _file_policy_names(facts)
    policies = [("GPUPolicy", one) for one in facts.policies or () if one["metadata"]["name"] not in known]
    exceptions = () if runs_outside_cluster(facts) else [("GPUPolicyException", one) for one in facts.exceptions or ()]
    objects = [*policies, *exceptions]
    return load_policies(
        [*_config_map_files(facts), *((_policy_title(kind, one), policy_text(kind, one)) for kind, one in objects)]
    )


def check_policies(facts: ClusterFacts, loaded: LoadResult) -> Iterator[DiagnosticResult]:
    """Check that all policies load and have unique names."""
    if facts.policies is None:
        yield unread_part_result(facts, "policies", "the CRD of GPUPolicy is not installed", repair_command(facts))
        return
    yield from (DiagnosticResult.fail(f"{error.location.file}: {error.code}", error.message) for error in loaded.errors)
    if runs_outside_cluster(facts):
        yield from _status_results(facts, {error.location.file for error in loaded.errors})
        return
    files = _file_policy_names(facts)
    if not facts.policies and not files:
        yield DiagnosticResult.warn("no policies", "rightslice policy new NAME | kubectl apply -f -")
    elif not loaded.errors:
        objects = pluralize(len(facts.policies), "policy as an object", "policies as objects")
        yield DiagnosticResult.ok(f"{objects}, {len(files)} in the ConfigMap")
    for name in sorted(files & {one["metadata"]["name"] for one in facts.policies}):
        yield DiagnosticResult.warn(
            f"policy {name} exists in the ConfigMap and as an object", "the ConfigMap takes precedence"
        )


def _status_results(facts: ClusterFacts, invalid: set[str]) -> Iterator[DiagnosticResult]:
    advice = "only objects are checked here; /readyz?verbose of the server shows all policies"
    yield DiagnosticResult.skip("policy files of a server outside the cluster are unknown", advice)
    objects = [("GPUPolicy", one) for one in facts.policies or ()]
    objects += [("GPUPolicyException", one) for one in facts.exceptions or ()]
    titles = ((_policy_title(kind, one), one) for kind, one in objects)
    yield from (_status_result(title, one) for title, one in titles if title not in invalid)


def _status_result(name: str, one: Json) -> DiagnosticResult:
    ready = find_condition(one, READY)
    if ready is None:
        return DiagnosticResult.skip(f"{name}: no server has reported its status yet", "check that a server runs")
    if ready.get("status") == "True":
        return DiagnosticResult.ok(f"{name} is in use")
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
    data: Mapping[str, str] = (facts.settings or {}).get("data") or {}
    return [(key, text) for key, text in data.items() if is_document_file([key])]
