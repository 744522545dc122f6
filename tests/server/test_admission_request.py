"""Parsing of reviews, and the messages for invalid ones."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.reviews import review as bench_review
from tests.builders import make_pod
from tests.server.site import encoded, review
from webhook.errors import ReviewError
from webhook.server.admission_request import decode_strict_json, parse_api_server_review, parse_review

GOOD = encoded(review())
JSON = "the body must be valid JSON: syntax error at line 1, column"
EMPTY = "must not be empty"
MORE = "one JSON document: extra data at line 1, column"
UTF8 = "must be UTF-8 without a byte order mark"
UNICODE = "an unpaired surrogate"
CONSTANT = "NaN and Infinity are not"
LARGE = "integers of at most 64 bits, or floats below 1e308"
DEEP = "at most 250 levels deep"
TWICE = "duplicate keys"


def with_pod(text: str) -> bytes:
    """Return the review with this text as its object."""
    return encoded(review()).replace(encoded(make_pod().gpus(1).build()), text.encode())


def pod(fields: str = "", *, metadata: str = "{}", spec: str = "{}") -> str:
    """Return a pod as text, with metadata, spec and further fields."""
    return f'{{"kind":"Pod","metadata":{metadata},"spec":{spec}{"," if fields else ""}{fields}}}'


def without(*path: str) -> bytes:
    data: Any = review()
    holder = data
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    return encoded(data)


def of_kind(kind: str, group: str = "", resource: str = "pods") -> dict[str, Any]:
    return {
        "kind": {"group": group, "version": "v1", "kind": kind},
        "resource": {"group": group, "version": "v1", "resource": resource},
    }


REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", EMPTY),
    "white space": (b" \n\t ", EMPTY),
    "a line feed in a text": (with_pod('{"kind":"Pod","x":"a\nb"}'), JSON),
    "400 digits": (with_pod('{"kind":"Pod","x":%s}' % ("9" * 400)), LARGE),
    "a surrogate alone, deep down": (with_pod(f'{{"kind":"Pod","x":{"[" * 300}"\\udc00"{"]" * 300}}}'), UNICODE),
    "null": (b"null", "must be a JSON object"),
    "a list": (b"[]", "must be a JSON object"),
    "an empty object": (b"{}", "apiVersion must be"),
    "broken": (GOOD[:-1], JSON),
    "followed by another document": (GOOD + GOOD, MORE),
    "followed by a word": (GOOD + b" x", MORE),
    "with a byte order mark": (b"\xef\xbb\xbf" + GOOD, UTF8),
    "UTF-16": (GOOD.decode().encode("utf-16"), UTF8),
    "not UTF-8": (with_pod('{"kind":"Pod","x":"?"}').replace(b"?", b"\xff"), UTF8),
    "a surrogate alone": (with_pod('{"kind":"Pod","x":"\\ud800"}'), UNICODE),
    "a surrogate as bytes": (with_pod('{"kind":"Pod","x":"?"}').replace(b"?", b"\xed\xa0\x80"), UTF8),
    "NaN": (with_pod('{"kind":"Pod","x":NaN}'), CONSTANT),
    "Infinity": (with_pod('{"kind":"Pod","x":Infinity}'), CONSTANT),
    "-Infinity": (with_pod('{"kind":"Pod","x":-Infinity}'), CONSTANT),
    "1e400": (with_pod('{"kind":"Pod","x":1e400}'), LARGE),
    "-1e400": (with_pod('{"kind":"Pod","x":-1e400}'), LARGE),
    "an integer of 65 bits": (with_pod('{"kind":"Pod","x":18446744073709551616}'), LARGE),
    "a negative integer of 65 bits": (with_pod('{"kind":"Pod","x":-9223372036854775809}'), LARGE),
    "5000 digits": (with_pod('{"kind":"Pod","x":%s}' % ("9" * 5000)), LARGE),
    "1024 lists deep": (b"[" * 1024 + b"]" * 1024, DEEP),
    "1025 lists deep": (b"[" * 1025 + b"]" * 1025, DEEP),
    "100000 lists deep": (b"[" * 100_000 + b"]" * 100_000, DEEP),
    "100000 objects deep": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, DEEP),
    "300 lists deep in the pod": (with_pod('{"kind":"Pod","x":%s}' % ("[" * 300 + "]" * 300)), DEEP),
    "two uids": (GOOD.replace(b'"uid"', b'"uid":"other","uid"', 1), TWICE),
    "two requests": (GOOD.replace(b'"request"', b'"request":null,"request"', 1), TWICE),
    "two GPU limits": (with_pod('{"kind":"Pod","l":{"nvidia.com/gpu":"1","nvidia.com/gpu":"8"}}'), TWICE),
    "two keys, one of them escaped": (with_pod('{"kind":"Pod","a\\u003a":1,"a:":2}'), TWICE),
    "two keys and an escaped colon": (with_pod('{"kind":"Pod","a":1,"a":1,"b":"\\u0022\\u003a"}'), TWICE),
    "two keys in managedFields": (with_pod('{"kind":"Pod","metadata":{"managedFields":[{"a":1,"a":1}]}}'), TWICE),
    "two equal pairs": (with_pod('{"kind":"Pod","a":1,"a":1}'), TWICE),
    "another kind": (GOOD.replace(b"AdmissionReview", b"Foo"), "kind must be"),
    "another version": (GOOD.replace(b"admission.k8s.io/v1", b"admission.k8s.io/v2"), "apiVersion must be"),
    "the beta version": (GOOD.replace(b"admission.k8s.io/v1", b"admission.k8s.io/v1beta1"), "apiVersion must be"),
    "no request": (without("request"), "request is missing"),
    "request null": (encoded(review() | {"request": None}), "request is missing"),
    "request a list": (encoded(review() | {"request": []}), "request must have the fields"),
    "no uid": (without("request", "uid"), "uid is missing"),
    "uid null": (encoded(review(uid=None)), "uid is missing"),
    "an empty uid": (encoded(review(uid="")), "uid is missing"),
    "uid a number": (encoded(review(uid=7)), "request must have the fields"),
    "a uid of 1 MB": (encoded(review(uid="u" * 2**20)), "uid must be at most 128"),
    "a uid with a line feed": (encoded(review(uid="u\nv")), "uid must be at most 128"),
    "no operation": (without("request", "operation"), "operation must be"),
    "another operation": (encoded(review(operation="PATCH")), "operation must be"),
    "no kind": (without("request", "kind"), "kind.kind is missing"),
    "a NUL in the request's name": (encoded(review(name="a\0b")), "printable"),
    "a NUL in the namespace": (encoded(review(namespace="a\0b")), "printable"),
    "a NUL in the pod's name": (encoded(review(make_pod("a\0b").build())), "printable"),
    "a name of 1 MB": (encoded(review(name="n" * 2**20)), "at most 253"),
    "object null on CREATE": (encoded(review() | {"request": review()["request"] | {"object": None}}), "not null"),
    "object null on UPDATE": (
        encoded({**review(), "request": {**review()["request"], "operation": "UPDATE", "object": None}}),
        "not null",
    ),
    "object a list": (with_pod("[]"), "must be objects or null"),
    "object a text": (with_pod('"pod"'), "must be objects or null"),
    "a Deployment that is called a Pod": (with_pod('{"kind":"Deployment","apiVersion":"apps/v1"}'), "of the kind"),
    "a Pod of another group": (with_pod('{"kind":"Pod","apiVersion":"example.com/v1"}'), "of the kind"),
    "a Pod that is called a Deployment": (
        encoded(review(**of_kind("Deployment", "apps", "deployments"))),
        "of the kind",
    ),
    "a kind that is a number": (with_pod('{"kind":7}'), "of the kind"),
    "a pod under nodes": (encoded(review(**of_kind("Pod", resource="nodes"))), "must be pods"),
    "containers an object": (with_pod(pod(spec='{"containers":{}}')), "is not a Pod"),
    "a container that is a number": (with_pod(pod(spec='{"containers":[7]}')), "is not a Pod"),
    "limits a list": (with_pod(pod(spec='{"containers":[{"resources":{"limits":[]}}]}')), "is not a Pod"),
    "a limit that is true": (
        with_pod(pod(spec='{"containers":[{"resources":{"limits":{"nvidia.com/gpu":true}}}]}')),
        r"spec.containers\[0\].resources.limits\['nvidia.com/gpu'\]: must be a number or text, found true or false",
    ),
    "privileged as a number": (
        with_pod(pod(spec='{"containers":[{"securityContext":{"privileged":1}}]}')),
        "is not a Pod",
    ),
    "labels with numbers": (with_pod(pod(metadata='{"labels":{"a":1}}')), "is not a Pod"),
    "an old object that is not a pod": (encoded(review(operation="UPDATE", oldObject={"spec": []})), "is not a Pod"),
}


@pytest.mark.parametrize(("body", "words"), REFUSED.values(), ids=REFUSED)
def test_invalid_input_is_rejected(body: bytes, words: str) -> None:
    with pytest.raises(ReviewError, match=words) as caught:
        parse_review(body)
    assert len(str(caught.value)) <= 256
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("body", "words"), REFUSED.values(), ids=REFUSED)
def test_rejected_from_an_api_server_when_the_whole_object_is_read(body: bytes, words: str) -> None:
    with pytest.raises(ReviewError, match=words):
        parse_api_server_review(body).load_object()


def deep(levels: int) -> dict[str, Any]:
    """Return a pod with deeply nested managedFields."""
    fields: dict[str, Any] = {}
    for _ in range(levels):
        fields = {"f:x": fields}
    return fields


def test_a_review_is_parsed() -> None:
    request = parse_review(encoded(review(dryRun=True, subResource="resize", uid="u-9")))
    assert (request.uid, request.operation, request.group, request.kind) == ("u-9", "CREATE", "", "Pod")
    assert (request.namespace, request.name, request.sub_resource, request.dry_run) == ("team", "pod", "resize", True)
    assert (request.user, request.groups) == ("alice", ("system:authenticated",))
    assert request.pod is not None
    assert request.pod.spec.containers[0].resources.limits == {"nvidia.com/gpu": "1"}
    assert request.load_object() == make_pod().gpus(1).build()
    assert request.load_object() is request.load_object()
    assert request.old_pod is None
    assert request.load_old_object() is None


def test_an_update_carries_the_old_pod() -> None:
    request = parse_review(encoded(review(operation="UPDATE", oldObject=make_pod("old").build())))
    assert request.old_pod is not None
    assert request.old_pod.metadata.name == "old"
    assert request.load_old_object()["metadata"]["name"] == "old"


def test_a_delete_has_no_object() -> None:
    request = parse_review(
        encoded(review() | {"request": review()["request"] | {"operation": "DELETE", "object": None}})
    )
    assert (request.operation, request.pod, request.load_object()) == ("DELETE", None, None)


def test_another_kind_is_not_read_as_a_pod() -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"containers": 7}}
    request = parse_review(encoded(review(job, **of_kind("Job", "batch", "jobs"))))
    assert (request.group, request.kind, request.pod) == ("batch", "Job", None)
    assert request.load_object() == job


TAKEN = {
    "nulls instead of lists and maps": pod(metadata='{"labels":null}', spec='{"containers":null}'),
    "unknown fields": pod(spec='{"fromTheFuture":{"a":[1]}}'),
    "a text that looks like a pair": pod(metadata='{"annotations":{"a":"\\",\\"a\\":1"}}'),
    "the same key in two objects": pod('"a":{"x":1},"b":{"x":1}'),
    "an unnecessary escape": pod(metadata='{"name":"\\u0061"}'),
    "HTML characters, as Go escapes them": pod(metadata='{"annotations":{"a":"\\u003c\\u0026\\u003e"}}'),
    "a NUL in an annotation": pod(metadata='{"annotations":{"a":"\\u0000"}}'),
    "white space": ' {\n "kind" : "Pod", "metadata" : { }, "spec":{}}\t',
    "2^64 - 1": pod('"x":18446744073709551615'),
    "2^53+1": pod('"x":9007199254740993'),
    "40 levels of managedFields": pod(metadata=json.dumps({"managedFields": [deep(40)]})),
    "200 levels": pod(f'"x":{json.dumps(deep(200))}'),
    "300 KiB of annotations": pod(metadata=json.dumps({"annotations": {"a": "é" * 150_000}})),
}


@pytest.mark.parametrize("text", TAKEN.values(), ids=TAKEN)
def test_parsed_exactly(text: str) -> None:
    assert parse_review(with_pod(text)).load_object() == json.loads(text)


SENT = {
    **{name: with_pod(text) for name, text in TAKEN.items()},
    "a plain pod": GOOD,
    "a pod of the benchmark": bench_review(),
    "a pod with kind and apiVersion": with_pod(pod('"apiVersion":"v1"', spec='{"containers":[{"name":"a"}]}')),
    "an update": encoded(review(operation="UPDATE", oldObject=make_pod("old").build())),
    "a delete": encoded({**review(), "request": {**review()["request"], "operation": "DELETE", "object": None}}),
    "a job": encoded(review({"apiVersion": "batch/v1", "kind": "Job"}, **of_kind("Job", "batch", "jobs"))),
    "nulls in the envelope": encoded(review(dryRun=None, name=None)),
}


@pytest.mark.parametrize("body", SENT.values(), ids=SENT)
def test_both_parsers_return_the_same_request(body: bytes) -> None:
    one, other = parse_review(body), parse_api_server_review(body)
    loose = {"pod": None, "old_pod": None, "load_object": dict, "load_old_object": dict}
    assert msgspec.structs.replace(one, **loose) == msgspec.structs.replace(other, **loose)
    assert (one.load_object(), one.load_old_object()) == (other.load_object(), other.load_old_object())
    for left, right in ((one.pod, other.pod), (one.old_pod, other.old_pod)):
        assert (left is None) == (right is None)
        if left is not None and right is not None:
            assert (left.metadata, left.spec, left.status) == (right.metadata, right.spec, right.status)


def test_numbers_are_never_changed() -> None:
    data = parse_review(with_pod(pod('"a":18446744073709551615,"b":-9223372036854775808,"c":1.5'))).load_object()
    assert [(type(data[key]), data[key]) for key in "abc"] == [(int, 2**64 - 1), (int, -(2**63)), (float, 1.5)]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200)
@given(json_values, st.booleans(), st.booleans())
def test_decoding_is_exact_for_every_notation(value: Any, ascii_only: bool, spaced: bool) -> None:
    separators = (", ", ": ") if spaced else (",", ":")
    body = json.dumps(value, ensure_ascii=ascii_only, separators=separators).encode()
    decoded = decode_strict_json(body)
    assert decoded == value
    assert repr(decoded) == repr(json.loads(body))


@settings(max_examples=200)
@given(st.dictionaries(st.text(max_size=6), json_values, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_a_duplicate_key_is_always_found(members: dict[str, Any], random: Any) -> None:
    pairs = [*members.items(), random.choice(list(members.items()))]
    random.shuffle(pairs)
    parts = [f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}" for key, value in pairs]
    body = f'{{"a":[{{{",".join(parts)}}}]}}'.encode()
    with pytest.raises(ReviewError):
        decode_strict_json(body)


@settings(max_examples=200)
@given(st.binary(max_size=200), st.integers(0, len(GOOD)), st.integers(0, 40))
def test_random_bytes_raise_only_review_errors(noise: bytes, at: int, cut: int) -> None:
    for way in (parse_review, parse_api_server_review):
        with suppress(ReviewError):
            way(GOOD[:at] + noise + GOOD[at + cut :]).load_object()
