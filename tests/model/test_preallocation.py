"""Containers that allocate all visible GPU memory."""

from __future__ import annotations

import pytest

from tests.cpu_timer import CpuTimer
from tests.house.checkout import read_checkout_file
from webhook.model.preallocation import (
    FRAMEWORKS,
    TOO_LARGE,
    PreallocatingFramework,
    frameworks_table,
    memory_fraction,
    preallocating_framework,
)

OPTED_OUT = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
CASES: dict[str, tuple[str, str, tuple[str, ...], dict[str, str]]] = {
    "an unknown image": ("", "registry.example/team/train:1", ("python", "train.py"), {}),
    "vLLM by its image": ("vLLM", "vllm/vllm-openai:v0.11.0", (), {}),
    "vLLM by its image and digest": ("vLLM", "ghcr.io/x/vllm@sha256:abc", (), {}),
    "a digest that contains a name": ("", "example/app@sha256:jax", (), {}),
    "vLLM by its command": ("vLLM", "app", ("vllm", "serve", "model"), {}),
    "vLLM by its module": ("vLLM", "app", ("python", "-m", "vllm.entrypoints.openai.api_server"), {}),
    "vLLM in a shell command": ("vLLM", "app", ("sh", "-c", "exec vllm serve m --port 80"), {}),
    "vLLM by its flag": ("vLLM", "app", ("--gpu-memory-utilization=0.5",), {}),
    "vLLM by its flag with underscores": ("vLLM", "app", ("--gpu_memory_utilization", "0.5"), {}),
    "SGLang": ("SGLang", "app", ("python", "-m", "sglang.launch_server"), {}),
    "Triton": ("Triton", "app", ("/opt/tritonserver/bin/tritonserver",), {}),
    "Triton by its image": ("Triton", "nvcr.io/nvidia/tritonserver:24.08-py3", (), {}),
    "vLLM in Triton's image": ("vLLM", "nvcr.io/nvidia/tritonserver:24.08-vllm-python-py3", ("tritonserver",), {}),
    "TensorRT-LLM in Triton's image": (
        "TensorRT-LLM",
        "nvcr.io/nvidia/tritonserver:24.08-trtllm-python-py3",
        (),
        {},
    ),
    "Triton in vLLM's image": ("vLLM", "vllm/vllm-openai:v0.11.0", ("tritonserver",), {}),
    "SGLang behind Triton": ("SGLang", "app", ("sh", "-c", "tritonserver & python -m sglang.launch_server"), {}),
    "LoRAX": ("LoRAX", "ghcr.io/predibase/lorax:main", (), {}),
    "LoRAX by its command": ("LoRAX", "app", ("lorax-launcher", "--model-id", "m"), {}),
    "Aphrodite": ("Aphrodite", "alpindale/aphrodite-openai:latest", (), {}),
    "Xinference": ("Xinference", "xprobe/xinference:latest", (), {}),
    "vLLM of FastChat": ("vLLM", "app", ("python3", "-m", "fastchat.serve.vllm_worker"), {}),
    "a program in a variable": ("vLLM", "app", ("$(P)", "serve", "m"), {"P": "vllm"}),
    "a program in a long variable": ("vLLM", "app", ("$(P)", "serve", "m"), {"P": "/opt/venv/bin/vllm"}),
    "a program in a variable of the shell": ("vLLM", "app", ("sh", "-c", "exec ${P} serve m"), {"P": "vllm"}),
    "a program in two variables": ("vLLM", "app", ("$(A)$(B)", "serve"), {"A": "vl", "B": "lm"}),
    "a program in a variable that names another": ("vLLM", "app", ("$(Q)",), {"P": "vllm", "Q": "$(P)"}),
    "a variable that no command names": ("", "app", ("python", "run.py"), {"BACKEND": "vllm"}),
    "Text Generation Inference": ("Text Generation Inference", "app", ("text-generation-launcher",), {}),
    "TensorFlow": ("TensorFlow", "tensorflow/tensorflow:2.17.0-gpu", (), {}),
    "TensorFlow that grows": (
        "",
        "tensorflow/tensorflow:2.17.0-gpu",
        (),
        {"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    ),
    "TensorFlow reads True as no setting": ("TensorFlow", "app", (), {"TF_FORCE_GPU_ALLOW_GROWTH": "True"}),
    "TensorFlow reads 1 as no setting": ("TensorFlow", "app", (), {"TF_FORCE_GPU_ALLOW_GROWTH": "1"}),
    "a command that turns growth off": (
        "TensorFlow",
        "tensorflow/tensorflow:2.17.0-gpu",
        ("sh", "-c", "TF_FORCE_GPU_ALLOW_GROWTH=false python t.py"),
        {"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    ),
    "a command that unsets growth": (
        "TensorFlow",
        "tensorflow/tensorflow:2.17.0-gpu",
        ("env", "-u", "TF_FORCE_GPU_ALLOW_GROWTH", "python", "t.py"),
        {"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    ),
    "a command that alone asks for growth is no sign": (
        "",
        "app",
        ("sh", "-c", "TF_FORCE_GPU_ALLOW_GROWTH=true python t.py"),
        {},
    ),
    "TensorFlow that grows by a reference": (
        "",
        "tensorflow/tensorflow:2.17.0-gpu",
        (),
        {"G": "true", "TF_FORCE_GPU_ALLOW_GROWTH": "$(G)"},
    ),
    "an allocator of TensorFlow": ("TensorFlow", "app", (), {"TF_GPU_ALLOCATOR": "cuda_malloc_async"}),
    "TensorFlow behind Keras": ("TensorFlow", "app", (), {"KERAS_BACKEND": "tensorflow"}),
    "JAX behind Keras": ("JAX", "app", (), {"KERAS_BACKEND": "jax"}),
    "JAX behind Keras in a shell": ("JAX", "app", ("sh", "-c", "KERAS_BACKEND=jax python train.py"), {}),
    "PyTorch behind Keras": ("", "app", (), {"KERAS_BACKEND": "torch"}),
    "JAX": ("JAX", "ghcr.io/nvidia/jax:nightly", (), {}),
    "JAX without preallocation": ("", "ghcr.io/nvidia/jax", (), {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    "JAX reads False": ("", "ghcr.io/nvidia/jax", (), {"XLA_PYTHON_CLIENT_PREALLOCATE": "False"}),
    "JAX reads FALSE as true": ("JAX", "ghcr.io/nvidia/jax", (), {"XLA_PYTHON_CLIENT_PREALLOCATE": "FALSE"}),
    "JAX with a fraction in a shell": ("JAX", "app", ("sh", "-c", "XLA_CLIENT_MEM_FRACTION=.9 python t.py"), {}),
    "JAX in MaxText": ("JAX", "app", ("python", "-m", "MaxText.train", "configs/base.yml"), {}),
    "JAX in MaxText's image": ("JAX", "ghcr.io/nvidia/maxtext:nightly", (), {}),
    "JAX in AlphaFold": ("JAX", "example/alphafold3:1", (), {}),
    "JAX in AlphaFold's script": ("JAX", "app", ("python", "run_alphafold.py"), {}),
    "JAX in ColabFold": ("JAX", "ghcr.io/sokrypton/colabfold:1.5.5-cuda12.2.2", (), {}),
    "JAX with a fraction": ("JAX", "app", (), {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".50"}),
    "NIM by its image": ("NVIDIA NIM", "nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8", (), {}),
    "NIM through an image cache": ("NVIDIA NIM", "cache.example/nvcr.io/nim/nvidia/nv-embedqa:1", (), {}),
    "another image of the same registry": ("", "nvcr.io/nvidia/pytorch:24.05-py3", (), {}),
    "NIM in a mirror": ("NVIDIA NIM", "harbor.example/nim/meta/llama3-8b-instruct:1.0", (), {}),
    "NIM under another name, by its key": ("NVIDIA NIM", "harbor.example/llama3-8b:1.0", (), {"NGC_API_KEY": ""}),
    "a name that ends like NIM": ("", "example/denim/app:1", (), {}),
    "KServe by its image": ("KServe's Hugging Face server", "kserve/huggingfaceserver:v0.15.2-gpu", (), {}),
    "KServe by its module": ("KServe's Hugging Face server", "app", ("python3", "-m", "huggingfaceserver"), {}),
    "Ray LLM": ("Ray LLM", "rayproject/ray-llm:2.49.0-py311-cu128", (), {}),
    "Ray without LLM": ("", "rayproject/ray:2.49.0-gpu", (), {}),
    "TensorRT-LLM by its image": ("TensorRT-LLM", "nvcr.io/nvidia/tensorrt-llm/release:1.0.0", (), {}),
    "vLLM by a module right after its flag": ("vLLM", "app", ("python3", "-mvllm.entrypoints.openai.api_server"), {}),
    "TensorRT-LLM by its launcher": ("TensorRT-LLM", "app", ("trtllm-llmapi-launch", "python", "serve.py"), {}),
    "GPUStack, which runs vLLM": ("GPUStack", "gpustack/gpustack:v2", (), {}),
    "TensorRT-LLM by its command": ("TensorRT-LLM", "app", ("trtllm-serve", "model", "--tp_size", "2"), {}),
    "TensorRT-LLM by its flag": ("TensorRT-LLM", "app", ("serve", "--kv_cache_free_gpu_memory_fraction=0.8"), {}),
    "TensorRT-LLM by its module": ("TensorRT-LLM", "app", ("python", "-m", "tensorrt_llm.commands.serve", "m"), {}),
    "vLLM in a subshell": ("vLLM", "app", ("bash", "-c", "(vllm serve m)"), {}),
    "vLLM behind other commands": ("vLLM", "app", ("bash", "-c", "cd /srv&&vllm serve m;wait"), {}),
    "vLLM in inline Python": ("vLLM", "app", ("python", "-c", "import vllm; vllm.LLM('m')"), {}),
    "a client of a vLLM server": ("", "app", ("python", "run.py", "--url", "http://vllm:8000/v1"), {}),
    "Dynamo with vLLM": ("vLLM", "app", ("python", "-m", "dynamo.vllm"), {}),
    "Dynamo with TensorRT-LLM": ("TensorRT-LLM", "app", ("python3", "-m", "dynamo.trtllm"), {}),
    "Ray LLM by its command": ("Ray LLM", "app", ("serve", "run", "ray.serve.llm:build_openai_app"), {}),
    "Ray with another application": ("", "app", ("serve", "run", "ray.serve.drivers:app"), {}),
    "NIM by its variables": ("NVIDIA NIM", "harbor.local/nim/meta/llama3-8b:1.0", (), {"NIM_CACHE_PATH": "/x"}),
    "JAX with explicit preallocation": ("JAX", "app", (), {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}),
    "JAX without preallocation, with a fraction": ("", "app", (), OPTED_OUT),
    "TensorFlow without memory growth": ("TensorFlow", "app", (), {"TF_FORCE_GPU_ALLOW_GROWTH": "false"}),
    "Triton, and JAX without preallocation": ("Triton", "nvcr.io/nvidia/tritonserver:24.01-py3", (), OPTED_OUT),
    "vLLM, and TensorFlow that grows": ("vLLM", "vllm/vllm-openai", (), {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}),
    "two, the first without preallocation": ("TensorFlow", "example/jax-tensorflow:1", (), OPTED_OUT),
    "two without preallocation": (
        "",
        "example/jax-tensorflow:1",
        (),
        OPTED_OUT | {"TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    ),
    "a name inside another word": ("", "example/ajax-server:1", (), {}),
    "LMDeploy by its image": ("LMDeploy", "openmmlab/lmdeploy:v0.6.0", (), {}),
    "LMDeploy by its command": ("LMDeploy", "app", ("lmdeploy", "serve", "api_server", "m"), {}),
    "DJL-LMI by its image": ("DJL-LMI", "deepjavalibrary/djl-serving:0.29.0-lmi", (), {}),
    "DJL-LMI by its variables": ("DJL-LMI", "app", (), {"OPTION_ROLLING_BATCH": "lmi-dist"}),
    "Spark RAPIDS by its image": ("Spark RAPIDS", "nvcr.io/nvidia/spark-rapids:24.08", (), {}),
    "Spark RAPIDS by a Java option": (
        "Spark RAPIDS",
        "apache/spark:3.5",
        ("executor",),
        {"SPARK_JAVA_OPT_0": "-Dspark.plugins=com.nvidia.spark.SQLPlugin"},
    ),
    "Spark RAPIDS by its configuration": (
        "Spark RAPIDS",
        "apache/spark:3.5",
        ("spark-submit", "--conf", "spark.plugins=com.nvidia.spark.SQLPlugin"),
        {},
    ),
    "a memory pool of Dask": ("RAPIDS memory pool", "app", ("dask", "cuda", "worker", "--rmm-pool-size", "0.9"), {}),
    "Dask without a memory pool": ("", "app", ("dask", "cuda", "worker"), {}),
    "Spark without RAPIDS": ("", "apache/spark:3.5", ("executor",), {"SPARK_JAVA_OPT_0": "-Dspark.driver.port=1"}),
    "TF-Serving by its command": ("TensorFlow", "app", ("/usr/bin/tensorflow_model_server", "--port=8500"), {}),
    "a worker of a TensorFlow job": ("TensorFlow", "app", ("python", "train.py"), {"TF_CONFIG": "{}"}),
    "a Jupyter image with JAX": ("JAX", "quay.io/jupyter/jax-notebook:cuda12", (), {}),
    "JAX by its own variable": ("JAX", "app", (), {"JAX_COORDINATOR_ADDRESS": "a:1"}),
    "JAX in inline Python": ("JAX", "app", ("python", "-c", "import jax; jax.devices()"), {}),
    "NIM by its start script": ("NVIDIA NIM", "app", ("/opt/nim/start_server.sh",), {}),
    "TensorRT-LLM of Dynamo": ("TensorRT-LLM", "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:0.4", (), {}),
    "vLLM by a flag in a variable": ("vLLM", "app", ("./run.sh",), {"ARGS": "--gpu-memory-utilization 0.8"}),
    "MAX by its image": ("Modular MAX", "docker.modular.com/modular/max-nvidia-full:25.6", ("--model-path=m",), {}),
    "MAX by its image in a mirror": ("Modular MAX", "harbor.example/max-openai-api:24.6.0", (), {}),
    "MAX by its command": ("Modular MAX", "app", ("/opt/venv/bin/max", "serve", "--model", "m"), {}),
    "MAX by its command in a shell": ("Modular MAX", "app", ("sh", "-c", "exec  max serve --model m --port 80"), {}),
    "MAX by its module": ("Modular MAX", "app", ("python", "-m", "max.entrypoints.pipelines", "serve"), {}),
    "a word that is also its command": ("", "app", ("python", "train.py", "--pooling", "max"), {}),
    "MLServer by its image": ("MLServer", "seldonio/mlserver:1.6.1-huggingface", (), {}),
    "MLServer by its command": ("MLServer", "app", ("mlserver", "start", "/mnt/models"), {}),
    "MLServer by its variables": ("MLServer", "app", (), {"MLSERVER_MODEL_IMPLEMENTATION": "x.Runtime"}),
    "MLServer whose TensorFlow grows": ("", "seldonio/mlserver:1.6.1", (), {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}),
    "vLLM of TRL": ("vLLM", "app", ("trl", "vllm-serve", "--model", "m"), {}),
    "DeepSpeed-MII": ("DeepSpeed-MII", "app", ("python", "-m", "mii.entrypoints.openai_api_server"), {}),
    "mistral.rs": ("mistral.rs", "app", ("mistralrs-server", "--port", "80"), {}),
    "HeavyDB": ("HeavyDB", "heavyai/heavyai-ee-cuda:latest", (), {}),
    "Milvus": ("Milvus", "milvusdb/milvus:v2.4.0-gpu", (), {}),
    "a client of Milvus": ("", "app", ("python", "t.py", "--host", "milvus"), {}),
    "a pool of RMM": ("RAPIDS memory pool", "app", ("python", "-c", "rmm.reinitialize(pool_allocator=True)"), {}),
    "RMM without a pool": ("", "app", ("python", "-c", "rmm.reinitialize(pool_allocator=False)"), {}),
    "cudf.pandas": ("cudf.pandas", "app", ("python", "-m", "cudf.pandas", "t.py"), {}),
    "cudf.pandas without a pool": (
        "",
        "app",
        ("python", "-m", "cudf.pandas", "t.py"),
        {"CUDF_PANDAS_RMM_MODE": "async"},
    ),
    "vLLM by a keyword": ("vLLM", "app", ("python", "-c", "LLM('m', gpu_memory_utilization=0.1)"), {}),
    "a path with a fraction": ("", "app", ("python", "t.py", "/d/gpu_memory_utilization=0.1"), {}),
    "Infinity allocates on demand": ("", "michaelf34/infinity:0.0.77", ("v2", "--model-id", "m"), {}),
    "the address of a vLLM server": ("", "app", ("python", "x.py"), {"LLM_URL": "http://vllm.serving.svc/v1"}),
}


@pytest.mark.parametrize(("want", "image", "command", "variables"), CASES.values(), ids=CASES)
def test_preallocating_frameworks(want: str, image: str, command: tuple[str, ...], variables: dict[str, str]) -> None:
    found = preallocating_framework(image, command, tuple(variables.items()))
    assert (found.name if found else "") == want


FRACTIONS: dict[str, tuple[tuple[str, float | None], tuple[str, ...], dict[str, str]]] = {
    "vLLM's default": (("--gpu-memory-utilization", 0.9), ("vllm", "serve"), {}),
    "a flag with its value": (("--gpu-memory-utilization", 0.5), ("vllm", "--gpu-memory-utilization", "0.5"), {}),
    "a flag with an equals sign": (("--gpu-memory-utilization", 0.5), ("vllm", "--gpu_memory_utilization=.5"), {}),
    "the last flag counts": (
        ("--gpu-memory-utilization", 0.2),
        ("vllm", "--gpu-memory-utilization=0.5", "--gpu-memory-utilization=0.2"),
        {},
    ),
    "a flag in a shell command": (
        ("--gpu-memory-utilization", 0.4),
        ("sh", "-c", "exec vllm serve m --gpu-memory-utilization 0.4 --port 80"),
        {},
    ),
    "a value that only the container knows": (
        ("--gpu-memory-utilization", None),
        ("vllm", "--gpu-memory-utilization=$(UTILIZATION)"),
        {},
    ),
    "a value above one": (("--gpu-memory-utilization", None), ("vllm", "--gpu-memory-utilization=90"), {}),
    "a number with an exponent": (
        ("--gpu-memory-utilization", 0.05),
        ("vllm", "--gpu-memory-utilization", "5e-2"),
        {},
    ),
    "a value in another variable": (
        ("--gpu-memory-utilization", 0.1),
        ("vllm", "--gpu-memory-utilization", "$(U)"),
        {"U": "0.1"},
    ),
    "a flag that argparse completes": (("--gpu-memory-utilization", 0.05), ("vllm", "--gpu-memory-util=0.05"), {}),
    "no number": (("--gpu-memory-utilization", None), ("vllm", "--gpu-memory-utilization=nan"), {}),
    "a file that may contain it": (("", None), ("vllm", "serve", "--config", "/c.yaml"), {}),
    "an amount instead of a fraction": (("", None), ("vllm", "serve", "--kv-cache-memory-bytes=60G"), {}),
    "SGLang computes it": (("--mem-fraction-static", None), ("sglang",), {}),
    "JAX's default": (("XLA_PYTHON_CLIENT_MEM_FRACTION", 0.75), (), {"JAX_PLATFORMS": "cuda"}),
    "JAX's variable": (("XLA_CLIENT_MEM_FRACTION", 0.25), (), {"XLA_CLIENT_MEM_FRACTION": ".25"}),
    "TF-Serving chooses by itself": (
        ("--per_process_gpu_memory_fraction", None),
        ("tensorflow_model_server", "--per_process_gpu_memory_fraction=0.0"),
        {},
    ),
    "Spark's property in a Java option": (
        ("spark.rapids.memory.gpu.allocFraction", 0.5),
        (),
        {"X": "-Dspark.plugins=com.nvidia.spark.SQLPlugin -Dspark.rapids.memory.gpu.allocFraction=0.5"},
    ),
    "MAX's default": (("--device-memory-utilization", 0.9), ("max", "serve"), {}),
    "MAX's flag": (("--device-memory-utilization", 0.4), ("max", "serve", "--device-memory-utilization=0.4"), {}),
    "MAX's file that may contain it": (("", None), ("max", "serve", "--config-file", "/recipe.yaml"), {}),
    "a default of what the model leaves is not of what it sees": (
        ("--free_gpu_memory_fraction", None),
        ("trtllm-serve",),
        {},
    ),
    "a fraction of what the model leaves": (
        ("--kv_cache_free_gpu_memory_fraction", 0.05),
        ("trtllm-serve", "m", "--kv_cache_free_gpu_memory_fraction", "0.05"),
        {},
    ),
    "a fraction of LMDeploy": (
        ("--cache-max-entry-count", 0.05),
        ("lmdeploy", "serve", "--cache-max-entry-count", "0.05"),
        {},
    ),
    "inline Python": (
        ("gpu_memory_utilization", 0.1),
        ("python", "-c", "import vllm; vllm.LLM('m', gpu_memory_utilization = 0.1)"),
        {},
    ),
    "inline Python of SGLang": (
        ("mem_fraction_static", 0.1),
        ("python", "-c", "sglang.Engine(mem_fraction_static=0.1)"),
        {},
    ),
    "inline Python of TensorFlow": (
        ("per_process_gpu_memory_fraction", 0.1),
        ("python", "-c", "tf.GPUOptions(per_process_gpu_memory_fraction=0.1)"),
        {},
    ),
    "JSON": (("gpu_memory_utilization", 0.1), ("vllm", "serve", '{"gpu_memory_utilization": 0.1}'), {}),
    "words before a flag": (
        ("--vllm_gpu_memory_utilization", 0.1),
        ("swift", "deploy", "--vllm_gpu_memory_utilization", "0.1"),
        {},
    ),
    "a default of the shell": (
        ("--gpu-memory-utilization", 0.1),
        ("sh", "-c", "vllm serve m ${X:---gpu-memory-utilization=0.1}"),
        {},
    ),
    "Xinference": (("--gpu-memory-utilization", 0.1), ("xinference", "--gpu_memory_utilization", "0.1"), {}),
    "a short flag before a fraction": (("--gpu-memory-utilization", 0.1), ("vllm", "--gpu-m=0.1"), {}),
    "a short flag before something else": (("--gpu-memory-utilization", 0.9), ("vllm", "--gpu", "all"), {}),
    "a variable that the command unsets": (
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", None),
        ("env", "-u", "XLA_PYTHON_CLIENT_MEM_FRACTION", "python", "t.py"),
        {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".9"},
    ),
}


@pytest.mark.parametrize(("want", "command", "variables"), FRACTIONS.values(), ids=FRACTIONS)
def test_the_fraction_that_a_framework_takes(
    want: tuple[str, float | None], command: tuple[str, ...], variables: dict[str, str]
) -> None:
    framework = preallocating_framework("app", command, tuple(variables.items()))
    assert framework is not None
    assert memory_fraction(framework, command, tuple(variables.items()))[:2] == want


LARGE: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "more variables": ("app", (), {f"E{i}": "x" for i in range(1001)}),
    "more arguments": ("app", ("x",) * 1001, {}),
    "a longer argument": ("app", ("x" * 70_000,), {}),
    "an argument that expands": ("app", ("$(A)" * 16_000,), {"A": "x" * 16}),
    "a longer variable": ("app", (), {"A": "x" * 70_000}),
    "several arguments": ("app", ("x" * 40_000, "x" * 40_000), {}),
}


@pytest.mark.parametrize(("image", "command", "variables"), LARGE.values(), ids=LARGE)
def test_what_is_too_large_to_read_may_start_any_framework(
    image: str, command: tuple[str, ...], variables: dict[str, str]
) -> None:
    assert preallocating_framework(image, command, tuple(variables.items())) is TOO_LARGE
    assert memory_fraction(TOO_LARGE, command, tuple(variables.items())) == ("", None, 1)


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=[one.name for one in FRAMEWORKS])
def test_every_sign_of_the_table_identifies_its_framework(framework: PreallocatingFramework) -> None:
    starts = (*framework.commands, *framework.modules, *framework.flags)
    by_command = [preallocating_framework("app", (word,)) for word in starts]
    by_image = [preallocating_framework(f"example/{part}:1") for part in framework.images]
    settings = [(f"{name}=x" if "=" not in name else name).replace("*", "X") for name in framework.variables]
    by_variable = [
        preallocating_framework("app", (), ((name, value),)) for name, value in (each.split("=") for each in settings)
    ]

    assert {*by_command, *by_image, *by_variable} == {framework}


def test_the_page_shows_the_table() -> None:
    message = "paste the output of: python -m webhook.model.preallocation"

    assert "\n".join(frameworks_table()) in read_checkout_file("docs/rightsizing.md"), message


@pytest.mark.no_cover
@pytest.mark.parametrize("text", ["-" * 60_000, "--a" * 20_000, "--a_" * 15_000, "${" * 30_000, "x= " * 20_000])
def test_one_long_argument_takes_milliseconds(text: str) -> None:
    with CpuTimer() as timer:
        preallocating_framework("app", ("sh", "-c", text))
    assert timer.seconds < 0.05
