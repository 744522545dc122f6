"""templates: paths that admins write, invalid templates, and every real workload of the corpus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path as File
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import Json
from tests.engine.test_templates import GPU, POD, SPEC, at, gpu_counts, templates_of
from tests.strategies import anything, odd_pods, pods
from webhook.engine.gpu_requests import containers_of_every_kind
from webhook.engine.templates import PodTemplate
from webhook.model.field_paths import format_path
from webhook.policy.workload_kinds import WORKLOAD_KINDS, PodSource

OWN_PATHS: dict[str, tuple[Any, tuple[str, ...], list[str]]] = {
    "every member of a map": ({"roles": {"a": POD, "b": POD}}, ("roles", "*"), ["roles.a", "roles.b"]),
    "a bare pod spec": ({"spec": {"pod": SPEC}}, ("spec", "pod"), ["spec.pod"]),
    "a bare container": ({"spec": {"runner": GPU}}, ("spec", "runner"), ["spec.runner"]),
    "a path that does not exist": ({"spec": {}}, ("spec", "template"), []),
    "a path through a text": ({"spec": "x"}, ("spec", "template"), []),
    "a star over a number": ({"spec": 1}, ("spec", "*"), []),
    "a null": ({"spec": {"template": None}}, ("spec", "template"), []),
    "no object": (["x"], ("spec", "template"), []),
}


@pytest.mark.parametrize(("data", "path", "want"), OWN_PATHS.values(), ids=OWN_PATHS)
def test_paths_that_an_admin_wrote(data: Any, path: tuple[str, ...], want: list[str]) -> None:
    found = templates_of("example.com", "Trainer", data, PodSource(path))
    assert [format_path(template.path) for template in found] == want
    assert len(gpu_counts(found)) == len(want)


def test_two_paths_to_one_value_give_one_template() -> None:
    found = templates_of(
        "example.com", "Trainer", {"spec": {"a": POD}}, PodSource(("spec", "a")), PodSource(("spec", "*"))
    )
    assert [template.path for template in found] == [("spec", "a")]


def test_too_many_members_are_an_error() -> None:
    """An object with 15,000 empty roles would cost a third of a second."""
    (template,) = templates_of("workloads.x-k8s.io", "RoleBasedGroup", {"spec": {"roles": [{}] * 15_000}})
    assert (template.path, template.error) == (("spec", "roles"), "must have at most 1000 members, found more")


NO_TEMPLATES: dict[str, tuple[Any, str]] = {
    "a text": ("x", "must be a pod template, found \"'x'\""),
    "a list": ([SPEC], "must be a pod template, found"),
    "a map without template fields": ({"replicas": 1}, "must be a pod template with spec.containers, found 'replicas'"),
    "an empty map": ({}, "must be a pod template with spec.containers, found 'nothing'"),
    "a spec that is a text": ({"spec": "x"}, "must have a map under spec"),
    "a container that is a text": (
        {"spec": {"containers": ["x"]}},
        "is not a Pod: spec.containers[0]: must be a map, found text",
    ),
    "a number instead of text": (
        {"spec": {"containers": [{"image": 1}]}},
        "is not a Pod: spec.containers[0].image: must be text, found a whole number",
    ),
}


@pytest.mark.parametrize(("value", "sentence"), NO_TEMPLATES.values(), ids=NO_TEMPLATES)
def test_an_invalid_template_is_reported(value: Any, sentence: str) -> None:
    (template,) = templates_of("apps", "Deployment", {"spec": {"template": value}})
    assert template.error.startswith(sentence)
    assert template.path == ("spec", "template")


def test_nulls_are_absent() -> None:
    (template,) = templates_of(
        "apps", "Deployment", {"spec": {"template": {"metadata": None, "spec": {**SPEC, "volumes": None}}}}
    )
    assert (template.error, template.pod.spec.volumes) == ("", ())


REPLICAS = {"a text": "3", "a truth": True, "a negative number": -1, "a fraction": 1.5, "a null": None}


@pytest.mark.parametrize("value", REPLICAS.values(), ids=REPLICAS)
def test_an_invalid_number_of_replicas_counts_as_one(value: Any) -> None:
    (template,) = templates_of("apps", "Deployment", {"spec": {"replicas": value, "template": POD}})
    assert template.replicas == 1


@settings(max_examples=100)
@given(st.sampled_from(sorted(WORKLOAD_KINDS)), odd_pods() | anything())
def test_any_value_at_a_template_path_is_handled(kind: tuple[str, str], value: Any) -> None:
    for source in WORKLOAD_KINDS[kind].sources:
        found = templates_of(*kind, nest_at_path(value, source.path), source)
        assert source.embedded or len(found) <= 1
        for template in found:
            assert not (template.error and template.pod.spec.containers)
            assert template.error.isprintable()


@settings(max_examples=100)
@given(st.sampled_from(sorted(WORKLOAD_KINDS)), pods())
def test_every_container_is_found_where_it_was_read(kind: tuple[str, str], pod: Json) -> None:
    for source in WORKLOAD_KINDS[kind].sources:
        data = nest_at_path(pod, source.path)
        for template in templates_of(*kind, data, source._replace(fields=())):
            for place, container in containers_of_every_kind(template.pod.spec):
                assert at(data, template.field_path(place)).get("name", "") == container.name


def nest_at_path(value: Any, path: tuple[str, ...]) -> Any:
    for step in reversed(path):
        value = [value] if step == "*" else {step: value}
    return value


def manifests(folder: File) -> Iterator[tuple[str, Json]]:
    for file in sorted(folder.glob("*.yaml")):
        yield from ((file.name, one) for one in yaml.safe_load_all(file.read_bytes()) if isinstance(one, dict))


def test_every_real_workload_has_a_template(shared: File) -> None:
    """Yield 174 unchanged manifests of public repositories: 39 are pods, all others workloads."""
    found: dict[str, list[PodTemplate]] = {}
    for name, data in manifests(shared / "corpus" / "manifests"):
        group = data["apiVersion"].rpartition("/")[0]
        if data["kind"] != "Pod":
            found[name] = templates_of(group, data["kind"], data)
    assert len(found) == 135
    assert [name for name, some in found.items() if not some or any(one.error for one in some)] == []
    assert all(one.pod.spec.containers for some in found.values() for one in some)
