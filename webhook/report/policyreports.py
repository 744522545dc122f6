"""The result of an audit as report objects that other tools of a cluster read: one a namespace, bounded.

A result stands for a workload and a code, never for a pod: who is to act is the workload's owner, and its pods come
and go. Only fail and warn (and error, for what could not be judged) are written; what is well is not news.

Source: openreports.io/v1alpha1 `Report`, and wgpolicyk8s.io/v1alpha2 `PolicyReport`, which has the same fields.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from itertools import accumulate, takewhile
from typing import Any

import orjson

from webhook.model.codes import CODES
from webhook.model.modes import Mode
from webhook.report.results import Located
from webhook.report.table import sentence
from webhook.report.words import shown
from webhook.report.workloads import Workload

Json = dict[str, Any]

SOURCE = "rightslice"
NAME = "rightslice-audit"
MOST_RESULTS = 1000
MOST_BYTES = 1_000_000
"""All results of one object, as JSON: an API server stores 1.5 MiB, and its record of who wrote what is in that."""

MOST_TEXT = 512
OURS = {"app.kubernetes.io/managed-by": SOURCE}
"""The labels of every object that is ours."""

RESULTS = {Mode.ENFORCE: "fail", Mode.WARN: "warn"}
SEVERITIES = {Mode.ENFORCE: "high", Mode.WARN: "medium"}


class ReportApi(StrEnum):
    """Which API the objects are of."""

    OPENREPORTS = "openreports.io/v1alpha1"
    WGPOLICY = "wgpolicyk8s.io/v1alpha2"


KINDS = {ReportApi.OPENREPORTS: ("Report", "reports"), ReportApi.WGPOLICY: ("PolicyReport", "policyreports")}
"""Kind and plural, the one that is preferred first."""

NO_KIND = (
    f"the cluster has no kind for reports, neither {KINDS[ReportApi.OPENREPORTS][0]} of {ReportApi.OPENREPORTS.value} "
    f"nor {KINDS[ReportApi.WGPOLICY][0]} of {ReportApi.WGPOLICY.value}. Install the CRDs of OpenReports "
    "(config/crd in github.com/openreports/reports-api), or of a policy engine that brings one of them"
)


def policy_reports(rows: Iterable[Workload], moment: datetime, api: ReportApi = ReportApi.OPENREPORTS) -> list[Json]:
    """One object for each namespace in which there is something to act on, by name."""
    spaces: defaultdict[str, list[Json]] = defaultdict(list)
    for row in rows:
        spaces[row.namespace] += [
            _result(row, located, pods, moment) for located, pods in row.findings if located.finding.mode in RESULTS
        ]
    return [_report(name, results, api) for name, results in sorted(spaces.items()) if results]


def _report(namespace: str, results: list[Json], api: ReportApi) -> Json:
    ranked = sorted(results, key=lambda each: (each["result"], each["rule"], each["properties"]["workload"]))
    kept = _that_fit(ranked[:MOST_RESULTS])
    counts = {word: sum(each["result"] == word for each in ranked) for word in ("fail", "warn")}
    report: Json = {
        "apiVersion": api.value,
        "kind": KINDS[api][0],
        "metadata": {
            "name": NAME,
            "namespace": namespace,
            "labels": OURS,
            "annotations": _left_out(len(ranked) - len(kept)),
        },
        "scope": {"apiVersion": "v1", "kind": "Namespace", "name": namespace},
        "summary": {"pass": 0, "fail": counts["fail"], "warn": counts["warn"], "error": 0, "skip": 0},
        "results": kept,
    }
    if api is ReportApi.OPENREPORTS:
        limits = {"maxResults": MOST_RESULTS, "statusFilter": ["fail", "warn", "error"]}
        report |= {"source": SOURCE, "configuration": {"limits": limits}}
    return report


def _that_fit(results: list[Json]) -> list[Json]:
    """The first of them that are stored together."""
    sizes = accumulate(len(orjson.dumps(each)) + 1 for each in results)
    return results[: sum(1 for _ in takewhile(lambda size: size <= MOST_BYTES, sizes))]


def _left_out(number: int) -> Mapping[str, str]:
    return {"rightslice.dev/results-left-out": str(number)} if number else {}


def _result(row: Workload, located: Located, pods: int, moment: datetime) -> Json:
    finding = located.finding
    kind, _, name = row.name.partition("/")
    return {
        "source": SOURCE,
        "policy": finding.policy or SOURCE,
        "rule": finding.code,
        "category": CODES[finding.code].section or "cluster" if finding.code in CODES else "cluster",
        "severity": SEVERITIES[finding.mode],
        "result": RESULTS[finding.mode],
        "message": shown(sentence(finding))[:MOST_TEXT],
        "resources": [{"kind": kind, "namespace": row.namespace, "name": name}],
        "scored": True,
        "timestamp": {"seconds": int(moment.timestamp()), "nanos": 0},
        "properties": {"workload": shown(row.name), "pods": str(pods), "fix": shown(finding.fix)[:MOST_TEXT]},
    }
