"""MIG profiles per product, with their memory: for nodes whose labels do not have them.

One profile name is not one size: `1g.10gb` is a quarter of an A100 with 40 GB and an eighth of one with 80 GB. So every
look-up needs the product, and an unknown product has no answer.

Source: NVIDIA's MIG user guide, mig-parted and live listings. `memory_mib` is the lowest known figure of each profile,
well below the name: the smallest slice loses up to 13 percent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from webhook.model.node_labels import normalized_product


class MigProfileSpec(NamedTuple):
    """One MIG profile on one product; the order of the columns in the tables below.

    Attributes:
        memory_units: Memory units that it takes, of `MigCardSpec.memory_units`.
        memory_mib: Memory that is safe to plan with, in MiB.
        sms: Multiprocessors; None if no source has them.
    """

    memory_units: int
    memory_mib: int
    sms: int | None


class MigCardSpec(NamedTuple):
    """Possible partitions of a product; the order of the figures in the tables below.

    Attributes:
        compute_slices: Compute slices to share.
        memory_units: Memory units to share.
        sms: Multiprocessors of the whole card; None if no source has them.
        profiles: Profiles by name, without attributes such as "+me": they take the same share.
    """

    compute_slices: int
    memory_units: int
    sms: int | None
    profiles: Mapping[str, MigProfileSpec]


def _card_spec(card: tuple[int, int, int | None], profiles: Mapping[str, tuple[int, int, int | None]]) -> MigCardSpec:
    return MigCardSpec(*card, {name: MigProfileSpec(*profile) for name, profile in profiles.items()})


_A100_40 = _card_spec(
    (7, 8, 108),
    {
        "1g.5gb": (1, 4864, 14),
        "1g.10gb": (2, 9856, 14),
        "2g.10gb": (2, 9856, 28),
        "3g.20gb": (4, 19968, 42),
        "4g.20gb": (4, 19968, 56),
        "7g.40gb": (8, 40192, 98),
    },
)
_A100_80 = _card_spec(
    (7, 8, 108),
    {
        "1g.10gb": (1, 9728, 14),
        "1g.20gb": (2, 19968, 14),
        "2g.20gb": (2, 19968, 28),
        "3g.40gb": (4, 40192, 42),
        "4g.40gb": (4, 40192, 56),
        "7g.80gb": (8, 80384, 98),
    },
)
_H100_80 = _card_spec(
    (7, 8, 132),
    {
        "1g.10gb": (1, 9850, 16),
        "1g.20gb": (2, 19968, 26),
        "2g.20gb": (2, 19968, 32),
        "3g.40gb": (4, 40192, 60),
        "4g.40gb": (4, 40192, 64),
        "7g.80gb": (8, 81152, 132),
    },
)
_H100_94 = _card_spec(
    (7, 8, 132),
    {
        "1g.12gb": (1, 10874, 16),
        "1g.24gb": (2, 22016, 26),
        "2g.24gb": (2, 22016, 32),
        "3g.47gb": (4, 47226, 60),
        "4g.47gb": (4, 47226, 64),
        "7g.94gb": (8, 94842, 132),
    },
)
_GH200_96 = _card_spec(
    (7, 8, 132),
    {
        "1g.12gb": (1, 11264, 16),
        "1g.24gb": (2, 23552, 26),
        "2g.24gb": (2, 23552, 32),
        "3g.48gb": (4, 47616, 60),
        "4g.48gb": (4, 47616, 64),
        "7g.96gb": (8, 95232, 132),
    },
)
_H20_96 = _card_spec(
    (7, 8, 78),
    {
        "1g.12gb": (1, 11264, None),
        "1g.24gb": (2, 23552, None),
        "2g.24gb": (2, 23552, None),
        "3g.48gb": (4, 47616, None),
        "4g.48gb": (4, 47616, None),
        "7g.96gb": (8, 95232, None),
    },
)
_H20_141 = _card_spec(
    (7, 8, 78),
    {
        "1g.18gb": (1, 16384, None),
        "1g.35gb": (2, 33024, None),
        "2g.35gb": (2, 33024, None),
        "3g.71gb": (4, 71168, None),
        "4g.71gb": (4, 71168, None),
        "7g.141gb": (8, 140895, None),
    },
)
_GH200_144 = _card_spec(
    (7, 8, 132),
    {
        "1g.18gb": (1, 17920, 16),
        "1g.36gb": (2, 36096, 26),
        "2g.36gb": (2, 36096, 32),
        "3g.72gb": (4, 72192, 60),
        "4g.72gb": (4, 72192, 64),
        "7g.144gb": (8, 144384, 132),
    },
)
_H200_141 = _card_spec(
    (7, 8, 132),
    {
        "1g.18gb": (1, 16384, 16),
        "1g.35gb": (2, 33024, 26),
        "2g.35gb": (2, 33024, 32),
        "3g.71gb": (4, 71168, 60),
        "4g.71gb": (4, 71168, 64),
        "7g.141gb": (8, 140895, 132),
    },
)
_B200 = _card_spec(
    (7, 8, 148),
    {
        "1g.23gb": (1, 20992, 18),
        "1g.45gb": (2, 45312, 30),
        "2g.45gb": (2, 45312, 36),
        "3g.90gb": (4, 90624, None),
        "4g.90gb": (4, 90624, None),
        "7g.180gb": (8, 179691, 148),
    },
)
_GB200 = _card_spec(
    (7, 8, 152),
    {
        "1g.23gb": (1, 20480, 18),
        "1g.24gb": (1, 20480, 18),  # as earlier drivers printed it; so are 3g.95gb, 4g.95gb and 7g.189gb
        "1g.47gb": (2, 46592, 32),
        "2g.47gb": (2, 46592, 38),
        "3g.93gb": (4, 93184, None),
        "3g.95gb": (4, 93184, None),
        "4g.93gb": (4, 93184, None),
        "4g.95gb": (4, 93184, None),
        "7g.186gb": (8, 185681, None),
        "7g.189gb": (8, 185681, None),
    },
)
_B300 = _card_spec(
    (7, 8, None),
    {
        "1g.34gb": (1, 29566, None),
        "1g.67gb": (2, 62571, None),
        "2g.67gb": (2, 62571, None),
        "3g.135gb": (4, 134769, None),
        "4g.135gb": (4, 134769, None),
        "7g.269gb": (8, 269539, None),
    },
)
_GB300 = _card_spec(
    (7, 8, None),
    {
        "1g.35gb": (1, 30552, None),
        "1g.70gb": (2, 64657, None),
        "2g.70gb": (2, 64657, None),
        "3g.139gb": (4, 139261, None),
        "4g.139gb": (4, 139261, None),
        "7g.278gb": (8, 278523, None),
    },
)
_A30 = _card_spec((4, 4, 56), {"1g.6gb": (1, 5836, 14), "2g.12gb": (2, 11672, 28), "4g.24gb": (4, 23344, 56)})
_RTX_PRO_6000 = _card_spec(
    (4, 4, 188), {"1g.24gb": (1, 23674, 46), "2g.48gb": (2, 48517, 94), "4g.96gb": (4, 97280, 188)}
)
_RTX_PRO_5000 = _card_spec((2, 2, None), {"1g.24gb": (1, 22118, None), "2g.48gb": (2, 44236, None)})
_RTX_PRO_4500 = _card_spec((2, 2, None), {"1g.16gb": (1, 14745, None), "2g.32gb": (2, 29491, None)})

_CARD_SPECS = {
    **dict.fromkeys(("a100-sxm4-40gb", "a100-pcie-40gb", "a800-sxm4-40gb", "a800-40gb-active"), _A100_40),
    **dict.fromkeys(("a100-sxm4-80gb", "a100-80gb-pcie", "a800-sxm4-80gb", "a800-80gb-pcie"), _A100_80),
    **dict.fromkeys(("h100-80gb-hbm3", "h100-pcie", "h100", "h800", "h800-pcie"), _H100_80),
    **dict.fromkeys(("h100-nvl", "h800-nvl"), _H100_94),
    **dict.fromkeys(("gh200-480gb", "gh200-120gb"), _GH200_96),
    "gh200-144g-hbm3e": _GH200_144,
    "h20": _H20_96,
    "h20-3e": _H20_141,
    **dict.fromkeys(("h200", "h200-nvl"), _H200_141),
    "b200": _B200,
    "gb200": _GB200,
    "b300-sxm6-ac": _B300,
    "gb300": _GB300,
    "a30": _A30,
    "rtx-pro-6000-blackwell-server-edition": _RTX_PRO_6000,
    "rtx-pro-6000-blackwell-workstation-edition": _RTX_PRO_6000,
    "rtx-pro-6000-blackwell-max-q-workstation-edition": _RTX_PRO_6000,
    "rtx-pro-5000-blackwell": _RTX_PRO_5000,
    "rtx-pro-4500-blackwell": _RTX_PRO_4500,
}


def mig_card_spec(product: str) -> MigCardSpec | None:
    """Return how a product can be partitioned, by its label (any suffix); None if unknown."""
    return _CARD_SPECS.get(normalized_product(product))


def profiles_of_size(product: str, memory_mib: int, sms: int | None) -> tuple[str, ...]:
    """Return the profiles of a product with some memory, and of them those with some multiprocessors if there are any.

    A slice has less memory than its name says. Devices may have somewhat less than is safe to plan with.

    >>> profiles_of_size("NVIDIA-H100-80GB-HBM3", 19968, None)
    ('1g.20gb', '2g.20gb')
    >>> profiles_of_size("NVIDIA-H100-80GB-HBM3", 19968, 32)
    ('2g.20gb',)
    """
    card = mig_card_spec(product)
    known = card.profiles.items() if card is not None else ()
    found = {name: spec for name, spec in known if 0.95 * spec.memory_mib <= memory_mib <= 1024 * _gigabytes(name)}
    return tuple([name for name, spec in found.items() if spec.sms == sms]) or tuple(found)


def _gigabytes(profile: str) -> int:
    return int(profile.partition(".")[2].removesuffix("gb"))


def max_profile_milli(profile: str) -> int:
    """Return the largest share of a card, of any product, that an instance takes; 1000 for an unknown profile.

    >>> max_profile_milli("1g.10gb")
    250
    """
    name, slices = _strip_media_suffix(profile), int(profile.partition("g")[0])
    found = (profile_milli(each, each.profiles[name], slices) for each in _CARD_SPECS.values() if name in each.profiles)
    return max(found, default=1000)


def profile_milli(card: MigCardSpec, profile: MigProfileSpec, slices: int) -> int:
    """Return an instance's share of a card in thousandths: its part of memory or of compute, whichever is larger."""
    return max(-(-1000 * slices // card.compute_slices), -(-1000 * profile.memory_units // card.memory_units))


def all_mig_profiles() -> tuple[str, ...]:
    """Return the MIG profiles of all products, without media attributes, the smallest first."""
    names = {name for each in _CARD_SPECS.values() for name in each.profiles}
    return tuple(sorted(names, key=lambda name: tuple(int(part.rstrip("gb")) for part in name.split("."))))


def mig_profile_spec(product: str, profile: str) -> MigProfileSpec | None:
    """Return a MIG profile of a product; None if unknown.

    >>> mig_profile_spec("NVIDIA-A100-SXM4-40GB", "1g.10gb")
    MigProfileSpec(memory_units=2, memory_mib=9856, sms=14)
    """
    known = mig_card_spec(product)
    return known.profiles.get(_strip_media_suffix(profile)) if known else None


def _strip_media_suffix(profile: str) -> str:
    return profile.partition("+")[0].removesuffix("-me")
