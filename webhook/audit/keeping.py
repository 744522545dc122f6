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
from webhook.report.results import Checked, Located, Standing

MOST = 100_000
"""Different values to remember; past that, each is kept by itself."""


class Keeping:
    """Gives each result as it is to be kept."""

    def __init__(self) -> None:
        self._findings: dict[Finding, Finding] = {}
        self._standings: dict[Standing, Standing] = {}
        self._decisions: dict[bytes, Decision] = {}

    def __call__(self, result: Checked) -> Checked:
        """The same result without its object, sharing what others have too."""
        standing = result.standing
        return msgspec.structs.replace(
            result,
            namespace=intern(result.namespace),
            node=intern(result.node) if result.node is not None else None,
            stored={},
            findings=tuple(self._located(each) for each in result.findings),
            decision=self._decision(result.decision),
            standing=_once(self._standings, standing, standing) if standing is not None else None,
        )

    def _located(self, located: Located) -> Located:
        return msgspec.structs.replace(located, finding=_once(self._findings, located.finding, located.finding))

    def _decision(self, decision: Decision) -> Decision:
        shared = tuple(_once(self._findings, each, each) for each in decision.findings)
        key = orjson.dumps(msgspec.to_builtins(decision), option=orjson.OPT_NON_STR_KEYS)
        kept: Decision = _once(self._decisions, key, msgspec.structs.replace(decision, findings=shared))
        return kept


def _once(known: dict[Any, Any], key: Any, value: Any) -> Any:
    """The equal value that came first, or this one."""
    if len(known) >= MOST:
        return known.get(key, value)
    return known.setdefault(key, value)
