"""What is wrong with a text that is not YAML, in words that help: libyaml's own name the parser's state."""

from __future__ import annotations

import re
from typing import Any

from webhook.errors import DocumentError, SourceLocation, TemplateError, shorten_text

_TEMPLATE_BRACES = re.compile(r"\{\{(?:(?!\{\{|\}\}).){0,400}\}\}", re.DOTALL)
"""The innermost braces: a search ends at each that opens, so that no text costs more than reading it once."""

_QUOTED_OR_COMMENT = re.compile(r"""(?m)"(?:[^"\\\n]|\\.)*(?:"|$)|'[^'\n]*'|(?:^|(?<=[ \t]))#.*$""")
"""What stands in quotes on one line, and comments."""

_SYNTAX_MESSAGES = {
    "mapping values are not allowed in this context": (
        "must have one `key: value` on a line, found a second colon or a wrong indentation. "
        "Put text that holds a colon in quotes, or correct the indentation"
    ),
    "did not find expected key": (
        "must have keys of one map in one column, found another indentation or text left over. "
        "Line the keys up, and put text with special characters in quotes"
    ),
    "found unexpected ':'": "must not end text with a colon inside { } and [ ]. Put the text in quotes",
    "could not find expected ':'": "must be `key: value`, found a key without a colon. Write key: value",
    "did not find expected '-' indicator": "must have list items in one column. Line the dashes up",
    "did not find expected ',' or ']'": "must have a comma or ] here. Close the list",
    "did not find expected ',' or '}'": "must have a comma or } here. Close the map",
    "found unexpected end of stream": "must close its quotes, found the end of the file. Add the closing quote",
    "block sequence entries are not allowed in this context": "must have list items on lines of their own",
    "did not find expected alphabetic or numeric character": (
        "must not begin with * or & unquoted. Put the text in quotes"
    ),
    "found undefined tag handle": "must have no tags. Write the plain value",
}


def syntax_error(error: Any, text: str, file: str, above: int = 0) -> DocumentError:
    """Turn a parser's exception into ours, with the place; `above` counts the lines above the text in its file."""
    mark = error.problem_mark
    return DocumentError(SourceLocation(file, above + mark.line + 1, mark.column + 1), _syntax_message(error, text))


def template_error(text: str, place: SourceLocation) -> TemplateError | None:
    """The error for a text with `{{ … }}` in it that is not YAML; None for any other.

    In comments and in quotes braces are YAML: they are not what is wrong with it.
    """
    if _TEMPLATE_BRACES.search(text) is None or _TEMPLATE_BRACES.search(_QUOTED_OR_COMMENT.sub("", text)) is None:
        return None
    return TemplateError(
        place,
        "must be YAML, found {{ … }}: it looks like a Helm template. Render it first: helm template CHART | …",
    )


def _syntax_message(error: Any, text: str) -> str:
    problem = str(error.problem)
    if problem == "found character that cannot start any token" or "tab character" in problem:
        return _unquoted_start_message(text, error.problem_mark.index)
    known = _SYNTAX_MESSAGES.get(problem)
    return known or f"must be YAML, found a fault: {shorten_text(problem, 120)}. Correct the text there"


def _unquoted_start_message(text: str, offset: int) -> str:
    before = text[text.rfind("\n", 0, offset) + 1 : offset]
    character = text[offset : offset + 1]
    if character == "\t" or ("\t" in before and not before.strip()):
        return "must be indented with spaces, found a tab. Write spaces"
    return f"must not begin with {character!r} unquoted. Put the text in quotes"
