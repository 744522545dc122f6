"""Frameworks that take GPU memory whether they need it or not, recognised by how a container is started.

What they hold is a setting, so what was seen of it is no need. A framework that the container itself tells to take
memory on demand is none of them. Defaults: vLLM 0.9 of what it sees, JAX 0.75, TensorFlow all; SGLang, TGI and Triton
keep pools, and TensorRT-LLM 0.9 of what its model leaves; NIM, KServe's Hugging Face server and Ray LLM start one of
these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

_IMAGES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "text-generation-inference": "Text Generation Inference",
    "tritonserver": "Triton",
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "nvcr.io/nim": "NVIDIA NIM",
    "huggingfaceserver": "KServe's Hugging Face server",
    "ray-llm": "Ray LLM",
    "tensorrt-llm": "TensorRT-LLM",
}
_IN_IMAGE = re.compile(f"(?<![a-z])({'|'.join(map(re.escape, _IMAGES))})(?![a-z])")
"""Parts of an image's name."""

_WORDS = {
    "--gpu-memory-utilization": "vLLM",
    "vllm": "vLLM",
    "--mem-fraction-static": "SGLang",
    "sglang": "SGLang",
    "text-generation-launcher": "Text Generation Inference",
    "--cuda-memory-fraction": "Text Generation Inference",
    "tritonserver": "Triton",
    "--cuda-memory-pool-byte-size": "Triton",
    "huggingfaceserver": "KServe's Hugging Face server",
    "trtllm-serve": "TensorRT-LLM",
    "trtllm": "TensorRT-LLM",
    "tensorrt_llm": "TensorRT-LLM",
    "--kv-cache-free-gpu-memory-fraction": "TensorRT-LLM",
}
_RAY_LLM = "ray.serve.llm"
_IN_TEXT = re.compile("llm|utilization|sglang|fraction|text-generation|triton|pool|huggingface")
"""Words of a command line: programs, parts of modules and flags; and what a text holds that is worth taking apart."""

_IN_SHELL = re.compile(r"[^\s()\[\]{}<>;&|,`'\"$]+")
"""A word of a shell's line, which is one argument."""

_MOST_TEXTS = 1000
_LONGEST_IMAGE = 512
"""What is looked at of a pod that was written to be slow."""

_VARIABLES = {
    "VLLM_GPU_MEMORY_UTILIZATION": "vLLM",
    "CUDA_MEMORY_FRACTION": "Text Generation Inference",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "JAX",
    "XLA_CLIENT_MEM_FRACTION": "JAX",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "JAX",
    "TF_FORCE_GPU_ALLOW_GROWTH": "TensorFlow",
}
_NIM_PREFIX = "NIM_"
"""Variables by which a container is told, whatever they say; and what the names of NIM's begin with."""

_ON_DEMAND_SETTINGS = {
    "JAX": ("XLA_PYTHON_CLIENT_PREALLOCATE", ("false", "0")),
    "TensorFlow": ("TF_FORCE_GPU_ALLOW_GROWTH", ("true", "1")),
}
"""The variable by which a framework takes memory only as it needs it."""


def preallocating_framework(image: str, command: Sequence[str] = (), variables: Sequence[tuple[str, str]] = ()) -> str:
    """The framework that takes what it sees, for example "vLLM"; "" where none is recognised.

    Args:
        image: As the pod names it.
        command: The container's command and arguments.
        variables: Names and values of its environment, as far as it can be read.
    """
    signs = _frameworks_in_image(image[:_LONGEST_IMAGE])
    if not command and not variables:
        return signs[0] if signs else ""
    told = {name: value for name, value in variables if _framework_of_variable(name)}
    signs = (*_frameworks_in_command(command), *map(_framework_of_variable, told), *signs)
    return next((sign for sign in signs if not _grows_on_demand(sign, told)), "") if signs else ""


def _grows_on_demand(framework: str, told: Mapping[str, str]) -> bool:
    """Does the container say that this framework takes memory only as it needs it?"""
    if framework not in _ON_DEMAND_SETTINGS:
        return False
    name, values = _ON_DEMAND_SETTINGS[framework]
    return told.get(name, "").lower() in values


def _frameworks_in_command(command: Sequence[str]) -> list[str]:
    texts = [text for text in command[:_MOST_TEXTS] if _IN_TEXT.search(text)]
    return [found for text in texts for word in _IN_SHELL.findall(text) if (found := _framework_of_word(word))]


def _framework_of_word(word: str) -> str:
    if word.startswith("--"):
        return _WORDS.get(word.partition("=")[0].replace("_", "-"), "")
    if word.startswith(_RAY_LLM):
        return "Ray LLM"
    return next((_WORDS[part] for part in word.rpartition("/")[2].split(".") if part in _WORDS), "")


def _framework_of_variable(name: str) -> str:
    return _VARIABLES.get(name) or ("NVIDIA NIM" if name.startswith(_NIM_PREFIX) else "")


@lru_cache(maxsize=1024)
def _frameworks_in_image(image: str) -> tuple[str, ...]:
    return tuple([_IMAGES[found[1]] for found in _IN_IMAGE.finditer(image.partition("@")[0].lower())])
