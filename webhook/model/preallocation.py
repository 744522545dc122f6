"""Frameworks that take GPU memory whether they need it or not, recognised by how a container is started.

What they hold is a setting, so what was seen of it is no need. Where the container itself says that memory grows on
demand, it is one. Defaults: vLLM 0.9 of what it sees, JAX 0.75, TensorFlow all; SGLang, TGI and Triton keep pools.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_IMAGES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "text-generation-inference": "Text Generation Inference",
    "tritonserver": "Triton",
    "tensorflow": "TensorFlow",
    "jax": "JAX",
}
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
}
"""Words of a command line: programs, modules and flags."""

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


def takes_all(image: str, command: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> str:
    """The framework that takes what it sees, for example "vLLM"; "" where none is recognised.

    Args:
        image: As the pod names it.
        command: The container's command and arguments.
        variables: Its environment, as far as it can be read.
    """
    given = variables or {}
    found = _of_command(command) or _of_variables(given) or _of_image(image)
    name, values = _NOT_TAKEN.get(found, ("", ()))
    return "" if given.get(name, "").lower() in values else found


def _of_command(command: Sequence[str]) -> str:
    for text in command:
        for word in text.split():  # a shell is given its whole line as one argument
            flag = word.partition("=")[0].replace("_", "-") if word.startswith("--") else word
            program = flag.rpartition("/")[2].partition(".")[0]
            found = _WORDS.get(flag) or _WORDS.get(program)
            if found:
                return found
    return ""


def _of_variables(given: Mapping[str, str]) -> str:
    return next((name for variable, name in _VARIABLES.items() if variable in given), "")


def _of_image(image: str) -> str:
    path = image.partition("@")[0].lower()
    return next((name for part, name in _IMAGES.items() if re.search(rf"(?<![a-z]){part}(?![a-z])", path)), "")
