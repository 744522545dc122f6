"""Recipes of stacks whose manifests are in no collection: written here after what the stacks publish.

AKS: "Use NVIDIA GPUs on Azure Kubernetes Service" and the tests of Azure/karpenter-provider-azure, whose GPU pod is the
same sample. Gatekeeper: the GPU policies proposed to open-policy-agent/gatekeeper-library (pull request 737). Kyverno:
the patterns of kyverno/policies for limits and tolerations.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders import Json, make_pod
from tests.cli.test_recipes import RECIPES, output, replace_all, write_files

AKS_SAMPLE = """\
apiVersion: batch/v1
kind: Job
metadata: {name: samples-tf-mnist-demo, namespace: team, labels: {app: samples-tf-mnist-demo}}
spec:
  template:
    metadata: {labels: {app: samples-tf-mnist-demo}}
    spec:
      restartPolicy: OnFailure
      containers:
        - name: samples-tf-mnist-demo
          image: mcr.microsoft.com/azuredocs/samples-tf-mnist-demo:gpu
          args: ["--max_steps", "500"]
          resources: {limits: {nvidia.com/gpu: 1}}
      tolerations: [{key: sku, operator: Equal, value: gpu, effect: NoSchedule}]
"""
NEED = {"metadata: {labels: {app: samples-tf-mnist-demo}}": "metadata: {annotations: {rightslice.dev/gpu-memory: 8Gi}}"}
NO_TOLERATION = {"      tolerations: [{key: sku, operator: Equal, value: gpu, effect: NoSchedule}]\n": ""}
OPTED_IN = (
    "--policies policies/right-sizing.yaml --cluster cluster.yaml"
    " --namespace-labels rightslice.dev/right-sizing=enforced -o json"
)


def checked(folder: Path, call: str) -> list[Json]:
    """Return the objects of a `check`."""
    found: list[Json] = json.loads(output(call, folder))["objects"]
    return found


SAMPLES: dict[str, tuple[dict[str, str], str, list[str]]] = {
    "as published": ({}, "NoEvidence", []),
    "with its need": (NEED, "", []),
    "with its need, and without its toleration": (NEED | NO_TOLERATION, "", ["spec.template.spec.tolerations"]),
}


@pytest.mark.parametrize(("edits", "reason", "added"), SAMPLES.values(), ids=SAMPLES)
def test_the_sample_of_aks_gets_a_slice_if_it_declares_its_need(
    edits: dict[str, str], reason: str, added: list[str], tmp_path: Path
) -> None:
    write_files(RECIPES / "aks.md", tmp_path)
    (tmp_path / "job.yaml").write_text(AKS_SAMPLE)
    (tmp_path / "job.yaml").write_text(replace_all(tmp_path / "job.yaml", edits))

    [job] = checked(tmp_path, f"check job.yaml {OPTED_IN}")

    assert (job["keepReason"], job["gpuMilliAfter"]) == (reason, 1000 if reason else 143)
    assert [found["path"] for found in job["findings"] if found["code"] == "GPU-I101"] == added


AKS_DEVICE_PLUGIN = """\
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: nvidia-device-plugin-daemonset, namespace: gpu-resources}
spec:
  selector: {matchLabels: {name: nvidia-device-plugin-ds}}
  template:
    metadata: {labels: {name: nvidia-device-plugin-ds}}
    spec:
      tolerations: [{key: sku, operator: Equal, value: gpu, effect: NoSchedule}]
      priorityClassName: system-node-critical
      containers:
        - name: nvidia-device-plugin-ctr
          image: nvcr.io/nvidia/k8s-device-plugin:v0.18.0
          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
          volumeMounts: [{name: device-plugin, mountPath: /var/lib/kubelet/device-plugins}]
      volumes: [{name: device-plugin, hostPath: {path: /var/lib/kubelet/device-plugins}}]
