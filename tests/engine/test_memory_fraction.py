"""`memoryFraction: patch`: the fraction of GPU memory that a framework takes, changed for its slice or share."""

from __future__ import annotations

import copy
import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import Json, PodMaker, make_node, make_pod
from tests.example_cluster import apply_patch, mig_node, review, whole_node
from webhook.cli.commands.undo import OriginalRequest, original_request
from webhook.model.annotations import DECISION_ANNOTATION
from webhook.model.decisions import KeepReason, KeepRequest
from webhook.report.explain import record_lines

SMALL, LARGE, SHARED = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb", "nvidia.com/gpu.shared"
REPORT = "mode: enforce\nrightSizing: {}"
PATCH = "mode: enforce\nrightSizing: {memoryFraction: patch}"
SLICES = (whole_node(), mig_node(large=0))
MPS = make_node(
    "mps",
    {
        "nvidia.com/gpu.product": "NVIDIA-L40S",
        "nvidia.com/gpu.memory": "46068",
        "nvidia.com/gpu.replicas": "4",
        "nvidia.com/gpu.sharing-strategy": "mps",
        "nvidia.com/mps.capable": "true",
    },
    **{SHARED: 16},
)
FLAG, VARIABLE = "--gpu-memory-utilization", "XLA_PYTHON_CLIENT_MEM_FRACTION"


def framework(image: str = "vllm/vllm-openai:v0.9.1", memory: str = "8Gi", **fields: Any) -> PodMaker:
    """Return a pod that requests one GPU, needs this memory, and runs an image with more fields of its container."""
    pod = make_pod().gpus(1).needs(memory).image(image)
    pod.main.update(fields)
    return pod


def variables(*pairs: tuple[str, str]) -> list[Json]:
    """Return environment variables."""
    return [{"name": name, "value": value} for name, value in pairs]


class Case(NamedTuple):
    """A container before and after its patch; `after` is None if it keeps its card."""

    fields: dict[str, Any]
    after: dict[str, Any] | None
    image: str = "vllm/vllm-openai:v0.9.1"
    memory: str = "8Gi"


JAX = "ghcr.io/nvidia/jax:nightly"
FROM_FIELD = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
CASES: dict[str, Case] = {
    "a flag with an equals sign": Case(
        {"args": ["serve", f"{FLAG}=0.1", "--port=1"]}, {"args": ["serve", f"{FLAG}=0.85", "--port=1"]}
    ),
    "a flag and its number": Case({"args": ["serve", FLAG, "0.1", "m"]}, {"args": ["serve", FLAG, "0.85", "m"]}),
    "a flag with underscores keeps its spelling": Case(
        {"args": ["--gpu_memory_utilization=.1"]}, {"args": ["--gpu_memory_utilization=0.85"]}
    ),
    "a flag of the command": Case(
        {"command": ["vllm", "serve", f"{FLAG}=0.1"]}, {"command": ["vllm", "serve", f"{FLAG}=0.85"]}
    ),
    "a variable": Case(
        {"env": variables(("A", "1"), (VARIABLE, ".1"), ("B", "2"))},
        {"env": variables(("A", "1"), (VARIABLE, "0.85"), ("B", "2"))},
        JAX,
    ),
    "a variable that is not set is added": Case({}, {"env": variables((VARIABLE, "0.85"))}, JAX),
    "beside the others": Case({"env": variables(("A", "1"))}, {"env": variables(("A", "1"), (VARIABLE, "0.85"))}, JAX),
    "a fraction that suits the slice stays": Case({"args": [f"{FLAG}=0.9"]}, {"args": [f"{FLAG}=0.9"]}),
    "the default suits the slice, and nothing is added": Case({}, {}),
    "a need that no fraction of the slice covers": Case({"args": [f"{FLAG}=0.1"]}, None, memory="70Gi"),
    "a flag that is not set is not added": Case({}, None, memory="9700Mi"),
    "a flag in a shell command": Case({"command": ["sh", "-c", f"exec vllm serve m {FLAG} 0.1"]}, None),
    "a flag that is given twice": Case({"args": [f"{FLAG}=0.1", f"{FLAG}=0.2"]}, None),
    "a flag in a variable of the container's own": Case({"env": variables(("ARGS", f"{FLAG}=0.1"))}, None),
    "a variable that is set twice": Case({"env": variables((VARIABLE, ".1"), (VARIABLE, ".2"))}, None, JAX),
    "a variable whose value is not known": Case({"env": [{"name": VARIABLE} | FROM_FIELD]}, None, JAX),
    "an unset variable that envFrom may set": Case({"envFrom": [{"configMapRef": {"name": "x"}}]}, None, JAX),
    "an unset variable that envFrom may set, although the default covers the need": Case(
        {"envFrom": [{"configMapRef": {"name": "x"}}]}, None, JAX, "4Gi"
    ),
    "a variable that overrides what envFrom sets": Case(
        {"env": variables((VARIABLE, ".1")), "envFrom": [{"configMapRef": {"name": "x"}}]},
        {"env": variables((VARIABLE, "0.85")), "envFrom": [{"configMapRef": {"name": "x"}}]},
        JAX,
    ),
    "an envFrom whose prefix no variable of the framework has": Case(
        {"envFrom": [{"prefix": "APP_", "secretRef": {"name": "x"}}]},
        {"env": variables((VARIABLE, "0.85")), "envFrom": [{"prefix": "APP_", "secretRef": {"name": "x"}}]},
        JAX,
    ),
    "a framework whose fraction no variable sets": Case(
        {"envFrom": [{"configMapRef": {"name": "x"}}], "args": [f"{FLAG}=0.1"]},
        {"envFrom": [{"configMapRef": {"name": "x"}}], "args": [f"{FLAG}=0.85"]},
    ),
}


