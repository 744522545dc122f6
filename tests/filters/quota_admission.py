"""The verdict of quotas on new claims and pods, from a program around the API server's own quota admission."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.builders import Json
from tests.controlplane.build import quotas_program
from tests.controlplane.programs import KUBERNETES
from tests.filters.random_clusters import RandomCluster
from tests.filters.scheduler import run_lines

FORBIDDEN = " is forbidden: "


class QuotaAnswer(NamedTuple):
    """The verdict on objects that are created one after the other.

    Attributes:
        messages: Why each is rejected; "" if it is admitted.
        used: What each quota has counted then, by quota and key.
    """

    messages: tuple[str, ...]
    used: Mapping[str, Mapping[str, str]]

    @property
    def admits_all(self) -> bool:
        """Return whether all objects are admitted."""
        return not any(self.messages)


class CreatedObjects(NamedTuple):
    """Objects to create in a cluster.

    Attributes:
        cluster: The cluster with its quotas and device classes.
        creates: Claims and pods by a name; those of a name are created one after the other.
    """

    cluster: RandomCluster
    creates: Mapping[str, Sequence[Json]]


class QuotaAdmission(NamedTuple):
    """The program, which takes a cluster on each line."""

    program: Path

    def answers(self, created: Iterable[CreatedObjects]) -> Iterator[Mapping[str, QuotaAnswer]]:
        """Return the verdict on the objects of each cluster, by name.

        Raises:
            AssertionError: The program failed.
        """
        lines = [json.dumps({"objects": _known(each.cluster), "creates": each.creates}) + "\n" for each in created]
        for answer in run_lines(self.program, lines):
            yield {name: _answer(one) for name, one in answer.items()}


def _known(cluster: RandomCluster) -> list[Json]:
    """Return what quota admission knows, in the order of the API server's first list."""
    known = [each for each in cluster.objects if each["kind"] in ("ResourceQuota", "DeviceClass")]
    return sorted(known, key=lambda each: str(each["metadata"]["name"]))


def _answer(found: Json) -> QuotaAnswer:
    messages = (each.partition(FORBIDDEN)[2] or each for each in found["messages"] or ())
    return QuotaAnswer(tuple(messages), found["used"])


@pytest.fixture(scope="session")
def quota_admission() -> QuotaAdmission:
    """The program for the version whose allocation of devices we follow, whatever version is tested."""
    return QuotaAdmission(quotas_program(KUBERNETES))
