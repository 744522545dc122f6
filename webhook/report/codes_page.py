"""The pages of the finding codes, from the one table in `model.codes`: for a terminal and for `docs/codes.md`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from webhook.model.codes import CODES, OBJECTS, Code

GROUPS = {
    "S": "Security: ways round GPU accounting and isolation",
    "L": "Limits and LimitRanges",
    "Q": "Quota",
    "R": "Right-sizing",
    "I": "Injection",
    "T": "Topology and placement",
    "C": "CUDA compatibility",
    "P": "Policy files",
}
"""What the letter of a code stands for."""


def spoken_by(code: Code) -> str:
    """Which part of a policy speaks, and when."""
    if not code.section:
        return "Rightslice itself, when it loads policies."
    if code.section == OBJECTS:
        return "Rightslice itself, about the LimitRange or ResourceQuota; never more than a warning."
    when = "what was changed, said while the pod is shaped" if code.shapes else "judged on the final pod"
    return f"spec.{code.section} of a policy; {when}."


def code_page(code: str) -> list[str]:
    """The page of one code, in lines.

    Raises:
        KeyError: no such code.
    """
    page = CODES[code]
    return [
        f"{code}  {page.title}",
        "",
        f"Why   {page.why}",
        f"Do    {page.fix}",
        f"From  {spoken_by(page)}",
    ]


def code_list() -> list[str]:
    """Every code and its title, in lines."""
    return [f"{code}  {page.title}" for code, page in CODES.items()]


def nearest(code: str) -> str:
    """The code that was probably meant, or "". Its first letters may be missing.

    >>> nearest("l102")
    'GPU-L102'
    """
    whole = f"GPU-{code.upper().removeprefix('GPU').lstrip('-')}"
    return whole if whole in CODES else closest(whole, CODES)


def closest(name: str, known: Iterable[str]) -> str:
    """The name that was probably meant, or ""."""
    found = get_close_matches(name, list(known), n=1, cutoff=0.7)
    return found[0] if found else ""


def codes_page() -> str:
    """`docs/codes.md`."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield "# Finding codes"
    yield ""
    yield "Made by `rightslice explain --all`; do not edit. A code never changes its meaning."
    for letter, title in GROUPS.items():
        yield ""
        yield f"## {title}"
        for code, page in CODES.items():
            if code.startswith(f"GPU-{letter}"):
                yield from _section(code, page)


def _section(code: str, page: Code) -> Iterator[str]:
    yield ""
    yield f"### {code}"
    yield ""
    yield f"**{page.title[:1].upper()}{page.title[1:]}.** {page.why}"
    yield ""
    yield f"* What to do: {page.fix}"
    yield f"* Said by: {spoken_by(page)}"
