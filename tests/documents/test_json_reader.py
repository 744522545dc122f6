"""JSON without positions: consecutive values and size bounds."""

from __future__ import annotations

import pytest

from webhook.documents.document import Document, SizeBounds
from webhook.documents.reader import LARGE_JSON_BYTES, iter_documents, read_json_documents
from webhook.errors import DocumentError

SMALL = SizeBounds(size=1000, values=6, depth=3, expansion=0)


def test_consecutive_values_are_documents_except_null() -> None:
    documents = tuple(read_json_documents('{"a": 1}\nnull\n[2] 3', "f.json", SMALL))
    assert [document.data for document in documents] == [{"a": 1}, [2], 3]


@pytest.mark.parametrize("text", ["", " \n", "null"])
def test_a_text_without_values_has_no_documents(text: str) -> None:
    assert tuple(read_json_documents(text, "f.json", SMALL)) == ()


BEYOND = {
    "the maximum number of values": ("[1, 2, 3, 4, 5]", ""),
    "one value above the maximum": ("[1, 2, 3, 4, 5, 6]", "at most 6 values. Split the file"),
    "nested values": ('{"a": [1, 2], "b": [3, 4, 5]}', "at most 6 values. Split the file"),
    "too deep": ("[[[[[1]]]]]", "at most 3 levels deep"),
}


@pytest.mark.parametrize(("text", "sentence"), BEYOND.values(), ids=BEYOND)
def test_size_bounds(text: str, sentence: str) -> None:
    if not sentence:
        assert len(tuple(read_json_documents(text, "f.json", SMALL))) == 1
        return
    with pytest.raises(DocumentError) as raised:
        tuple(read_json_documents(text, "f.json", SMALL))
    assert sentence in str(raised.value)


def test_values_before_an_error_are_read_from_large_texts() -> None:
    found = list(iter_documents('{"a": 1}\n' * 3 + '{"a": ' + " " * LARGE_JSON_BYTES, "f.json", aliases=True))

    assert [isinstance(each, Document) for each in found] == [True, True, True, False]
