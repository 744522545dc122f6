"""What an image says it needs of CUDA: the written requirement, as values.

Sources: the form of NVIDIA_REQUIRE_CUDA (nvidia-container-toolkit: a space is OR, a comma is AND, terms are a
property, a comparison and a value) and the way images are tagged. Everything here is linear in the text, and
remembered by it.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import takewhile

import msgspec

from webhook.engine.cuda_drivers import Version, floor, own_driver

MAX_LENGTH = 8192
"""Longest requirement that is read; NVIDIA's own images have some 2,000 characters."""

MAX_IMAGE = 512
"""Longest image name that is read; what we remember must stay small."""

_DIGITS = frozenset("0123456789")
_MAX_PART = 6
"""Most digits of one part of a version."""

_PROPERTIES = ("cuda", "driver", "brand", "arch")
_COMPARISONS = (">=", "<=", "!=", "==", "=", ">", "<")
_OLDEST_MAJOR, _NEWEST_MAJOR = 7, 29
"""CUDA majors that a tag may plausibly mean."""


class Term(msgspec.Struct, frozen=True):
    """One comparison, for example driver>=535. A brand has a `word`, the others a version."""

    name: str
    comparison: str
    version: Version = ()
    word: str = ""


class Requirement(msgspec.Struct, frozen=True):
    """Alternatives of which one must hold; each is a list of terms that must all hold.

    Attributes:
        toolkit: The lowest CUDA version that any alternative asks for; () where none does.
        own: The driver that this toolkit was released with; () if it is not known.
        floor: The driver below which no program of it runs; () if it is not known.
    """

    alternatives: tuple[tuple[Term, ...], ...] = ()
    toolkit: Version = ()
    own: Version = ()
    floor: Version = ()


def _requiring(toolkit: Version, alternatives: tuple[tuple[Term, ...], ...] = ()) -> Requirement:
    if not toolkit:
        return Requirement(alternatives)
    return Requirement(alternatives, toolkit, own_driver(toolkit), floor(toolkit))


def version(text: str) -> Version:
    """Read the first three parts of a version; () if it is none.

    >>> version("12.8.1"), version("12"), version("12.x")
    ((12, 8, 1), (12,), ())
    """
    parts = text.split(".", 4)[:3]
    if not all(part and len(part) <= _MAX_PART and _DIGITS.issuperset(part) for part in parts):
        return ()
    return tuple(map(int, parts))


def requirement(text: str) -> Requirement | None:
    """Read a requirement as NVIDIA_REQUIRE_CUDA writes it; None if it cannot be read.

    >>> requirement("cuda>=12.8 brand=tesla,driver>=535,driver<536").toolkit
    (12, 8)
    """
    return _requirement(text) if len(text) <= MAX_LENGTH else None


@lru_cache(maxsize=1024)
def _requirement(text: str) -> Requirement | None:
    alternatives: list[tuple[Term, ...]] = []
    for alternative in text.split():
        terms = [_term(part) for part in alternative.split(",")]
        if None in terms:
            return None
        alternatives.append(tuple(term for term in terms if term is not None))
    if not alternatives:
        return None
    return _requiring(_lowest(alternatives), tuple(alternatives))


def _lowest(alternatives: list[tuple[Term, ...]]) -> Version:
    bounds = [
        term.version
        for terms in alternatives
        for term in terms
        if term.name == "cuda" and term.comparison in (">=", ">", "=", "==")
    ]
    return min(bounds, default=())


def _term(text: str) -> Term | None:
    name = next((name for name in _PROPERTIES if text.startswith(name)), "")
    rest = text[len(name) :]
    comparison = next((sign for sign in _COMPARISONS if rest.startswith(sign)), "")
    value = rest[len(comparison) :]
    if not name or not comparison or not value:
        return None
    if name == "brand":
        return Term(name, comparison, word=value.lower())
    number = version(value)
    return Term(name, comparison, number) if number else None


def declared(text: str) -> Requirement | None:
    """Read the pod's own annotation: ">=12.4", "12.4", or a whole requirement; None if it cannot be read."""
    words = text.strip()
    if words[:1] not in _DIGITS and not words.startswith(_COMPARISONS):
        return requirement(words)
    terms = words.replace(" ", "").split(",")
    return requirement(",".join(f"cuda>={term}" if term[:1] in _DIGITS else f"cuda{term}" for term in terms))


@lru_cache(maxsize=1024)
def at_least(toolkit: Version) -> Requirement:
    """The requirement of an image that names its toolkit and nothing else."""
    return _requiring(toolkit)


def tagged(image: str) -> Version:
    """The CUDA version in an image's name, () where it names none.

    >>> tagged("nvidia/cuda:12.8.1-base-ubuntu24.04"), tagged("rayproject/ray-llm:2.56.0-py312-cu130")
    ((12, 8, 1), (13, 0))
    """
    return _tagged(image[:MAX_IMAGE])


@lru_cache(maxsize=1024)
def _tagged(image: str) -> Version:
    if "cu" not in image.lower():
        return ()
    name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    words = f"{name}-{tag}".lower().replace("_", "-").split("-")
    if name == "cuda" and tag:
        return _plausible(_leading(tag.partition("-")[0]))
    for word, following in zip(words, [*words[1:], ""], strict=True):
        number = _leading(following) if word == "cuda" else _marked(word)
        if _plausible(number):
            return number
    return ()


def _marked(word: str) -> Version:
    """cu128, cu12.8, cuda12.8 and cuda12; anything else is ()."""
    start = next((start for start in ("cuda", "cu") if word.startswith(start)), "")
    if not start:
        return ()
    rest = word[len(start) :]
    first, dot, _ = rest.partition(".")
    if not _DIGITS.issuperset(first) or not 1 <= len(first) <= 4:
        return ()
    if len(first) <= 2:
        return _leading(rest) if dot or int(first) <= _NEWEST_MAJOR else (int(first[0]), int(first[1]))
    return (int(first[:2]), *map(int, first[2:4]))


def _leading(text: str) -> Version:
    """The numbers that a tag begins with: 12.4 of 12.4.post1."""
    parts = list(takewhile(lambda part: bool(version(part)), text.split(".")[:3]))
    return version(".".join(parts))


def _plausible(number: Version) -> Version:
    return number if number and _OLDEST_MAJOR <= number[0] <= _NEWEST_MAJOR else ()
