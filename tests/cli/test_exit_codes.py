"""Exit codes, streams and flags: what a script or a CI job relies on."""

from __future__ import annotations

import json
import re
import socket
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.cli.conftest import FILES, JUNE, WORLD, Run
from tests.kube.scripted import kubeconfig
from webhook.policy.loader import load_policies
from webhook.server.policy_reload import read_policies
from webhook.server.policy_sources import NoPoliciesError, PolicyFiles

CODES = {
    "nothing to act on": (("check", "deploy/sized.json", *WORLD), 0),
    "a denial": (("check", "deploy/train.yaml", *WORLD), 1),
    "a denial that is not to count": (("check", "deploy/train.yaml", *WORLD, "--fail-on", "never"), 0),
    "a workload whose pods will be denied": (("check", "workload.yaml", *WORLD), 1),
    "the same where it is not to count": (("check", "workload.yaml", *WORLD, "--fail-on", "never"), 0),
    "a warning that is to count": (("check", "deploy/sized.json", *WORLD, "--fail-on", "warn"), 1),
    "a note never counts": (("check", "deploy/debug.yaml", *WORLD, "--fail-on", "warn"), 0),
    "an exemption that has ended": (
        ("check", "deploy/debug.yaml", "--policies", "policies", "--now", "2027-01-01T00:00:00Z"),
        1,
    ),
    "files that are no objects": (("check", "odd", *WORLD), 0),
    "a file that is not YAML": (("check", "bad/broken.yaml", *WORLD), 2),
    "a file that is not there": (("check", "nowhere.yaml", *WORLD, "--fail-on", "never"), 2),
    "a policy with faults": (("check", "deploy", "--policies", "faulty"), 2),
    "policies that are not there": (("check", "deploy", "--policies", "nowhere"), 2),
    "a folder without policies": (("check", "deploy", "--policies", "../__snapshots__"), 2),
    "a cluster that is not there": (("check", "deploy", "--policies", "policies", "--cluster", "nowhere"), 2),
    "a cluster that is none": (("check", "deploy", "--policies", "policies", "--cluster", "bad/broken.yaml"), 2),
    "a moment that is none": (("check", "deploy", "--policies", "policies", "--now", "tomorrow"), 2),
    "a moment without a zone": (("check", "deploy", "--policies", "policies", "--now", "2026-06-01T00:00:00"), 2),
    "labels that are none": (("check", "deploy", "--policies", "policies", "--namespace-labels", "team"), 2),
    "a format that does not exist": (("check", "deploy", "--policies", "policies", "-o", "xml"), 2),
    "a format with a file that has no name": (("check", "deploy", "--policies", "policies", "-o", "json="), 2),
    "two reports on stdout": (("check", "deploy", "--policies", "policies", "-o", "json", "-o", "table"), 2),
    "a report that cannot be written": (("check", "deploy", *WORLD, "-o", "json=nowhere/report.json"), 2),
    "a flag that does not exist": (("check", "deploy", "--polices", "policies"), 2),
    "a command that does not exist": (("chekc", "deploy"), 2),
    "no cluster to audit": (("audit", "--policies", "policies"), 2),
    "a live cluster where only snapshots are taken": (("capacity", "--cluster", "live"), 2),
    "an audit with denials": (("audit", "--cluster", "cluster.yaml", "--policies", "policies"), 1),
    "an audit of a file that is no cluster": (("audit", "bad/broken.yaml", "--policies", "policies"), 2),
    "tests that fail": (("test", "cases"), 1),
    "no tests": (("test", "deploy"), 2),
    "no folder of tests": (("test", "nowhere"), 2),
    "a test whose policies are not there": (("test", "lost"), 2),
    "a quota for a namespace that cannot be": (("accounting", "enable", "-n", "Bad Name!"), 2),
    "a quota for more GPUs than there are": (("accounting", "enable", "--gpus", "99999999999999999999"), 2),
    "a code": (("explain", "GPU-S101"), 0),
    "every code": (("explain",), 0),
    "a code that does not exist": (("explain", "GPU-L999"), 2),
    "a code and a file to explain": (("explain", "GPU-S101", "-f", "deploy/train.yaml", *WORLD), 2),
    "a pod of the shipped cluster": (("explain", "embed-0", "-n", "team-vision", "--cluster", "demo"), 0),
    "a pod of a cluster, by its kind too": (("explain", "pod/embed-0", "-n", "team-vision", "--cluster", "demo"), 0),
    "a pod that the cluster has elsewhere": (("explain", "embed-0", "--cluster", "demo"), 2),
    "nothing on standard input": (("check", "-", *WORLD), 2),
    "a file to explain": (("explain", "-f", "deploy/train.yaml", *WORLD), 0),
    "a file to explain that is not there": (("explain", "-f", "nowhere.yaml", *WORLD), 2),
    "traps": (("lint", "-f", "traps.yaml"), 1),
    "traps of nothing": (("lint",), 2),
    "a LimitRange that no API server takes": (("lint", "-f", "refused.yaml"), 2),
    "traps of files and of a cluster": (("lint", "-f", "traps.yaml", "--cluster", "live"), 2),
    "traps of a cluster that is none": (("lint", "--cluster", "nowhere.yaml"), 2),
    "traps of a snapshot": (("lint", "--cluster", "traps.yaml"), 1),
    "traps of the shipped cluster, of a namespace that is not there": (("lint", "--cluster", "demo", "-n", "none"), 2),
    "a kubeconfig for a snapshot's traps": (("lint", "--cluster", "traps.yaml", "--context", "a"), 2),
    "a namespace of files": (("lint", "-f", "traps.yaml", "-n", "team"), 2),
    "policies without faults": (("policy", "lint", "policies"), 0),
    "policies with faults": (("policy", "lint", "faulty"), 1),
    "policies that cannot be read": (("policy", "lint", "nowhere"), 2),
    "a policy": (("policy", "show", "research", "--policies", "policies"), 0),
    "a policy that does not exist": (("policy", "show", "reserch", "--policies", "policies"), 2),
    "a new policy": (("policy", "new", "mine"), 0),
    "a new policy with a name that cannot be": (("policy", "new", "My Policy"), 2),
    "the version": (("version",), 0),
    "a shell": (("completion", "bash"), 0),
    "a shell without a script": (("completion", "tcsh"), 2),
}


