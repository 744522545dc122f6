"""The CUDA requirement of an image, parsed and checked against a driver.

Sources: the syntax of NVIDIA_REQUIRE_CUDA (nvidia-container-toolkit: a space is OR, a comma is AND, a term is a
property, a comparison and a value) and the conventions of image tags. Parsing is linear in the text, and cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import takewhile

import msgspec
from msgspec.structs import replace

from webhook.engine.cuda_drivers import FLOORS, Version, own_driver
from webhook.model.bounded_cache import request_cache
from webhook.model.offers import GpuOffer, NodeHardware

MAX_REQUIREMENT_LENGTH = 8192
"""Longest requirement that is parsed; NVIDIA's own images have some 2,000 characters."""

MAX_IMAGE_LENGTH = 512
"""Longest image name that is parsed; cache entries must stay small."""

_DIGITS = frozenset("0123456789")
_MAX_PART_DIGITS = 6

_PROPERTIES = ("cuda", "driver", "brand", "arch")
_COMPARISONS = (">=", "<=", "!=", "==", "=", ">", "<")
_OLDEST_MAJOR, _NEWEST_MAJOR = 7, 29
"""Plausible CUDA major versions of a tag."""


class RequirementTerm(msgspec.Struct, frozen=True):
    """One comparison, for example driver>=535. A brand has a `word`, other properties a version."""

    name: str
    comparison: str
    version: Version = ()
    word: str = ""


class CudaRequirement(msgspec.Struct, frozen=True):
    """Alternatives; one must hold, with all its terms.

    Attributes:
        toolkit: The lowest CUDA version of any alternative; () without one.
        own_driver: The driver that this toolkit was released with; () if unknown.
        floor_driver: The driver below which no program of it runs; () if unknown.
    """

    alternatives: tuple[tuple[RequirementTerm, ...], ...] = ()
    toolkit: Version = ()
    own_driver: Version = ()
    floor_driver: Version = ()


def parse_version(text: str) -> Version:
    """Parse the first three parts of a version; () if invalid.

    >>> parse_version("12.8.1"), parse_version("12"), parse_version("12.x")
    ((12, 8, 1), (12,), ())
    """
    parts = text.split(".", 4)[:3]
    if not all(part and len(part) <= _MAX_PART_DIGITS and _DIGITS.issuperset(part) for part in parts):
        return ()
    return tuple(map(int, parts))


def parse_requirement(text: str) -> CudaRequirement | None:
    """Parse a requirement in the syntax of NVIDIA_REQUIRE_CUDA; None if invalid.

    >>> parse_requirement("cuda>=12.8 brand=tesla,driver>=535,driver<536").toolkit
    (12, 8)
    """
    return _parse_requirement_text(text) if len(text) <= MAX_REQUIREMENT_LENGTH else None


@request_cache(1024)
def _parse_requirement_text(text: str) -> CudaRequirement | None:
    alternatives: list[tuple[RequirementTerm, ...]] = []
    for alternative in text.split():
        terms = [_parse_requirement_term(part) for part in alternative.split(",")]
        if None in terms:
            return None
        alternatives.append(tuple(term for term in terms if term is not None))
    if not alternatives:
        return None
    versions = [
        term.version
        for terms in alternatives
        for term in terms
        if term.name == "cuda" and term.comparison in (">=", ">", "=", "==")
    ]
    return replace(toolkit_requirement(min(versions, default=())), alternatives=tuple(alternatives))


def _parse_requirement_term(text: str) -> RequirementTerm | None:
    name = next((name for name in _PROPERTIES if text.startswith(name)), "")
    rest = text[len(name) :]
    comparison = next((sign for sign in _COMPARISONS if rest.startswith(sign)), "")
    value = rest[len(comparison) :]
    if not name or not comparison or not value:
        return None
    if name == "brand":
        return RequirementTerm(name, comparison, word=value.lower())
    number = parse_version(value)
    return RequirementTerm(name, comparison, number) if number else None


def parse_cuda_annotation(text: str) -> CudaRequirement | None:
    """Parse the pod's annotation: ">=12.4", "12.4", or a whole requirement; None if invalid."""
    words = text.strip()
    if words[:1] not in _DIGITS and not words.startswith(_COMPARISONS):
        return parse_requirement(words)
    terms = words.replace(" ", "").split(",")
    return parse_requirement(",".join(f"cuda>={term}" if term[:1] in _DIGITS else f"cuda{term}" for term in terms))


@request_cache(1024)
def toolkit_requirement(toolkit: Version) -> CudaRequirement:
    """Return the requirement of an image that only names its toolkit; an empty one for ()."""
    if not toolkit:
        return CudaRequirement()
    own = own_driver(toolkit)
    return CudaRequirement((), toolkit, own, FLOORS.get(toolkit[0]) or own)


@request_cache(1024)
def image_cuda_version(image: str) -> Version:
    """Return the CUDA version in an image name, () without one.

    >>> image_cuda_version("nvidia/cuda:12.8.1-base-ubuntu24.04")
    (12, 8, 1)
    >>> image_cuda_version("rayproject/ray-llm:2.56.0-py312-cu130")
    (13, 0)
    """
    image = image[:MAX_IMAGE_LENGTH]
    if "cu" not in image.lower():
        return ()
    name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    words = f"{name}-{tag}".lower().replace("_", "-").split("-")
    if name == "cuda" and tag:
        return _plausible_version(_leading_version(tag.partition("-")[0]))
    for word, following in zip(words, [*words[1:], ""], strict=True):
        number = _leading_version(following) if word == "cuda" else _parse_cuda_marker(word)
        if _plausible_version(number):
            return number
    return ()


