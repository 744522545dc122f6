"""`doctor` and `install` about device classes by whose resource name the webhooks get no pods."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest

from tests.builders import Json
from tests.device_builders import device_class
from tests.installing.test_doctor import HEALTHY, MUTATING, NOW, OUTSIDE, VALIDATING, deployment, without
from webhook.cli.commands.doctor import diagnose
from webhook.cli.commands.install import resolve_install
from webhook.installing.facts import CheckState, ClusterFacts, CurrentInstall, DiagnosticResult
from webhook.manifests.objects import WEBHOOK_KINDS
from webhook.manifests.sent_resources import read_sent_resources, with_gpu_resources

SERVED = device_class("shared", "device.driver == 'gpu.nvidia.com'", "example.com/gpu")
OTHERS = device_class("nic", "device.driver == 'dra.net'", "example.com/nic")
UNSENT = "pods that request example.com/gpu of DeviceClass shared are not sent to the webhooks"


def sending(*names: str) -> Json:
    """Return the validating configuration of an installation with further resource names."""
    [_, validating] = with_gpu_resources([MUTATING, VALIDATING], names)
    return validating


def of_helm() -> Json:
    return {**deployment(), "metadata": {"annotations": {"meta.helm.sh/release-name": "gpu"}}}


def of_cert_manager() -> Json:
    issued = deployment()
    issued["spec"]["template"]["spec"]["containers"][1]["args"] = ["serve", "--tls-cert=/tls/tls.crt"]
    return issued


def results(facts: ClusterFacts) -> list[DiagnosticResult]:
    return [each for each in diagnose(facts, NOW) if each.check == "sent-classes"]


class AdviceCase(NamedTuple):
    """A cluster in which pods of a class are not sent, and what to write."""

    facts: ClusterFacts
    advice: str


ADVICE = {
    "installed with the command": AdviceCase(
        replace(HEALTHY, device_classes=[SERVED, OTHERS]), "rightslice install --gpu-resource example.com/gpu"
    ),
    "with the command, and with another name": AdviceCase(
        replace(HEALTHY, device_classes=[SERVED], validating=sending("amd.com/*")),
        "rightslice install --gpu-resource 'amd.com/*' --gpu-resource example.com/gpu",
    ),
    "installed with Helm": AdviceCase(
        replace(HEALTHY, device_classes=[SERVED], deployment=of_helm()),
        "helm upgrade gpu CHART --namespace rightslice-system --reset-then-reuse-values "
        "--set-json 'gpuResources=[\"example.com/gpu\"]'",
    ),
    "with a certificate of cert-manager": AdviceCase(
        replace(HEALTHY, device_classes=[SERVED], deployment=of_cert_manager()),
        "add example.com/gpu to the match conditions (docs/install.md#gpus-under-other-names)",
    ),
    "outside the cluster": AdviceCase(
        replace(OUTSIDE, device_classes=[SERVED]),
        "add example.com/gpu to the match conditions (docs/install.md#gpus-under-other-names)",
    ),
}


@pytest.mark.parametrize("case", ADVICE.values(), ids=ADVICE)
def test_doctor_says_what_to_write_for_a_class_whose_pods_are_not_sent(case: AdviceCase) -> None:
    [found] = results(case.facts)

    assert (found.state, found.summary) == (CheckState.WARN, UNSENT)
    assert found.advice == f"no policy applies to them: {case.advice}"


def test_doctor_reports_that_pods_of_all_classes_are_sent() -> None:
    [found] = results(replace(HEALTHY, device_classes=[SERVED, OTHERS], validating=sending("example.com/*")))

    assert found.state is CheckState.OK


def test_doctor_says_nothing_about_clusters_without_such_classes() -> None:
    unnamed = device_class("gpu", "device.driver == 'gpu.nvidia.com'")

    assert results(HEALTHY) == []
    assert results(replace(HEALTHY, device_classes=[unnamed])) == []
    assert results(replace(without("validating"), device_classes=[SERVED])) == []


class KeptNames(NamedTuple):
    """The names that are given (None without the flag), those that are installed, those that count, and the line."""

    given: tuple[str, ...] | None
    installed: tuple[str, ...]
    names: tuple[str, ...]
    line: str


KEPT = {
    "an upgrade keeps them": KeptNames(None, ("example.com/gpu",), ("example.com/gpu",), "example.com/gpu, unchanged"),
    "given ones replace them": KeptNames(("amd.com/*",), ("example.com/gpu",), ("amd.com/*",), "amd.com/*\n"),
    "an empty one removes them": KeptNames((), ("example.com/gpu",), (), "none"),
    "a first installation with some": KeptNames(("amd.com/*",), (), ("amd.com/*",), "amd.com/*\n"),
}


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT)
def test_an_installation_keeps_its_resource_names_until_others_are_given(
    case: KeptNames, capsys: pytest.CaptureFixture[str]
) -> None:
    current = CurrentInstall("audit", "x/y:1", gpu_resources=case.installed)

    _, objects = resolve_install(CurrentInstall(gpu_resources=case.given), current)

    [validating] = [each for each in objects if each["kind"] == WEBHOOK_KINDS[1]]
    assert read_sent_resources(validating).added == case.names
    assert f"further resource names {case.line}" in capsys.readouterr().out


def test_without_resource_names_none_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    resolve_install(CurrentInstall(), CurrentInstall("audit", "x/y:1", gpu_resources=()))

    assert "resource names" not in capsys.readouterr().out
