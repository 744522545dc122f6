"""Frameworks that take GPU memory whether they need it or not, recognised by how a container is started.

What they hold is a setting, so what was seen of it is no need. Where the container itself says that memory grows on
demand, it is one. Defaults: vLLM 0.9 of what it sees, JAX 0.75, TensorFlow all; SGLang, TGI and Triton keep pools, and
TensorRT-LLM 0.9 of what its model leaves; NIM, KServe's Hugging Face server and Ray LLM start one of these.
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
    "--kv-cache-free-gpu-memory-fraction": "TensorRT-LLM",
}
_IN_TEXT = ("vllm", "utilization", "sglang", "fraction", "text-generation", "triton", "pool", "trtllm", "huggingface")
"""Words of a command line: programs, modules and flags; and what a text holds that is worth taking apart."""

_MOST_TEXTS = 1000
_LONGEST_IMAGE = 512
"""What is looked at of a pod that was written to be slow."""

_VARIABLES = {
    "VLLM_GPU_MEMORY_UTILIZATION": "vLLM",
    "CUDA_MEMORY_FRACTION": "Text Generation Inference",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "JAX",
    "XLA_CLIENT_MEM_FRACTION": "JAX",
}

_NOT_TAKEN = {
    "JAX": ("XLA_PYTHON_CLIENT_PREALLOCATE", ("false", "0")),
    "TensorFlow": ("TF_FORCE_GPU_ALLOW_GROWTH", ("true", "1")),
}
"""The variable by which a framework takes memory only as it needs it."""

_TOLD = frozenset({*_VARIABLES, *(name for name, _ in _NOT_TAKEN.values())})


def takes_all(image: str, command: Sequence[str] = (), variables: Sequence[tuple[str, str]] = ()) -> str:
    """The framework that takes what it sees, for example "vLLM"; "" where none is recognised.

    Args:
        image: As the pod names it.
        command: The container's command and arguments.
        variables: Names and values of its environment, as far as it can be read.
    """
    given = {name: value for name, value in variables if name in _TOLD} if variables else {}
    found = (
        (_of_command(command) if command else "")
        or (_of_variables(given) if given else "")
        or _of_image(image[:_LONGEST_IMAGE])
    )
    if found not in _NOT_TAKEN:
        return found
    name, values = _NOT_TAKEN[found]
    return "" if given.get(name, "").lower() in values else found


def _of_command(command: Sequence[str]) -> str:
    texts = (text for text in command[:_MOST_TEXTS] if any(part in text for part in _IN_TEXT))
    words = (word for text in texts for word in text.split())  # a shell is given its whole line as one argument
    return next((found for word in words if (found := _of_word(word))), "")


def _of_word(word: str) -> str:
    flag = word.partition("=")[0].replace("_", "-") if word.startswith("--") else word
    program = flag.rpartition("/")[2].partition(".")[0]
    return _WORDS.get(flag) or _WORDS.get(program) or ""


def _of_variables(given: Mapping[str, str]) -> str:
    return next((name for variable, name in _VARIABLES.items() if variable in given), "")


@lru_cache(maxsize=1024)
def _of_image(image: str) -> str:
    found = _IN_IMAGE.search(image.partition("@")[0].lower())
    return _IMAGES[found[1]] if found else ""
