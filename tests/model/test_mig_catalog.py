"""The MIG catalog against the reference tables."""

from __future__ import annotations

from pathlib import Path

import yaml

from webhook.model.mig_catalog import MigProfileSpec, mig_card_spec, mig_profile_spec

GEOMETRIES = {"c7m8": (7, 8), "c4m4": (4, 4), "c4m12": (4, 4), "c2": (2, 2)}


def test_every_listed_profile_of_every_product(shared: Path) -> None:
    listed = yaml.safe_load((shared / "reference" / "mig-profiles.yaml").read_text())["products"]
    checked = 0
    for product in listed:
        for name in product["gfd_products"]:
            if "unconfirmed" in name:
                continue
            known = mig_card_spec(name)
            assert known is not None, name
            assert (known.compute_slices, known.memory_units) == GEOMETRIES[product["geometry"]]
            assert known.sms == product["sm_total"]
            for row in product["profiles"]:
                checked += 1
                assert mig_profile_spec(name, row["name"]) == MigProfileSpec(
                    row["mem_slices"], row["mem_mib"], row["sm"]
                ), (name, row)
    assert checked > 200


def test_one_name_has_two_sizes() -> None:
    small, large = (
        mig_profile_spec("NVIDIA-A100-SXM4-80GB", "1g.10gb"),
        mig_profile_spec("NVIDIA-A100-SXM4-40GB", "1g.10gb"),
    )
    assert small is not None
    assert large is not None
    assert (small.memory_units, large.memory_units) == (1, 2)


def test_attributes_do_not_change_the_share() -> None:
    product = "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"
    plain = mig_profile_spec(product, "1g.24gb")
    assert plain is not None
    for profile in ("1g.24gb+me", "1g.24gb+me.all", "1g.24gb+gfx", "1g.24gb-me"):
        assert mig_profile_spec(product, profile) == plain


def test_unlisted_profiles_are_unknown() -> None:
    assert mig_card_spec("NVIDIA-Z900") is None
    assert mig_profile_spec("NVIDIA-Z900", "1g.10gb") is None
    assert mig_profile_spec("NVIDIA-H100-80GB-HBM3", "1g.11gb") is None
