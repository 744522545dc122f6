"""`decide` over real manifests: microseconds per review, relative to `json.loads` of the same review in the same run.

The cluster is that of the demo, grown to 100 nodes; the policies are the whole shipped library. Each pod of the
corpus, and each pod of its workloads, is sent as an API server sends it, in a namespace that right-sizes
(`tests/cluster/test_admission_reviews.py` compares the form with a real one). Workloads are evaluated too, template by
template. They are printed separately and together with the pods, because they are created once and their pods often.

Bounds for pods: median at most 60 µs and at most twice `json.loads`, 99th percentile at most 300 µs. Pods with
affinity, anti-affinity or spread are evaluated separately, on 5,000 nodes with 100,000 pods of 500 applications: median
at most 150 µs, 99th percentile at most 500 µs. So are pods with resource claims, in a cluster with 160 H100s that are
published with all their possible MIG devices: median at most 120 µs. A decision about the example pod calls at most 60
functions. The garbage collector is configured as in the server.

Usage: python -m benchmarks.decide
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
from types import FrameType
from typing import NamedTuple

import webhook
from benchmarks.api_objects import Json, as_applied, as_stored, review_bytes
from benchmarks.controller_pods import with_owner_reference
from benchmarks.fleet import demo_objects, grow, grown_view
from tests.builders import make_node, make_pod
from tests.device_builders import NVIDIA, device_class, partitionable_gpus
from webhook.cache.bundled_files import bundled_folder
from webhook.cache.snapshot import view_of_objects
from webhook.documents.reader import read_documents
from webhook.engine.decide import decide
from webhook.engine.templates import PodTemplate, read_templates
from webhook.errors import DocumentError, SourceLocation
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.pods import parse_pod
from webhook.model.usage import UsageView
from webhook.policy.loader import load_policies
from webhook.policy.policy_set import PolicySet
from webhook.web.listener import freeze_and_tune_gc

NOW = datetime(2026, 6, 1, tzinfo=UTC)
NAMESPACE = "team-vision"
ROUNDS = 60
MAX_P50, MAX_P99, MAX_RATIO = 60.0, 300.0, 2.0
MAX_TIED_P50, MAX_TIED_P99 = 150.0, 500.0
MAX_CLAIMING_P50 = 120.0
MAX_FUNCTIONS = 60
EXAMPLE = "benchmark"
"""A pod of `examples/pods` whose decision is followed through the functions that it calls."""
DEVICE_NODES, CARDS_PER_NODE = 20, 8
MIG, GPU = "mig.nvidia.com", "gpu.nvidia.com"
TIED_NODES, APPLICATIONS, PODS_ON_NODE = 5_000, 500, 20
TEMPLATE_FIELD = "resourceClaimTemplateName"
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def manifests(folder: Path) -> list[Json]:
    """Yield every object of the manifests in a folder that can be read."""
    found: list[Json] = []
    for file in sorted(folder.glob("*.yaml")):
        try:
            documents = read_documents(file.read_bytes(), file.name, aliases=True)
        except DocumentError as error:
            print(f"skipped: {error}", file=sys.stderr)
            continue
        found += [document.data for document in documents if isinstance(document.data, dict)]
    return found


def request_of(data: Json) -> AdmissionRequest:
    """Return a request as the server decodes it from a review."""
    group, _, _ = data.get("apiVersion", "").rpartition("/")
    kind = data.get("kind", "")
    return AdmissionRequest(
        operation="CREATE",
        group=group,
        kind=kind,
        namespace=NAMESPACE,
        name=data.get("metadata", {}).get("name", ""),
        pod=parse_pod(data) if kind == "Pod" else None,
        load_object=lambda: data,
    )


def pods_of(data: Json, policies: PolicySet) -> list[Json]:
    """Yield the pods of an object: itself, or one for each of its templates."""
    if data.get("kind") == "Pod":
        return [as_stored(data, NAMESPACE)]
    return [as_stored(with_owner_reference(dict(one.data), data), NAMESPACE) for one in templates_of(data, policies)]


def templates_of(data: Json, policies: PolicySet) -> list[PodTemplate]:
    """Yield the readable pod templates of a workload."""
    request = request_of(data)
    return [one for one in read_templates(request, policies.workload_kinds) if not one.error]


def applied(data: Json, policies: PolicySet) -> Json:
    """Return a workload as the webhook receives it; kinds that Kubernetes does not know have no defaults."""
    known = request_of(data).group in ("apps", "batch")
    return as_applied(data, [one.spec_path for one in templates_of(data, policies)] if known else ())


def microseconds(work: Callable[[], object]) -> list[float]:
    """Return the duration of each call."""
    clock = time.perf_counter_ns
    spent: list[float] = []
    for _ in range(ROUNDS):
        start = clock()
        work()
        spent.append((clock() - start) / 1000)
    return spent


class Measure(NamedTuple):
    """Microseconds of each call: `decide`, and `json.loads` of the same review."""

    ours: list[float]
    theirs: list[float]

    @property
    def p50(self) -> float:
        """Return the median of `decide`."""
        return statistics.median(self.ours)

    @property
    def p99(self) -> float:
        """Return the 99th percentile of `decide`."""
        return statistics.quantiles(self.ours, n=100)[98]

    @property
    def baseline(self) -> float:
        """Return the median of `json.loads`."""
        return statistics.median(self.theirs)

    @property
    def held(self) -> bool:
        """Return whether it is within the bounds."""
        return self.p50 <= MAX_P50 and self.p99 <= MAX_P99 and self.p50 <= MAX_RATIO * self.baseline


def measure(objects: list[Json], policies: PolicySet, view: ClusterView) -> Measure:
    """Time `decide` on every object, alternating with `json.loads` of its review."""
    usage = UsageView()
    ours: list[float] = []
    theirs: list[float] = []
    for data in objects:
        request, text = request_of(data), review_bytes(data)

        def judge(request: AdmissionRequest = request) -> object:
            return decide(request, policies, view, usage, NOW)

        def parse(text: bytes = text) -> object:
            return json.loads(text)

        ours += microseconds(judge)
        theirs += microseconds(parse)
    return Measure(ours, theirs)


def tied_pods() -> list[Json]:
    """Return pods that are tied to others of their application, in each way and in several."""
    own = {"labelSelector": {"matchLabels": {"app": "app-7"}}}
    spread = [{"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **own} for key in (ZONE, HOST)]
    apart, near = ({"topologyKey": HOST, **own},), ({"topologyKey": ZONE, **own},)
    specs: list[Json] = [
        {"affinity": {"podAntiAffinity": {REQUIRED: apart}}},
        {"affinity": {"podAffinity": {REQUIRED: near}}},
        {"topologySpreadConstraints": spread[:1]},
        {"topologySpreadConstraints": spread},
        {"affinity": {"podAffinity": {REQUIRED: near}, "podAntiAffinity": {REQUIRED: apart}}},
        {"affinity": {"podAntiAffinity": {REQUIRED: apart}}, "topologySpreadConstraints": spread},
    ]
    limits = {"nvidia.com/gpu": "1"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "tied",
                "namespace": NAMESPACE,
                "labels": {"app": "app-7"},
                "annotations": {"rightslice.dev/gpu-memory": "8Gi"},
            },
            "spec": {"containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}], **spec},
        }
        for spec in specs
    ]


def crowded_view() -> ClusterView:
    """Return the demo cluster with 5,000 nodes in three zones, and pods of many applications on all of them."""
    objects = grow(demo_objects(), TIED_NODES)
    nodes = [item for item in objects if item["kind"] == "Node"]
    for index, node in enumerate(nodes):
        node["metadata"]["labels"] |= {ZONE: f"zone-{index % 3}", HOST: node["metadata"]["name"]}
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"p-{index}-{number}",
                "namespace": NAMESPACE,
                "labels": {"app": f"app-{(index * PODS_ON_NODE + number) % APPLICATIONS}", "tier": "web"},
            },
            "spec": {"nodeName": node["metadata"]["name"], "containers": [{"name": "main", "image": "i"}]},
        }
        for index, node in enumerate(nodes)
        for number in range(PODS_ON_NODE)
    ]
    return view_of_objects((item, SourceLocation("crowded")) for item in (*objects, *pods))


def claim_templates() -> dict[str, Json]:
    """Return the requests of claims that users write: for a type, for memory, for a profile, and a choice of both."""
    memory = f"device.capacity['{NVIDIA}'].memory.compareTo(quantity('10Gi')) >= 0"
    profile = f"'profile' in device.attributes['{NVIDIA}'] && device.attributes['{NVIDIA}'].profile == '1g.10gb'"
    requests: dict[str, Json] = {
        "whole": {"exactly": {"deviceClassName": GPU, "count": 2}},
        "memory": {"exactly": {"deviceClassName": MIG, "selectors": [{"cel": {"expression": memory}}]}},
        "profile": {"exactly": {"deviceClassName": MIG, "selectors": [{"cel": {"expression": profile}}]}},
    }
    choices = [{"name": f"s{i}", **requests[name]["exactly"]} for i, name in enumerate(("profile", "whole"))]
    return {name: {"name": "gpu", **each} for name, each in {**requests, "choice": {"firstAvailable": choices}}.items()}


def claiming_pods() -> list[Json]:
    """Return pods with a claim from each template."""
    pods = []
    for name in claim_templates():
        pod = make_pod(name).namespace(NAMESPACE).spec(resourceClaims=[{"name": "gpu", TEMPLATE_FIELD: name}])
        pod.main["resources"] = {"claims": [{"name": "gpu"}]}
        pods.append(pod.build())
    return pods


def view_with_devices() -> ClusterView:
    """Return the demo cluster with further nodes whose cards can be partitioned, device classes and claim templates."""
    names = [f"published-{index}" for index in range(DEVICE_NODES)]
    slices = [each for name in names for each in partitionable_gpus(name, CARDS_PER_NODE)]
    classes = [
        device_class(name, f"device.driver == '{NVIDIA}' && device.attributes['{NVIDIA}'].type == '{kind}'")
        for name, kind in ((GPU, "gpu"), (MIG, "mig"))
    ]
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    templates = [
        {
            **about,
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"spec": {"devices": {"requests": [each]}}},
        }
        for name, each in claim_templates().items()
    ]
    objects = [*grow(demo_objects()), *map(make_node, names), *slices, *classes, *templates]
    return view_of_objects((item, SourceLocation("published")) for item in objects)


def functions_of_decision(pod: Json, policies: PolicySet, view: ClusterView) -> set[tuple[str, str]]:
    """Return file and name of the functions that a decision calls, once what they derive from the cluster is known.

    Comprehensions and lambdas have no name.
    """
    usage, folder, found = UsageView(), f"{Path(webhook.__file__).parent}{os.sep}", set[tuple[str, str]]()
    decide(request_of(pod), policies, view, usage, NOW)

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(folder) and not code.co_name.startswith("<"):
            found.add((code.co_filename.removeprefix(folder), code.co_qualname))

    request = request_of(pod)
    sys.setprofile(note)
    try:
        decide(request, policies, view, usage, NOW)
    finally:
        sys.setprofile(None)
    return found - {("engine/decide.py", "decide")}


def main() -> int:
    """Print the figures; return 1 if a bound is exceeded."""
    corpus = Path(os.environ.get("RIGHTSLICE_SHARED", "../shared")) / "corpus" / "manifests"
    files = sorted(bundled_folder("policies").glob("*.yaml"))
    policies = load_policies((file.name, file.read_text(encoding="utf-8")) for file in files).policies
    assert policies is not None
    view = grown_view()
    objects = manifests(corpus) if corpus.is_dir() else manifests(bundled_folder("examples") / "pods")
    pods = [pod for data in objects for pod in pods_of(data, policies)]
    freeze_and_tune_gc()

    print(f"{len(files)} policies, {len(view.fleet.nodes)} nodes, {ROUNDS} rounds of each object")
    of_pods = measure(pods, policies, view)
    _print(f"{len(pods)} pods", of_pods)
    workloads = [applied(data, policies) for data in objects if data.get("kind") != "Pod"]
    of_workloads = measure(workloads, policies, view)
    _print(f"{len(workloads)} workloads", of_workloads)
    _print("together", Measure(of_pods.ours + of_workloads.ours, of_pods.theirs + of_workloads.theirs))
    of_tied = measure([as_stored(pod, NAMESPACE) for pod in tied_pods()], policies, crowded_view())
    _print("tied pods", of_tied)
    of_claiming = measure([as_stored(pod, NAMESPACE) for pod in claiming_pods()], policies, view_with_devices())
    _print("with a claim", of_claiming)
    example = next(pod for pod in manifests(bundled_folder("examples") / "pods") if pod["metadata"]["name"] == EXAMPLE)
    called = functions_of_decision(as_stored(example, NAMESPACE), policies, view)
    called_files = {file for file, _ in called}
    print(f"a decision about the example pod {EXAMPLE} calls {len(called)} functions in {len(called_files)} files")
    is_quick = of_tied.p50 <= MAX_TIED_P50 and of_tied.p99 <= MAX_TIED_P99 and of_claiming.p50 <= MAX_CLAIMING_P50
    return 0 if of_pods.held and is_quick and len(called) <= MAX_FUNCTIONS else 1


def _print(name: str, found: Measure) -> None:
    ratio = found.p50 / found.baseline
    print(
        f"{name:14} decide p50 {found.p50:6.1f} µs  p99 {found.p99:6.1f} µs   "
        f"json.loads p50 {found.baseline:6.1f} µs   ratio {ratio:.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
