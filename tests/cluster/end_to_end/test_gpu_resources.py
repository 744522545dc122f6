"""GPUs that a device class serves under a name of another domain: limited once the webhooks get its pods."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.builders import make_pod
from tests.cluster.end_to_end.test_changes import rejection_message
from tests.cluster.installation import Installation, pods_sent_by, rightslice
from tests.cluster.polling import eventually
from tests.cluster.published_devices import OF_NVIDIA, published_devices
from tests.device_builders import card, device_class
from tests.policy.policy_texts import policy_text

NAME = "example.com/gpu"


@pytest.fixture(scope="module", autouse=True)
def published(site: Installation) -> Iterator[None]:
    """A node that publishes two cards, and a class that serves them under a name of another domain."""
    devices = [card("gpu-0"), card("gpu-1", minor=1)]
    with published_devices(site.plane, "renamed-cards", devices, device_class("renamed", OF_NVIDIA, NAME)):
        yield


def linted_classes(site: Installation) -> list[str]:
    """Return what `policy lint` and `doctor` say about pods of the class that are not sent."""
    lines = [*rightslice(site.plane, "policy", "lint", "policies", "--cluster", "live").stderr.splitlines()]
    lines += rightslice(site.plane, "doctor").stdout.splitlines()
    return [line.partition(" pods that")[0].strip() for line in lines if f"{NAME} of DeviceClass renamed" in line]


def test_a_name_of_another_domain_is_limited_only_if_its_pods_are_sent(site: Installation, team: str) -> None:
    two = make_pod("two").namespace(team).requests(NAME, 2).build()
    on_host = make_pod("on-host").namespace(team).requests(NAME, 1).spec(hostPID=True).build()
    by_class = make_pod("by-class").namespace(team).requests("deviceclass.resource.kubernetes.io/renamed", 2).build()
    limits = {"perPod": [{"resource": "nvidia.com/gpu", "max": 1}]}
    text = policy_text(team, mode="enforce", match={"namespaces": [team]}, limits=limits)
    site.plane.kubectl("apply", "-f", "-", stdin=text)
    eventually(partial(rejection_message, site, by_class))
    assert [rejection_message(site, pod) for pod in (two, on_host)] == ["", ""]
    assert linted_classes(site) == ["note:", "warn"]

    with pods_sent_by(site.plane, NAME):
        message = eventually(partial(rejection_message, site, two))
        assert "[GPU-L103]" in message
        assert "a pod's nvidia.com/gpu with device classes must be at most 1 (found 2)" in message
        assert "[GPU-S203] spec.hostPID" in rejection_message(site, on_host)
        one = make_pod("one").namespace(team).requests(NAME, 1).build()
        assert rejection_message(site, one) == ""
        assert linted_classes(site) == []
    site.plane.kubectl("delete", "gpupolicy", team)
