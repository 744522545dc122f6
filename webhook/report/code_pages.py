"""The pages of the finding codes, from the one table in `model.codes`: for a terminal and for `docs/codes.md`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from webhook.model.codes import CODES, OBJECT_LINT, FindingCode

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


def code_source(code: FindingCode) -> str:
    """Which part of a policy speaks, and when."""
    if not code.section:
        return "Rightslice itself, when it loads policies."
    if code.section == OBJECT_LINT:
        return "Rightslice itself, about the LimitRange or ResourceQuota; never more than a warning."
    when = "what was changed, said while the pod is shaped" if code.from_mutation else "judged on the final pod"
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
        f"Why   {page.reason}",
        f"Do    {page.fix}",
        f"From  {code_source(page)}",
    ]


def code_list() -> list[str]:
    """Every code and its title, in lines."""
    return [f"{code}  {page.title}" for code, page in CODES.items()]


def closest_code(code: str) -> str:
    """The code that was probably meant, or "". Its first letters may be missing.

    >>> nearest("l102")
    'GPU-L102'
    """
    whole = f"GPU-{code.upper().removeprefix('GPU').lstrip('-')}"
    return whole if whole in CODES else closest_name(whole, CODES)


def closest_name(name: str, known: Iterable[str]) -> str:
    """The name that was probably meant, or ""."""
    found = get_close_matches(name, list(known), n=1, cutoff=0.7)
    return found[0] if found else ""


def codes_markdown() -> str:
    """`docs/codes.md`."""
    return "\n".join(_codes_markdown_lines()) + "\n"


def _codes_markdown_lines() -> Iterator[str]:
    yield "# Finding codes"
    yield ""
    yield "Made by `rightslice explain --all`; do not edit. A code never changes its meaning."
    for letter, title in GROUPS.items():
        yield ""
        yield f"## {title}"
        for code, page in CODES.items():
            if code.startswith(f"GPU-{letter}"):
                yield from _code_section(code, page)


def _code_section(code: str, page: FindingCode) -> Iterator[str]:
    yield ""
    yield f"### {code}"
    yield ""
    yield f"**{page.title[:1].upper()}{page.title[1:]}.** {page.reason}"
    yield ""
    yield f"* What to do: {page.fix}"
    yield f"* Said by: {code_source(page)}"
