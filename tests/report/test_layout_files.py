"""The files of a plan: configurations by mig-parted's published rules, and the order of the script's steps."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import yaml

from webhook.placement.layout_plan import WHOLE_CARD
from webhook.placement.mig import MigLayout, legal_layouts, mig_geometry
from webhook.placement.node_layouts import NodeChange, NodeLayout
from webhook.report.layout_files import config_name, layout_files, mig_config

H100 = "NVIDIA-H100-80GB-HBM3"
SEVEN: MigLayout = (("1g.10gb", 7),)
HALVES: MigLayout = (("3g.40gb", 2),)
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def change(name: str, *layouts: MigLayout, pods: int = 0) -> NodeChange:
    """A node with new layouts: of cards that are whole today, or will all be."""
    today = WHOLE_CARD if any(layouts) else SEVEN
    return NodeChange(NodeLayout(name, H100, (today,) * len(layouts), pods=pods), layouts)


def check_spec(spec: Any) -> None:
    """Check a specification as mig-parted's `Spec.UnmarshalJSON` does (api/spec/v1/spec.go)."""
    assert list(spec) == ["version", "mig-configs"]
    assert spec["version"] == "v1"
    assert spec["mig-configs"]
    for entries in spec["mig-configs"].values():
        assert entries
        for entry in entries:
            assert (
                {"devices", "mig-enabled"} <= set(entry) <= {"device-filter", "devices", "mig-enabled", "mig-devices"}
            )
            assert entry["devices"] == "all" or all(type(index) is int for index in entry["devices"])
            assert type(entry["mig-enabled"]) is bool
            assert "mig-devices" in entry or not entry["mig-enabled"]
            assert entry["mig-enabled"] or not entry.get("mig-devices")
            for profile, count in entry.get("mig-devices", {}).items():
                assert re.fullmatch(r"([1-7]c\.)?[1-7]g\.[0-9]+gb(\+\S+)?", profile)
                assert type(count) is int
                assert count > 0


def config_map(*changes: NodeChange) -> Any:
    """The ConfigMap, and the specification in it."""
    found = yaml.safe_load(layout_files(changes, 1)["mig-config.yaml"])
    assert (found["apiVersion"], found["kind"], list(found["data"])) == ("v1", "ConfigMap", ["config.yaml"])
    return yaml.safe_load(found["data"]["config.yaml"])


def test_configurations_of_random_nodes_are_valid_and_describe_every_card_once() -> None:
    geometry, rng = mig_geometry(H100), random.Random(3)
    assert geometry is not None
    layouts = sorted(legal_layouts(geometry))
    for _ in range(200):
        cards = tuple(rng.choice([WHOLE_CARD, rng.choice(layouts)]) for _ in range(rng.randint(1, 16)))
        spec = config_map(change("n", *cards))

        check_spec(spec)
        entries = spec["mig-configs"][config_name(cards)]
        assert LABEL_VALUE.fullmatch(config_name(cards))
        if entries[0]["devices"] == "all":
            assert set(cards) == {WHOLE_CARD}
            continue
        found = [tuple(sorted(entry["mig-devices"].items())) for entry in entries for _ in entry["devices"]]
        assert sorted(found) == sorted(cards)
        assert sorted(index for entry in entries for index in entry["devices"]) == list(range(len(cards)))


INVALID: dict[str, Any] = {
    "another version": {"version": "v2", "mig-configs": {"a": [{"devices": "all", "mig-enabled": False}]}},
    "no devices": {"version": "v1", "mig-configs": {"a": [{"mig-enabled": False}]}},
    "slices of a card that is not partitioned": {
        "version": "v1",
        "mig-configs": {"a": [{"devices": [0], "mig-enabled": False, "mig-devices": {"1g.10gb": 1}}]},
    },
    "an unknown field": {"version": "v1", "mig-configs": {"a": [{"devices": [0], "mig-enabled": False, "mig": 1}]}},
}


@pytest.mark.parametrize("spec", INVALID.values(), ids=INVALID.keys())
def test_an_invalid_specification_is_found(spec: Any) -> None:
    with pytest.raises(AssertionError):
        check_spec(spec)


def test_nodes_with_equal_cards_share_a_configuration_whatever_their_order() -> None:
    spec = config_map(change("a", SEVEN, HALVES), change("b", HALVES, SEVEN), change("c", WHOLE_CARD, SEVEN))

    assert len(spec["mig-configs"]) == 3  # and all-disabled, for nodes without a label
    assert mig_config((SEVEN, HALVES)) == mig_config((HALVES, SEVEN))


def steps(max_unavailable: int, *changes: NodeChange) -> list[str]:
    """The steps of the script, without configurations."""
    text = layout_files(changes, max_unavailable)["apply.sh"]
    found = re.findall(r"^(reserve|drain|set_layout|finish) (\S+)( .+)?$", text, re.MULTILINE)
    return [f"{step} {node}" for step, node, _ in found]


def test_at_most_some_nodes_change_at_the_same_time_in_the_order_of_the_plan_and_idle_ones_first() -> None:
    found = steps(2, change("a", SEVEN, pods=3), change("c", SEVEN), change("b", SEVEN))

    assert found == [
        *("reserve c", "reserve b", "set_layout c", "set_layout b", "finish c", "finish b"),
        *("drain a", "set_layout a", "finish a"),
    ]


QUARTERS: MigLayout = (("mps/4", 4),)
SHARED: dict[str, tuple[tuple[MigLayout, ...], tuple[MigLayout, ...], str]] = {
    "whole cards become shared": ((WHOLE_CARD,) * 2, (QUARTERS,) * 2, "reserve n - mps-4 8"),
    "a card is partitioned, and the other is shared": (
        (WHOLE_CARD,) * 2,
        (SEVEN, QUARTERS),
        f"reserve n {config_name((SEVEN, WHOLE_CARD))} mps-4 4",
    ),
    "shared cards become whole": ((QUARTERS,) * 2, (WHOLE_CARD,) * 2, "reserve n - not-shared 0"),
    "shared cards stay": ((WHOLE_CARD, QUARTERS), (SEVEN, QUARTERS), f"reserve n {config_name((SEVEN, ()))} - -"),
}


@pytest.mark.parametrize(("today", "planned", "step"), SHARED.values(), ids=SHARED.keys())
def test_steps_of_a_node_with_shared_cards(
    today: tuple[MigLayout, ...], planned: tuple[MigLayout, ...], step: str
) -> None:
    files = layout_files([NodeChange(NodeLayout("n", H100, today), planned)], 1)

    assert step in files["apply.sh"].splitlines()
    assert ("device-plugin-config.yaml" in files) is not step.endswith(" - -")
    assert ("mig-config.yaml" in files) is not step.startswith("reserve n - ")


def test_a_name_with_a_line_break_is_no_command_in_a_comment() -> None:
    change = NodeChange(NodeLayout("n\ntouch pwned\n#", "NVIDIA-A30", ((),)), ((("1g.6gb", 4),),))

    assert "# n\\ntouch pwned\\n#: 1 card 4 x 1g.6gb" in layout_files([change], 1)["apply.sh"].splitlines()
