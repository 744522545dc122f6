"""Keeps the results of a large audit small: no objects, and what pods have in common once.

No report of an audit shows the objects themselves, and pods of one workload come to the same, word for word.
"""

from __future__ import annotations

from sys import intern
from typing import Any

import msgspec
import orjson

from webhook.model.decisions import Decision
from webhook.model.findings import Finding
from webhook.report.results import CheckResult, ClusterPodDetails, LocatedFinding

MAX_INTERNED = 100_000
"""Different values to remember; past that, each is kept by itself."""


class ResultInterner:
    """Gives each result as it is to be kept."""

    def __init__(self) -> None:
        self._findings: dict[Finding, Finding] = {}
        self._standings: dict[ClusterPodDetails, ClusterPodDetails] = {}
        self._decisions: dict[bytes, Decision] = {}

    def __call__(self, result: CheckResult) -> CheckResult:
        """The same result without its object, sharing what others have too."""
        standing = result.pod_details
        return msgspec.structs.replace(
            result,
            namespace=intern(result.namespace),
            node=intern(result.node) if result.node is not None else None,
            stored={},
            findings=tuple(self._intern_located(each) for each in result.findings),
            decision=self._intern_decision(result.decision),
            pod_details=_intern_value(self._standings, standing, standing) if standing is not None else None,
        )

    def _intern_located(self, located: LocatedFinding) -> LocatedFinding:
        return msgspec.structs.replace(located, finding=_intern_value(self._findings, located.finding, located.finding))

    def _intern_decision(self, decision: Decision) -> Decision:
        shared = tuple(_intern_value(self._findings, each, each) for each in decision.findings)
        key = orjson.dumps(msgspec.to_builtins(decision), option=orjson.OPT_NON_STR_KEYS)
        kept: Decision = _intern_value(self._decisions, key, msgspec.structs.replace(decision, findings=shared))
        return kept


def _intern_value(known: dict[Any, Any], key: Any, value: Any) -> Any:
    """The equal value that came first, or this one."""
    if len(known) >= MAX_INTERNED:
        return known.get(key, value)
    return known.setdefault(key, value)
