"""Untrusted input is read quickly and raises only DocumentError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu_timer import CpuTimer
from webhook.documents.reader import LARGE_JSON_BYTES, read_documents
from webhook.errors import DocumentError

SLACK = 10
"""Tolerance on time limits, for coverage runs."""

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 10)
)
HOSTILE = {
    "an alias bomb": (BOMB, 10),
    "a list 20 000 deep on one line": ("[" * 20_000, 50),
    "a list 20 000 deep in dashes": ("- " * 20_000, 50),
    "a map 20 000 deep": ("{a: " * 20_000, 50),
    "a file of 65 MiB": ("a" * (65 << 20), 50),
    "900 KiB of braces that open": ("@\n" + "{{ " * 300_000, 50),
}
HOSTILE_POLICIES = {
    "100 000 keys": ("".join(f"key{number}: {number}\n" for number in range(100_000)), 50),
    "30 000 short entries": ("- a\n" * 30_000, 50),
    "a scalar of 3 MB": ("a: " + "x" * 3_000_000, 50),
    "a file of 10 MB": ("# words\n" * 1_250_000, 50),
}
LARGE_MANIFESTS = {
    "100 000 keys": "".join(f"key{number}: {number}\n" for number in range(100_000)),
    "a scalar of 3 MB": "a: " + "x" * 3_000_000,
}


@contextmanager
def within(milliseconds: int) -> Iterator[None]:
    """Assert the CPU time of a block."""
    with CpuTimer() as timer:
        yield
    assert timer.seconds * 1000 < milliseconds * SLACK


@pytest.mark.parametrize("aliases", [True, False], ids=["manifest", "policy"])
@pytest.mark.parametrize(("text", "milliseconds"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_rejected_quickly(text: str, milliseconds: int, aliases: bool) -> None:
    with within(milliseconds), pytest.raises(DocumentError, match="must"):
        read_documents(text, "f.yaml", aliases=aliases)


@pytest.mark.parametrize(("text", "milliseconds"), HOSTILE_POLICIES.values(), ids=HOSTILE_POLICIES)
def test_a_large_policy_is_rejected_quickly(text: str, milliseconds: int) -> None:
    with within(milliseconds), pytest.raises(DocumentError, match="must"):
        read_documents(text, "f.yaml")


@pytest.mark.parametrize("text", LARGE_MANIFESTS.values(), ids=LARGE_MANIFESTS)
def test_a_large_manifest_is_read(text: str) -> None:
    with within(2000):
        assert len(read_documents(text, "f.yaml", aliases=True)) == 1


HOSTILE_JSON = {
    "nested without end": '{"a":' * (LARGE_JSON_BYTES // 4),
    "nested a little too deep": "[" * 102 + "]" * 102 + " " * LARGE_JSON_BYTES,
    "a key twice": '{"a": 1, "a": 2}' + " " * LARGE_JSON_BYTES,
    "NaN": '{"a": NaN}' + " " * LARGE_JSON_BYTES,
    "a number of 5 000 digits": '{"a": ' + "9" * 5000 + "}" + " " * LARGE_JSON_BYTES,
    "half a character": '{"a": "\\ud800"}' + " " * LARGE_JSON_BYTES,
    "cut off": '{"a": ' + " " * LARGE_JSON_BYTES,
}


@pytest.mark.parametrize("text", HOSTILE_JSON.values(), ids=HOSTILE_JSON)
def test_large_json_has_the_same_bounds(text: str) -> None:
    with within(200), pytest.raises(DocumentError, match="must"):
        read_documents(text, "f.json", aliases=True)


def test_json_may_be_exactly_as_deep_as_yaml() -> None:
    deepest = "[" * 100 + "]" * 100
    assert read_documents(deepest, "f.json", aliases=True)
    assert read_documents(deepest + " " * LARGE_JSON_BYTES, "f.json", aliases=True)


YAML_PIECES = st.sampled_from(
    [
        *"\n\t{}[],'\"|>#é\0\ufeff\ud800",
        *["a:", "-", "--", "&x", "*x", "<<", "!t", "?", "...", "017", "1", "0", "no"],
        ": ",
        "- ",
    ]
)


@given(st.one_of(st.text(), st.binary(), st.lists(YAML_PIECES, max_size=40).map("".join)), st.booleans())
def test_only_document_errors_are_raised(text: str | bytes, aliases: bool) -> None:
    try:
        documents = read_documents(text, "f.yaml", aliases=aliases)
    except DocumentError as error:
        complaint = str(error)
    else:
        complaint = "f.yaml"
        assert all(document.data is not None for document in documents)
    assert complaint.startswith("f.yaml")
