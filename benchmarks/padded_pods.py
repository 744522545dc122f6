"""CPU of the API server for padded pods: pods without GPUs that have thousands of entries in one list.

Everyone who may create pods may pad one, and the match conditions iterate over its lists. Creates are dry runs, because
etcd stores no object above 1.5 MiB; with the webhooks the largest are rejected. `benchmarks.cluster` runs this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count

from tests.builders import PodMaker, make_pod
from tests.cluster.client import Json, RefusedError
from tests.cluster.plane import Plane

ROUNDS, SECONDS = 3, 0.5
"""Creates are repeated until the API server used so much CPU, because its clock ticks every 10 ms."""
MAX_RATIO = 2.0


def variables(amount: int) -> list[Json]:
    """Return environment variables."""
    return [{"name": f"V{index}", "value": "x"} for index in range(amount)]


def annotated(amount: int) -> PodMaker:
    """Return a pod with annotations."""
    maker = make_pod()
    for index in range(amount):
        maker.annotate(f"a{index}", "x")
    return maker


SHAPES: Mapping[str, Callable[[], PodMaker]] = {
    "40,000 variables": lambda: make_pod().container("more", image="i", env=variables(40_000)),
    "1,000 variables": lambda: make_pod().container("more", image="i", env=variables(1_000)),
    "20,000 volumes": lambda: make_pod().spec(
        volumes=[{"name": f"v{index}", "emptyDir": {}} for index in range(20_000)]
    ),
    "20,000 annotations": lambda: annotated(20_000),
    "150 containers with 60 variables": lambda: make_pod().spec(
        containers=[{"name": f"c{index}", "image": "i", "env": variables(60)} for index in range(150)]
    ),
}
NUMBERS = count()


def report_padded_pods(plane: Plane, without: str, with_us: str) -> int:
    """Print the CPU of each shape in both namespaces; return how many shapes exceed the bound."""
    print("\nPadded pods without GPUs, CPU of the API server per dry run:")
    exceeded = 0
    for name, make in SHAPES.items():
        rounds = [(cpu_ms(plane, make(), without), cpu_ms(plane, make(), with_us)) for _ in range(ROUNDS)]
        least, ours = (min(column) for column in zip(*rounds, strict=True))
        ratio = ours / least
        exceeded += ratio > MAX_RATIO
        print(f"  {name:32}  without {least:7.1f} ms, with us {ours:7.1f} ms, ratio {ratio:.2f} (at most {MAX_RATIO})")
    return exceeded


def cpu_ms(plane: Plane, maker: PodMaker, namespace: str) -> float:
    """Return the milliseconds of CPU that the API server uses for one create."""
    pod, before, creates = maker.namespace(namespace).build(), plane.apiserver.cpu_seconds, 0
    while plane.apiserver.cpu_seconds - before < SECONDS:
        creates += 1
        pod["metadata"]["name"] = f"padded-{next(NUMBERS)}"
        with suppress(RefusedError):
            plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")
    return 1000 * (plane.apiserver.cpu_seconds - before) / creates
