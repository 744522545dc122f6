"""Frameworks that allocate GPU memory whether they need it or not, recognized by how a container is started.

Their usage is a setting and says nothing about their need, unless the container configures them to allocate on demand.
Defaults: vLLM 0.9 of the visible memory, JAX 0.75, TensorFlow all; SGLang, TGI and Triton keep pools, and TensorRT-LLM
0.9 of what its model leaves; NIM, KServe's Hugging Face server and Ray LLM start one of these.
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
"""Words of a command line: programs, modules and flags; and a quick test for texts worth parsing."""

_IN_SHELL = re.compile(r"[^\s()\[\]{}<>;&|,`'\"$]+")
"""A word of a shell command, which is one argument."""

_MOST_TEXTS = 1000
_LONGEST_IMAGE = 512
"""Limits for a pod that was written to be slow to parse."""

_VARIABLES = {
    "VLLM_GPU_MEMORY_UTILIZATION": "vLLM",
    "CUDA_MEMORY_FRACTION": "Text Generation Inference",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "JAX",
    "XLA_CLIENT_MEM_FRACTION": "JAX",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "JAX",
    "TF_FORCE_GPU_ALLOW_GROWTH": "TensorFlow",
}
_NIM_PREFIX = "NIM_"
"""Variables that identify a framework whatever their value, and the prefix of NIM's."""

_ON_DEMAND_SETTINGS = {
    "JAX": ("XLA_PYTHON_CLIENT_PREALLOCATE", ("false", "0")),
    "TensorFlow": ("TF_FORCE_GPU_ALLOW_GROWTH", ("true", "1")),
}
"""The variable that makes a framework allocate on demand."""


def preallocating_framework(image: str, command: Sequence[str] = (), variables: Sequence[tuple[str, str]] = ()) -> str:
    """Return the framework that allocates all visible memory, for example "vLLM"; "" for none.

    Args:
        image: As the pod names it.
        command: The container's command and arguments.
        variables: Names and values of its environment, as far as known.
    """
    signs = _frameworks_in_image(image[:_LONGEST_IMAGE])
    if not command and not variables:
        return signs[0] if signs else ""
    settings = {name: value for name, value in variables if _framework_of_variable(name)}
    texts = [text for text in command[:_MOST_TEXTS] if _IN_TEXT.search(text)]
    words = [_framework_of_word(word) for text in texts for word in _IN_SHELL.findall(text)]
    signs = (*filter(None, words), *map(_framework_of_variable, settings), *signs)
    return next((sign for sign in signs if not _grows_on_demand(sign, settings)), "") if signs else ""


def _grows_on_demand(framework: str, settings: Mapping[str, str]) -> bool:
    """Return whether the container configures this framework to allocate on demand."""
    if framework not in _ON_DEMAND_SETTINGS:
        return False
    name, values = _ON_DEMAND_SETTINGS[framework]
    return settings.get(name, "").lower() in values


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
