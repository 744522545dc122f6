"""The scheduler's verdict on pods in a cluster, from a program around its own filters."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.builders import Json
from tests.controlplane.build import filters_program, wanted_version
from tests.controlplane.programs import KUBERNETES
from tests.filters.random_clusters import RandomCluster

TIMEOUT_SECONDS = 300
WHOLE_SCHEDULER = ""
"""All plugins together."""

CONFIGURATION = "KubeSchedulerConfiguration"
UNWATCHED = (CONFIGURATION, "ResourceQuota")
"""Kinds in a cluster that the scheduler does not watch."""

Rejections = dict[str, dict[str, dict[str, list[str]]]]
"""Reasons by pod, node and plugin; those of the whole scheduler by the plugin ""."""


class SchedulerAnswer(NamedTuple):
    """The scheduler's verdict on the pods of a cluster.

    Attributes:
        rejections: Why it rejects them.
        allocations: An error, a reason, or the devices of each claim, by pod and node.
    """

    rejections: Rejections
    allocations: dict[str, dict[str, Json]]


class SchedulerFilters(NamedTuple):
    """The program, which takes a cluster on each line."""

    program: Path

    def rejections(self, clusters: Iterable[RandomCluster]) -> Iterator[Rejections]:
        """Return why the scheduler rejects the pods of each cluster.

        Raises:
            AssertionError: The API server would not accept an object, or the program failed otherwise.
        """
        yield from (answer.rejections for answer in self.answers(clusters))

    def answers(self, clusters: Iterable[RandomCluster], plugins: Sequence[str] = ()) -> Iterator[SchedulerAnswer]:
        """Return why the scheduler rejects the pods of each cluster, and which devices it would allocate.

        Args:
            clusters: The clusters.
            plugins: The plugins to run, WHOLE_SCHEDULER among them; () for it and all that reject nodes.

        Raises:
            AssertionError: As `rejections`.
        """
        lines = [json.dumps(_world(each, plugins)) + "\n" for each in clusters]
        for answer in run_lines(self.program, lines):
            yield SchedulerAnswer(answer["pods"], answer.get("allocations", {}))


def run_lines(program: Path, lines: Sequence[str]) -> Iterator[Json]:
    """Yield a program's answer to each line of JSON.

    Raises:
        AssertionError: The program failed.
    """
    less_collecting = os.environ | {"GOGC": "400"}  # a fifth of the CPU would go to the garbage collector
    done = subprocess.run(
        [program],
        input="".join(lines),
        env=less_collecting,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    yield from map(json.loads, done.stdout.splitlines())


def _world(cluster: RandomCluster, plugins: Sequence[str]) -> Json:
    objects = [each for each in cluster.objects if each["kind"] not in UNWATCHED]
    configuration = next(iter(cluster.of_kind(CONFIGURATION)), None)
    given: Json = {"objects": objects, "probes": cluster.pods, "plugins": plugins}
    return given | ({"configuration": configuration} if configuration else {})


@pytest.fixture(scope="session")
def scheduler_filters() -> SchedulerFilters:
    """The program for the version of Kubernetes that is tested."""
    return SchedulerFilters(filters_program(wanted_version()))


@pytest.fixture(scope="session")
def device_scheduler() -> SchedulerFilters:
    """The program for the version whose allocation of devices we follow, whatever version is tested."""
    return SchedulerFilters(filters_program(KUBERNETES))
