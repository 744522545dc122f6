"""Property of snapshots: any file gives a view, or an error with its location."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from webhook.cache.snapshot import view_of_objects
from webhook.errors import SnapshotError, SourceLocation

KEYS = st.sampled_from(
    ["name", "labels", "annotations", "cpu", "nvidia.com/gpu", "key", "effect", "type", "status", "limits", "hard"]
)
LEAVES = st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from(["", "n", "8", "-1", "0.5", "x", 1e300])
ANYTHING = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3))


def _fields(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), ANYTHING, max_size=4)


SPECS = _fields("taints", "unschedulable", "limits", "hard", "scopes", "scopeSelector", "nodeName", "containers")
STATUSES = _fields("allocatable", "capacity", "conditions", "hard", "used", "phase")
OBJECTS = st.fixed_dictionaries(
    {"kind": st.sampled_from(["Node", "Namespace", "LimitRange", "ResourceQuota", "Pod", "List", "PodList", "Odd", 1])},
    optional={
        "apiVersion": st.sampled_from(["v1", "v2", None, 1]),
        "metadata": st.just({"name": "n"}) | ANYTHING,
        "spec": SPECS | ANYTHING,
        "status": STATUSES | ANYTHING,
        "items": st.lists(ANYTHING, max_size=2) | ANYTHING,
    },
)


@settings(max_examples=200)
@given(st.lists(OBJECTS | ANYTHING, max_size=4))
def test_any_input_gives_a_view_or_an_error_with_its_location(objects: list[Any]) -> None:
    try:
        view = view_of_objects((item, SourceLocation("odd.yaml", 1, 1)) for item in objects)
    except SnapshotError as error:
        location, sentence = error.location, error.message
    else:
        assert all(view.free_units(offer, view.fleet.all_nodes) <= offer.capacity for offer in view.fleet.offers)
        return
    assert location == SourceLocation("odd.yaml", 1, 1)
    assert "Write" in sentence