@pytest.mark.parametrize(("arguments", "want"), CODES.values(), ids=CODES)
def test_exit_code(arguments: tuple[str, ...], want: int, rightslice: Run) -> None:
    ran = rightslice(*arguments)
    assert ran.code == want, ran.out + ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    "arguments",
    [arguments for arguments, code in CODES.values() if code == 2],
    ids=[k for k, v in CODES.items() if v[1] == 2],
)
def test_invalid_input_has_a_message(arguments: tuple[str, ...], rightslice: Run) -> None:
    ran = rightslice(*arguments)
    assert len((ran.out + ran.err).split()) > 4


SENTENCES = {
    "a pod of no cluster": (("explain", "embed-0"), "a pod, use --cluster with live or a snapshot"),
    "a pod that a snapshot lacks": (("explain", "nix", "--cluster", "demo"), "'nix' in namespace 'default' of demo"),
    "a pod of a snapshot": (("explain", "embed-0", "-n", "team-vision", "--cluster", "demo"), "on node a100-mixed-1"),
    "misspelt code": (("explain", "GPU-L10"), "Did you mean GPU-L10"),
    "a code without its first letters": (("explain", "l102"), "Did you mean GPU-L102?"),
    "a report that cannot be written": (("check", "deploy", *WORLD, "-o", "sarif=/nonexistent/x"), "/nonexistent/x"),
    "nothing on standard input": (("check", "-", *WORLD), "no input"),
    "misspelt flag": (("check", "deploy", "--polices", "policies"), "--policies"),
    "an audit without nodes": (("audit", "deploy", "--policies", "policies"), "no nodes are known"),
    "misspelt policy": (("policy", "show", "reserch", "--policies", "policies"), "Did you mean research?"),
    "misspelt command": (("chekc",), "Did you mean 'check'?"),
    "misspelt format": (("check", "deploy", *WORLD, "-o", "jsn"), "must be one of table, wide, json"),
    "policy faults come all at once": (("check", "deploy", "--policies", "faulty"), "policy.yaml:6:3"),
    "the audit says what to give it": (("audit",), "--cluster demo"),
    "tests whose policies are lost say which": (("test", "lost"), "nowhere.yaml"),
}


