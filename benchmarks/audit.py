"""The audit at full size, and the HTML report over many workloads.

* `rightslice audit --cluster live` over 5,000 nodes and 150,000 pods, 30,000 of them with GPUs, each its own workload,
  from a synthetic API server: peak memory of that process for several formats.
* The HTML report over 5,000 workloads: its size, and the time to write it.

    python -m benchmarks.audit [FORMAT...]
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.live import Figure, apiserver
from tests.report.audit_samples import DENIED, NODES, NOTED, PRICES, audited_pod
from webhook.cache.bundled_files import bundled_folder
from webhook.report.audit import AuditPage, admission_savings, totals_by_namespace
from webhook.report.html import html_report_pieces
from webhook.report.results import UnevaluatedReason
from webhook.report.utilization import compute_utilization
from webhook.report.workloads import workload_reports

FORMATS = ("table", "json", "csv", "html")
WORKLOADS, NAMESPACES, REPLICAS = 5_000, 250, 3
MOST_RESIDENT, MOST_SIZE, MOST_SECONDS = 512.0, 3.0, 5.0
"""MiB, MB, seconds."""


def main() -> int:
    """Measure and print; return 1 if a bound is exceeded."""
    figures = of_html()
    with apiserver() as site, TemporaryDirectory() as folder:
        for form in sys.argv[1:] or FORMATS:
            figures.append(of_audit(site.kubeconfig, form, Path(folder) / form))
    for figure in figures:
        print(figure)
    return int(any(figure.value > figure.most for figure in figures))


def of_audit(kubeconfig: Path, form: str, out: Path) -> Figure:
    """Run the audit in its own process."""
    command = [sys.executable, "-m", "webhook.cli", "audit", "--cluster", "live", "--kubeconfig", str(kubeconfig)]
    command += ["--policies", str(bundled_folder("policies")), "--fail-on", "never", "-o", f"{form}={out}"]
    start = time.monotonic()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    _, code, used = os.wait4(process.pid, 0)
    assert code == 0
    print(
        f"audit -o {form}: {time.monotonic() - start:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of CPU, "
        f"{out.stat().st_size / 1e6:.1f} MB",
        flush=True,
    )
    return Figure(f"peak of audit -o {form}, 150,000 pods", used.ru_maxrss / 1024, MOST_RESIDENT, "MiB")


def of_html() -> list[Figure]:
    """Write the report on workloads that each have findings, usage, cost and unevaluated pods."""
    results = [
        audited_pod(
            f"w{i}-{j}",
            workload=f"Deployment/inference-server-{i:05}",
            namespace=f"team-{i % NAMESPACES}",
            after=143 if i % 3 else None,
            compute=60,
            unevaluated=UnevaluatedReason.UNRECORDED,
            findings=[NOTED, DENIED] if i % 2 else [NOTED],
        )
        for i in range(WORKLOADS)
        for j in range(REPLICAS)
    ]
    spent, text = [], ""
    for _ in range(3):
        start = time.process_time()
        rows = workload_reports(results, PRICES)
        figures = compute_utilization(NODES, rows, PRICES)
        pieces = html_report_pieces(
            AuditPage(
                "c",
                "m",
                "",
                (),
                "0" * 12,
                tuple(rows),
                tuple(totals_by_namespace(results)),
                NODES,
                figures,
                None,
                admission_savings(results),
                (),
                "0.1.0",
            )
        )
        text = "".join(pieces)
        spent.append(time.process_time() - start)
    return [
        Figure(f"HTML over {WORKLOADS} workloads", len(text.encode()) / 1e6, MOST_SIZE, "MB"),
        Figure("the same, CPU", min(spent), MOST_SECONDS, "s"),
    ]


if __name__ == "__main__":
    sys.exit(main())
