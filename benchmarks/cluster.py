"""Pod creates on a real control plane with and without the webhook, in one run: `make bench-cluster`.

16 clients create pods that no scheduler binds, so the API server, etcd and the webhook are measured, all on the same
two cores as the clients. *Without* is a namespace that the webhooks exclude, while the server does not run (a running
one watches every pod). Rounds are interleaved, so that noise affects all sides. The ratio holds on any machine; where
other work runs on it, the CPU of the API server and the webhook per create says more than the clock.

There are two kinds of pods. For a pod that uses GPUs, the API server calls the webhook twice and gets a patch. For any
other pod, it only evaluates the match conditions. A cluster has both.

The same run measures the floor (`benchmarks.floor`): the cost of any two webhooks. For pods with GPUs that is a pair
whose server allows everything; for pods without, a pair whose condition is never true. No webhook can cost less.
Between the floor and the whole there are Rightslice's webhooks with that same server. At the end, pods without GPUs
that are padded with thousands of entries (`benchmarks.padded_pods`).

    python -m benchmarks.cluster [--creates N] [--rounds N]
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import NamedTuple

from benchmarks.floor import CONDITIONS, COPIED, EMPTY, floors
from benchmarks.padded_pods import report_padded_pods
from tests.builders import make_pod
from tests.cluster.client import Json
from tests.cluster.installation import Installation, install_from_page
from tests.cluster.nodes import add_nodes, demo_nodes
from tests.cluster.plane import Plane
from tests.cluster.pod_creation import CLIENTS, create_pods
from tests.cluster.polling import eventually
from tests.cluster.processes import Process
from tests.controlplane.build import control_plane, wanted_version

CORES = 2
RATE = 200
ADDED_P99_MS = 2.0
FEWER_PERCENT = 10.0
WITH, WITHOUT = "bench-with", "nvidia-device-plugin"
OPTED_IN = {"rightslice.dev/right-sizing": "enforced"}
GPUS, PLAIN = "with GPUs", "without GPUs"

PLACES: Mapping[str, Mapping[str, str]] = {
    GPUS: {
        "without": WITHOUT,
        "an empty pair": EMPTY,
        "our webhooks, an empty server": COPIED,
        "with us": WITH,
    },
    PLAIN: {"without": WITHOUT, "conditions alone": CONDITIONS, "with us": WITH},
}
"""Namespaces by the webhooks in front of them, for each kind of pods, each costlier than the previous one."""

STEPS = {
    "an empty pair": "any two webhooks",
    "conditions alone": "any two webhooks",
    "our webhooks, an empty server": "our conditions and the backstop",
}
"""Added cost of each namespace over the previous one; for pods with GPUs, the last one is our server and its patch."""


class Site(NamedTuple):
    """A control plane, the installation in it, and the server of the floor."""

    plane: Plane
    ours: Installation
    empty: Process

    @property
    def behind(self) -> tuple[Process, ...]:
        """Return the processes behind the active webhooks."""
        return tuple(process for process in (self.ours.replica, self.empty) if process.running)


class Round(NamedTuple):
    """One round in one namespace: creates per second, response milliseconds, CPU milliseconds per create."""

    per_second: float
    p50: float
    p99: float
    api_cpu: float
    hook_cpu: float


Rounds = dict[tuple[str, float | None, str], list[Round]]
"""Rounds by the kind of pods, the rate (None: as fast as the server accepts them) and the namespace."""


def main() -> int:
    """Measure and print; return 1 if a bound is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--creates", type=int, default=1000, choices=range(100, 20_001), metavar="N")
    parser.add_argument("--rounds", type=int, default=5, choices=range(1, 21), metavar="N")
    options = parser.parse_args()
    stay_on(CORES)
    with running() as site:
        describe(site.plane)
        failed = report(measure(site, options.creates, options.rounds))
        serve(site, wanted=True)
        return failed or int(bool(report_padded_pods(site.plane, WITHOUT, WITH)))


def stay_on(cores: int) -> None:
    """Run on this many cores, with all child processes."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


@contextmanager
def running() -> Iterator[Site]:
    """Yield a control plane with the nodes of the example cluster, the installation and the floor."""
    with tempfile.TemporaryDirectory(prefix="rightslice-bench-") as name:
        folder = Path(name, "plane")
        folder.mkdir()
        with Plane(control_plane(wanted_version()), folder) as plane:
            add_nodes(plane, demo_nodes())
            plane.add_namespace(WITH, OPTED_IN)
            plane.add_namespace(WITHOUT, OPTED_IN)
            with install_from_page(plane, Path(name), "--log-level=info") as ours, floors(plane, Path(name)) as empty:
                yield Site(plane, ours, empty)


def describe(plane: Plane) -> None:
    """Print the versions and the machine."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if sys.platform == "linux" else []
    processor = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
    version = plane.api.get("/version")["gitVersion"]
    program = [plane.etcd.command[0], "--version"]
    etcd = subprocess.run(program, capture_output=True, text=True, check=True).stdout.split("\n", 1)[0]
    print(f"Kubernetes {version}, {etcd}, Python {platform.python_version()}, {platform.platform()}")
    print(f"{processor}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores, {CLIENTS} clients on the same cores")


