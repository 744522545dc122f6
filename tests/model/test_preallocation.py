"""Which containers take GPU memory because it is there."""

from __future__ import annotations

import pytest

from webhook.model.preallocation import takes_all

CASES: dict[str, tuple[str, str, tuple[str, ...], dict[str, str]]] = {
    "an image of its own making": ("", "registry.example/team/train:1", ("python", "train.py"), {}),
    "vLLM by its image": ("vLLM", "vllm/vllm-openai:v0.11.0", (), {}),
    "vLLM by its image and digest": ("vLLM", "ghcr.io/x/vllm@sha256:abc", (), {}),
    "a digest that looks like one": ("", "example/app@sha256:jax", (), {}),
    "vLLM by its command": ("vLLM", "app", ("vllm", "serve", "model"), {}),
    "vLLM by its module": ("vLLM", "app", ("python", "-m", "vllm.entrypoints.openai.api_server"), {}),
    "vLLM inside a shell's line": ("vLLM", "app", ("sh", "-c", "exec vllm serve m --port 80"), {}),
    "vLLM by its flag": ("vLLM", "app", ("--gpu-memory-utilization=0.5",), {}),
    "vLLM by its flag with underscores": ("vLLM", "app", ("--gpu_memory_utilization", "0.5"), {}),
    "SGLang": ("SGLang", "app", ("python", "-m", "sglang.launch_server"), {}),
    "Triton": ("Triton", "app", ("/opt/tritonserver/bin/tritonserver",), {}),
    "Triton by its image": ("Triton", "nvcr.io/nvidia/tritonserver:24.08-py3", (), {}),
    "Text Generation Inference": ("Text Generation Inference", "app", ("text-generation-launcher",), {}),
    "TensorFlow": ("TensorFlow", "tensorflow/tensorflow:2.17.0-gpu", (), {}),
    "TensorFlow that grows": ("", "tensorflow/tensorflow:2.17.0-gpu", (), {"TF_FORCE_GPU_ALLOW_GROWTH": "True"}),
    "JAX": ("JAX", "ghcr.io/nvidia/jax:nightly", (), {}),
    "JAX that does not": ("", "ghcr.io/nvidia/jax", (), {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    "JAX with a fraction": ("JAX", "app", (), {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".50"}),
    "NIM by its image": ("NVIDIA NIM", "nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8", (), {}),
    "NIM through a cache of images": ("NVIDIA NIM", "cache.example/nvcr.io/nim/nvidia/nv-embedqa:1", (), {}),
    "another image of the same registry": ("", "nvcr.io/nvidia/pytorch:24.05-py3", (), {}),
    "a registry of a like name": ("", "nvcr-io/nim/app", (), {}),
    "KServe by its image": ("KServe's Hugging Face server", "kserve/huggingfaceserver:v0.15.2-gpu", (), {}),
    "KServe by its module": ("KServe's Hugging Face server", "app", ("python3", "-m", "huggingfaceserver"), {}),
    "Ray LLM": ("Ray LLM", "rayproject/ray-llm:2.49.0-py311-cu128", (), {}),
    "Ray without it": ("", "rayproject/ray:2.49.0-gpu", (), {}),
    "TensorRT-LLM by its image": ("TensorRT-LLM", "nvcr.io/nvidia/tensorrt-llm/release:1.0.0", (), {}),
    "TensorRT-LLM by its command": ("TensorRT-LLM", "app", ("trtllm-serve", "model", "--tp_size", "2"), {}),
    "TensorRT-LLM by its flag": ("TensorRT-LLM", "app", ("serve", "--kv_cache_free_gpu_memory_fraction=0.8"), {}),
    "another word with its letters": ("", "example/ajax-server:1", (), {}),
}


@pytest.mark.parametrize(("want", "image", "command", "variables"), CASES.values(), ids=CASES)
def test_takes_all(want: str, image: str, command: tuple[str, ...], variables: dict[str, str]) -> None:
    assert takes_all(image, command, tuple(variables.items())) == want
