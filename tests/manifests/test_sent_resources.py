"""The names of resources by which pods are sent: which names may be added, and what the conditions then match."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from cel_expr_python import cel

from tests.builders import Json, make_pod
from tests.conftest import ROOT
from tests.device_builders import device_class
from tests.example_cluster import view_of
from tests.house.checkout import read_checkout_file
from webhook.documents.reader import read_documents
from webhook.manifests.objects import WEBHOOK_KINDS
from webhook.manifests.sent_resources import (
    RESERVED_NAME_PATTERN,
    SentResources,
    find_unsent_classes,
    is_resource_glob,
    read_sent_resources,
    with_gpu_resources,
)
from webhook.manifests.webhooks import webhook_configurations

CEL = cel.NewEnv(variables=dict.fromkeys(("object", "oldObject", "request"), cel.Type.DYN))
REQUEST = {"operation": "CREATE", "namespace": "team", "userInfo": {"username": "alice"}}
ADDED = ("example.com/gpu", "amd.com/*", "intel.com/gpu-*")

VALID = {
    "a name": ("example.com/gpu", True),
    "a domain": ("example.com/*", True),
    "the start of names": ("example.com/gpu-*", True),
    "capitals and dots in a name": ("example.com/MIG-1g.10gb", True),
    "a domain of one word": ("example/gpu", True),
    "no domain": ("gpu", False),
    "any name": ("*", False),
    "any domain": ("*/gpu", False),
    "a wildcard in the middle": ("example.com/*-gpu", False),
    "a wildcard of one character": ("example.com/gp?", False),
    "a quote, which would end the text of the condition": ("example.com/x'||true||'", False),
    "a line break at the end": ("example.com/gpu\n", False),
    "a resource of Kubernetes": ("kubernetes.io/gpu", False),
    "a device class, which is always sent": ("deviceclass.resource.kubernetes.io/gpu", False),
    "the key of a quota": ("requests.example.com/gpu", False),
    "a domain in capitals": ("Example.com/gpu", False),
    "two parts after the domain": ("example.com/a/b", False),
    "a name that is too long": (f"example.com/{'x' * 64}", False),
}


@pytest.mark.parametrize(("text", "valid"), VALID.values(), ids=VALID)
def test_only_extended_resources_and_their_prefixes_may_be_added(text: str, valid: bool) -> None:
    assert is_resource_glob(text) is valid


class SentCase(NamedTuple):
    """A resource, and whether pods are sent because of it: as shipped, and with the added names."""

    resource: str
    shipped: bool
    added: bool


SENT = {
    "a whole GPU": SentCase("nvidia.com/gpu", True, True),
    "an unknown name of NVIDIA": SentCase("nvidia.com/anything", True, True),
    "a device class": SentCase("deviceclass.resource.kubernetes.io/gpu", True, True),
    "thousandths of GPUs": SentCase("rightslice.dev/gpu-milli", True, True),
    "a name that is added": SentCase("example.com/gpu", False, True),
    "a longer name": SentCase("example.com/gpus", False, False),
    "a name of a domain that is added": SentCase("amd.com/gpu", False, True),
    "a name with a start that is added": SentCase("intel.com/gpu-max", False, True),
    "another name of its domain": SentCase("intel.com/qat", False, False),
    "CPU": SentCase("cpu", False, False),
}


def matches(configurations: list[Json], webhook: str, pod: Json) -> bool:
    """Return whether the match conditions of a webhook match a new pod."""
    hooks = [hook for one in configurations for hook in one["webhooks"]]
    [[condition]] = [hook["matchConditions"] for hook in hooks if hook["name"] == f"{webhook}.rightslice.dev"]
    data = {"object": pod, "oldObject": None, "request": REQUEST}
    return CEL.compile(condition["expression"]).eval(data=data).plain_value() is True


@pytest.mark.parametrize("webhook", ["mutate", "validate", "templates"])
@pytest.mark.parametrize("case", SENT.values(), ids=SENT)
def test_pods_are_sent_by_the_names_that_are_read_from_the_configuration(case: SentCase, webhook: str) -> None:
    pod = make_pod().requests(case.resource, 1).build()
    templated = {"spec": {"template": pod}} if webhook == "templates" else pod
    for names, sent in (((), case.shipped), (ADDED, case.added)):
        configurations = with_gpu_resources(webhook_configurations(), names)

        assert matches(configurations, webhook, templated) is sent
        assert read_sent_resources(configurations[1]).includes(case.resource) is sent


def test_added_names_are_read_back_as_they_were_written() -> None:
    [_, validating] = with_gpu_resources(webhook_configurations(), ADDED)

    assert read_sent_resources(validating).added == ADDED
    assert read_sent_resources(webhook_configurations()[1]) == SentResources()


def test_the_documented_command_for_overlays_adds_the_same_text() -> None:
    [(pattern, replacement)] = re.findall(
        r"^sed -i \"s#([^#]+)#([^#]+)#g\"", read_checkout_file("docs/install.md"), re.M
    )
    shipped = (ROOT / "manifests" / "admission" / "webhooks.yaml").read_text(encoding="utf-8")

    changed = shipped.replace(pattern, replacement.replace("&", pattern))

    objects = [document.data for document in read_documents(changed, "changed")]
    assert objects == with_gpu_resources(webhook_configurations(), ["example.com/gpu"])


def test_without_names_nothing_changes() -> None:
    assert with_gpu_resources(webhook_configurations(), ()) == webhook_configurations()


def test_a_webhook_without_conditions_gets_every_pod() -> None:
    bare = {"webhooks": [{"name": "validate.rightslice.dev"}]}

    assert read_sent_resources(bare).includes("example.com/gpu")


EDITED: dict[str, Json] = {
    "no conditions": {"webhooks": [{"name": "validate.rightslice.dev"}]},
    "no webhooks": {},
    "a condition that each name meets": {
        "webhooks": [
            {
                "name": "validate.rightslice.dev",
                "matchConditions": [{"name": "all", "expression": "names.exists(name, name.startsWith(''))"}],
            }
        ]
    },
}


@pytest.mark.parametrize("validating", EDITED.values(), ids=EDITED)
def test_an_installation_adds_no_name_that_an_admin_could_not_write(validating: Json) -> None:
    """It restores the conditions as shipped, instead of sending the pods with any resource."""
    added = read_sent_resources(validating).added

    assert added == ()
    assert with_gpu_resources(webhook_configurations(), added) == webhook_configurations()


def test_every_condition_that_tests_the_names_of_gpus_gets_the_added_ones() -> None:
    objects = with_gpu_resources(webhook_configurations(), ["example.com/gpu"])
    expressions = [
        condition["expression"]
        for one in objects
        if one["kind"] in WEBHOOK_KINDS
        for hook in one["webhooks"]
        for condition in hook.get("matchConditions", ())
    ]

    known = re.compile(r"(?<![\w.])name\.startsWith\('nvidia\.com/'\)")
    counts = [(len(known.findall(text)), text.count("name == 'example.com/gpu'")) for text in expressions]
    assert all(before == after for before, after in counts)
    assert any(before for before, _ in counts)


def test_names_of_kubernetes_are_reserved_wherever_they_stand() -> None:
    assert re.search(RESERVED_NAME_PATTERN, "example.kubernetes.io/gpu")


CLASSES = {
    "GPUs under a name of another domain": (("gpu.nvidia.com", "example.com/gpu"), ["example.com/gpu"]),
    "GPUs under a name of NVIDIA": (("gpu.nvidia.com", "nvidia.com/large"), []),
    "GPUs without a name": (("gpu.nvidia.com", ""), []),
    "other devices": (("dra.net", "example.com/nic"), []),
    "GPUs of another vendor": (("gpu.amd.com", "amd.com/gpu"), ["amd.com/gpu"]),
}


@pytest.mark.parametrize(("served", "unsent"), CLASSES.values(), ids=CLASSES)
def test_classes_of_gpus_whose_name_is_not_sent_are_found(served: tuple[str, str], unsent: list[str]) -> None:
    driver, name = served
    classes = view_of(device_class("served", f"device.driver == '{driver}'", name)).classes

    assert [each.resource for each in find_unsent_classes(classes, SentResources())] == unsent
    assert not list(find_unsent_classes(classes, SentResources((*unsent, "nvidia.com/*"))))
