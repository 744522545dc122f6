"""-n, -A and -l select what they select with kubectl; tests/cluster asks the API server for the same selectors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders import make_pod
from tests.cli.conftest import INPUTS, JUNE, Run
from tests.policy.policy_texts import policy_text
from webhook.cli.selection import ObjectSelection, parse_label_selector

LABELS: dict[str, dict[str, str]] = {
    "web": {"tier": "web", "example.com/team": "a", "count": "5"},
    "db": {"tier": "db", "count": "12"},
    "empty": {"tier": ""},
    "bare": {},
}
"""Labels of objects, by name."""

SELECTORS = {
    "equal": ("tier=web", "web"),
    "equal, with two signs and spaces": (" tier == web ", "web"),
    "an empty value": ("tier=", "empty"),
    "unequal, or absent": ("tier!=web", "db empty bare"),
    "one of some": ("tier in (web, db)", "web db"),
    "one of some, one of them empty": ("tier in (web,)", "web empty"),
    "one of none: the empty value": ("tier in ()", "empty"),
    "none of some, or absent": ("tier notin (web, db)", "empty bare"),
    "present": ("tier", "web db empty"),
    "absent": ("!tier", "bare"),
    "a key with a domain": ("example.com/team", "web"),
    "all of several": ("tier,example.com/team=a,tier in (web)", "web"),
    "above a number": ("count>5", "db"),
    "below a number": ("count<12", "web"),
    "everything": ("", "web db empty bare"),
}
"""A selector, and the names that it selects."""

MISTAKES = {
    "no value list": ("tier in web", "must have values in brackets after in"),
    "an open value list": ("tier in (web", "must have values in brackets after in"),
    "a comma at the end": ("tier=web,", "must have label keys such as app or example.com/team, found ''"),
    "only a comma": (",", "must have label keys"),
    "two words": ("tier=web db", "must have a comma before 'db'"),
    "a value for an absent key": ("!tier=web", "must have a comma before '='"),
    "a key that no label can have": ("-tier", "must have label keys"),
    "a value that no label can have": ("tier=web-", "must have label values, found 'web-'"),
    "a text after a number sign": ("count>many", "must have numbers after < and >"),
    "an unknown operator": ("tier!web", "must have one of = == != in notin > < after a key, found '!'"),
}
"""A selector that the API server rejects too, and our error."""


@pytest.mark.parametrize(("selector", "names"), SELECTORS.values(), ids=SELECTORS)
def test_a_selector_selects(selector: str, names: str) -> None:
    selection = ObjectSelection(labels=parse_label_selector(selector))
    assert [name for name, labels in LABELS.items() if selection.selects_labels(labels)] == names.split()


@pytest.mark.parametrize(("selector", "error"), MISTAKES.values(), ids=MISTAKES)
def test_an_invalid_selector_is_an_error(rightslice: Run, selector: str, error: str) -> None:
    result = rightslice("check", "deploy", *INPUTS, "-l", selector)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: -l: {error}")


POD = """\
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s, labels: {tier: %s}}
spec: {containers: [{name: main, image: a, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""
PODS = "---\n".join(POD % each for each in (("a", "one", "web"), ("b", "one", "db"), ("c", "two", "web")))

IN_NOSUCH = "in namespace nosuch; the namespace does not exist"

CHOICES = {
    "all by default": ((), "a b c"),
    "one namespace": (("-n", "one"), "a b"),
    "one namespace and one label": (("-n", "one", "-l", "tier=web"), "a"),
    "one label in all namespaces": (("-l", "tier=web"), "a c"),
    "all namespaces in spite of one": (("-n", "one", "-A"), "a b c"),
    "a namespace without pods": (("-n", "three"), ""),
}


@pytest.mark.parametrize(("flags", "names"), CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize("command", ["audit", "rightsize"])
def test_reports_on_pods_are_of_the_selected_ones(
    rightslice: Run, command: str, flags: tuple[str, ...], names: str
) -> None:
    result = rightslice(command, "-", *INPUTS, *flags, "-o", "json", stdin=PODS)
    workloads = [each["workload"] for each in json.loads(result.out)["workloads"]]
    assert sorted(workloads) == [f"Pod/{name}" for name in names.split()]
    assert ("note: no active pods" in result.err) is not bool(names)


NOTHING = {
    "audit: no such namespace": (("audit", "-n", "nosuch"), f"no active pods {IN_NOSUCH}"),
    "rightsize: no such namespace": (("rightsize", "-n", "nosuch"), f"no active pods {IN_NOSUCH}"),
    "fairshare: no such namespace": (("fairshare", "-n", "nosuch"), f"no GPU time {IN_NOSUCH}"),
    "fairshare: no such label": (("fairshare", "-l", "a=b"), "no GPU time with labels a=b"),
    "policy diff: no such namespace": (
        ("policy", "diff", "policies", "policies", "-n", "nosuch"),
        f"no active pods {IN_NOSUCH}",
    ),
    "policy diff: no such label": (
        ("policy", "diff", "policies", "policies", "-l", "a=b"),
        "no active pods with labels a=b",
    ),
    "audit: a namespace of the cluster": (("audit", "-n", "kube-system"), "no active pods in namespace kube-system"),
    "lint: no such label": (("lint", "-l", "a=b"), "none of 6 objects with labels a=b"),
    "explain: no such label in a file": (
        ("explain", "-f", "workload.yaml", "-l", "a=b"),
        "none of 1 object with labels a=b",
    ),
    "place: no such label in a file": (("place", "workload.yaml", "-l", "a=b"), "none of 1 object with labels a=b"),
    "simulate: no such label in a file": (
        ("simulate", "-f", "workload.yaml", "-l", "a=b"),
        "none of 1 object with labels a=b",
    ),
}
"""A command that selects nothing of the demo cluster, and its note."""


@pytest.mark.parametrize(("call", "note"), NOTHING.values(), ids=NOTHING)
def test_a_selection_of_nothing_is_noted(rightslice: Run, call: tuple[str, ...], note: str) -> None:
    assert f"note: {note}" in rightslice(*call, "--cluster", "demo").err.splitlines()


NO_PODS = {
    "none selected": ("workload.yaml", "-l", "a=b"),
    "a workload without replicas": ("-",),
}


@pytest.mark.parametrize("flags", NO_PODS.values(), ids=NO_PODS)
def test_a_simulation_without_pods_shows_the_cluster_as_it_is(rightslice: Run, flags: tuple[str, ...]) -> None:
    template = b"{metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}"
    spec = b"{replicas: 0, selector: {matchLabels: {a: b}}, template: %s}" % template
    idle = b"{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: %s}" % spec
    result = rightslice("simulate", *flags, "--nodes", "demo", stdin=idle)
    assert result.code == 0
    assert "0 pods placed, 0 unschedulable; 27.89 of 67.09 GPUs allocated" in result.out


def test_whether_a_namespace_exists_is_unknown_without_namespaces(rightslice: Run) -> None:
    result = rightslice("audit", "-", "-n", "nosuch", stdin=PODS)
    assert "note: no active pods in namespace nosuch" in result.err.splitlines()


def test_a_page_on_some_pods_says_which(rightslice: Run, tmp_path: Path) -> None:
    flags = ("-n", "one", "-l", "tier=web", "--since", "2026-01-01T00:00:00Z")
    rightslice("audit", "-", *INPUTS, *flags, "-o", f"html={tmp_path / 'page.html'}", stdin=PODS)
    selected = "created since 2026-01-01T00:00:00Z, in namespace one with labels tier=web"
    assert selected in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("flags", [("-n", "one"), ("-l", "tier")])
def test_reports_of_some_pods_are_not_stored(rightslice: Run, flags: tuple[str, ...]) -> None:
    result = rightslice("audit", "--cluster", "live", "--write", *flags)
    assert result.code == 2
    assert "results for some of the pods would replace those for all. Leave out -n and -l" in result.err


def test_nodes_are_selected_by_their_labels(rightslice: Run) -> None:
    flags = ("capacity", "--cluster", "demo", "-l", "nvidia.com/gpu.product in (NVIDIA-L40S, NVIDIA-L4-SHARED)")
    assert rightslice(*flags, "-o", "name").out.split() == ["node/l40s-sliced-1", "node/l4-mps-1"]


def test_objects_of_files_are_selected_by_their_labels(rightslice: Run) -> None:
    result = rightslice("check", "-", *INPUTS, "-l", "tier=web", "-o", "name", stdin=PODS)
    assert result.out.split() == ["pod/a", "pod/c"]


def test_one_row_of_fair_shares_is_that_among_all(rightslice: Run) -> None:
    flags = ("fairshare", "--cluster", "demo", "--now", JUNE, "-o")
    every = json.loads(rightslice(*flags, "json").out)["groups"]
    (row,) = json.loads(rightslice(*flags, "json", "-n", "batch").out)["groups"]
    assert row in every
    assert len(every) > 1


def test_shares_of_namespaces_with_a_label_are_those_among_all(rightslice: Run) -> None:
    flags = ("fairshare", "--cluster", "demo", "--now", JUNE, "-o")
    every = json.loads(rightslice(*flags, "json").out)["groups"]
    some = json.loads(rightslice(*flags, "json", "-l", "rightslice.dev/tier=research").out)["groups"]
    assert [each["name"] for each in some] == ["team-nlp", "team-vision"]
    assert [each for each in every if each in some] == some


def test_shares_of_queues_are_not_selected_as_namespaces(rightslice: Run, tmp_path: Path) -> None:
    (tmp_path / "queues.yaml").write_text(policy_text("queues", fairShare={"by": "queue"}))
    result = rightslice("fairshare", "--cluster", "demo", "--policies", str(tmp_path), "-l", "a")
    assert result.code == 2
    assert "-n and -l: select namespaces, found a fairShare by queue. Leave them out" in result.err


def test_the_needs_of_one_namespace_are_those_of_the_plan_for_all(rightslice: Run) -> None:
    plan = ("layout", "--cluster", "demo", "--now", JUNE, "-o", "json")
    every, some = (json.loads(rightslice(*plan, *flags).out) for flags in (("--by-namespace",), ("-n", "notebooks")))
    assert {each["namespace"] for each in some["demand"]} == {"notebooks"}
    assert some["demand"] == [each for each in every["demand"] if each["namespace"] == "notebooks"]
    assert some["cardsUsed"] == every["cardsUsed"]
    nothing = rightslice(*plan, "-n", "nosuch").err.splitlines()
    assert f"note: no needs besides whole cards that running pods keep {IN_NOSUCH}" in nothing


def test_selected_pods_of_a_cluster_and_of_files_are_placed(rightslice: Run) -> None:
    shown = ("--cluster", "demo", "-o", "jsonpath={..object}")
    placed = rightslice("place", "-n", "team-vision", "-l", "app=embed", *shown)
    assert placed.out.split()[1::2] == [f"team-vision/embed-{number}" for number in range(3)]
    assert rightslice("place", "-", "-l", "tier=web", *shown, stdin=PODS).out.split()[1::2] == ["one/a", "two/c"]


def test_selected_objects_of_files_are_simulated_in_the_namespace(rightslice: Run) -> None:
    pod = make_pod("a").gpus(99).label("tier", "web").build()
    pod["metadata"].pop("namespace", None)
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod, make_pod("b").gpus(99).build()]})
    flags = ("simulate", "--cluster", "demo", "-f", "-", "-l", "tier=web", "-n", "research", "-o")
    result = rightslice(*flags, "jsonpath={range .unplacedObjects[*]}{.namespace}/{.name}{end}", stdin=text)
    assert result.out == "research/a", result.err


def test_only_selected_quotas_and_limit_ranges_are_linted(rightslice: Run) -> None:
    assert rightslice("lint", "--cluster", "demo").code == 1
    result = rightslice("lint", "--cluster", "demo", "-l", "no=such-label")
    assert (result.code, result.out.strip()) == (0, "")


def test_explain_takes_the_pods_that_a_selector_selects(rightslice: Run) -> None:
    ran = rightslice("explain", "-n", "team-vision", "-l", "app=embed", "--cluster", "demo")

    assert ran.code == 0, ran.err
    titles = [line.split("  ")[0] for line in ran.out.splitlines() if line.startswith("Pod ")]
    assert titles == [f"Pod team-vision/embed-{number}" for number in range(3)]


def test_undo_takes_the_objects_of_a_file_that_a_selector_selects(rightslice: Run) -> None:
    assert rightslice("undo", "-f", "cluster.yaml", "-l", "app=none").code == 1


ONE_OF_BOTH = {
    "a code and -l": (("explain", "GPU-L102", "-l", "app=a"), "explain takes GPU-L102 or -l, found both"),
    "a pod and -f": (
        ("explain", "x/a", "-f", "cluster.yaml"),
        "explain takes x/a or files, found both. For all objects",
    ),
    "a pod and a file": (("undo", "a", "-f", "cluster.yaml"), "undo takes pods of the cluster, -l or files, found"),
    "nothing": (("undo",), "undo takes pods of the cluster, -l or files, found none"),
    "no such pods": (("explain", "-l", "app=none", "--cluster", "demo"), "no pods in namespace default with labels"),
}


@pytest.mark.parametrize(("call", "error"), ONE_OF_BOTH.values(), ids=ONE_OF_BOTH)
def test_what_is_selected_is_said_once(rightslice: Run, call: tuple[str, ...], error: str) -> None:
    ran = rightslice(*call)

    assert ran.code == 2
    assert f"error: {error}" in ran.err


NAMES = {
    "place: the node of each pod": (("place", "batch/sweep-0"), "node/"),
    "layout: the nodes that change": (("layout",), "node/"),
    "lint: the objects with findings": (("lint", "-n", "team-vision"), "resourcequota/"),
    "policy diff: the workloads that differ": (("policy", "diff", "trial", "policies"), ""),
}


@pytest.mark.parametrize(("call", "kind"), NAMES.values(), ids=NAMES)
def test_names_are_printed_one_a_line(rightslice: Run, call: tuple[str, ...], kind: str) -> None:
    ran = rightslice(*call, "--cluster", "demo", "-o", "name")

    assert ran.code in (0, 1), ran.err
    lines = ran.out.splitlines()
    assert lines
    assert len(lines) == len(set(lines))
    assert all(line.startswith(kind) and line.count("/") == 1 and " " not in line for line in lines)
