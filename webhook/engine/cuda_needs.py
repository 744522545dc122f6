"""What an image says it needs of CUDA: the written requirement, as values.

Sources: the form of NVIDIA_REQUIRE_CUDA (nvidia-container-toolkit: a space is OR, a comma is AND, terms are a
property, a comparison and a value) and the way images are tagged. Everything here is linear in the text, and
remembered by it.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import takewhile

import msgspec

from webhook.engine.cuda_drivers import Version, family_floor, own_driver

MAX_REQUIREMENT_LENGTH = 8192
"""Longest requirement that is read; NVIDIA's own images have some 2,000 characters."""

MAX_IMAGE_LENGTH = 512
"""Longest image name that is read; what we remember must stay small."""

_DIGITS = frozenset("0123456789")
_MAX_PART_DIGITS = 6
"""Most digits of one part of a version."""

_PROPERTIES = ("cuda", "driver", "brand", "arch")
_COMPARISONS = (">=", "<=", "!=", "==", "=", ">", "<")
_OLDEST_MAJOR, _NEWEST_MAJOR = 7, 29
"""CUDA majors that a tag may plausibly mean."""


class RequirementTerm(msgspec.Struct, frozen=True):
    """One comparison, for example driver>=535. A brand has a `word`, the others a version."""

    name: str
    comparison: str
    version: Version = ()
    word: str = ""


class CudaRequirement(msgspec.Struct, frozen=True):
    """Alternatives of which one must hold; each is a list of terms that must all hold.

    Attributes:
        toolkit: The lowest CUDA version that any alternative asks for; () where none does.
        own: The driver that this toolkit was released with; () if it is not known.
        floor: The driver below which no program of it runs; () if it is not known.
    """

    alternatives: tuple[tuple[RequirementTerm, ...], ...] = ()
    toolkit: Version = ()
    own_driver: Version = ()
    floor_driver: Version = ()


def _requirement_for_toolkit(toolkit: Version, alternatives: tuple[tuple[RequirementTerm, ...], ...] = ()) -> CudaRequirement:
    if not toolkit:
        return CudaRequirement(alternatives)
    return CudaRequirement(alternatives, toolkit, own_driver(toolkit), family_floor(toolkit))


def parse_version(text: str) -> Version:
    """Read the first three parts of a version; () if it is none.

    >>> version("12.8.1"), version("12"), version("12.x")
    ((12, 8, 1), (12,), ())
    """
    parts = text.split(".", 4)[:3]
    if not all(part and len(part) <= _MAX_PART_DIGITS and _DIGITS.issuperset(part) for part in parts):
        return ()
    return tuple(map(int, parts))


def parse_requirement(text: str) -> CudaRequirement | None:
    """Read a requirement as NVIDIA_REQUIRE_CUDA writes it; None if it cannot be read.

    >>> requirement("cuda>=12.8 brand=tesla,driver>=535,driver<536").toolkit
    (12, 8)
    """
    return _parse_requirement_text(text) if len(text) <= MAX_REQUIREMENT_LENGTH else None


@lru_cache(maxsize=1024)
def _parse_requirement_text(text: str) -> CudaRequirement | None:
    alternatives: list[tuple[RequirementTerm, ...]] = []
    for alternative in text.split():
        terms = [_parse_requirement_term(part) for part in alternative.split(",")]
        if None in terms:
            return None
        alternatives.append(tuple(term for term in terms if term is not None))
    if not alternatives:
        return None
    return _requirement_for_toolkit(_lowest_cuda(alternatives), tuple(alternatives))


def _lowest_cuda(alternatives: list[tuple[RequirementTerm, ...]]) -> Version:
    bounds = [
        term.version
        for terms in alternatives
        for term in terms
        if term.name == "cuda" and term.comparison in (">=", ">", "=", "==")
    ]
    return min(bounds, default=())


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
    """Read the pod's own annotation: ">=12.4", "12.4", or a whole requirement; None if it cannot be read."""
    words = text.strip()
    if words[:1] not in _DIGITS and not words.startswith(_COMPARISONS):
        return parse_requirement(words)
    terms = words.replace(" ", "").split(",")
    return parse_requirement(",".join(f"cuda>={term}" if term[:1] in _DIGITS else f"cuda{term}" for term in terms))


@lru_cache(maxsize=1024)
def toolkit_requirement(toolkit: Version) -> CudaRequirement:
    """The requirement of an image that names its toolkit and nothing else."""
    return _requirement_for_toolkit(toolkit)


def image_cuda_version(image: str) -> Version:
    """The CUDA version in an image's name, () where it names none.

    >>> tagged("nvidia/cuda:12.8.1-base-ubuntu24.04"), tagged("rayproject/ray-llm:2.56.0-py312-cu130")
    ((12, 8, 1), (13, 0))
    """
    return _parse_image_version(image[:MAX_IMAGE_LENGTH])


@lru_cache(maxsize=1024)
def _parse_image_version(image: str) -> Version:
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
    """cu128, cu12.8, cuda12.8 and cuda12; anything else is ()."""
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
    """The numbers that a tag begins with: 12.4 of 12.4.post1."""
    parts = list(takewhile(lambda part: bool(parse_version(part)), text.split(".")[:3]))
    return parse_version(".".join(parts))


def _plausible_version(number: Version) -> Version:
    return number if number and _OLDEST_MAJOR <= number[0] <= _NEWEST_MAJOR else ()
