"""The CUDA version in the text of a requirement and in an image name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.engine.cuda_requirements import (
    RequirementTerm,
    image_cuda_version,
    parse_cuda_annotation,
    parse_requirement,
    parse_version,
)

IMAGES: dict[str, tuple[int, ...]] = {
    "nvidia/cuda:12.8.1-cudnn-devel-ubuntu22.04": (12, 8, 1),
    "nvcr.io/nvidia/cuda:12.9.0-devel-ubuntu24.04": (12, 9, 0),
    "localhost:5000/mirror/cuda:11.8.0-base": (11, 8, 0),
    "nvidia/cuda:12.4.1-base@sha256:0123": (12, 4, 1),
    "pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime": (12, 4),
    "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0-ubuntu22.04": (12, 5, 0),
    "rayproject/ray-llm:2.56.0-py312-cu130": (13, 0),
    "example/text-generation-inference-cu121.1-4.ubuntu2204.py310": (12, 1),
    "example/x:v1-cu1281": (12, 8, 1),
    "example/x:cuda-12.4": (12, 4),
    "example/x:cuda12.4.post1": (12, 4),
    "example/x:CUDA12.4_py3": (12, 4),
    "example/jax:cuda12": (12,),
    "example/x:cu92": (9, 2),
    "example/x:cu12.6": (12, 6),
    "nvidia/cuda": (),
    "nvidia/cuda:latest": (),
    "nvcr.io/nvidia/pytorch:25.01-py3": (),
    "mellanox/cuda-perftest": (),
    "curl:8.1": (),
    "example/cu:9999999": (),
    "example/x:cu999": (),
    "example/x:cuda99.9": (),
    "example/x@sha256:cu128": (),
    "x:cu" + "1" * 1000: (),
    "": (),
    ":": (),
    "@": (),
}


@pytest.mark.parametrize(("image", "want"), IMAGES.items(), ids=lambda value: str(value)[:60])
def test_an_image_s_name(image: str, want: tuple[int, ...]) -> None:
    assert image_cuda_version(image) == want


def test_a_requirement_is_alternatives_of_terms() -> None:
    read = parse_requirement("cuda>=12.8 brand=Tesla,driver>=535,driver<536")
    assert read is not None
    assert read.alternatives == (
        (RequirementTerm("cuda", ">=", (12, 8)),),
        (
            RequirementTerm("brand", "=", word="tesla"),
            RequirementTerm("driver", ">=", (535,)),
            RequirementTerm("driver", "<", (536,)),
        ),
    )
    assert (read.toolkit, read.own_driver, read.floor_driver) == ((12, 8), (570, 26), (525, 60, 13))


UNREADABLE = {
    "nothing": "",
    "blanks": " ",
    "a property alone": "cuda",
    "no value": "cuda>=",
    "no property": ">=12",
    "a value that is not a version": "cuda>=12.x",
    "a reversed comparison": "cuda=>12",
    "an unknown property": "vendor=x",
    "a comma at the end": "cuda>=12,",
    "a comma alone": ",",
    "a negative number": "cuda>=-1",
    "digits of another script": "cuda>=१२",
    "one alternative of two": "cuda>=12 cuda",
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_a_requirement_that_cannot_be_read(text: str) -> None:
    assert parse_requirement(text) is None


DECLARED = {
    "12.4": (12, 4),
    " >=12.4 ": (12, 4),
    ">= 12.4, < 13": (12, 4),
    "=12.4": (12, 4),
    "cuda>=12.4": (12, 4),
    "driver>=535": (),
}


@pytest.mark.parametrize(("text", "want"), DECLARED.items())
def test_an_annotation(text: str, want: tuple[int, ...]) -> None:
    read = parse_cuda_annotation(text)
    assert read is not None
    assert read.toolkit == want


@given(st.text(max_size=50))
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    for number in (parse_version(text), image_cuda_version(text)):
        assert len(number) <= 3
        assert min(number, default=0) >= 0
    for read in (parse_requirement(text), parse_cuda_annotation(text)):
        assert read is None or all(read.alternatives)
