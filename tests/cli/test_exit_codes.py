"""Exit codes, streams and flags: what a script or a CI job relies on."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from tests.cli.conftest import FILES, INPUTS, JUNE, Run
from tests.kube.scripted import kubeconfig
from webhook.cli.cluster_access import api_error_hint
from webhook.errors import ApiError
from webhook.policy.loader import load_policies
from webhook.server.policy_reload import read_policies
from webhook.server.policy_sources import NoPoliciesError, PolicyFiles

CODES = {
    "nothing to act on": (("check", "deploy/sized.json", *INPUTS), 0),
    "a denial": (("check", "deploy/train.yaml", *INPUTS), 1),
    "a denial with --fail-on never": (("check", "deploy/train.yaml", *INPUTS, "--fail-on", "never"), 0),
    "a workload whose pods will be denied": (("check", "workload.yaml", *INPUTS), 1),
    "denied pods with --fail-on never": (("check", "workload.yaml", *INPUTS, "--fail-on", "never"), 0),
    "a warning with --fail-on warn": (("check", "deploy/sized.json", *INPUTS, "--fail-on", "warn"), 1),
    "an unknown kind that names GPUs": (("check", "odd/trainer.yaml", *INPUTS), 0),
    "an unknown kind with --fail-on skipped": (("check", "odd/trainer.yaml", *INPUTS, "--fail-on", "skipped"), 1),
    "a note never counts": (("check", "deploy/debug.yaml", *INPUTS, "--fail-on", "warn"), 0),
    "an expired exemption": (
        ("check", "deploy/debug.yaml", "--policies", "policies", "--now", "2027-01-01T00:00:00Z"),
        1,
    ),
    "files without Kubernetes objects": (("check", "odd", *INPUTS), 0),
    "invalid YAML": (("check", "bad/broken.yaml", *INPUTS), 2),
    "a missing file": (("check", "nowhere.yaml", *INPUTS, "--fail-on", "never"), 2),
    "an invalid policy": (("check", "deploy", "--policies", "faulty"), 2),
    "missing policies": (("check", "deploy", "--policies", "nowhere"), 2),
    "a folder without policies": (("check", "deploy", "--policies", "../__snapshots__"), 2),
    "a missing snapshot": (("check", "deploy", "--policies", "policies", "--cluster", "nowhere"), 2),
    "an invalid snapshot": (("check", "deploy", "--policies", "policies", "--cluster", "bad/broken.yaml"), 2),
    "an invalid time": (("check", "deploy", "--policies", "policies", "--now", "tomorrow"), 2),
    "a time without a zone": (("check", "deploy", "--policies", "policies", "--now", "2026-06-01T00:00:00"), 2),
    "invalid labels": (("check", "deploy", "--policies", "policies", "--namespace-labels", "team"), 2),
    "an unknown format": (("check", "deploy", "--policies", "policies", "-o", "xml"), 2),
    "an empty file name for a report": (("check", "deploy", "--policies", "policies", "-o", "json="), 2),
    "two reports on stdout": (("check", "deploy", "--policies", "policies", "-o", "json", "-o", "table"), 2),
    "a report that cannot be written": (("check", "deploy", *INPUTS, "-o", "json=nowhere/report.json"), 2),
    "an unknown flag": (("check", "deploy", "--polices", "policies"), 2),
    "an unknown command": (("chekc", "deploy"), 2),
    "no cluster to audit": (("audit", "--policies", "policies"), 2),
    "a live cluster without a kubeconfig": (("capacity", "--cluster", "live"), 2),
    "an audit with denials": (("audit", "--cluster", "cluster.yaml", "--policies", "policies"), 1),
    "an audit of an invalid snapshot": (("audit", "bad/broken.yaml", "--policies", "policies"), 2),
    "failing policy tests": (("test", "cases"), 1),
    "a folder without policy tests": (("test", "deploy"), 2),
    "a missing folder of policy tests": (("test", "nowhere"), 2),
    "a policy test with missing policies": (("test", "lost"), 2),
    "a quota for an invalid namespace name": (("accounting", "enable", "-n", "Bad Name!"), 2),
    "a quota for too many GPUs": (("accounting", "enable", "--gpus", "99999999999999999999"), 2),
    "a finding code": (("explain", "GPU-S101"), 0),
    "all finding codes": (("explain",), 0),
    "a reason why a request is kept": (("explain", "MultipleGPUs"), 0),
    "an unknown finding code": (("explain", "GPU-L999"), 2),
    "a finding code and a file": (("explain", "GPU-S101", "-f", "deploy/train.yaml", *INPUTS), 2),
    "a pod of the demo cluster": (("explain", "embed-0", "-n", "team-vision", "--cluster", "demo"), 0),
    "a pod with the prefix pod/": (("explain", "pod/embed-0", "-n", "team-vision", "--cluster", "demo"), 0),
    "a pod of another namespace": (("explain", "embed-0", "--cluster", "demo"), 2),
    "empty standard input": (("check", "-", *INPUTS), 2),
    "a file to explain": (("explain", "-f", "deploy/train.yaml", *INPUTS), 0),
    "a missing file to explain": (("explain", "-f", "nowhere.yaml", *INPUTS), 2),
    "lint findings": (("lint", "-f", "traps.yaml"), 1),
    "lint without input": (("lint",), 2),
    "a LimitRange that an API server rejects": (("lint", "-f", "refused.yaml"), 2),
    "lint of files and of a cluster": (("lint", "-f", "traps.yaml", "--cluster", "live"), 2),
    "lint of a missing snapshot": (("lint", "--cluster", "nowhere.yaml"), 2),
    "lint of a snapshot": (("lint", "--cluster", "traps.yaml"), 1),
    "lint of a missing namespace": (("lint", "--cluster", "demo", "-n", "none"), 2),
    "lint of a snapshot with --context": (("lint", "--cluster", "traps.yaml", "--context", "a"), 2),
    "lint of files with -n": (("lint", "-f", "traps.yaml", "-n", "team"), 2),
    "valid policies": (("policy", "lint", "policies"), 0),
    "invalid policies": (("policy", "lint", "faulty"), 1),
    "unreadable policies": (("policy", "lint", "nowhere"), 2),
    "a policy": (("policy", "show", "research", "--policies", "policies"), 0),
    "an unknown policy": (("policy", "show", "reserch", "--policies", "policies"), 2),
    "a new policy": (("policy", "new", "mine"), 0),
    "a new policy with an invalid name": (("policy", "new", "My Policy"), 2),
    "the version": (("version",), 0),
    "a shell": (("completion", "bash"), 0),
    "an unsupported shell": (("completion", "tcsh"), 2),
}


@pytest.mark.parametrize(("arguments", "want"), CODES.values(), ids=CODES)
def test_exit_code(arguments: tuple[str, ...], want: int, rightslice: Run) -> None:
    result = rightslice(*arguments)
    assert result.code == want, result.out + result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "arguments",
    [arguments for arguments, code in CODES.values() if code == 2],
    ids=[k for k, v in CODES.items() if v[1] == 2],
)
def test_invalid_input_has_a_message(arguments: tuple[str, ...], rightslice: Run) -> None:
    result = rightslice(*arguments)
    assert len((result.out + result.err).split()) > 4


MESSAGES = {
    "an audit of a missing snapshot": (
        ("audit", "--cluster", "nowhere.yaml"),
        "error: nowhere.yaml: cannot be read: No",
    ),
    "layouts of a missing snapshot": (
        ("layout", "--cluster", "nowhere.yaml"),
        "error: nowhere.yaml: cannot be read: No",
    ),
    "a pod without --cluster": (("explain", "embed-0"), "To explain a pod, write NAMESPACE/POD, or pass -n or"),
    "a code with a namespace": (("explain", "GPU-L102", "-n", "research"), "the amount is not allowed"),
    "a pod missing in the snapshot": (("explain", "nix", "--cluster", "demo"), "'nix' in namespace 'default' of demo"),
    "a pod of a snapshot": (("explain", "embed-0", "-n", "team-vision", "--cluster", "demo"), "on node a100-mixed-1"),
    "misspelled code": (("explain", "GPU-L10"), "Did you mean GPU-L10"),
    "a reason why a request is kept": (("explain", "multiplegpus"), "MultipleGPUs  the pod keeps its GPU request"),
    "a code without its prefix": (("explain", "l102"), "Did you mean GPU-L102?"),
    "a report that cannot be written": (("check", "deploy", *INPUTS, "-o", "sarif=/nonexistent/x"), "/nonexistent/x"),
    "empty standard input": (("check", "-", *INPUTS), "no input"),
    "misspelled flag": (("check", "deploy", "--polices", "policies"), "--policies"),
    "an audit without nodes": (("audit", "deploy", "--policies", "policies"), "no nodes are known"),
    "metrics without nodes": (("audit", "deploy", *INPUTS[:2], "-o", "metrics"), "the reach is not known"),
    "misspelled policy": (("policy", "show", "reserch", "--policies", "policies"), "Did you mean research?"),
    "policies of a snapshot": (
        ("policy", "list", "--cluster", "demo"),
        "error: --cluster: must be live, found 'demo'",
    ),
    "policies of files and of a cluster": (
        ("policy", "show", "research", "policies", "--cluster", "live"),
        "error: --cluster live: must be used without policy files, found both",
    ),
    "a context for policies of files": (
        ("policy", "list", "policies", "--context", "a"),
        "select a live cluster: write --cluster live",
    ),
    "misspelled command": (("chekc",), "Did you mean 'check'?"),
    "misspelled format": (("check", "deploy", *INPUTS, "-o", "jsn"), "must be one of table, wide, json"),
    "every policy error": (("check", "deploy", "--policies", "faulty"), "policy.yaml:6:3"),
    "a policy test with missing policies": (("test", "lost"), "nowhere.yaml"),
}


@pytest.mark.parametrize(("arguments", "sentence"), MESSAGES.values(), ids=MESSAGES)
def test_messages(arguments: tuple[str, ...], sentence: str, rightslice: Run) -> None:
    result = rightslice(*arguments)
    assert sentence in result.out + result.err


def test_stdin_is_a_dash(rightslice: Run) -> None:
    result = rightslice("check", "-", *INPUTS, stdin=(FILES / "deploy/train.yaml").read_bytes())
    assert result.code == 1
    assert result.out.startswith("stdin:12:27  deny  GPU-L102")


def test_stdin_is_read_once(rightslice: Run) -> None:
    result = rightslice("check", "-", "-", *INPUTS, stdin=(FILES / "deploy/sized.json").read_bytes())
    assert result.code == 2
    assert "standard input can be read once" in result.out


def test_stdin_accepts_json_and_several_documents(rightslice: Run) -> None:
    pods = [(FILES / name).read_bytes() for name in ("deploy/sized.json", "deploy/train.yaml")]
    result = rightslice("check", "-", *INPUTS, "-o", "name", stdin=b"\n---\n".join(pods))
    assert result.out.split() == ["pod/notebook", "pod/train-0"]


def test_one_run_writes_several_reports(rightslice: Run, tmp_path: Path) -> None:
    sarif = tmp_path / "report.sarif"
    result = rightslice("check", "deploy", *INPUTS, "-o", "name", "-o", f"sarif={sarif}")
    assert "pod/train-0" in result.out
    assert json.loads(sarif.read_text())["version"] == "2.1.0"


def test_the_namespace_flag_is_for_objects_that_name_none(rightslice: Run) -> None:
    result = rightslice("check", "deploy/serve.yaml", *INPUTS, "-n", "elsewhere", "-o", "json")
    found = {each["name"]: each["namespace"] for each in json.loads(result.out)["objects"]}
    assert found == {"serve": "team-vision", "web": "elsewhere"}


def test_policies_select_by_given_namespace_labels(rightslice: Run) -> None:
    plain = rightslice("check", "cluster.yaml", "--policies", "policies", "--cluster", "cluster.yaml", "-n", "x")
    labeled = rightslice(
        "check", "-", *INPUTS, "--namespace-labels", "sized=true", "--namespace-labels", "tier=a",
        stdin=(FILES / "deploy/sized.json").read_bytes().replace(b"team-vision", b"elsewhere"),
    )  # fmt: skip
    unlabeled = rightslice(
        "check", "-", *INPUTS, stdin=(FILES / "deploy/sized.json").read_bytes().replace(b"team-vision", b"elsewhere")
    )
    assert plain.code == 1
    assert "GPU-R101" in labeled.out
    assert "GPU-R101" not in unlabeled.out


def test_the_shipped_library_is_the_default(rightslice: Run) -> None:
    result = rightslice("policy", "list")
    assert re.search(r"^guard +enforce", result.out, re.MULTILINE)


def test_a_new_policy_has_no_errors(rightslice: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(rightslice("policy", "new", "mine").out)
    assert rightslice("policy", "lint", str(file)).code == 0
    assert rightslice("policy", "lint", "-", stdin=file.read_bytes()).code == 0
    assert rightslice("policy", "lint", "-", stdin="kind: GPUPolice").code == 1


SIZES = (
    "spec: {rightSizing: {default: {memory: 8Gi, compute: 20%}, risk: 1%}, limits: {perPod: [{resource: a/b, max: 4}]}}"
)


def test_a_shown_policy_can_be_loaded_again(rightslice: Run, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {{name: p}}\n{SIZES}\n")
    shown = rightslice("policy", "show", "p", "--policies", str(file)).out
    assert 'memory: "8Gi"' in shown
    file.write_text(shown)
    assert rightslice("policy", "lint", str(file)).code == 0
    assert rightslice("policy", "show", "p", "--policies", str(file)).out == shown


EXEMPTION = (
    "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: p}\nspec:\n  cuda: {}\n"
    "  exemptions:\n  - name: old\n    codes: [GPU-C101]\n    reason: an old image\n"
    '    match: {namespaces: [a]}\n    expirationTime: "2026-06-01T00:00:00Z"\n'
)


@pytest.mark.parametrize(("now", "reported"), [("2026-05-31T23:59:59Z", False), ("2026-06-01T00:00:00Z", True)])
def test_lint_names_expired_exemptions(now: str, reported: bool, rightslice: Run) -> None:
    result = rightslice("policy", "lint", "-", "--now", now, stdin=EXEMPTION)
    assert result.code == 0
    assert ("exemption old of p expired on 2026-06-01 and has no effect" in result.err) is reported


def test_lint_names_policies_that_match_no_pod(rightslice: Run) -> None:
    result = rightslice(
        "policy", "lint", "-", stdin=POLICY.replace("spec: {", "spec: {match: {resources: [amd.com/gpu]}, ")
    )
    assert result.code == 0
    assert (
        "matches no pod without resource claims: match.resources must include a name of nvidia.com/*, found amd.com/gpu"
        in result.err
    )


@pytest.mark.parametrize(("namespace", "text"), [("nobody-*", "namespaces satisfies match"), ("team-*", "")])
def test_policy_lint_of_a_cluster_notes_a_policy_that_matches_nothing_there(
    rightslice: Run, namespace: str, text: str
) -> None:
    text_of = POLICY.replace("spec: {", f"spec: {{match: {{namespaces: ['{namespace}']}}, ")
    result = rightslice("policy", "lint", "-", "--cluster", "demo", stdin=text_of)

    assert result.code == 0
    assert ("matches no pod: none of the cluster's" in result.err) == bool(text)
    assert text in result.err


def test_sources_are_printed_to_stderr_only(rightslice: Run) -> None:
    result = rightslice("check", "deploy/sized.json", *INPUTS, "-o", "json", "-v")
    assert json.loads(result.out)
    assert "policies: research, sizing, trial" in result.err
    assert "cluster: cluster.yaml (1 node, 2 offers)" in result.err


@pytest.mark.parametrize("arguments", [("--cluster",), ()], ids=["named by a flag", "given as files"])
def test_skipped_objects_of_a_snapshot_are_reported(
    arguments: tuple[str, ...], rightslice: Run, tmp_path: Path
) -> None:
    file = tmp_path / "all.yaml"
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"
    file.write_text(f"{(FILES / 'cluster.yaml').read_text()}\n---\n{secret}")
    result = rightslice("audit", *arguments, str(file), "--policies", "policies", "-v")
    assert "1 of kind Secret skipped" in result.err
    assert "Secret" not in rightslice("audit", *arguments, str(file), "--policies", "policies").err


def test_without_a_cluster_there_are_no_findings_about_nodes(rightslice: Run) -> None:
    pod = ("-", "--policies", "policies", "--namespace-labels", "sized=true", "-v")
    given = (FILES / "deploy/sized.json").read_bytes()
    assert "GPU-R103" not in rightslice("check", *pod, stdin=given).out
    explained = rightslice("explain", "-f", *pod, stdin=given).out
    assert "unknown without the nodes of a cluster. Add --cluster SNAPSHOT" in explained
    assert "in this cluster" not in explained


@pytest.mark.parametrize("form", ["wide", "json"])
def test_without_a_cluster_no_report_speaks_of_one(rightslice: Run, form: str) -> None:
    pod = ("-", "--policies", "policies", "--namespace-labels", "sized=true", "-o", form)
    out = rightslice("check", *pod, stdin=(FILES / "deploy/sized.json").read_bytes()).out
    assert "unknown without the nodes of a cluster" in out
    assert "in this cluster" not in out


def test_without_nodes_no_request_is_recommended_to_be_kept(rightslice: Run) -> None:
    pod = ("deploy/sized.json", "--policies", "policies", "--namespace-labels", "sized=true", "--sort-by", "pods")
    found = rightslice("rightsize", *pod, "-o", "wide")
    assert "keep: " not in found.out
    assert "unknown without the nodes of a cluster" in found.out
    [row] = rightslice("rightsize", *pod, "--no-headers").out.splitlines()
    assert row.split()[-2:] == ["unknown", "-"]


ADD_CLUSTER = "Right-sizing of 1 object: unknown without the nodes of a cluster. Add --cluster SNAPSHOT, or"
CLUSTER_HINTS = {
    "a pod that slices could serve": (("deploy/sized.json",), True),
    "with the nodes of a cluster": (("deploy/sized.json", "--cluster", "cluster.yaml"), False),
    "whole GPUs, more than one": (("deploy/train.yaml",), False),
    "only problems are wanted": (("deploy/sized.json", "-q"), False),
}


@pytest.mark.parametrize(("arguments", "hinted"), CLUSTER_HINTS.values(), ids=CLUSTER_HINTS)
def test_check_says_what_needs_a_cluster(rightslice: Run, arguments: tuple[str, ...], hinted: bool) -> None:
    labels = ("--namespace-labels", "sized=true")
    assert (ADD_CLUSTER in rightslice("check", *arguments, "--policies", "policies", *labels).out) == hinted


def test_the_default_time_is_the_clock(rightslice: Run) -> None:
    assert rightslice("check", "deploy/train.yaml", "--policies", "policies").code == 1
    assert rightslice("check", "deploy/train.yaml", "--policies", "policies", "--now", JUNE).code == 1


POLICY = "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: p}\nspec: {cuda: {}}\n"
FOLDERS: dict[str, tuple[dict[str, str], bool]] = {
    "a policy": ({"a.yaml": POLICY}, True),
    "a policy beside an empty file": ({"a.yaml": POLICY, "b.yaml": ""}, True),
    "a policy beside another file": ({"a.yaml": POLICY, "README.md": "# a: ["}, True),
    "an empty file": ({"a.yaml": ""}, False),
    "comments only": ({"a.yaml": "# later\n"}, False),
    "a policy test only": ({"a.yaml": "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicyTest\n"}, False),
    "an empty folder": ({}, False),
    "a policy in a hidden folder": ({".git/a.yaml": POLICY}, False),
    "an invalid policy": ({"a.yaml": POLICY + "oops: 1\n"}, False),
}


ODD_LIMITS = {
    "limits that are not a list": (
        "{apiVersion: v1, kind: LimitRange, metadata: {name: a}, spec: {limits: {type: Container}}}",
        2,
        "stdin:1:72: spec.limits: must be a list, found a map",
    ),
    "an invalid amount": (
        "{apiVersion: v1, kind: ResourceQuota, spec: {hard: {nvidia.com/gpu: many}}}",
        2,
        "spec.hard['nvidia.com/gpu']: must be an amount, found 'many'",
    ),
    "a negative amount": (
        "{apiVersion: v1, kind: ResourceQuota, spec: {hard: {requests.nvidia.com/gpu: -3}}}",
        2,
        "must be an amount, found -3",
    ),
    "a quota without a spec": (
        "{apiVersion: v1, kind: ResourceQuota, spec: null}",
        0,
        "spec: skipped: the object has no spec",
    ),
    "items are not a list": ("{apiVersion: v1, kind: List, items: 5}", 2, "must be a list, as items of a List are"),
    "no apiVersion": ("{kind: LimitRange, spec: {limits: []}}", 0, "not a Kubernetes object: it has no apiVersion"),
}


@pytest.mark.parametrize(("text", "code", "message"), ODD_LIMITS.values(), ids=ODD_LIMITS)
def test_every_skipped_object_is_reported(text: str, code: int, message: str, rightslice: Run) -> None:
    result = rightslice("lint", "-f", "-", stdin=text)

    assert result.code == code
    assert message in result.err


class EmptyServer(BaseHTTPRequestHandler):
    """An API server with an empty namespace "there", and a namespace "hidden" that may not be read."""

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].rpartition("/")[2]
        body = b'{"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []}'
        self.send_response({"gone": 404, "hidden": 403}.get(name, 200))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""


@contextmanager
def serve_empty_cluster(folder: Path) -> Iterator[str]:
    """Serve an empty cluster for the block, and yield the file of a kubeconfig for it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), EmptyServer) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield str(kubeconfig(folder, f"http://127.0.0.1:{server.server_port}", "t0"))
        finally:
            server.shutdown()
            thread.join()


