"""`decide` over real manifests: microseconds a review, beside `json.loads` of the same review in the same run.

The cluster is the demo's, grown to 100 nodes; the policies are the whole shipped library. Each review is a pod,
or a pod of a workload's template, as the API server would send it. Usage: python -m benchmarks.decide
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.fleet import grown_view
from webhook.cache.shipped import shipped
from webhook.documents.reading import read
from webhook.engine.decide import decide
from webhook.engine.templates import templates
from webhook.errors import DocumentError
from webhook.model.pods import pod_of
from webhook.model.requests import Request
from webhook.model.usage import UsageView
from webhook.policy.loading import load

NOW = datetime(2026, 6, 1, tzinfo=UTC)
ROUNDS = 40


Json = dict[str, Any]


def manifests(folder: Path) -> list[Json]:
    """Every object of the manifests in a folder, the ones that cannot be read left out."""
    found: list[Json] = []
    for file in sorted(folder.glob("*.yaml")):
        try:
            found += [
                doc.data for doc in read(file.read_bytes(), file.name, aliases=True) if isinstance(doc.data, dict)
            ]
        except DocumentError as error:
            print(f"skipped: {error}", file=sys.stderr)
    return found


def request_of(data: Json) -> Request:
    """A request as the server reads it from a review: decoded once, nothing judged yet."""
    group, _, _ = data.get("apiVersion", "").rpartition("/")
    metadata = data.setdefault("metadata", {})
    pod = pod_of(data) if data.get("kind") == "Pod" else None
    return Request(
        operation="CREATE",
        group=group,
        kind=data.get("kind", ""),
        namespace=metadata.get("namespace") or "team-vision",
        name=metadata.get("name", ""),
        pod=pod,
        load=lambda: data,
    )


def pods_of(requests: list[Request], paths: Any) -> list[Request]:
    """The pods that come of workloads, as their controllers will send them."""
    import msgspec

    found = []
    for request in requests:
        if request.pod is not None:
            found.append(request)
            continue
        for template in templates(request, paths.get((request.group, request.kind), ())):
            if not template.error:
                found.append(msgspec.structs.replace(request, kind="Pod", group="", pod=template.pod))
    return found


def nanoseconds(work: Callable[[], object]) -> list[int]:
    """Each of so many calls."""
    clock = time.perf_counter_ns
    spent = []
    for _ in range(ROUNDS):
        start = clock()
        work()
        spent.append(clock() - start)
    return spent


def measure(name: str, requests: list[Request], texts: list[bytes], policies: Any, view: Any) -> None:
    usage = UsageView()
    ours: list[int] = []
    theirs: list[int] = []
    for request, text in zip(requests, texts, strict=True):
        ours += nanoseconds(lambda request=request: decide(request, policies, view, usage, NOW))
        theirs += nanoseconds(lambda text=text: json.loads(text))
    p50, p99 = statistics.median(ours) / 1000, statistics.quantiles(ours, n=100)[98] / 1000
    base = statistics.median(theirs) / 1000
    print(
        f"{name:28} {len(requests):4} objects  p50 {p50:6.1f} µs  p99 {p99:6.1f} µs  json.loads p50 {base:6.1f} µs  ratio {p50 / base:4.2f}"
    )


def main() -> None:
    shared = Path(os.environ.get("RIGHTSLICE_SHARED", "../shared"))
    view = grown_view()
    files = sorted(shipped("policies").glob("*.yaml"))
    policies = load((f.name, f.read_text()) for f in files).policies
    assert policies is not None
    objects = manifests(shared / "corpus" / "manifests")
    requests = [request_of(o) for o in objects]
    texts = [json.dumps(o).encode() for o in objects]
    measure("as written", requests, texts, policies, view)
    pods = pods_of(requests, policies.templates)
    import msgspec

    texts = [msgspec.json.encode(p.pod) for p in pods]
    measure("pods", pods, texts, policies, view)


if __name__ == "__main__":
    main()
