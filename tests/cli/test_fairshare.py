"""fairshare: from a cluster and a policy to the output."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.builders import Json, make_node, make_pod
from tests.cli.conftest import Run
from tests.policy.policy_texts import policy_text

NOW = "2026-06-08T00:00:00Z"
HALF_A_DAY_AGO, ENDED = "2026-06-07T12:00:00Z", "2026-06-07T18:00:00Z"


def running(namespace: str, gpus: int, **status: Any) -> Json:
    pod = make_pod(f"p{gpus}").namespace(namespace).gpus(gpus).label("queue", "nightly").spec(nodeName="n").build()
    return {**pod, "status": {"phase": "Running", "startTime": HALF_A_DAY_AGO, **status}}


NODE = make_node("n", {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, **{"nvidia.com/gpu": 8})
TERMINATED = [{"state": {"terminated": {"finishedAt": ENDED, "exitCode": 0}}}]
PODS = [
    running("vision", 2),
    running("nlp", 1),
    running("nlp", 4, phase="Succeeded", containerStatuses=TERMINATED),
    running("odd", 1, startTime="yesterday"),
]


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """A node with eight GPUs, held for twelve hours: two, one, and four for the first six of them."""
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [NODE, *PODS]}))
    return str(path)


def write_policy(folder: Path, name: str = "teams", **rule: Any) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(policy_text(name, fairShare={"halfLifeHours": 8760, **rule}))
    return str(path)


def test_allocated_time_is_compared_with_the_weights_of_the_policy(
    rightslice: Run, cluster: str, tmp_path: Path
) -> None:
    policy = write_policy(tmp_path, shares=[{"name": "vision", "weight": 3}])
    result = rightslice("fairshare", "--cluster", cluster, "--policies", policy, "--now", NOW, "-o", "json")
    shares = json.loads(result.out)

    assert result.code == 0
    assert (shares["policy"], shares["by"], shares["halfLifeHours"]) == ("teams", "namespace", 8760)
    nlp, vision = shares["groups"]
    assert [nlp["name"], nlp["allocatedTimeMilli"], nlp["entitledMilli"], nlp["excessMilli"]] == ["nlp", 600, 250, 350]
    assert [vision["name"], vision["allocatedTimeMilli"], vision["entitledMilli"], vision["excessMilli"]] == [
        *("vision", 400, 750, -350)
    ]
    assert [nlp["gpuMilliAllocated"], vision["gpuMilliAllocated"]] == [1000, 2000]
    assert 35_900 < nlp["gpuMilliHours"] <= 36_000


def test_an_unreadable_pod_is_named_and_not_counted(rightslice: Run, cluster: str) -> None:
    result = rightslice("fairshare", "--cluster", cluster, "--now", NOW)
    assert "note: pod odd/p1 is not counted: " in result.err
    assert "odd" not in result.out


def test_a_duplicate_pod_counts_once(rightslice: Run, cluster: str, tmp_path: Path) -> None:
    twice = tmp_path / "twice.json"
    twice.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [NODE, *PODS, PODS[0]]}))
    once, result = (rightslice("fairshare", "--cluster", name, "--now", NOW) for name in (cluster, str(twice)))

    assert result.out == once.out
    assert "note: 1 duplicate pod: the last copy of each is evaluated" in result.err


def test_the_table_starts_with_groups_over_their_share(rightslice: Run, cluster: str) -> None:
    message, head, first, second = rightslice("fairshare", "--cluster", cluster, "--now", NOW).out.splitlines()
    assert message == "No policy has fairShare: equal shares per namespace; half-life 168 h"
    assert [each.strip() for each in head.split("  ") if each] == [
        *("NAMESPACE", "GPU-HOURS", "ALLOCATED TIME", "SHARE", "OVER", "ALLOCATED")
    ]
    assert (first.split()[0], first.split()[3:]) == ("nlp", ["50.0%", "+9.8%", "1"])
    assert (second.split()[0], second.split()[3:]) == ("vision", ["50.0%", "-9.8%", "2"])


def test_a_queue_is_a_label_of_pods(rightslice: Run, cluster: str, tmp_path: Path) -> None:
    flags = ("--cluster", cluster, "--policies", write_policy(tmp_path, by="queue"), "--now", NOW)
    assert rightslice("fairshare", *flags).out.splitlines()[1].startswith("QUEUE ")
    (row,) = csv.DictReader(StringIO(rightslice("fairshare", *flags, "-o", "csv").out))
    assert (row["name"], row["allocated_time_milli"], row["excess_milli"], row["gpu_milli_allocated"]) == (
        "nightly",
        "1000",
        "0",
        "3000",
    )


def test_one_of_several_policies_is_chosen(rightslice: Run, cluster: str, tmp_path: Path) -> None:
    both = (
        "--policies",
        write_policy(tmp_path, "teams"),
        "--policies",
        write_policy(tmp_path, "guests", defaultWeight=2),
    )
    flags = ("fairshare", "--cluster", cluster, *both, "--now", NOW)
    unclear, chosen, unknown = (rightslice(*flags, *more) for more in ((), ("--policy", "guests"), ("--policy", "x")))
    assert (unclear.code, unclear.out) == (2, "")
    assert "several policies have a fairShare: guests, teams. Choose one with --policy NAME" in unclear.err
    assert chosen.out.startswith("Shares of policy guests, per namespace; ")
    assert (unknown.code, unknown.out) == (2, "")
    assert "no policy named 'x' has a fairShare. Policies with one: guests, teams" in unknown.err


CLUSTERS = {
    "a missing file": ({}, "none.yaml: cannot be read: No such file"),
    "invalid YAML": ({"c.yaml": "kind: [Pod\n"}, "c.yaml:"),
    "a broken file beside a good one": ({"a.json": json.dumps(PODS[0]), "b.yaml": "{"}, "b.yaml:"),
}


@pytest.mark.parametrize(("files", "message"), CLUSTERS.values(), ids=CLUSTERS)
def test_an_unreadable_cluster_is_an_error(
    rightslice: Run, files: dict[str, str], message: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    result = rightslice("fairshare", "--cluster", str(tmp_path if files else tmp_path / "none.yaml"), "--now", NOW)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_a_kubeconfig_for_a_snapshot_is_an_error(rightslice: Run, cluster: str) -> None:
    result = rightslice("fairshare", "--cluster", cluster, "--kubeconfig", "k")
    assert (result.code, result.out) == (2, "")
    assert "write --cluster live" in result.err


@pytest.mark.parametrize("now", ["2026-11-27T00:00:00Z", "2029-02-28T12:00:00Z"])
def test_the_demo_has_groups_above_and_below_their_share_at_any_time(rightslice: Run, now: str) -> None:
    result = rightslice("fairshare", "--cluster", "demo", "--now", now, "-o", "json")
    excess = {each["name"]: each["excessMilli"] for each in json.loads(result.out)["groups"]}
    assert excess["team-nlp"] > 100
    assert excess["ml-infra"] < -100
    assert "demo is an example cluster, not yours" in result.err


def test_only_the_demo_is_called_one(rightslice: Run, cluster: str) -> None:
    results = (rightslice(command, "--cluster", cluster) for command in ("fairshare", "capacity"))
    assert ["demo" in each.err for each in results] == [False, False]


@pytest.mark.parametrize(
    "command",
    ["capacity", "lint", "kueue config", "place cluster.yaml", "simulate -f cluster.yaml", "policy lint policies"],
)
def test_every_command_that_reads_the_demo_calls_it_one(rightslice: Run, command: str) -> None:
    result = rightslice(*command.split(), "--cluster", "demo")
    assert result.err.count("note: demo is an example cluster, not yours\n") == 1