def test_the_policies_of_a_live_cluster_are_not_those_of_the_library(rightslice: Run, tmp_path: Path) -> None:
    with serve_empty_cluster(tmp_path) as file:
        result = rightslice("policy", "list", "--cluster", "live", "--kubeconfig", file, "-o", "name")

    assert (result.code, result.out) == (0, ""), result.err
    assert "this cluster has no policies" in result.err


@pytest.mark.parametrize(("namespace", "code"), [("gone", 2), ("hidden", 0), ("there", 0)])
def test_lint_of_a_missing_live_namespace(namespace: str, code: int, tmp_path: Path, rightslice: Run) -> None:
    with serve_empty_cluster(tmp_path) as file:
        result = rightslice("lint", "--cluster", "live", "-n", namespace, "--kubeconfig", file)

    assert result.code == code, result.err
    assert ("-n gone: no such namespace in this cluster" in result.err) == (code == 2)


def test_lint_reads_one_namespace_of_a_snapshot(rightslice: Run) -> None:
    every, one = (
        json.loads(rightslice("lint", "--cluster", "demo", "-o", "json", *more).out) for more in ((), ("-n", "batch"))
    )

    assert 0 < len(one) < len(every)


@pytest.mark.parametrize(("files", "usable"), FOLDERS.values(), ids=FOLDERS)
def test_lint_and_the_server_agree(files: dict[str, str], usable: bool, tmp_path: Path, rightslice: Run) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    result = rightslice("policy", "lint", str(tmp_path))
    assert (result.code == 0) is usable, result.out + result.err
    with nullcontext() if usable else pytest.raises(NoPoliciesError):
        read_policies(PolicyFiles((tmp_path,)), load_policies)


