"""MIG geometry against the reference and brute force over every layout."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from webhook.placement.mig import (
    MigCard,
    MigCardValue,
    MigGeometry,
    MigPlacement,
    MigProfile,
    RepartitionPlan,
    arrange_instances,
    count_instances,
    free_starts,
    legal_layouts,
    maximal_layouts,
    mig_card_value,
    mig_geometry,
    occupied_units,
    plan_repartition,
    profile_fits,
)

A100 = "NVIDIA-A100-SXM4-80GB"
MIXES: list[dict[str, float]] = [
    {},
    {"1g.10gb": 5, "2g.20gb": 2, "3g.40gb": 1},
    {"3g.40gb": 3, "7g.80gb": 1, "1g.10gb": 1},
    {"1g.10gb": 1, "7g.80gb": 1},
]
"""Even, small-heavy, large-heavy, bimodal: the mixes that papers on MIG scheduling try."""


def geometry_of(product: str) -> MigGeometry:
    """A product's geometry."""
    found = mig_geometry(product)
    assert found is not None
    return found


def without(geometry: MigGeometry, *names: str) -> MigGeometry:
    """The geometry without some profiles."""
    return MigGeometry(geometry.units, tuple(profile for profile in geometry.profiles if profile.name not in names))


def all_layouts(geometry: MigGeometry) -> set[frozenset[MigPlacement]]:
    """Return every partition of a card, the empty layout included."""
    found = {frozenset[MigPlacement]()}
    edge = list(found)
    while edge:
        layout = edge.pop()
        for larger in _larger_layouts(geometry, layout):
            if larger not in found:
                found.add(larger)
                edge.append(larger)
    return found


def _larger_layouts(geometry: MigGeometry, layout: frozenset[MigPlacement]) -> Iterator[frozenset[MigPlacement]]:
    mask = occupied_units(geometry, layout)
    for profile in geometry.profiles:
        for start in free_starts(profile, mask):
            yield layout | {MigPlacement(profile.name, start)}


def best_start(worth: MigCardValue, name: str, mask: int) -> int | None:
    """The free start that costs the least value, the lowest of equal ones."""
    profile = worth.geometry.profile(name)
    free = free_starts(profile, mask) if profile else []
    return max(free, key=lambda start: (round(worth.value_change(name, mask, start), 6), -start), default=None)


COUNTS = [
    ("A100_without_1g.20gb", without(geometry_of(A100), "1g.20gb")),
    ("A100_with_1g.20gb", geometry_of(A100)),
    ("A30", geometry_of("NVIDIA-A30")),
]


@pytest.mark.parametrize(("key", "geometry"), COUNTS, ids=[key for key, _ in COUNTS])
def test_number_of_layouts(shared: Path, key: str, geometry: MigGeometry) -> None:
    requirements = json.loads((shared / "traces" / "topo" / "mig_placements.json").read_text())["test_vectors"][key]
    every = all_layouts(geometry)
    maximal = [
        layout for layout in every if not any(count_instances(geometry, occupied_units(geometry, layout)).values())
    ]

    def kinds(some: Any) -> int:
        return len({tuple(sorted(instance.profile for instance in layout)) for layout in some})

    assert requirements == {
        "states": len(every),
        "maximal_states": len(maximal),
        "feasible_multisets": kinds(every),
        "maximal_state_multisets": kinds(maximal),
    }


def test_starts_and_sizes_of_every_reference_product(shared: Path) -> None:
    facts = yaml.safe_load((shared / "reference" / "mig-profiles.yaml").read_text())
    compared = 0
    for product in facts["products"]:
        grid = facts["geometries"][product["geometry"]]["grid"]
        for name in product["gfd_products"]:
            geometry = mig_geometry(name)
            for row in product["profiles"] if geometry else ():
                profile = geometry.profile(row["name"]) if geometry else None
                if profile is None or not row.get("starts"):
                    continue
                scale = grid // geometry.units if geometry else 1
                assert [start * scale for start in profile.starts] == row["starts"], (name, row["name"])
                assert profile.memory_units * scale == row["size"], (name, row["name"])
                compared += 1
    assert compared > 100


def test_no_layout_exceeds_the_compute_slices() -> None:
    geometry = geometry_of(A100)
    for layout in all_layouts(geometry):
        assert sum(int(instance.profile[0]) for instance in layout) <= 7