def main_container(pod: Json) -> Json:
    """Return the first container without its resources."""
    return {key: value for key, value in pod["spec"]["containers"][0].items() if key != "resources"}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_fraction_is_changed_where_it_is_stated_once(case: Case) -> None:
    pod = framework(case.image, case.memory, **case.fields)
    before = main_container(copy.deepcopy(pod.build()))
    decision = review(pod, PATCH, nodes=SLICES)
    after = apply_patch(pod, decision)

    assert isinstance(decision.outcome, KeepRequest) == (case.after is None)
    assert main_container(after) == before | (case.after or {})
    assert review(after, PATCH, nodes=SLICES).patch == ()


def test_by_default_the_message_says_what_to_write_and_the_card_is_kept() -> None:
    pod = framework(args=[f"{FLAG}=0.1"])
    outcome = review(pod, REPORT, nodes=SLICES).outcome

    assert isinstance(outcome, KeepRequest)
    assert outcome.reason is KeepReason.MEMORY_FRACTION
    assert outcome.detail.endswith(f"write {FLAG}=0.85")


def test_a_fraction_of_the_whole_card_is_limited_to_an_mps_share() -> None:
    policy = "mode: enforce\nrightSizing: {isolation: memory, memoryFraction: patch}"
    pod = framework(args=[f"{FLAG}=0.9"])
    after = apply_patch(pod, review(pod, policy, nodes=(MPS,)))

    assert after["spec"]["containers"][0]["resources"]["limits"] == {SHARED: "1"}
    assert main_container(after)["args"] == [f"{FLAG}=0.18"]


def test_a_time_sliced_share_is_still_refused() -> None:
    sliced = make_node(
        "sliced",
        {"nvidia.com/gpu.product": "NVIDIA-L40S", "nvidia.com/gpu.memory": "46068", "nvidia.com/gpu.replicas": "4"},
        **{SHARED: 16},
    )
    policy = "mode: enforce\nrightSizing: {isolation: none, memoryFraction: patch}"
    outcome = review(framework(args=[f"{FLAG}=0.1"]), policy, nodes=(sliced,)).outcome

    assert isinstance(outcome, KeepRequest)
    assert outcome.reason is KeepReason.NO_MEMORY_LIMIT