ROLLOUT = POLICY.replace("spec: {cuda: {}}", "spec: {mode: enforce, rollout: {percent: 0, haltOn: {oom: 2}}, cuda: {}}")


def test_policy_commands_show_rollouts(rightslice: Run, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(ROLLOUT)
    assert "enforce:0%" in rightslice("policy", "list", "--policies", str(tmp_path)).out
    assert "rollouts of files are not monitored" in rightslice("policy", "lint", str(tmp_path)).err
    explained = rightslice("explain", "-f", "deploy/train.yaml", "--policies", str(tmp_path)).out
    assert "Audit     p: the rollout does not include this workload" in explained


HALT_NOTE = "also puts {} in audit mode"
HALT_ON_OOM = "{percent: 5, haltOn: {oom: 2}}"
SHARED = "{mode: enforce, shared: [{name: a, gpuMilli: 8000, namespaceSelector: {matchLabels: {a: b}}}]}"
HALT_CASES = {
    "security": ("enforce", HALT_ON_OOM, "security: {}", HALT_NOTE.format("security")),
    "quotas": (
        "audit",
        HALT_ON_OOM,
        f"security: {{mode: enforce}}, quotas: {SHARED}",
        HALT_NOTE.format("quotas and security"),
    ),
    "without haltOn": ("enforce", "{percent: 5}", "security: {}", ""),
    "already in audit mode": ("enforce", HALT_ON_OOM, "security: {mode: audit}", ""),
    "sections that mutate pods": ("enforce", HALT_ON_OOM, "rightSizing: {}", ""),
}


@pytest.mark.parametrize(("mode", "rollout", "sections", "message"), HALT_CASES.values(), ids=HALT_CASES)
def test_lint_names_the_sections_that_a_halt_would_put_in_audit_mode(
    mode: str, rollout: str, sections: str, message: str, rightslice: Run, tmp_path: Path
) -> None:
    spec = f"spec: {{mode: {mode}, rollout: {rollout}, {sections}}}"
    (tmp_path / "p.yaml").write_text(POLICY.replace("spec: {cuda: {}}", spec))
    result = rightslice("policy", "lint", str(tmp_path))
    assert result.code == 0, result.out
    assert message in result.err
    assert bool(message) == ("in audit mode" in result.err)


DAYS = {
    "default": ((), 3, "did not answer"),
    "zero": (("--prometheus-days", "0"), 2, "--prometheus-days: must be 1 to 90, found 0"),
    "negative": (("--prometheus-days", "-3"), 2, "--prometheus-days: must be 1 to 90, found -3"),
    "too many": (("--prometheus-days", "99999999999"), 2, "--prometheus-days: must be 1 to 90"),
}


@pytest.mark.parametrize(("flags", "code", "message"), DAYS.values(), ids=DAYS)
def test_days_of_usage_history(
    flags: tuple[str, ...], code: int, message: str, rightslice: Run, tmp_path: Path
) -> None:
    result = rightslice("usage", "record", "--prometheus", "http://127.0.0.1:1", "--file", str(tmp_path / "u"), *flags)
    assert (result.code, result.out) == (code, ""), result.err
    assert message in result.err


UNDO = {
    "an unchanged pod": (("-f", "deploy/train.yaml"), 1),
    "a missing file": (("-f", "nowhere.yaml"), 2),
    "neither a pod nor a file": ((), 2),
    "a pod and a file": (("train-0", "-f", "deploy/train.yaml"), 2),
}


@pytest.mark.parametrize(("arguments", "code"), UNDO.values(), ids=UNDO)
def test_undo(arguments: tuple[str, ...], code: int, rightslice: Run) -> None:
    result = rightslice("undo", *arguments)
    assert (result.code, result.out) == (code, "")
    assert result.err


RECORD = {"policies": ["p"], "digest": "0123456789ab", "changed": ["resources"], "resource": "nvidia.com/mig-1g.10gb"}
ORIGINAL = {"main": {"limits": {"nvidia.com/gpu": "1"}}}
NOW = {"name": "main", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}


def sized_pod(original: str = json.dumps(ORIGINAL), *containers: object) -> dict[str, Any]:
    """A right-sized pod, with containers that were not changed."""
    annotations = {"rightslice.dev/decision": json.dumps(RECORD), "rightslice.dev/original-resources": original}
    kept = {key: text for key, text in annotations.items() if text}
    return {"metadata": {"name": "p", "annotations": kept}, "spec": {"containers": [NOW, *containers]}}


def list_of(*pods: dict[str, Any]) -> bytes:
    items = [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in pods]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}).encode()