@pytest.mark.parametrize("geometry", [geometry for _, geometry in COUNTS], ids=[key for key, _ in COUNTS])
def test_legal_and_maximal_layouts_equal_brute_force(geometry: MigGeometry) -> None:
    every = {
        tuple(sorted(Counter(instance.profile for instance in layout).items())) for layout in all_layouts(geometry)
    }
    counts = {layout: Counter(dict(layout)) for layout in every}

    assert legal_layouts(geometry) == every
    assert set(maximal_layouts(geometry)) == {
        one for one in every if not any(counts[one] < counts[other] for other in every)
    }


@pytest.mark.parametrize("geometry", [geometry for _, geometry in COUNTS], ids=[key for key, _ in COUNTS])
def test_each_legal_layout_is_arranged_legally(geometry: MigGeometry) -> None:
    every = all_layouts(geometry)
    for layout in legal_layouts(geometry):
        placed = arrange_instances(geometry, layout)

        assert frozenset(placed) in every
        assert Counter(instance.profile for instance in placed) == Counter(dict(layout))


def test_a_layout_that_is_not_legal_has_no_arrangement() -> None:
    assert arrange_instances(geometry_of(A100), (("3g.40gb", 1), ("7g.80gb", 1))) == ()


def test_instance_counts_equal_brute_force() -> None:
    geometry = geometry_of(A100)
    for layout in all_layouts(geometry):
        mask = occupied_units(geometry, layout)
        for profile in geometry.profiles:
            assert count_instances(geometry, mask)[profile.name] == most(profile, mask), (layout, profile.name)


def most(profile: MigProfile, mask: int) -> int:
    """The most instances of a profile side by side, by trying every choice of starts."""
    free = [start for start in profile.starts if not profile.unit_mask(start) & mask]
    for count in range(len(free), 0, -1):
        for some in combinations(free, count):
            spans = [profile.unit_mask(start) for start in some]
            if sum(spans).bit_count() == count * profile.memory_units and sum(spans) == taken_by(spans):
                return count
    return 0


def taken_by(spans: list[int]) -> int:
    """All units of some spans."""
    mask = 0
    for span in spans:
        mask |= span
    return mask


def holds(geometry: MigGeometry, mix: dict[str, float], layout: frozenset[MigPlacement]) -> float:
    """What the free starts hold, by the words, on layouts and not on masks."""
    total = 0.0
    for profile in geometry.profiles:
        share = mix.get(profile.name, 0) / sum(mix.values()) if mix else 1 / len(geometry.profiles)
        for start in profile.starts:
            if not any(overlap(geometry, each, profile.unit_mask(start)) for each in layout):
                total += share * profile.milli
    return total


def overlap(geometry: MigGeometry, instance: MigPlacement, span: int) -> bool:
    """Do an instance and a span share a unit?"""
    profile = geometry.profile(instance.profile)
    assert profile is not None
    return bool(profile.unit_mask(instance.start) & span)


@pytest.mark.parametrize("mix", MIXES, ids=["even", "small", "large", "bimodal"])
def test_values_and_best_starts_equal_brute_force(mix: dict[str, float]) -> None:
    geometry = geometry_of(A100)
    worth = MigCardValue(geometry, mix)
    for layout in all_layouts(geometry):
        mask = occupied_units(geometry, layout)
        assert worth.value_of(mask) == pytest.approx(holds(geometry, mix, layout))
        for profile in geometry.profiles:
            after = {
                start: holds(geometry, mix, layout | {MigPlacement(profile.name, start)})
                for start in free_starts(profile, mask)
            }
            best = best_start(worth, profile.name, mask)
            assert (best is None) == (not after)
            if best is not None:
                assert after[best] == pytest.approx(max(after.values()))


STARTS = [
    ("a small instance leaves space for four slices", {"3g.40gb": 1, "4g.40gb": 1}, [], "1g.10gb", 4),
    ("the next one is next to it", {"3g.40gb": 1}, [("1g.10gb", 4)], "1g.10gb", 5),
    ("a 3g is in the upper half if a 4g is likely", {"4g.40gb": 1, "3g.40gb": 1}, [], "3g.40gb", 4),
    ("no start if there is no space", {}, [("1g.10gb", 0), ("1g.10gb", 4)], "3g.40gb", None),
    ("a profile of another card has no start", {}, [], "2g.10gb", None),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "mix", "used", "name", "start"), STARTS, ids=[each[0] for each in STARTS])
