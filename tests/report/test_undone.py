"""What a pod asked for before it was changed comes back, and nothing else of it changes."""

from __future__ import annotations

from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.engine.deciding import NODES, SIZING
from tests.make import Json, make_pod
from tests.world import ask, shaped
from webhook.report.undone import undone

ACCOUNTED = SIZING + "\nlimits: {accounting: native, accountingScheduler: configured}"


def back(pod: Json) -> Any:
    return YAML(typ="safe").load(undone(pod))


def resources(pod: Json, name: str) -> Any:
    return next(one["resources"] for one in pod["spec"]["containers"] if one["name"] == name)


@pytest.mark.parametrize("policy", [SIZING, ACCOUNTED], ids=["sized", "sized and accounted"])
def test_what_was_asked_comes_back(policy: str) -> None:
    pod = make_pod().gpus(1).needs("8Gi").asks("cpu", "2").container("plain", resources={"limits": {"cpu": "1"}})
    written = pod.build()
    after = shaped(written, ask(written, policy, nodes=NODES))
    assert after != written
    undo = back(after)
    assert resources(undo, "main") == resources(written, "main")
    assert [one["name"] for one in undo["spec"]["containers"]] == ["main"]
    assert undo["metadata"]["annotations"] == {"rightslice.dev/keep": "true"}


def test_a_pod_that_is_put_back_so_stays_as_it_is() -> None:
    written = make_pod().gpus(1).needs("8Gi").build()
    after = shaped(written, ask(written, SIZING, nodes=NODES))
    again = make_pod().gpus(1).needs("8Gi")
    for key, value in back(after)["metadata"]["annotations"].items():
        again.annotate(key, value)
    assert not ask(again, SIZING, nodes=NODES).applied


STRANGERS = {
    "never changed": make_pod().gpus(1),
    "a record that is none": make_pod().gpus(1).annotate("rightslice.dev/decision", "{}"),
    "no resources recorded": make_pod().annotate("rightslice.dev/original-resources", '{"main": {}}'),
}


@pytest.mark.parametrize("pod", STRANGERS.values(), ids=STRANGERS)
def test_there_is_nothing_to_undo(pod: Any) -> None:
    assert undone(pod.build()) == ""