BAD_PODS = {
    "metadata is a number": ({"metadata": 5, "spec": {"containers": []}}, "metadata must be a map"),
    "annotations are a list": (
        {"metadata": {"name": "p", "annotations": [1]}, "spec": {"containers": []}},
        "metadata.annotations: must be a map, found a list",
    ),
    "no spec": ({"metadata": {"name": "p"}}, "spec: must be a map with containers"),
    "a container is a number": (sized_pod(json.dumps(ORIGINAL), 5), "spec.containers[1]: must be a map"),
    "a container is a list": (sized_pod(json.dumps(ORIGINAL), []), "spec.containers[1]: must be a map"),
    "its name is a list": (sized_pod(json.dumps(ORIGINAL), {"name": [None]}), "spec.containers[1].name: must be"),
    "its resources are a number": (sized_pod(json.dumps(ORIGINAL), {"resources": 5}), "resources: must be a map"),
    "its limits are text": (sized_pod(json.dumps(ORIGINAL), {"resources": {"limits": "9"}}), "limits: must be a map"),
}


@pytest.mark.parametrize(("pod", "message"), BAD_PODS.values(), ids=BAD_PODS)
def test_undo_reports_invalid_pods_and_prints_the_others(pod: dict[str, Any], message: str, rightslice: Run) -> None:
    result = rightslice("undo", "-f", "-", stdin=list_of(pod, sized_pod(json.dumps(ORIGINAL), None)))
    assert result.code == 2
    assert re.search(rf"error: stdin:\d+:\d+: .*{re.escape(message)}", result.err)
    assert "# Pod default/p as it was before right-sizing" in result.out