"""
EXCLUDED = {"    excludeNamespaces:\n": "    excludeNamespaces:\n      - gpu-resources\n"}


@pytest.mark.parametrize(("edits", "verdict"), [({}, "denied"), (EXCLUDED, "no-gpu")], ids=["guard", "excluded"])
def test_guard_and_the_device_plugin_of_aks(edits: dict[str, str], verdict: str, tmp_path: Path) -> None:
    write_files(RECIPES / "aks.md", tmp_path)
    (tmp_path / "plugin.yaml").write_text(AKS_DEVICE_PLUGIN)
    (tmp_path / "guard.yaml").write_text(replace_all(tmp_path / "policies" / "guard.yaml", edits))

    [plugin] = checked(tmp_path, "check plugin.yaml --policies guard.yaml --cluster cluster.yaml -o json")

    assert plugin["verdict"] == verdict


REPLACEMENT = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: moved}
spec:
  mode: enforce
  match: {namespaces: ["team-*"]}
  limits: {perContainer: [{resource: nvidia.com/gpu, max: 4}]}
  injection: {tolerations: auto, nodeAffinity: auto}
  security: {deny: [visibleDevicesEnv, hostPathDevices]}
"""
FOUR_GPUS = make_pod("four").namespace("team-nlp").gpus(4)
FIVE_GPUS = make_pod("five").namespace("team-nlp").gpus(5)
DEVICE_FILE = {"name": "gpu", "hostPath": {"path": "/dev/nvidia0"}}
MOVED_RULES: dict[str, tuple[Json, str, str]] = {
    "Gatekeeper's K8sGpuResourceLimits and Kyverno's pattern: a container with more GPUs": (
        FIVE_GPUS.build(),
        "denied",
        "GPU-L103",
    ),
    "the same: a container with as many": (FOUR_GPUS.build(), "allowed", "GPU-I101"),
    "Gatekeeper's K8sRequiredGpuToleration and Kyverno's add-tolerations: no toleration": (
        make_pod("bare").namespace("team-nlp").gpus(1).build(),
        "allowed",
        "GPU-I101",
    ),
    "Gatekeeper's K8sNoUnsupportedGpu requires the variable that is denied": (
        make_pod("visible").namespace("team-nlp").gpus(1).env("NVIDIA_VISIBLE_DEVICES", "all").build(),
        "denied",
        "GPU-S101",
    ),
    "a rule on host paths": (
        make_pod("path").namespace("team-nlp").spec(volumes=[DEVICE_FILE]).build(),
        "denied",
        "GPU-S303",
    ),
    "another namespace": (make_pod("five").namespace("other").gpus(5).build(), "allowed", ""),
}


@pytest.mark.parametrize(("pod", "verdict", "code"), MOVED_RULES.values(), ids=MOVED_RULES)
def test_rules_of_kyverno_and_gatekeeper_that_were_moved(pod: Json, verdict: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(REPLACEMENT)
    (tmp_path / "pod.json").write_text(json.dumps(pod))

    [one] = checked(tmp_path, "check pod.json --policies policy.yaml --cluster demo -o json")

    assert one["verdict"] == verdict
    codes = [found["code"] for found in one["findings"]]
    assert code in codes or not code
    added = [op["value"] for op in one["patch"] if op["path"] == "/spec/tolerations"]
    assert [each["key"] for tolerations in added for each in tolerations] == ["nvidia.com/gpu"] * ("GPU-I101" in codes)


OLD_RULES = """\
apiVersion: templates.gatekeeper.sh/v1
kind: ConstraintTemplate
metadata: {name: k8sgpuresourcelimits}
spec:
  crd: {spec: {names: {kind: K8sGpuResourceLimits}}}
  targets:
    - target: admission.k8s.gatekeeper.sh
      rego: |
        package k8sgpuresourcelimits
        violation[{"msg": msg}] {
          container := input.review.object.spec.containers[_]
          to_number(container.resources.limits["nvidia.com/gpu"]) > input.parameters.maxGpus
          msg := sprintf("container %v requests too many GPUs", [container.name])
        }
---
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: K8sGpuResourceLimits
metadata: {name: four}
spec:
  match: {kinds: [{apiGroups: [""], kinds: [Pod]}]}
  parameters: {maxGpus: 4}
"""


def test_old_rules_in_a_repository_are_no_error(tmp_path: Path) -> None:
    write_files(RECIPES / "kyverno-gatekeeper.md", tmp_path)
    (tmp_path / "deploy").mkdir()
    for name in ("kyverno.yaml", "pod.yaml"):
        (tmp_path / name).rename(tmp_path / "deploy" / name)
    (tmp_path / "deploy" / "gatekeeper.yaml").write_text(OLD_RULES)

    found = checked(tmp_path, "check deploy --policies policy.yaml --cluster demo -o json")
    verdicts = [(one.get("kind"), one["verdict"]) for one in found]

    assert ("Pod", "warned") in verdicts
    assert {verdict for _, verdict in verdicts} <= {"warned", "skipped", "allowed"}