def measure(site: Site, creates: int, rounds: int) -> Rounds:
    """Run all rounds, interleaved, after a warm-up round."""
    found: Rounds = {}
    for turn in range(rounds + 1):
        for alone in (True, False)[:: 1 if turn % 2 else -1]:
            serve(site, not alone)
            for kind, rate, namespace in rounds_of(alone=alone)[:: 1 if turn % 2 else -1]:
                one = create(site, [pod(kind, namespace, index) for index in range(creates)], rate)
                if turn:
                    found.setdefault((kind, rate, namespace), []).append(one)
                empty(site.plane, namespace)
    return found


def rounds_of(*, alone: bool) -> list[tuple[str, float | None, str]]:
    """Yield kinds, rates and namespaces: those without the webhook, or all others."""
    return [
        (kind, rate, namespace)
        for kind, places in PLACES.items()
        for rate in (None, RATE)
        for namespace in places.values()
        if (namespace == WITHOUT) is alone
    ]


def serve(site: Site, wanted: bool) -> None:
    """Start or stop the server."""
    if wanted and not site.ours.replica.running:
        site.ours.replica.start()
        eventually(site.ours.webhooks_answer)
    if not wanted:
        site.ours.replica.kill()


def pod(kind: str, namespace: str, index: int) -> Json:
    """Return a pod for a scheduler that does not exist."""
    made = make_pod(f"bench-{index}").namespace(namespace).spec(schedulerName="nobody")
    return (made.requests("nvidia.com/mig-1g.10gb", "1") if kind == GPUS else made).build()


def create(site: Site, pods: Sequence[Json], rate: float | None) -> Round:
    """Create all pods; none may be rejected."""
    began, before, behind = perf_counter(), site.plane.apiserver.cpu_seconds, cpu_of(site.behind)
    answers = create_pods(site.plane, pods, rate=rate)
    seconds, made = perf_counter() - began, len(answers)
    api_cpu, hook_cpu = site.plane.apiserver.cpu_seconds - before, cpu_of(site.behind) - behind
    refused = [answer for answer in answers if not answer.created]
    if refused:
        raise SystemExit(f"{len(refused)} creates failed, the first: {refused[0].message}")
    cuts = quantiles([1000 * answer.seconds for answer in answers], n=100)
    return Round(made / seconds, cuts[49], cuts[98], 1000 * api_cpu / made, 1000 * hook_cpu / made)


def cpu_of(processes: Sequence[Process]) -> float:
    """Return the CPU seconds that processes have used together."""
    return sum(process.cpu_seconds for process in processes)


def empty(plane: Plane, namespace: str) -> None:
    """Delete all pods of a namespace."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    plane.api.delete(path, gracePeriodSeconds="0")
    eventually(lambda: not plane.api.get(path, limit="1")["items"])


def report(found: Rounds) -> int:
    """Print medians and the parts of the cost; return 1 if a bound is exceeded."""
    failed = 0
    for kind, places in PLACES.items():
        for rate in (None, RATE):
            print(f"\nPods {kind}, {'as fast as the server accepts them' if rate is None else f'{rate} creates/s'}:")
            rounds = {name: found[kind, rate, namespace] for name, namespace in places.items()}
            for name, each in rounds.items():
                print(f"  {name:26}  {line(each)}")
            failed += tell(rate, rounds)
    return int(bool(failed))


def line(rounds: Sequence[Round]) -> str:
    """Return the medians of rounds."""
    per_second, p50, p99, api_cpu, hook_cpu = (median(column) for column in zip(*rounds, strict=True))
    clock = f"{per_second:7.1f} creates/s   p50 {p50:6.2f} ms   p99 {p99:6.2f} ms"
    return f"{clock}   CPU per create: API server {api_cpu:.2f} ms, webhook {hook_cpu:.2f} ms"


def tell(rate: float | None, rounds: Mapping[str, Sequence[Round]]) -> bool:
    """Print the cost of any pair of webhooks and of Rightslice beyond it; return whether the bound is exceeded."""
    without = rounds["without"]
    costs = {name: cost_of(rate, without, each) for name, each in rounds.items()}
    cpu = {name: median(one.api_cpu + one.hook_cpu for one in each) for name, each in rounds.items()}
    what, unit, most = ("fewer creates/s", "%", FEWER_PERCENT) if rate is None else ("added p99", "ms", ADDED_P99_MS)
    aim = f"(the aim: at most {most:.0f} {unit})"
    print(f"  {what}: {costs['with us']:.1f} {unit} = {parts(costs, unit)} {aim}")
    print(f"  CPU per create: {cpu['with us']:.2f} ms = {cpu['without']:.2f} ms without + {parts(cpu, 'ms')}")
    return costs["with us"] > most


def parts(costs: Mapping[str, float], unit: str) -> str:
    """Yield the cost of each side beyond the previous one."""
    names = list(costs)
    last = "our server and its patch" if "our webhooks, an empty server" in costs else "our conditions and the backstop"
    beyond = {STEPS.get(name, last): costs[name] - costs[before] for before, name in pairwise(names)}
    return " + ".join(f"{cost:.2f} {unit} {component}" for component, cost in beyond.items())


def cost_of(rate: float | None, without: Sequence[Round], others: Sequence[Round]) -> float:
    """Return the cost of webhooks, round by round: percent of the creates per second, or milliseconds of the p99."""
    pairs = list(zip(without, others, strict=True))
    if rate is None:
        return 100 * (1 - median(other.per_second / one.per_second for one, other in pairs))
    return median(other.p99 - one.p99 for one, other in pairs)


if __name__ == "__main__":
    sys.exit(main())