def test_one_of_several_policies_that_only_reports_is_enough() -> None:
    pod = framework(args=[f"{FLAG}=0.1"])

    assert isinstance(review(pod, PATCH, REPORT, nodes=SLICES).outcome, KeepRequest)


def test_a_policy_that_is_not_enforced_changes_nothing_and_says_what_it_would_write() -> None:
    pod = framework(args=[f"{FLAG}=0.1"])
    decision = review(pod, PATCH.replace("enforce", "warn"), nodes=SLICES)

    assert decision.patch == ()
    assert [f"{FLAG} is 0.85; not changed" in finding.message for finding in decision.findings] == [True]


def test_the_record_names_the_change_and_undo_reverts_it() -> None:
    pod = framework(args=["serve", FLAG, "0.1"])
    after = apply_patch(pod, review(pod, PATCH, nodes=SLICES))
    annotations = after["metadata"]["annotations"]

    record = json.loads(annotations[DECISION_ANNOTATION])
    assert record["changed"] == ["resources", "memoryFraction", "nodeAffinity"]
    assert record["memoryFractions"] == {"main": {"setting": FLAG, "before": "0.1", "after": "0.85"}}
    assert f"Fraction  main: {FLAG} is 0.85, instead of 0.1" in list(record_lines(annotations))
    original = original_request(after)
    assert isinstance(original, OriginalRequest)
    (undone,) = original.fields["spec"]["containers"]
    assert undone["args"] == ["serve", FLAG, "0.1"]
    assert undone["resources"]["limits"] == {"nvidia.com/gpu": "1"}


arguments = st.lists(
    st.one_of(
        st.sampled_from(["serve", "m", FLAG, "0.1", "0.95", f"{FLAG}=0.1", f"{FLAG}=$(X)", f"{FLAG}=0.9", "--port=1"]),
        st.text(max_size=6),
    ),
    max_size=5,
)
environment = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"name": st.sampled_from([VARIABLE, "XLA_CLIENT_MEM_FRACTION", "ARGS", "A"])},
            optional={"value": st.sampled_from(["", ".1", "0.9", "x", f"{FLAG}=0.1"])},
        ),
        st.just({"name": VARIABLE} | FROM_FIELD),
    ),
    max_size=3,
)


@settings(max_examples=300)
@given(
    st.sampled_from(["vllm/vllm-openai:v1", JAX, "lmsysorg/sglang:v1", "tensorflow/tensorflow:2", "example/app:1"]),
    st.sampled_from(["5Gi", "8Gi", "9700Mi", "30Gi", "79Gi"]),
    arguments,
    arguments,
    environment,
)
def test_a_patch_touches_one_number_of_a_pod_that_gets_a_slice(
    image: str, memory: str, command: list[str], args: list[str], env: list[Json]
) -> None:
    pod = framework(image, memory, command=command, args=args, env=env)
    before = main_container(copy.deepcopy(pod.build()))
    decision = review(pod, PATCH, nodes=(whole_node(), mig_node()))
    after = apply_patch(pod, decision)
    changed = differing_texts(before, main_container(after))

    assert len(changed) <= (1 if decision.applied else 0), changed
    assert all(text.rpartition("=")[2].replace(".", "", 1).isdigit() for text in changed)
    assert review(after, PATCH, nodes=(whole_node(), mig_node())).patch == ()


def differing_texts(before: Json, after: Json) -> list[str]:
    """Return the texts of a container's lists that were changed or added; its other fields are equal."""
    changed: list[str] = []
    for field in ("command", "args", "env"):
        old, new = before.pop(field), after.pop(field)
        assert (
            [one.get("name") for one in new[: len(old)]] == [one.get("name") for one in old] if field == "env" else True
        )
        texts = [one.get("value") for one in new] if field == "env" else new
        known = [one.get("value") for one in old] if field == "env" else old
        changed += [text for text, was in zip(texts, [*known, *[None] * len(texts)], strict=False) if text != was]
    assert before == after
    return changed