BAD_RECORDS = {
    "missing": "",
    "truncated": '{"main":',
    "a list": "[]",
    "an empty map": "{}",
    "an unknown container": json.dumps({"nobody": ORIGINAL["main"]}),
    "an invalid amount": json.dumps({"main": {"limits": {"nvidia.com/gpu": "\x1b[31m9\nx: y"}}}),
    "no whole GPU": json.dumps({"main": {"limits": {"cpu": "1"}}}),
}


@pytest.mark.parametrize("original", BAD_RECORDS.values(), ids=BAD_RECORDS)
def test_undo_reports_a_lost_record(original: str, rightslice: Run) -> None:
    result = rightslice("undo", "-f", "-", stdin=list_of(sized_pod(original), sized_pod()))
    assert (result.code, result.out.count("# Pod")) == (1, 1)
    assert "Pod default/p was right-sized to nvidia.com/mig-1g.10gb; its original request is unknown" in result.err
    alone = rightslice("undo", "-f", "-", stdin=list_of(sized_pod(original)))
    assert (alone.code, alone.out) == (1, "")


def test_undo_prints_which_object_requested_what(rightslice: Run) -> None:
    text = rightslice("undo", "-f", "-", stdin=list_of(sized_pod())).out
    (found,) = json.loads(rightslice("undo", "-f", "-", "-o", "json", stdin=list_of(sized_pod())).out)["objects"]

    assert (found["kind"], found["namespace"], found["name"]) == ("Pod", "default", "p")
    assert found["fields"] == yaml.safe_load(text)


