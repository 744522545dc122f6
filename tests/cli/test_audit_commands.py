"""audit, rightsize and policy diff: reports, files, and messages for invalid input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders import make_node, make_pod
from tests.cli.conftest import FILES, Run
from tests.conftest import ROOT
from tests.report.browser import evaluate_in_browser

HERE = ("audit", "cluster.yaml", "--policies", "policies")


def test_the_html_report_of_the_demo_opens_in_a_browser(rightslice: Run, tmp_path: Path) -> None:
    ran = rightslice("audit", "--cluster", "demo", "-o", f"html={tmp_path / 'a.html'}", "-o", "table")
    assert ran.out.startswith("Total GPUs ")
    text = (tmp_path / "a.html").read_text()
    title, rows = evaluate_in_browser(
        text, "return [document.title, document.querySelectorAll('#workloads tbody tr').length]"
    )
    assert title == "GPU audit of demo"
    assert rows == 17
    assert "example prices, not yours" in text


def test_since_excludes_older_pods(rightslice: Run, tmp_path: Path) -> None:
    text = (FILES / "cluster.yaml").read_text()
    aged = text.replace(
        "name: render, namespace: batch", 'name: render, namespace: batch, creationTimestamp: "2026-05-01T00:00:00Z"'
    )
    (tmp_path / "c.yaml").write_text(aged)
    audit = ("audit", str(tmp_path / "c.yaml"), "--policies", "policies", "--now", "2026-06-01T00:00:00Z", "-o", "json")

    def names(*flags: str) -> set[str]:
        return {each["name"] for each in json.loads(rightslice(*audit, *flags).out)["objects"]}

    assert names() == names("--since", "32d") == names("--since", "2026-04-30T00:00:00Z") == {"notebook", "render"}
    assert names("--since", "30d") == names("--since", "720h") == {"notebook"}
    assert json.loads(rightslice(*audit).out)["utilization"]
    assert not json.loads(rightslice(*audit, "--since", "30d").out).get("utilization")
    assert "note: 1 pod without metadata.creationTimestamp: --since" in rightslice(*audit, "--since", "30d").err
    assert "note:" not in rightslice(*audit).err


def test_partial_reports_are_not_stored(rightslice: Run) -> None:
    ran = rightslice("audit", "--cluster", "live", "--write", "--since", "1d")
    assert (ran.code, ran.out) == (2, "")
    assert "would replace those for all. Leave out --since" in ran.err


WRONG = {
    "an age that is none": (("--since", "last week"), "--since: must be a time with its zone, or an age, found 'last"),
    "an age beyond all time": (
        ("--since", "99999d", "--now", "0100-01-01T00:00:00Z"),
        "--since: must be after the year",
    ),
    "a moment without a zone": (("--since", "2026-06-01"), "--since: must be a time with its zone"),
    "reports stored where nothing was judged": (("--write",), "--write: stores reports in the audited cluster"),
    "a dry run of nothing": (("--dry-run",), "--dry-run: needs --write"),
    "a price table that is not there": (("--prices", "nowhere.yaml"), "nowhere.yaml: cannot be read: No such file"),
    "a price table that is a policy": (
        ("--prices", "policies/research.yaml"),
        "must be a kind of rightslice.dev: GPUPriceList",
    ),
    "two reports into one file": (("-o", "html=./x", "-o", "csv=x"), "-o: each report needs its own file"),
    "a format that is none": (("-o", "pdf"), "-o: must be one of table, wide, json"),
}


@pytest.mark.parametrize(("flags", "said"), WRONG.values(), ids=WRONG)
def test_invalid_input_has_a_message(rightslice: Run, flags: tuple[str, ...], said: str) -> None:
    ran = rightslice(*HERE, *flags)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_a_product_without_a_price_is_named(rightslice: Run, tmp_path: Path) -> None:
    example = (ROOT / "examples" / "prices" / "example.yaml").read_text()
    (tmp_path / "p.yaml").write_text("".join(line for line in example.splitlines(True) if "A100-SXM4-80GB" not in line))
    ran = rightslice(*HERE, "--prices", str(tmp_path / "p.yaml"))
    assert "prices: no price for NVIDIA-A100-SXM4-80GB (1 node): its GPUs are counted without a cost." in ran.err
    assert "8 GPUs are without a price; the cost does not include them." in ran.out


def test_a_stricter_policy_is_exit_code_1(rightslice: Run) -> None:
    diff = ("policy", "diff", "trial", "policies", "--cluster", "cluster.yaml")
    assert rightslice(*diff).code == 1
    assert rightslice(*diff[:2], "policies", "trial", *diff[4:]).code == 0
    assert rightslice(*diff[:2], "policies", "faulty", *diff[4:]).code == 2
    assert rightslice(*diff[:4]).code == 2


def test_an_empty_folder_means_no_policies(rightslice: Run, tmp_path: Path) -> None:
    def diff(old: object, new: object) -> tuple[int, str]:
        ran = rightslice("policy", "diff", str(old), str(new), "--cluster", "cluster.yaml")
        return ran.code, ran.out + ran.err

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
    ran = rightslice("rightsize", "cluster.yaml", "--policies", "policies", "-n", "nosuch")
    assert ran.code == 0
    assert "note: no workload with GPUs in namespace nosuch\n" in ran.err


TWICE = {
    "two dumps that overlap in a folder": ("both",),
    "a file that is named twice": ("one.json", "one.json"),
    "a list that holds all of it twice": ("twice.json",),
}


@pytest.mark.parametrize("paths", TWICE.values(), ids=TWICE)
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
    ran = rightslice(command, *(str(tmp_path / path) for path in paths), *args)
    told, alone = json.loads(ran.out), json.loads(once.out)

    assert sorted(each["name"] for each in told.pop("objects", ())) == [
        each["name"] for each in alone.pop("objects", ())
    ]
    assert (ran.code, told) == (once.code, alone)
    assert "the last copy of each is evaluated" in ran.err
    assert "duplicate" not in once.err


@pytest.mark.parametrize("command", ["audit", "rightsize", "fairshare", "policy diff"])
def test_the_help_of_cluster_commands_names_the_required_cluster(rightslice: Run, command: str) -> None:
    said = " ".join(rightslice(*command.split(), "--help").out.split())
    assert "The cluster to evaluate: live" in said
    assert "Without it no cluster" not in said


def test_fairshare_writes_the_formats_of_its_help(rightslice: Run) -> None:
    said = " ".join(rightslice("fairshare", "--help").out.split())
    assert "table, json, yaml or csv" in said
    assert "sarif" not in said


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
    ran = rightslice("audit", str(tmp_path / "c.json"), "--policies", "policies", "-o", "json")
    figures = json.loads(ran.out)["utilization"]
    assert [figures[key] for key in ("allocatableMilli", "allocatedMilli", "effectiveMilli", "usableMilli")] == [
        2000
    ] * 3 + [0]
    assert (figures["podsOnMissingNodes"], figures["overcommittedMilli"]) == (1, 2000)
