"""read_documents: data, positions and errors."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from webhook.documents.reader import LARGE_JSON_BYTES, MAX_POSITIONED_VALUES, read_documents
from webhook.errors import DocumentError, TemplateError

TEXT = """\
kind: Pod
spec:
  containers:
    - name: "é main"
      image: a   # words
    - {name: side, ports: [1, 2]}
"""


class Value(NamedTuple):
    text: str
    manifest: Any
    policy: Any = "rejected"


SAME: dict[str, tuple[str, Any]] = {
    "a whole number": ("8", 8),
    "a negative number": ("-8", -8),
    "hexadecimal": ("0x10", 16),
    "YAML 1.2 octal": ("0o17", 15),
    "a fraction": ("0.5", 0.5),
    "an exponent": ("1e3", 1000.0),
    "true": ("true", True),
    "False": ("False", False),
    "null": ("null", None),
    "a tilde": ("~", None),
    "nothing": ("", None),
    "a time stays as written": ("2026-12-01T00:00:00Z", "2026-12-01T00:00:00Z"),
    "a date stays as written": ("2026-12-01", "2026-12-01"),
    "a quantity": ("8Gi", "8Gi"),
    "a quoted number is text": ('"8"', "8"),
    "a quoted no is text": ("'no'", "no"),
    "a lone dot": (".", "."),
    "a version": ("1.2.3", "1.2.3"),
    "a word with an underscore": ("a_b", "a_b"),
    "an underscore alone": ("_", "_"),
    "not quite hexadecimal": ("0xyz", "0xyz"),
    "not quite octal": ("0o8", "0o8"),
    "a number of 65 digits is text": ("9" * 65, "9" * 65),
    "a block of text": ("|\n  one\n  two", "one\ntwo"),
}
UNLIKE = {
    "no": Value("no", False),
    "yes": Value("Yes", True),
    "on": Value("on", True),
    "off": Value("off", False),
    "y": Value("y", True),
    "an old octal": Value("017", 15),
    "a signed old octal": Value("-017", -15),
    "leading zeros that are not octal": Value("089", 89.0),
    "an underscored number": Value("1_000", 1000),
    "a time of day": Value("12:30:45", "12:30:45"),
    "a text tag": Value("!!str 5", "5"),
    "a number tag": Value("!!int 5", 5),
    "binary": Value("0b11", 3, policy=3),
}


@pytest.mark.parametrize("aliases", [True, False], ids=["manifest", "policy"])
@pytest.mark.parametrize(("text", "value"), SAME.values(), ids=SAME)
def test_unambiguous_scalars(text: str, value: Any, aliases: bool) -> None:
    (document,) = read_documents(f"a: {text}", "f.yaml", aliases=aliases)
    assert document.data == {"a": value}
    assert type(document.data["a"]) is type(value)


@pytest.mark.parametrize("case", UNLIKE.values(), ids=UNLIKE)
def test_ambiguous_scalars(case: Value) -> None:
    """A manifest is read as kubectl does; a policy must be unambiguous."""
    (document,) = read_documents(f"a: {case.text}", "f.yaml", aliases=True)
    assert document.data == {"a": case.manifest}
    assert type(document.data["a"]) is type(case.manifest)
    if case.policy == "rejected":
        with pytest.raises(DocumentError, match=r"^f\.yaml:1:4: must"):
            read_documents(f"a: {case.text}", "f.yaml")
    else:
        assert read_documents(f"a: {case.text}", "f.yaml")[0].data == {"a": case.policy}


POD_WITH_AMOUNT = """
kind: {kind}
metadata: {{name: {name}, namespace: team}}
spec: {{containers: [{{name: a}}, {{name: b, resources: {{limits: {{nvidia.com/gpu: 1e402}}}}}}]}}
"""


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (POD_WITH_AMOUNT.format(kind="Pod", name="huge"), "Pod team/huge: "),
        (POD_WITH_AMOUNT.format(kind='"P\\e[1m"', name="huge"), "'P\\x1b[1m team/huge': "),
        (POD_WITH_AMOUNT.partition("spec")[1] + POD_WITH_AMOUNT.partition("spec")[2].format(), ""),
    ],
    ids=["a pod", "a kind with an escape", "before the name"],
)
def test_an_infinite_amount_is_reported_with_its_object_and_field(text: str, place: str) -> None:
    with pytest.raises(DocumentError) as error:
        read_documents(text, "pod.yaml", aliases=True)
    field = "spec.containers[1].resources.limits['nvidia.com/gpu']"
    assert error.value.message.startswith(f"{place}{field}: must be a finite number or text, found 1e402")


def test_an_infinite_amount_in_a_list_is_reported_with_its_item() -> None:
    pods = [POD_WITH_AMOUNT.format(kind="Pod", name=name).strip().replace("\n", "\n  ") for name in ("a", "b")]
    text = "kind: List\nitems:\n- " + pods[0].replace("1e402", "1") + "\n- " + pods[1]
    with pytest.raises(DocumentError, match="Pod team/b: spec"):
        read_documents(text, "list.yaml", aliases=True)


@pytest.mark.parametrize("text", [".inf", "-.Inf", ".nan", "1e999"])
@pytest.mark.parametrize("aliases", [True, False])
def test_infinities_and_nan_are_rejected(text: str, aliases: bool) -> None:
    with pytest.raises(DocumentError, match=rf"f\.yaml:1:4: {'a: ' if aliases else ''}must be .* quotes"):
        read_documents(f"a: {text}", "f.yaml", aliases=aliases)


def test_positions_of_values() -> None:
    (document,) = read_documents(TEXT, "pod.yaml")
    assert str(document.locate()) == "pod.yaml:1:1"
    assert str(document.locate(("spec", "containers", 0, "name"))) == "pod.yaml:4:13"
    assert str(document.locate(("spec", "containers", 1, "ports", 1))) == "pod.yaml:6:31"
    assert str(document.locate_key(("spec", "containers", 0, "image"))) == "pod.yaml:5:7"
    assert str(document.locate_key(("spec",))) == "pod.yaml:2:1"
    assert str(document.locate_key(())) == "pod.yaml:1:1"


def test_a_missing_path_has_the_position_of_its_nearest_ancestor() -> None:
    (document,) = read_documents(TEXT, "pod.yaml")
    assert document.locate(("spec", "containers", 1, "resources", "limits")) == document.locate(
        ("spec", "containers", 1)
    )
    assert document.locate(("spec", "containers", 7)) == document.locate(("spec", "containers"))
    assert document.locate(("kind", "x")) == document.locate(("kind",))
    assert document.locate((0,)) == document.locate()
    assert document.locate_key(("spec", "nodeName")) == document.locate(("spec",))
    assert document.locate_key(("nope", "nodeName")) == document.locate()


def test_several_documents_and_empty_ones() -> None:
    found = read_documents("# only words\n---\na: 1\n---\n---\nnull\n---\nb: 2\n...\n", "f.yaml")
    assert [document.data for document in found] == [{"a": 1}, {"b": 2}]
    assert str(found[1].locate()) == "f.yaml:8:1"
    assert read_documents("", "f.yaml") == ()


def test_a_byte_order_mark_is_dropped() -> None:
    assert read_documents(b"\xef\xbb\xbfa: 1", "f.yaml")[0].data == {"a": 1}


def test_aliases_and_merge_keys_work_in_manifests() -> None:
    text = "base: &base {x: 1, y: 2}\nmore: &more {z: 3, x: 9}\nall:\n  <<: [*base, *more]\n  y: 5\nsame: *base\n"
    (document,) = read_documents(text, "f.yaml", aliases=True)
    assert document.data["all"] == {"y": 5, "x": 1, "z": 3}
    assert document.data["same"] == {"x": 1, "y": 2}
    assert str(document.locate(("all", "z"))) == "f.yaml:2:17"


def test_keys_are_always_text() -> None:
    text = "1: a\ntrue: b\n? ~\n: c\n&k d: *k\n"
    assert read_documents(text, "f.yaml", aliases=True)[0].data == {"1": "a", "true": "b", "~": "c", "d": "d"}


def test_json_has_positions() -> None:
    (document,) = read_documents(
        '{\n\t"kind": "Pod",\n\t"spec": {"x": [1, true, null, "\\/"]}}', "pod.json", aliases=True
    )
    assert document.data == {"kind": "Pod", "spec": {"x": [1, True, None, "/"]}}
    assert str(document.locate(("spec", "x", 1))) == "pod.json:3:20"


COLONS = {
    "an image": ("{image: nginx:1.25, name: c}", {"image": "nginx:1.25", "name": "c"}),
    "an address": ("[http://x, b]", ["http://x", "b"]),
    "an argument": ("[--a=b:c]", ["--a=b:c"]),
    "a question mark": ("[a?b]", ["a?b"]),
    "a JSON key without a space": ('{"limits":{"cpu":1}}', {"limits": {"cpu": 1}}),
}


@pytest.mark.parametrize("aliases", [True, False], ids=["manifest", "policy"])
@pytest.mark.parametrize(("text", "value"), COLONS.values(), ids=COLONS)
def test_text_with_a_colon_needs_no_quotes_in_braces(text: str, value: Any, aliases: bool) -> None:
    """YAML 1.2 allows it, and kubectl reads it."""
    (document,) = read_documents(f"a: {text}", "f.yaml", aliases=aliases)
    assert document.data == {"a": value}
    assert str(document.locate(("a",))) == "f.yaml:1:4"


def test_position_after_a_colon_in_braces() -> None:
    (document,) = read_documents("- {image: nginx:1.25, name: c}", "f.yaml", aliases=True)
    assert str(document.locate_key((0, "name"))) == "f.yaml:1:23"


JSON_ONLY = {
    "an emoji in escapes": ('\n {"a": "\\ud83d\\ude00"}', [{"a": "😀"}], "f.json:2:2"),
    "consecutive values": ('{"b": 1}\n{"b": 2,\n "a": 3}\n', [{"b": 1}, {"b": 2, "a": 3}], "f.json:3:7"),
    "consecutive values on one line": ('{"b": "é"} {"a": 3}', [{"b": "é"}, {"a": 3}], "f.json:1:18"),
    "consecutive values with CRLF": ('{"b":\r\n1}{"a": 3}', [{"b": 1}, {"a": 3}], "f.json:2:9"),
    "a key longer than YAML allows": (f'{{"{"k" * 2000}": 1}}', [{"k" * 2000: 1}], "f.json:1:1"),
}


@pytest.mark.parametrize(("text", "data", "place"), JSON_ONLY.values(), ids=JSON_ONLY)
def test_json_that_is_not_yaml_has_positions(text: str, data: list[Any], place: str) -> None:
    found = read_documents(text, "f.json", aliases=True)
    assert [document.data for document in found] == data
    assert str(found[-1].locate(("a",))) == place


def test_later_consecutive_values_have_only_their_start() -> None:
    found = read_documents('{"a": 1}\n' * (MAX_POSITIONED_VALUES + 1), "f.json", aliases=True)
    assert [str(each.locate(("a",))) for each in found[-2:]] == [
        f"f.json:{MAX_POSITIONED_VALUES}:7",
        f"f.json:{MAX_POSITIONED_VALUES + 1}:1",
    ]


def test_large_json_has_no_positions() -> None:
    text = '{"items": ["' + "x" * LARGE_JSON_BYTES + '"]}'
    (document,) = read_documents(text, "f.json", aliases=True)
    assert len(document.data["items"][0]) == LARGE_JSON_BYTES
    assert str(document.locate(("items", 0))) == "f.json"


REJECTED = {
    "a tab as indentation": ("a:\n\t- b", "f.yaml:2:1: must be indented with spaces, found a tab. Write spaces"),
    "a duplicate key": (
        "a: 1\nb:\n  c: 1\n  c: 2",
        "f.yaml:4:3: must have each key once, found 'c' again (first at line 3, column 3). Remove one of the two",
    ),
    "a Python tag": ("a: !!python/object x", "f.yaml:1:4: must have no tags, found !!python/object"),
    "a custom tag on a key": ("!mine a: 1", "f.yaml:1:1: must have no tags, found !mine"),
    "a custom tag on a map": ("a: !mine {b: 1}", "f.yaml:1:4: must have no tags, found !mine"),
    "a map as a key": ("? {a: 1}\n: 2", "f.yaml:1:3: must have text as key, found a map or a list"),
    "two colons": ("a: b: c", "f.yaml:1:5: must have one `key: value` per line"),
    "an open quote": ('a: "b', "f.yaml:1:6: must have a closing quote"),
    "an at sign": ("a: @b", "f.yaml:1:4: must not begin with '@' unquoted. Put the text in quotes"),
    "misaligned keys": ("a: 1\n b: 2", "f.yaml:2:3: must have one `key: value` per line"),
    "a colon inside braces": ("a: {b: 1:2:x: 3}", "f.yaml:1:"),
    "a NUL": ("a: \0", "f.yaml:1:4: must be text, found the character U+0000"),
    "an escape character": ("a: 1\nb: \x1b[0m", "f.yaml:2:4: must be text, found the character U+001B"),
    "a lone surrogate": ("a: \ud800", "f.yaml:1:4: must be text, found the character U+D800"),
    "bytes that are not UTF-8": (b"a: 1\nb: \xff", "f.yaml:2:4: must be UTF-8, found the byte 0xff"),
    "UTF-16": ("a: 1".encode("utf-16"), "f.yaml:1:1: must be UTF-8, found UTF-16"),
    "UTF-16 without a mark": ("a: 1".encode("utf-16-le"), "f.yaml:1:1: must be UTF-8, found UTF-16"),
    "a lone surrogate in JSON": ('{"a": "\\ud800"}', "f.yaml:1:"),
    "NaN in consecutive JSON values": ('{"a": 1}{"b": NaN}', "f.yaml:1:9: must be YAML, found a syntax error"),
}
REJECTED_IN_POLICIES = {
    "an alias": ("a: &x 1\nb: *x", "f.yaml:2:4: must not use aliases, found *x. Write the value itself"),
    "a merge key": ("a: {}\nb:\n  <<: 1", "f.yaml:3:3: must not use merge keys, found <<"),
    "an ambiguous key": ("on: 1", "f.yaml:1:1: must be unambiguous, found on"),
}
REJECTED_IN_MANIFESTS = {
    "an alias without an anchor": ("a: *x", "f.yaml:1:4: must refer to an anchor above it, found *x"),
    "an alias inside itself": ("a: &x [*x]", "f.yaml:1:8: must not contain itself, found *x"),
    "an alias as a key": ("a: &x b\n*x : 1", "f.yaml:2:1: must have text as key, found an alias"),
    "an alias from another document": ("a: &x b\n---\na: *x", "f.yaml:3:4: must refer to an anchor above it"),
    "a merge of a scalar": ("a:\n  <<: 1", "f.yaml:2:7: must merge a map"),
    "a custom tag": ("a: !mine 1", "f.yaml:1:4: must have no tags, found !mine"),
}


@pytest.mark.parametrize("aliases", [True, False], ids=["manifest", "policy"])
@pytest.mark.parametrize(("text", "sentence"), REJECTED.values(), ids=REJECTED)
def test_errors_in_any_file(text: str | bytes, sentence: str, aliases: bool) -> None:
    with pytest.raises(DocumentError) as raised:
        read_documents(text, "f.yaml", aliases=aliases)
    assert str(raised.value).startswith(sentence)
    assert ". " in raised.value.message, "the message says what to write"


@pytest.mark.parametrize(("text", "sentence"), REJECTED_IN_POLICIES.values(), ids=REJECTED_IN_POLICIES)
def test_errors_in_policies(text: str, sentence: str) -> None:
    with pytest.raises(DocumentError) as raised:
        read_documents(text, "f.yaml")
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize(("text", "sentence"), REJECTED_IN_MANIFESTS.values(), ids=REJECTED_IN_MANIFESTS)
def test_errors_in_manifests(text: str, sentence: str) -> None:
    with pytest.raises(DocumentError) as raised:
        read_documents(text, "f.yaml", aliases=True)
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize(
    "text",
    ["replicas: {{ .Values.replicas }}", "{{- if .Values.gpu }}\nkind: Pod\n{{- end }}", "a: 1\n{{ include `x` . }}\n"],
)
def test_unrendered_templates(text: str) -> None:
    with pytest.raises(TemplateError, match=r"looks like a Helm template. Render it first"):
        read_documents(text, "f.yaml", aliases=True)


def test_braces_in_quotes_are_text() -> None:
    """Argo workflows use them."""
    assert read_documents('a: "{{inputs.parameters.x}}"', "f.yaml")[0].data == {"a": "{{inputs.parameters.x}}"}