def test_undo_of_a_recorded_pod_succeeds(rightslice: Run) -> None:
    assert rightslice("undo", "-f", "-", stdin=list_of(sized_pod())).code == 0


def test_a_cluster_that_does_not_answer_is_exit_code_3(rightslice: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file = kubeconfig(tmp_path, f"http://127.0.0.1:{taken.getsockname()[1]}", "t")
    for command in (["audit"], ["check", "deploy/train.yaml"], ["explain", "pod"]):
        result = rightslice(*command, "--policies", "policies", "--cluster", "live", "--kubeconfig", str(file))
        assert (result.code, result.out) == (3, "")
        assert re.search(r"(GET|POST) /\S*: no answer from http://127\.0\.0\.1:", result.err)


LIVE_COMMANDS = (
    ("audit", "--policies", "policies", "--cluster", "live"),
    ("lint", "--cluster", "live"),
    ("undo", "pod"),
    ("doctor",),
    ("layout", "status"),
    ("accounting", "check"),
    ("install",),
    ("uninstall",),
)


@pytest.mark.parametrize("command", LIVE_COMMANDS, ids=" ".join)
def test_an_unusable_kubeconfig_is_exit_code_2(command: tuple[str, ...], rightslice: Run, tmp_path: Path) -> None:
    absent = rightslice(*command, "--kubeconfig", "nowhere")
    assert (absent.code, absent.out) == (2, "")
    assert "nowhere: must be a kubeconfig file" in absent.err
    broken = tmp_path / "broken"
    broken.write_text("clusters: [")
    result = rightslice(*command, "--kubeconfig", str(broken))
    assert (result.code, result.out) == (2, "")
    assert f"error: {broken}: " in result.err


@pytest.mark.parametrize("flags", [("-n", "research"), ("--context", "c")], ids=" ".join)
def test_a_flag_of_a_cluster_makes_a_word_the_name_of_a_pod(
    rightslice: Run, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    monkeypatch.setenv("KUBECONFIG", "nowhere")
    asked = rightslice("explain", "train-0", *flags)
    assert asked.code == 2
    assert "nowhere: must be a kubeconfig file" in asked.err


@pytest.mark.parametrize("command", LIVE_COMMANDS[3:], ids=" ".join)
def test_an_api_server_that_does_not_answer_is_exit_code_3(
    command: tuple[str, ...], rightslice: Run, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file = kubeconfig(tmp_path, f"http://127.0.0.1:{taken.getsockname()[1]}", "t")
    result = rightslice(*command, "--kubeconfig", str(file))
    assert result.code == 3
    assert "no answer from http://127.0.0.1:" in result.err
    assert "Check that the cluster runs and this machine reaches it (kubectl cluster-info)" in result.err


HINTS = {
    "credentials that are not accepted": (401, "Log in again, or choose other credentials"),
    "a right that is missing": (403, "Ask for this permission, or choose other credentials"),
    "an error whose message says it": (404, ""),
}


@pytest.mark.parametrize(("status", "words"), HINTS.values(), ids=HINTS)
def test_an_error_of_the_api_server_says_what_to_do(status: int, words: str) -> None:
    hint = api_error_hint(ApiError("GET /version", status, "Reason", "message"))
    assert hint.startswith(words) if words else not hint


def test_a_context_for_a_snapshot_is_exit_code_2(rightslice: Run) -> None:
    result = rightslice("audit", "--policies", "policies", "--cluster", "demo", "--context", "x")
    assert (result.code, result.out) == (2, "")
    assert "write --cluster live" in result.err