def _parse_cuda_marker(word: str) -> Version:
    """Parse cu128, cu12.8, cuda12.8 and cuda12; anything else is ()."""
    start = next((start for start in ("cuda", "cu") if word.startswith(start)), "")
    if not start:
        return ()
    rest = word[len(start) :]
    first, dot, _ = rest.partition(".")
    if not _DIGITS.issuperset(first) or not 1 <= len(first) <= 4:
        return ()
    if len(first) <= 2:
        return _leading_version(rest) if dot or int(first) <= _NEWEST_MAJOR else (int(first[0]), int(first[1]))
    return (int(first[:2]), *map(int, first[2:4]))


def _leading_version(text: str) -> Version:
    """Return the leading version of a tag: 12.4 of 12.4.post1."""
    parts = list(takewhile(lambda part: bool(parse_version(part)), text.split(".")[:3]))
    return parse_version(".".join(parts))


def _plausible_version(number: Version) -> Version:
    return number if number and _OLDEST_MAJOR <= number[0] <= _NEWEST_MAJOR else ()


class DriverFit(Enum):
    """The fit of a driver to a CUDA requirement.

    * FITS: the driver is as new as the toolkit, or a written alternative holds.
    * COMPATIBLE: it runs by minor-version compatibility; run-time compilation (PTX) and new calls may fail.
    * BELOW: the driver is below the family's floor, and the first CUDA call fails.
    * UNKNOWN: node labels do not show it.
    """

    FITS = "fits"
    COMPATIBLE = "compatible"
    BELOW = "below"
    UNKNOWN = "unknown"


_OTHER_BRANDS = ("geforce", "titan", "quadro", "rtx", "gtx")
_DATA_CENTER_BRANDS = frozenset({"tesla", "nvidia"})


def is_data_center_gpu(offer: GpuOffer | NodeHardware) -> bool:
    """Return True if NVIDIA supports forward compatibility for the product unconditionally."""
    name = offer.product.lower()
    return bool(name) and not any(brand in name for brand in _OTHER_BRANDS)


def all_drivers_fit(need: CudaRequirement, offers: Sequence[GpuOffer]) -> bool:
    """Return True if every driver is as new as the toolkit: a fast check of the common case; False is no answer."""
    own = need.own_driver
    if not own or need.alternatives:
        return False
    for offer in offers:  # noqa: SIM110 -- a plain loop costs half of all(), and this is the admission path
        if offer.driver < own:
            return False
    return True


def check_driver(need: CudaRequirement, offer: GpuOffer | NodeHardware) -> DriverFit:
    """Check one requirement against the driver of one offer, or of one of its nodes."""
    driver, cuda = offer.driver, offer.cuda
    if not driver and not cuda:
        return DriverFit.UNKNOWN
    if not need.alternatives:
        return _check_toolkit(need, driver, cuda)
    answers = [_all_terms_hold(terms, offer) for terms in need.alternatives]
    if True in answers:
        return DriverFit.FITS
    if not need.toolkit:
        return DriverFit.UNKNOWN if None in answers else DriverFit.COMPATIBLE
    below = _check_toolkit(need, driver, cuda) is DriverFit.BELOW
    return DriverFit.BELOW if below and None not in answers else DriverFit.COMPATIBLE


def _check_toolkit(need: CudaRequirement, driver: Version, cuda: Version) -> DriverFit:
    """Check by driver version if known, else by the newest CUDA version of the node's driver."""
    if driver and need.own_driver:
        if driver >= need.own_driver:
            return DriverFit.FITS
        return DriverFit.BELOW if driver < need.floor_driver else DriverFit.COMPATIBLE
    if cuda and cuda >= need.toolkit[:2]:
        return DriverFit.FITS
    if driver and need.floor_driver and driver < need.floor_driver:
        return DriverFit.BELOW
    if not cuda:
        return DriverFit.UNKNOWN
    above_floor = driver and need.floor_driver
    return DriverFit.COMPATIBLE if above_floor or cuda[0] >= need.toolkit[0] else DriverFit.BELOW


def _all_terms_hold(terms: tuple[RequirementTerm, ...], offer: GpuOffer | NodeHardware) -> bool | None:
    """Return None if a term is unknown and no other is false."""
    answers = [_term_holds(term, offer) for term in terms]
    if False in answers:
        return False
    return None if None in answers else True


def _term_holds(term: RequirementTerm, offer: GpuOffer | NodeHardware) -> bool | None:
    if term.name == "brand":
        # NVML's brand is not a node label; the product name shows whether it is a data-center card.
        known = is_data_center_gpu(offer) and term.comparison in ("=", "==")
        return term.word in _DATA_CENTER_BRANDS if known else None
    if term.name == "driver":
        return _compare_version(offer.driver, term) if offer.driver else None
    if term.name == "arch":
        return _compare_version(offer.compute_capability, term) if offer.compute_capability else None
    if offer.cuda:
        return _compare_version(offer.cuda, term)
    own = own_driver(term.version)
    return offer.driver >= own if own and term.comparison == ">=" else None


def _compare_version(number: Version, term: RequirementTerm) -> bool:
    left, right = _pad_version(number), _pad_version(term.version)
    match term.comparison:
        case ">=":
            return left >= right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case "<":
            return left < right
        case "!=":
            return left != right
    return left == right


def _pad_version(number: Version) -> Version:
    return (*number, 0, 0)[:3]
