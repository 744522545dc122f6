"""audit, rightsize and policy diff: reports, files, and messages for invalid input."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path

import pytest

from tests.browser.driver import BrowserProcess
from tests.builders import make_node, make_pod
from tests.cli.conftest import FILES, INPUTS, JUNE, Run
from tests.conftest import ROOT
from tests.device_builders import partitionable_gpus
from tests.engine.test_claim_review import CLASSES, claim, request, template

HERE = ("audit", "cluster.yaml", "--policies", "policies")


def test_the_html_report_of_the_demo_opens_in_a_browser(
    browser: BrowserProcess, rightslice: Run, tmp_path: Path
) -> None:
    result = rightslice("audit", "--cluster", "demo", "-o", f"html={tmp_path / 'a.html'}", "-o", "table")
    assert result.out.startswith("Total GPUs ")
    text = (tmp_path / "a.html").read_text()
    title, rows = browser.evaluate(
        text, "return [document.title, document.querySelectorAll('#workloads tbody tr').length]"
    )
    assert title == "GPU audit of demo (example cluster, not yours)"
    assert rows == 23
    assert "example prices, not yours" in text


@pytest.mark.parametrize("now", ["2026-11-27T00:00:00Z", "2029-02-28T12:00:00Z"])
def test_the_demo_has_idle_oversized_queued_and_well_sized_workloads_at_any_time(rightslice: Run, now: str) -> None:
    result = rightslice("audit", "--cluster", "demo", "--now", now, "-o", "json")
    assert "demo is an example cluster with three weeks of example usage, not yours" in result.err
    audit = json.loads(result.out)
    workloads = {f"{each['namespace']}/{each['workload']}": each for each in audit["workloads"]}
    assert workloads["search/StatefulSet/playground"]["idle"]["milli"] == 1000
    assert workloads["search/Deployment/ranker"]["gpuMilliAuditSaved"] > 1000
    assert workloads["ml-infra/Deployment/embedder"]["gpuMilliSaved"] > 700
    assert workloads["search/Deployment/summarizer"]["gpuMilliAfter"] == 1000
    assert audit["utilization"]["utilizationMilli"] > 0
    assert {"NotAdmittedByQueue", "AuditMode"} <= {each["reason"] for each in audit["reach"]["kept"]}
    assert audit["summary"]["denied"] == 0


def test_since_excludes_older_pods(rightslice: Run, tmp_path: Path) -> None:
    text = (FILES / "cluster.yaml").read_text()
    aged = text.replace(
        "name: render, namespace: batch", 'name: render, namespace: batch, creationTimestamp: "2026-05-01T00:00:00Z"'
    )
    (tmp_path / "c.yaml").write_text(aged)
    audit = ("audit", str(tmp_path / "c.yaml"), "--policies", "policies", "--now", JUNE, "-o", "json")

    def names(*flags: str) -> set[str]:
        return {each["name"] for each in json.loads(rightslice(*audit, *flags).out)["objects"]}

    assert names() == names("--since", "32d") == names("--since", "2026-04-30T00:00:00Z") == {"notebook", "render"}
    assert names("--since", "30d") == names("--since", "720h") == {"notebook"}
    assert json.loads(rightslice(*audit).out)["utilization"]
    assert not json.loads(rightslice(*audit, "--since", "30d").out).get("utilization")
    assert "note: 1 pod without metadata.creationTimestamp: --since" in rightslice(*audit, "--since", "30d").err
    assert "note:" not in rightslice(*audit).err


def with_a_claim_that_waits(folder: Path) -> str:
    """Return the name of a snapshot with a claim that no device matches, and no pod."""
    found = [make_node("h100", {}), *partitionable_gpus("h100"), *CLASSES, *CLAIMS_THAT_WAIT]
    (folder / "devices.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": found}))
    return str(folder / "devices.json")


CLAIMS_THAT_WAIT = [claim(request("device.driver == 'other'")), template(request())]


def test_audit_and_lint_review_claims_that_wait(rightslice: Run, tmp_path: Path) -> None:
    cluster = with_a_claim_that_waits(tmp_path)
    audit = rightslice("audit", "--cluster", cluster)
    assert "resourceclaim/team/c  warn  GPU-D101  ResourceClaim team/c\n" in audit.out
    assert "0 pods: GPUs requested 0" in audit.out
    assert rightslice("audit", "--cluster", cluster, "--fail-on", "warn").code == 1
    [found] = json.loads(rightslice("audit", "--cluster", cluster, "-o", "json").out)["claims"]
    assert (found["name"], [each["code"] for each in found["findings"]]) == ("c", ["GPU-D101"])
    assert json.loads(rightslice("audit", "--cluster", cluster, "--since", "1d", "-o", "json").out)["claims"] == []

    linted = rightslice("lint", "--cluster", cluster)
    assert linted.code == 1
    assert linted.out.startswith("resourceclaim/team/c: ResourceClaim c\n  GPU-D101 spec.devices.requests[0]")
    assert "1 object: 1 finding" in linted.err
    assert rightslice("lint", "--cluster", cluster, "-n", "other").code == 2
    assert rightslice("lint", "--cluster", cluster, "-o", "yaml").out == ""

    notes = rightslice("policy", "lint", "policies", "--cluster", cluster).err
    assert "note: ResourceClaim team/c: [GPU-D101] spec.devices.requests[0]" in notes


def test_a_snapshot_without_published_devices_is_linted(rightslice: Run, tmp_path: Path) -> None:
    cluster = tmp_path / "node.yaml"
    cluster.write_text("{apiVersion: v1, kind: Node, metadata: {name: node}}", encoding="utf-8")

    assert rightslice("policy", "lint", "policies", "--cluster", str(cluster)).code == 0
    assert rightslice("lint", "--cluster", str(cluster)).code == 0


def test_lint_names_gpus_of_a_snapshot_that_are_published_twice(rightslice: Run, tmp_path: Path) -> None:
    found = [make_node("h100", {}, **{"nvidia.com/gpu": 8}), *partitionable_gpus("h100")]
    (tmp_path / "devices.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": found}))
    linted = rightslice("lint", "--cluster", str(tmp_path / "devices.json"))
    assert "GPUs of 1 node are published twice, by the device plugin and by gpu.nvidia.com" in linted.err
    assert linted.code == 0


def test_partial_reports_are_not_stored(rightslice: Run) -> None:
    result = rightslice("audit", "--cluster", "live", "--write", "--since", "1d")
    assert (result.code, result.out) == (2, "")
    assert "would replace those for all. Leave out --since" in result.err


BAD_INPUT = {
    "an invalid age": (("--since", "last week"), "--since: must be a time with its zone, or an age, found 'last"),
    "an age before the year 1": (
        ("--since", "99999d", "--now", "0100-01-01T00:00:00Z"),
        "--since: must be after the year",
    ),
    "a time without a zone": (("--since", "2026-06-01"), "--since: must be a time with its zone"),
    "--write for a snapshot": (("--write",), "--write: stores reports in the audited cluster"),
    "--dry-run without --write": (("--dry-run",), "--dry-run: needs --write"),
    "a missing price table": (("--prices", "nowhere.yaml"), "nowhere.yaml: cannot be read: No such file"),
    "a policy as a price table": (
        ("--prices", "policies/research.yaml"),
        "error: --prices policies/research.yaml:2:7: kind: must be a kind of rightslice.dev: GPUPriceList",
    ),
    "two reports into one file": (("-o", "html=./x", "-o", "csv=x"), "-o: each report needs its own file"),
    "an unknown format": (("-o", "pdf"), "-o: must be one of table, wide, json"),
}


@pytest.mark.parametrize(("flags", "message"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_invalid_input_has_a_message(rightslice: Run, flags: tuple[str, ...], message: str) -> None:
    result = rightslice(*HERE, *flags)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_a_product_without_a_price_is_named(rightslice: Run, tmp_path: Path) -> None:
    example = (ROOT / "examples" / "prices" / "example.yaml").read_text()
    (tmp_path / "p.yaml").write_text("".join(line for line in example.splitlines(True) if "A100-SXM4-80GB" not in line))
    result = rightslice(*HERE, "--prices", str(tmp_path / "p.yaml"))
    assert "prices: no price for NVIDIA-A100-SXM4-80GB (1 node): its GPUs are counted without a cost." in result.err
    assert "8 GPUs are without a price; the cost does not include them." in result.out


def test_a_stricter_policy_is_exit_code_1(rightslice: Run) -> None:
    diff = ("policy", "diff", "trial", "policies", "--cluster", "cluster.yaml")
    assert rightslice(*diff).code == 1
    assert rightslice(*diff[:2], "policies", "trial", *diff[4:]).code == 0
    assert rightslice(*diff[:2], "policies", "faulty", *diff[4:]).code == 2
    assert rightslice(*diff[:4]).code == 2


def test_an_empty_folder_means_no_policies(rightslice: Run, tmp_path: Path) -> None:
    def diff(old: object, new: object) -> tuple[int, str]:
        result = rightslice("policy", "diff", str(old), str(new), "--cluster", "cluster.yaml")
        return result.code, result.out + result.err

    empty, notes = tmp_path / "empty", tmp_path / "notes"
    empty.mkdir()
    (empty / ".gitkeep").touch()
    notes.mkdir()
    (notes / "README.md").write_text("no policy")

    gone, new = diff("policies", empty), diff(empty, "policies")
    assert (gone[0], new[0]) == (0, 1)
    assert "research: removed" in gone[1]
    assert "newly allow" in gone[1]
    assert "research: added" in new[1]
    assert "no policy changed" in diff(empty, empty)[1]
    for wrong in (notes, tmp_path / "nowhere"):
        assert diff("policies", wrong)[0] == 2


def test_rightsize_reports_a_namespace_without_workloads(rightslice: Run) -> None:
    result = rightslice("rightsize", "cluster.yaml", "--policies", "policies", "-n", "nosuch")
    assert result.code == 0
    assert "note: no active pods in namespace nosuch; the namespace does not exist\n" in result.err


DUPLICATES = {
    "two overlapping files in a folder": ("both",),
    "a file that is named twice": ("one.json", "one.json"),
    "a list with every object twice": ("twice.json",),
}


@pytest.mark.parametrize("paths", DUPLICATES.values(), ids=DUPLICATES)
@pytest.mark.parametrize("command", ["audit", "rightsize"])
def test_a_duplicate_pod_counts_once(rightslice: Run, tmp_path: Path, paths: tuple[str, ...], command: str) -> None:
    node = make_node("n", {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, **{"nvidia.com/gpu": 8})
    fields = {"nodeName": "n", "tolerations": [{"operator": "Exists"}]}
    some = [node, *(make_pod(name).gpus(2).spec(**fields).build() for name in ("a", "b"))]
    files = {"one.json": some, "twice.json": some * 2, "both/1.json": some, "both/2.json": some[:2]}
    (tmp_path / "both").mkdir()
    for name, items in files.items():
        (tmp_path / name).write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    args = ("--policies", "policies", "-o", "json")

    once = rightslice(command, str(tmp_path / "one.json"), *args)
    result = rightslice(command, *(str(tmp_path / path) for path in paths), *args)
    audited, alone = json.loads(result.out), json.loads(once.out)

    assert sorted(each["name"] for each in audited.pop("objects", ())) == [
        each["name"] for each in alone.pop("objects", ())
    ]
    assert (result.code, audited) == (once.code, alone)
    assert "the last copy of each is evaluated" in result.err
    assert "duplicate" not in once.err


@pytest.mark.parametrize(
    ("command", "default"),
    [
        ("audit", "Default: the named files, else live."),
        ("rightsize", "Default: the named files, else live."),
        ("fairshare", "Default: live."),
        ("policy diff", "Default: live."),
        ("place", "Default: live."),
    ],
)
def test_the_help_of_cluster_commands_names_the_cluster_that_is_read(
    rightslice: Run, command: str, default: str
) -> None:
    message = " ".join(rightslice(*command.split(), "--help").out.split())

    assert f"for the shipped example. {default}" in message


def test_fairshare_writes_the_formats_of_its_help(rightslice: Run) -> None:
    message = " ".join(rightslice("fairshare", "--help").out.split())
    assert "table, wide, name, json, yaml, csv or jsonpath=TEMPLATE" in message
    assert "sarif" not in message


def test_a_diff_names_the_change_of_a_rollout(rightslice: Run, tmp_path: Path) -> None:
    text = (FILES / "policies" / "research.yaml").read_text()
    assert "spec:\n  mode: enforce" in text
    for name, rollout in (("old", "rollout: {percent: 5}"), ("new", "rollout: {percent: 50}"), ("all", "")):
        spec = f"spec:\n  {rollout}\n  mode: enforce"
        (tmp_path / f"{name}.yaml").write_text(text.replace("spec:\n  mode: enforce", spec))

    def first(old: str, new: str) -> str:
        paths = (str(tmp_path / f"{name}.yaml") for name in (old, new))
        return rightslice("policy", "diff", *paths, "--cluster", "cluster.yaml").out.splitlines()[0]

    assert first("old", "new") == "research: changed, rollout from 5% to 50% of the workloads"
    assert first("old", "all") == "research: changed, rollout from 5% to 100% of the workloads"


def test_an_overcommitted_node_has_no_negative_figures(rightslice: Run, tmp_path: Path) -> None:
    node = make_node("n", {"nvidia.com/gpu.product": "NVIDIA-L40S"}, **{"nvidia.com/gpu": 2})
    pods = [make_pod(f"p{i}").gpus(2).spec(nodeName=where).build() for i, where in enumerate(("n", "n", "gone"))]
    (tmp_path / "c.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node, *pods]}))
    result = rightslice("audit", str(tmp_path / "c.json"), "--policies", "policies", "-o", "json")
    figures = json.loads(result.out)["utilization"]
    assert [figures[key] for key in ("allocatableMilli", "allocatedMilli", "effectiveMilli", "usableMilli")] == [
        2000
    ] * 3 + [0]
    assert (figures["podsOnMissingNodes"], figures["overcommittedMilli"]) == (1, 2000)


def test_rightsize_has_the_same_outcome_in_csv_and_json(rightslice: Run) -> None:
    command = ("rightsize", "cluster.yaml", *INPUTS[:2])
    rows = list(csv.DictReader(io.StringIO(rightslice(*command, "-o", "csv").out)))
    workloads = json.loads(rightslice(*command, "-o", "json").out)["workloads"]
    outcomes = {(each["namespace"], each["workload"]): each["outcome"] for each in workloads}
    assert len(rows) > 1
    assert {(row["namespace"], row["workload"]): row["outcome"] for row in rows} == outcomes


NEEDS = {
    "rightsize": ("rightsize", "--cluster", "demo", "-o", "wide"),
    "explain": ("explain", "search/playground-0", "--cluster", "demo"),
}


@pytest.mark.parametrize("command", NEEDS.values(), ids=NEEDS)
def test_a_need_far_above_the_peak_is_explained(rightslice: Run, command: tuple[str, ...]) -> None:
    result = rightslice(*command).out

    assert "windows of 72 h of its workload; its own peak is 1460Mi, but its recent usage is too little" in result


def test_policy_diff_uses_the_usage_of_the_example_cluster(rightslice: Run, tmp_path: Path) -> None:
    """As check and audit do: a trial that is enforced saves what the audit says it would."""
    shutil.copytree(ROOT / "policies", tmp_path / "new")
    file = tmp_path / "new" / "right-sizing-trial.yaml"
    file.write_text(re.sub("mode: audit", "mode: enforce", file.read_text()))

    result = rightslice(
        "policy", "diff", str(ROOT / "policies"), str(tmp_path / "new"), "--cluster", "demo", "--now", JUNE
    )

    assert "patched differently  2 pods  search/Deployment/ranker (2)" in result.out
    assert "1.43 less for pods that are patched differently" in result.out
    assert "three weeks of example usage" in result.err