def test_best_start(
    sentence: str, mix: dict[str, float], used: list[tuple[str, int]], name: str, start: int | None
) -> None:
    geometry = geometry_of(A100)
    mask = occupied_units(geometry, frozenset(MigPlacement(*each) for each in used))

    assert best_start(MigCardValue(geometry, mix), name, mask) == start


def test_empty_gpu_counts_fully_if_it_can_be_filled() -> None:
    assert MigCardValue(geometry_of(A100), {"7g.80gb": 1}).value_of(0) == pytest.approx(1000)
    assert MigCardValue(geometry_of(A100), {"7g.80gb": 1}).value_of(1) == 0
    assert MigCardValue(geometry_of(A100), {"7g.80gb": 1}).value_change("7g.80gb", 0, 0) == pytest.approx(-1000)


def test_unrequested_card_is_worth_nothing() -> None:
    assert MigCardValue(geometry_of(A100), {"4g.24gb": 1}).value_of(0) == 0
    assert MigCardValue(geometry_of(A100), {}).value_change("4g.24gb", 0, 0) == 0


def test_only_one_instance_has_the_media_engines() -> None:
    geometry = geometry_of(A100)

    assert profile_fits(geometry, frozenset({MigPlacement("1g.10gb", 0)}), "1g.10gb+me")
    assert not profile_fits(geometry, frozenset({MigPlacement("1g.10gb+me", 0)}), "1g.10gb+me")
    assert profile_fits(geometry, frozenset({MigPlacement("1g.10gb+me", 0)}), "1g.10gb")
    assert not profile_fits(geometry, frozenset(), "1g.6gb")


def test_instance_of_an_unknown_profile_occupies_nothing() -> None:
    assert occupied_units(geometry_of(A100), frozenset({MigPlacement("9g.90gb", 0)})) == 0


def test_unknown_product_has_no_geometry() -> None:
    assert mig_geometry("NVIDIA-L40S") is None


def pieces(*each: tuple[str, int]) -> frozenset[MigPlacement]:
    """Instances."""
    return frozenset(MigPlacement(*one) for one in each)


REPARTITION_PLANS = [
    (
        "idle small ones are removed for a large one",
        [MigCard(0, pieces(("3g.40gb", 4)), pieces(("1g.10gb", 0), ("1g.10gb", 1)))],
        "3g.40gb",
        RepartitionPlan(0, pieces(("1g.10gb", 0), ("1g.10gb", 1)), MigPlacement("3g.40gb", 0)),
    ),
    (
        "free units before any removal",
        [MigCard(0, pieces(), pieces(("2g.20gb", 0))), MigCard(1, pieces(("1g.10gb", 0)), pieces())],
        "3g.40gb",
        RepartitionPlan(0, pieces(), MigPlacement("3g.40gb", 4)),
    ),
    (
        "the least removal",
        [MigCard(0, pieces(), pieces(("7g.80gb", 0))), MigCard(1, pieces(("4g.40gb", 0)), pieces(("2g.20gb", 4)))],
        "1g.10gb",
        RepartitionPlan(1, pieces(), MigPlacement("1g.10gb", 6)),
    ),
    ("none is needed", [MigCard(0, pieces(), pieces(("3g.40gb", 4)))], "3g.40gb", None),
    (
        "instances in use are never removed",
        [MigCard(0, pieces(("1g.10gb", 2), ("1g.10gb", 5)), pieces())],
        "3g.40gb",
        None,
    ),
    ("only one instance has media engines", [MigCard(0, pieces(("1g.10gb+me", 0)), pieces())], "1g.10gb+me", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sentence", "cards", "name", "mig_instances"), REPARTITION_PLANS, ids=[each[0] for each in REPARTITION_PLANS]
)
def test_repartition_plan(
    sentence: str, cards: list[MigCard], name: str, mig_instances: RepartitionPlan | None
) -> None:
    assert plan_repartition(mig_card_value(geometry_of(A100)), tuple(cards), name) == mig_instances
