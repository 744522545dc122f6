"""The result of an audit as report objects for other tools of a cluster: one per namespace, of bounded size.

A result is about a workload and a code, never about a pod: the owner of the workload has to act, and pods are
replaced. Only fail, warn and error are written, not passes.

Policy Reporter identifies a result by the property `resultID`. Without one it hashes the report's scope, the policy,
the rule and the message: equal findings of two workloads in a namespace would be one result.

Sources: openreports.io/v1alpha1 `Report`, and wgpolicyk8s.io/v1alpha2 `PolicyReport`, which has the same fields; Policy
Reporter, `pkg/report/result/id_generator.go`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from hashlib import blake2s
from itertools import accumulate

import orjson

from webhook.model.codes import CODES
from webhook.model.enums import PolicyMode
from webhook.model.findings import Finding
from webhook.report.check import finding_sentence
from webhook.report.results import LocatedFinding
from webhook.report.text import sanitize
from webhook.report.workloads import WorkloadReport
from webhook.well_known import GROUP, Json

SOURCE = "rightslice"
NAME = "rightslice-audit"
MAX_RESULTS = 1000
MAX_RESULT_BYTES = 1_000_000
"""Limit for all results of one object as JSON: an API server stores 1.5 MiB, managedFields included."""

MAX_RESULT_TEXT = 512
OWNER_LABELS = {"app.kubernetes.io/managed-by": SOURCE}
"""Labels of every object that Rightslice owns."""

MODE_RESULTS = {PolicyMode.ENFORCE: "fail", PolicyMode.WARN: "warn"}
MODE_SEVERITIES = {PolicyMode.ENFORCE: "high", PolicyMode.WARN: "medium"}


class ReportApi(StrEnum):
    """API of the objects."""

    OPENREPORTS = "openreports.io/v1alpha1"
    WGPOLICY = "wgpolicyk8s.io/v1alpha2"


KINDS = {ReportApi.OPENREPORTS: ("Report", "reports"), ReportApi.WGPOLICY: ("PolicyReport", "policyreports")}
"""Kind and plural, the preferred API first."""

NO_KIND = (
    f"the cluster has no API for reports, neither {KINDS[ReportApi.OPENREPORTS][0]} of {ReportApi.OPENREPORTS.value} "
    f"nor {KINDS[ReportApi.WGPOLICY][0]} of {ReportApi.WGPOLICY.value}. Install the CRDs of OpenReports "
    "(config/crd in github.com/openreports/reports-api), or of a policy engine that includes one of them"
)


def build_policy_reports(
    rows: Iterable[WorkloadReport], moment: datetime, api: ReportApi = ReportApi.OPENREPORTS
) -> list[Json]:
    """Return one object for each namespace with findings to act on, by name."""
    spaces: defaultdict[str, list[Json]] = defaultdict(list)
    for row in rows:
        spaces[row.namespace] += [
            _policy_report_result(row, located, pods, moment)
            for located, pods in row.findings
            if located.finding.mode in MODE_RESULTS
        ]
    return [_namespace_report(name, results, api) for name, results in sorted(spaces.items()) if results]


def _namespace_report(namespace: str, results: list[Json], api: ReportApi) -> Json:
    ranked = sorted(results, key=lambda each: (each["result"], each["rule"], each["properties"]["workload"]))
    sizes = accumulate(len(orjson.dumps(each)) + 1 for each in ranked[:MAX_RESULTS])
    kept = ranked[: sum(size <= MAX_RESULT_BYTES for size in sizes)]
    omitted = len(ranked) - len(kept)
    counts = {word: sum(each["result"] == word for each in ranked) for word in ("fail", "warn")}
    report: Json = {
        "apiVersion": api.value,
        "kind": KINDS[api][0],
        "metadata": {
            "name": NAME,
            "namespace": namespace,
            "labels": OWNER_LABELS,
            "annotations": {f"{GROUP}/results-omitted": str(omitted)} if omitted else {},
        },
        "scope": {"apiVersion": "v1", "kind": "Namespace", "name": namespace},
        "summary": {"pass": 0, "fail": counts["fail"], "warn": counts["warn"], "error": 0, "skip": 0},
        "results": kept,
    }
    if api is ReportApi.OPENREPORTS:
        limits = {"maxResults": MAX_RESULTS, "statusFilter": ["fail", "warn", "error"]}
        report |= {"source": SOURCE, "configuration": {"limits": limits}}
    return report


def _policy_report_result(row: WorkloadReport, located: LocatedFinding, pods: int, moment: datetime) -> Json:
    finding = located.finding
    kind, _, name = row.name.partition("/")
    return {
        "source": SOURCE,
        "policy": finding.policy or SOURCE,
        "rule": finding.code,
        "category": CODES[finding.code].section or "cluster" if finding.code in CODES else "cluster",
        "severity": MODE_SEVERITIES[finding.mode],
        "result": MODE_RESULTS[finding.mode],
        "message": finding_sentence(finding)[:MAX_RESULT_TEXT],
        "resources": [{"kind": kind, "namespace": row.namespace, "name": name}],
        "scored": finding.mode is PolicyMode.ENFORCE,
        "timestamp": {"seconds": int(moment.timestamp()), "nanos": 0},
        "properties": {
            "resultID": _result_id(row, finding),
            "workload": sanitize(row.name),
            "pods": str(pods),
            "fix": sanitize(finding.fix)[:MAX_RESULT_TEXT],
        },
    }


def _result_id(row: WorkloadReport, finding: Finding) -> str:
    """Return an identifier that is the same in each audit that finds this for the workload."""
    mode = MODE_RESULTS[finding.mode]
    parts = (row.namespace, row.name, finding.policy, finding.code, mode, finding_sentence(finding))
    return blake2s("\0".join(parts).encode(), digest_size=16).hexdigest()