@pytest.mark.parametrize(("arguments", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_messages(arguments: tuple[str, ...], sentence: str, rightslice: Run) -> None:
    ran = rightslice(*arguments)
    assert sentence in ran.out + ran.err


def test_stdin_is_a_dash(rightslice: Run) -> None:
    ran = rightslice("check", "-", *WORLD, stdin=(FILES / "deploy/train.yaml").read_bytes())
    assert ran.code == 1
    assert ran.out.startswith("stdin:12:27  deny  GPU-L102")


def test_stdin_is_read_once(rightslice: Run) -> None:
    ran = rightslice("check", "-", "-", *WORLD, stdin=(FILES / "deploy/sized.json").read_bytes())
    assert ran.code == 2
    assert "standard input can be read once" in ran.out


def test_stdin_accepts_json_and_several_documents(rightslice: Run) -> None:
    pods = [(FILES / name).read_bytes() for name in ("deploy/sized.json", "deploy/train.yaml")]
    ran = rightslice("check", "-", *WORLD, "-o", "name", stdin=b"\n---\n".join(pods))
    assert ran.out.split() == ["pod/notebook", "pod/train-0"]


def test_one_run_writes_several_reports(rightslice: Run, tmp_path: Path) -> None:
    sarif = tmp_path / "report.sarif"
    ran = rightslice("check", "deploy", *WORLD, "-o", "name", "-o", f"sarif={sarif}")
    assert "pod/train-0" in ran.out
    assert json.loads(sarif.read_text())["version"] == "2.1.0"


def test_the_namespace_flag_is_for_objects_that_name_none(rightslice: Run) -> None:
    ran = rightslice("check", "deploy/serve.yaml", *WORLD, "-n", "elsewhere", "-o", "json")
    found = {each["name"]: each["namespace"] for each in json.loads(ran.out)["objects"]}
    assert found == {"serve": "team-vision", "web": "elsewhere"}


def test_policies_select_by_given_namespace_labels(rightslice: Run) -> None:
    plain = rightslice("check", "cluster.yaml", "--policies", "policies", "--cluster", "cluster.yaml", "-n", "x")
    labelled = rightslice(
        "check", "-", *WORLD, "--namespace-labels", "sized=true", "--namespace-labels", "tier=a",
        stdin=(FILES / "deploy/sized.json").read_bytes().replace(b"team-vision", b"elsewhere"),
    )  # fmt: skip
    unlabelled = rightslice(
        "check", "-", *WORLD, stdin=(FILES / "deploy/sized.json").read_bytes().replace(b"team-vision", b"elsewhere")
    )
    assert plain.code == 1
    assert "GPU-R101" in labelled.out
    assert "GPU-R101" not in unlabelled.out


def test_the_shipped_library_is_the_default(rightslice: Run) -> None:
    ran = rightslice("policy", "list")
    assert re.search(r"^guard +enforce", ran.out, re.MULTILINE)


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


EXEMPTED = (
    "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: p}\nspec:\n  cuda: {}\n"
    "  exemptions:\n  - name: old\n    codes: [GPU-C101]\n    reason: an old image\n"
    '    match: {namespaces: [a]}\n    expirationTime: "2026-06-01T00:00:00Z"\n'
)


@pytest.mark.parametrize(("now", "told"), [("2026-05-31T23:59:59Z", False), ("2026-06-01T00:00:00Z", True)])
def test_lint_names_expired_exemptions(now: str, told: bool, rightslice: Run) -> None:
    ran = rightslice("policy", "lint", "-", "--now", now, stdin=EXEMPTED)
    assert ran.code == 0
    assert ("exemption old of p expired on 2026-06-01 and has no effect" in ran.err) is told


def test_lint_names_policies_that_match_no_pod(rightslice: Run) -> None:
    ran = rightslice(
        "policy", "lint", "-", stdin=POLICY.replace("spec: {", "spec: {match: {resources: [amd.com/gpu]}, ")
    )
    assert ran.code == 0
    assert "matches no pod: match.resources must include a name of nvidia.com/*, found amd.com/gpu" in ran.err


def test_sources_are_printed_to_stderr_only(rightslice: Run) -> None:
    ran = rightslice("check", "deploy/sized.json", *WORLD, "-o", "json", "-v")
    assert json.loads(ran.out)
    assert "policies: research, sizing, trial" in ran.err
    assert "cluster: cluster.yaml (1 node, 2 offers)" in ran.err


@pytest.mark.parametrize("arguments", [("--cluster",), ()], ids=["named by a flag", "given as files"])
def test_skipped_objects_of_a_snapshot_are_reported(
    arguments: tuple[str, ...], rightslice: Run, tmp_path: Path
) -> None:
    file = tmp_path / "all.yaml"
    stranger = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"
    file.write_text(f"{(FILES / 'cluster.yaml').read_text()}\n---\n{stranger}")
    ran = rightslice("audit", *arguments, str(file), "--policies", "policies", "-v")
    assert "1 of kind Secret skipped" in ran.err
    assert "Secret" not in rightslice("audit", *arguments, str(file), "--policies", "policies").err


def test_without_a_cluster_there_are_no_findings_about_nodes(rightslice: Run) -> None:
    pod = ("-", "--policies", "policies", "--namespace-labels", "sized=true", "-v")
    given = (FILES / "deploy/sized.json").read_bytes()
    assert "GPU-R103" not in rightslice("check", *pod, stdin=given).out
    explained = rightslice("explain", "-f", *pod, stdin=given).out
    assert "unknown without a cluster" in explained
    assert "in this cluster" not in explained


def test_the_default_time_is_the_clock(rightslice: Run) -> None:
    assert rightslice("check", "deploy/train.yaml", "--policies", "policies").code == 1
    assert rightslice("check", "deploy/train.yaml", "--policies", "policies", "--now", JUNE).code == 1


POLICY = "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: p}\nspec: {cuda: {}}\n"
FOLDERS: dict[str, tuple[dict[str, str], bool]] = {
    "a policy": ({"a.yaml": POLICY}, True),
    "a policy beside an empty file": ({"a.yaml": POLICY, "b.yaml": ""}, True),
    "a policy beside what is none": ({"a.yaml": POLICY, "README.md": "# a: ["}, True),
    "an empty file": ({"a.yaml": ""}, False),
    "remarks": ({"a.yaml": "# later\n"}, False),
    "a test and no policy": ({"a.yaml": "apiVersion: rightslice.dev/v1alpha1\nkind: GPUPolicyTest\n"}, False),
    "nothing": ({}, False),
    "a policy in a hidden folder": ({".git/a.yaml": POLICY}, False),
    "a fault": ({"a.yaml": POLICY + "oops: 1\n"}, False),
}


ODD_LIMITS = {
    "limits that are no list": (
        "{apiVersion: v1, kind: LimitRange, metadata: {name: a}, spec: {limits: {type: Container}}}",
        2,
        "stdin:1:72: spec.limits: must be a list, found a map",
    ),
    "an amount that is none": (
        "{apiVersion: v1, kind: ResourceQuota, spec: {hard: {nvidia.com/gpu: many}}}",
        2,
        "spec.hard['nvidia.com/gpu']: must be an amount, found 'many'",
    ),
    "an amount below zero": (
        "{apiVersion: v1, kind: ResourceQuota, spec: {hard: {requests.nvidia.com/gpu: -3}}}",
        2,
        "must be an amount, found -3",
    ),
    "a quota without a spec": (
        "{apiVersion: v1, kind: ResourceQuota, spec: null}",
        0,
        "spec: skipped: the object has no spec",
    ),
    "items that are no list": ("{apiVersion: v1, kind: List, items: 5}", 2, "must be a list, as items of a List are"),
    "no apiVersion": ("{kind: LimitRange, spec: {limits: []}}", 0, "not a Kubernetes object: it has no apiVersion"),
}


@pytest.mark.parametrize(("text", "code", "message"), ODD_LIMITS.values(), ids=ODD_LIMITS)
def test_every_skipped_object_is_reported(text: str, code: int, message: str, rightslice: Run) -> None:
    ran = rightslice("lint", "-f", "-", stdin=text)

    assert ran.code == code
    assert message in ran.err


class Nothing(BaseHTTPRequestHandler):
    """An API server with an empty namespace "there", and a namespace "hidden" that may not be read."""

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].rpartition("/")[2]
        body = b'{"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []}'
        self.send_response({"gone": 404, "hidden": 403}.get(name, 200))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_said: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(("namespace", "code"), [("gone", 2), ("hidden", 0), ("there", 0)])
def test_lint_of_a_missing_live_namespace(namespace: str, code: int, tmp_path: Path, rightslice: Run) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        reach = ["--kubeconfig", str(kubeconfig(tmp_path, f"http://127.0.0.1:{server.server_port}", "t0"))]
        ran = rightslice("lint", "--cluster", "live", "-n", namespace, *reach)
        server.shutdown()
        thread.join()

    assert ran.code == code, ran.err
    assert ("-n gone: no such namespace in this cluster" in ran.err) == (code == 2)


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
    ran = rightslice("policy", "lint", str(tmp_path))
    assert (ran.code == 0) is usable, ran.out + ran.err
    with nullcontext() if usable else pytest.raises(NoPoliciesError):
        read_policies(PolicyFiles((tmp_path,)), load_policies)


ROLLED = POLICY.replace("spec: {cuda: {}}", "spec: {mode: enforce, rollout: {percent: 0, haltOn: {oom: 2}}, cuda: {}}")


def test_policy_commands_show_rollouts(rightslice: Run, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(ROLLED)
    assert "enforce:0%" in rightslice("policy", "list", "--policies", str(tmp_path)).out
    assert "rollouts of files are not monitored" in rightslice("policy", "lint", str(tmp_path)).err
    explained = rightslice("explain", "-f", "deploy/train.yaml", "--policies", str(tmp_path)).out
    assert "Audit     p: the rollout does not include this workload" in explained


HALTED = "also puts {} in audit mode"
WATCHED = "{percent: 5, haltOn: {oom: 2}}"
SHARED = "{mode: enforce, shared: [{name: a, gpuMilli: 8000, namespaceSelector: {matchLabels: {a: b}}}]}"
SWITCHED_OFF = {
    "security": ("enforce", WATCHED, "security: {}", HALTED.format("security")),
    "quotas": (
        "audit",
        WATCHED,
        f"security: {{mode: enforce}}, quotas: {SHARED}",
        HALTED.format("quotas and security"),
    ),
    "without haltOn": ("enforce", "{percent: 5}", "security: {}", ""),
    "it is in audit mode already": ("enforce", WATCHED, "security: {mode: audit}", ""),
    "it mutates pods": ("enforce", WATCHED, "rightSizing: {}", ""),
}


@pytest.mark.parametrize(("mode", "rollout", "sections", "said"), SWITCHED_OFF.values(), ids=SWITCHED_OFF)
def test_lint_names_the_sections_that_a_halt_would_put_in_audit_mode(
    mode: str, rollout: str, sections: str, said: str, rightslice: Run, tmp_path: Path
) -> None:
    spec = f"spec: {{mode: {mode}, rollout: {rollout}, {sections}}}"
    (tmp_path / "p.yaml").write_text(POLICY.replace("spec: {cuda: {}}", spec))
    ran = rightslice("policy", "lint", str(tmp_path))
    assert ran.code == 0, ran.out
    assert said in ran.err
    assert bool(said) == ("in audit mode" in ran.err)


DAYS = {
    "none are named": ((), 3, "did not answer"),
    "nothing": (("--prometheus-days", "0"), 2, "--prometheus-days: must be 1 to 90, found 0"),
    "before now": (("--prometheus-days", "-3"), 2, "--prometheus-days: must be 1 to 90, found -3"),
    "for ever": (("--prometheus-days", "99999999999"), 2, "--prometheus-days: must be 1 to 90"),
}


@pytest.mark.parametrize(("flags", "code", "said"), DAYS.values(), ids=DAYS)
def test_days_of_usage_history(flags: tuple[str, ...], code: int, said: str, rightslice: Run, tmp_path: Path) -> None:
    ran = rightslice("usage", "record", "--prometheus", "http://127.0.0.1:1", "--file", str(tmp_path / "u"), *flags)
    assert (ran.code, ran.out) == (code, ""), ran.err
    assert said in ran.err


UNDO = {
    "a pod that was never changed": (("-f", "deploy/train.yaml"), 1),
    "a file that is not there": (("-f", "nowhere.yaml"), 2),
    "neither a pod nor a file": ((), 2),
    "a pod and a file": (("train-0", "-f", "deploy/train.yaml"), 2),
}


@pytest.mark.parametrize(("arguments", "code"), UNDO.values(), ids=UNDO)
def test_undo(arguments: tuple[str, ...], code: int, rightslice: Run) -> None:
    ran = rightslice("undo", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err


RECORD = {"policies": ["p"], "digest": "0123456789ab", "changed": ["resources"], "resource": "nvidia.com/mig-1g.10gb"}
ORIGINAL = {"main": {"limits": {"nvidia.com/gpu": "1"}}}
NOW = {"name": "main", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}


def rewritten(original: str = json.dumps(ORIGINAL), *containers: object) -> dict[str, Any]:
    """A right-sized pod, with containers that were not changed."""
    annotations = {"rightslice.dev/decision": json.dumps(RECORD), "rightslice.dev/original-resources": original}
    kept = {key: text for key, text in annotations.items() if text}
    return {"metadata": {"name": "p", "annotations": kept}, "spec": {"containers": [NOW, *containers]}}


def list_of(*pods: dict[str, Any]) -> bytes:
    items = [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in pods]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}).encode()


NO_PODS = {
    "metadata is a number": ({"metadata": 5, "spec": {"containers": []}}, "metadata must be a map"),
    "annotations are a list": (
        {"metadata": {"name": "p", "annotations": [1]}, "spec": {"containers": []}},
        "metadata.annotations: must be a map, found a list",
    ),
    "no spec": ({"metadata": {"name": "p"}}, "spec: must be a map with containers"),
    "a container is a number": (rewritten(json.dumps(ORIGINAL), 5), "spec.containers[1]: must be a map"),
    "a container is a list": (rewritten(json.dumps(ORIGINAL), []), "spec.containers[1]: must be a map"),
    "its name is a list": (rewritten(json.dumps(ORIGINAL), {"name": [None]}), "spec.containers[1].name: must be"),
    "its resources are a number": (rewritten(json.dumps(ORIGINAL), {"resources": 5}), "resources: must be a map"),
    "its limits are a text": (rewritten(json.dumps(ORIGINAL), {"resources": {"limits": "9"}}), "limits: must be a map"),
}


@pytest.mark.parametrize(("pod", "said"), NO_PODS.values(), ids=NO_PODS)
def test_undo_reports_invalid_pods_and_prints_the_others(pod: dict[str, Any], said: str, rightslice: Run) -> None:
    ran = rightslice("undo", "-f", "-", stdin=list_of(pod, rewritten(json.dumps(ORIGINAL), None)))
    assert ran.code == 2
    assert re.search(rf"error: stdin:\d+:\d+: .*{re.escape(said)}", ran.err)
    assert "# Pod default/p as it was before right-sizing" in ran.out


LOST = {
    "it is gone": "",
    "it is cut off": '{"main":',
    "it is something else": "[]",
    "it is empty": "{}",
    "it is of a container that is not there": json.dumps({"nobody": ORIGINAL["main"]}),
    "its amount is none": json.dumps({"main": {"limits": {"nvidia.com/gpu": "\x1b[31m9\nx: y"}}}),
    "it had no whole GPU": json.dumps({"main": {"limits": {"cpu": "1"}}}),
}


@pytest.mark.parametrize("original", LOST.values(), ids=LOST)
def test_undo_reports_a_lost_record(original: str, rightslice: Run) -> None:
    ran = rightslice("undo", "-f", "-", stdin=list_of(rewritten(original), rewritten()))
    assert (ran.code, ran.out.count("# Pod")) == (1, 1)
    assert "Pod default/p was right-sized to nvidia.com/mig-1g.10gb; its original request is unknown" in ran.err
    alone = rightslice("undo", "-f", "-", stdin=list_of(rewritten(original)))
    assert (alone.code, alone.out) == (1, "")


def test_undo_of_a_recorded_pod_succeeds(rightslice: Run) -> None:
    assert rightslice("undo", "-f", "-", stdin=list_of(rewritten())).code == 0


def test_a_cluster_that_does_not_answer_is_exit_code_3(rightslice: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file = kubeconfig(tmp_path, f"http://127.0.0.1:{taken.getsockname()[1]}", "t")
    for command in (["audit"], ["check", "deploy/train.yaml"], ["explain", "pod"]):
        ran = rightslice(*command, "--policies", "policies", "--cluster", "live", "--kubeconfig", str(file))
        assert (ran.code, ran.out) == (3, "")
        assert re.search(r"(GET|POST) /\S*: no answer from http://127\.0\.0\.1:", ran.err)


ASKING_A_CLUSTER = (
    ("audit", "--policies", "policies", "--cluster", "live"),
    ("lint", "--cluster", "live"),
    ("undo", "pod"),
    ("doctor",),
    ("accounting", "check"),
    ("install",),
    ("uninstall",),
)


@pytest.mark.parametrize("command", ASKING_A_CLUSTER, ids=" ".join)
def test_an_unusable_kubeconfig_is_exit_code_2(command: tuple[str, ...], rightslice: Run, tmp_path: Path) -> None:
    absent = rightslice(*command, "--kubeconfig", "nowhere")
    assert (absent.code, absent.out) == (2, "")
    assert "nowhere: must be a kubeconfig file" in absent.err
    broken = tmp_path / "broken"
    broken.write_text("clusters: [")
    ran = rightslice(*command, "--kubeconfig", str(broken))
    assert (ran.code, ran.out) == (2, "")
    assert f"error: {broken}: " in ran.err


@pytest.mark.parametrize("command", ASKING_A_CLUSTER[3:], ids=" ".join)
def test_an_api_server_that_does_not_answer_is_exit_code_3(
    command: tuple[str, ...], rightslice: Run, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file = kubeconfig(tmp_path, f"http://127.0.0.1:{taken.getsockname()[1]}", "t")
    ran = rightslice(*command, "--kubeconfig", str(file))
    assert ran.code == 3
    assert "no answer from http://127.0.0.1:" in ran.err


def test_a_context_for_a_snapshot_is_exit_code_2(rightslice: Run) -> None:
    ran = rightslice("audit", "--policies", "policies", "--cluster", "demo", "--context", "x")
    assert (ran.code, ran.out) == (2, "")
    assert "write --cluster live" in ran.err
