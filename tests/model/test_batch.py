"""Recognize gangs and queueing systems by one pod."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.builders import PodMaker, make_pod
from tests.cpu_timer import CpuTimer
from tests.house.checkout import read_checkout_file
from webhook.model.annotations import GANG_SIZE_ANNOTATION
from webhook.model.batch import GANG_OWNERS, GROUP_LABELS, Gang, gang_of, gang_sign, invalid_gang_size
from webhook.model.node_labels import CLIQUE_LABEL
from webhook.model.pods import parse_pod

LWS, JOB = "leaderworkerset.sigs.k8s.io", "batch.kubernetes.io"
ZONE = "topology.kubernetes.io/zone"
REPLICAS = {"matchLabels": {"pod-template-hash": "5d4f"}}


def term(key: str, selector: Any, **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": selector, **more}


def requires(pod: PodMaker, *terms: Any) -> PodMaker:
    return pod.spec(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}})


def prefers(pod: PodMaker, *terms: tuple[Any, Any]) -> PodMaker:
    preferred = [{"weight": weight, "podAffinityTerm": term} for weight, term in terms]
    return pod.spec(affinity={"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}})


def created_by(kind: str, version: str = "kubeflow.org/v1", *, controller: bool = True) -> PodMaker:
    pod = make_pod()
    owner = {"apiVersion": version, "kind": kind, "name": "j", "uid": "u-1", "controller": controller}
    pod.data["metadata"]["ownerReferences"] = [owner]
    return pod


def determined(task_type: str) -> PodMaker:
    return make_pod().label("determined.ai/task_id", "t").label("determined.ai/task_type", task_type)


def skypilot(node_type: str) -> PodMaker:
    return make_pod().label("skypilot-cluster-name", "c").label("ray-node-type", node_type)


def avoids(pod: PodMaker, label: str) -> PodMaker:
    """Prefer other hosts than those of pods with the label, as SkyPilot writes it for clusters of several pods."""
    selector = {"matchExpressions": [{"key": label, "operator": "In", "values": ["c"]}]}
    terms = [{"weight": 100, "podAffinityTerm": term("kubernetes.io/hostname", selector)}]
    return pod.spec(affinity={"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}})


def job(**labels: str) -> PodMaker:
    pod = make_pod().label(f"{JOB}/job-name", "train")
    for key, value in labels.items():
        pod.label(key, value)
    return pod


OWN, OTHERS = {"matchLabels": {"app": "x"}}, {"matchLabels": {"app": "y"}}
EITHER = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["y", "x"]}]}
ANY = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}


def app() -> PodMaker:
    return make_pod().label("app", "x")


class Case(NamedTuple):
    pod: PodMaker
    want: Gang | None


CASES = {
    "a pod on its own": Case(make_pod(), None),
    "the coscheduling plugin's pod group": Case(
        make_pod().label("scheduling.x-k8s.io/pod-group", "g"),
        Gang("team/scheduling.x-k8s.io/pod-group=g", 0, CLIQUE_LABEL),
    ),
    "older coscheduling labels with a minimum": Case(
        make_pod()
        .label("pod-group.scheduling.sigs.k8s.io/name", "g")
        .label("pod-group.scheduling.sigs.k8s.io/min-available", "4"),
        Gang("team/pod-group.scheduling.sigs.k8s.io/name=g", 4, CLIQUE_LABEL),
    ),
    "a group of plain pods in Kueue": Case(
        make_pod().label("kueue.x-k8s.io/pod-group-name", "g").annotate("kueue.x-k8s.io/pod-group-total-count", "3"),
        Gang("team/kueue.x-k8s.io/pod-group-name=g", 3, CLIQUE_LABEL),
    ),
    "one group of a LeaderWorkerSet": Case(
        make_pod().label(f"{LWS}/name", "llm").label(f"{LWS}/group-key", "k1").annotate(f"{LWS}/size", "2"),
        Gang(f"team/{LWS}/group-key=k1", 2, CLIQUE_LABEL),
    ),
    "a LeaderWorkerSet of single pods is no gang": Case(
        make_pod().label(f"{LWS}/group-key", "k1").annotate(f"{LWS}/size", "1"), None
    ),
    "a JobSet, and not the Jobs in it": Case(
        job(**{"jobset.sigs.k8s.io/jobset-name": "js"}),
        Gang("team/jobset.sigs.k8s.io/jobset-name=js", 0, CLIQUE_LABEL),
    ),
    "torchrun with a number of nodes": Case(
        make_pod().label("training.kubeflow.org/job-name", "pt").env("PET_NNODES", "8"),
        Gang("team/training.kubeflow.org/job-name=pt", 8, CLIQUE_LABEL),
    ),
    "torchrun with a range of nodes": Case(
        make_pod().label("training.kubeflow.org/job-name", "pt").env("PET_NNODES", "1:8"),
        Gang("team/training.kubeflow.org/job-name=pt", 0, CLIQUE_LABEL),
    ),
    "a gang of Koordinator": Case(
        make_pod()
        .annotate("gang.scheduling.koordinator.sh/name", "g")
        .annotate("gang.scheduling.koordinator.sh/min-available", "3"),
        Gang("team/gang.scheduling.koordinator.sh/name=g", 3, CLIQUE_LABEL),
    ),
    "a group that may start with one pod": Case(
        make_pod()
        .label("pod-group.scheduling.sigs.k8s.io/name", "g")
        .label("pod-group.scheduling.sigs.k8s.io/min-available", "1"),
        Gang("team/pod-group.scheduling.sigs.k8s.io/name=g", 0, CLIQUE_LABEL),
    ),
    "an Indexed Job": Case(
        job(**{f"{JOB}/job-completion-index": "0"}), Gang(f"team/{JOB}/job-name=train", 0, CLIQUE_LABEL)
    ),
    "a Job without an index is no gang": Case(job(), None),
    "a Job with the gang size annotation": Case(
        job().annotate(GANG_SIZE_ANNOTATION, "4"), Gang(f"team/{JOB}/job-name=train", 4, CLIQUE_LABEL)
    ),
    "the annotation overrides the controller's size": Case(
        make_pod().label(f"{LWS}/group-key", "k").annotate(f"{LWS}/size", "2").annotate(GANG_SIZE_ANNOTATION, "3"),
        Gang(f"team/{LWS}/group-key=k", 3, CLIQUE_LABEL),
    ),
    "a size on a pod without an owner": Case(make_pod().annotate(GANG_SIZE_ANNOTATION, "4"), None),
    "an invalid size": Case(job().annotate(GANG_SIZE_ANNOTATION, "four"), None),
    "a size above the maximum": Case(job().annotate(GANG_SIZE_ANNOTATION, "9" * 18), None),
    "required affinity to its own labels": Case(requires(app(), term(ZONE, OWN)), Gang("team/app=x", 0, ZONE)),
    "preferred affinity, with its topology key": Case(
        prefers(
            job(app="x").annotate(GANG_SIZE_ANNOTATION, "2"),
            (1, term("kubernetes.io/hostname", OWN)),
            (50, term(ZONE, OWN)),
        ),
        Gang(f"team/{JOB}/job-name=train", 2, ZONE),
    ),
    "affinity by expressions over its own labels": Case(
        requires(app(), term(ZONE, EITHER)), Gang("team/app in x,y", 0, ZONE)
    ),
    "affinity to the other replicas of a Deployment, as the webhook adds it": Case(
        prefers(make_pod().label("pod-template-hash", "5d4f"), (50, term(CLIQUE_LABEL, REPLICAS))), None
    ),
    "affinity to other pods": Case(requires(app(), term(ZONE, OTHERS)), None),
    "affinity by an unsupported expression": Case(requires(app(), term(ZONE, ANY)), None),
    "affinity to pods of another namespace": Case(requires(app(), term(ZONE, OWN, namespaces=["o"])), None),
    "affinity to all pods": Case(requires(make_pod(), term(ZONE, {})), None),
    "invalid terms": Case(prefers(requires(make_pod(), "x", {"topologyKey": 5}), ("a", 1), (1, [])), None),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gang_of_a_pod(case: Case) -> None:
    assert gang_of(parse_pod(case.pod.build())) == case.want


def test_pods_with_only_an_owner_in_common() -> None:
    pod = make_pod().annotate(GANG_SIZE_ANNOTATION, "4").build()
    pod["metadata"]["ownerReferences"] = [
        {"kind": "X", "name": "x", "uid": "u-0"},
        {"kind": "Train", "name": "t", "uid": "u-1", "controller": True},
    ]

    assert gang_of(parse_pod(pod)) == Gang("team/uid=u-1", 4, CLIQUE_LABEL)


def test_invalid_size_is_reported() -> None:
    pods = [
        make_pod(),
        make_pod().annotate(GANG_SIZE_ANNOTATION, "4"),
        make_pod().annotate(GANG_SIZE_ANNOTATION, "some"),
    ]

    assert [invalid_gang_size(parse_pod(pod.build())) for pod in pods] == [None, None, "some"]


KOORDINATOR = "gang.scheduling.koordinator.sh"
KUBEFLOW = "training.kubeflow.org/job-name"
SIGNS: dict[str, tuple[PodMaker, str]] = {
    "a pod on its own": (make_pod(), ""),
    "a replica of a Deployment": (make_pod().label("pod-template-hash", "a").owned_by("ReplicaSet", "serve-a"), ""),
    "a replica of a StatefulSet": (make_pod().label("controller-revision-hash", "a").owned_by("StatefulSet", "s"), ""),
    "a pod of an Indexed Job": (job(**{f"{JOB}/job-completion-index": "0"}), ""),
    "a pod that prefers its own kind": (prefers(app(), (1, term(ZONE, OWN))), ""),
    "a worker of a Kubeflow job": (make_pod().label(KUBEFLOW, "ddp"), f"label {KUBEFLOW}"),
    "the only worker of a Kubeflow job": (make_pod().label(KUBEFLOW, "ddp").env("WORLD_SIZE", "1"), ""),
    "a Kubeflow job of one pod, as its user says": (
        make_pod().label(KUBEFLOW, "ddp").annotate(GANG_SIZE_ANNOTATION, "1"),
        "",
    ),
    "a size without an owner": (make_pod().annotate(GANG_SIZE_ANNOTATION, "4"), "one of 4 pods"),
    "a LeaderWorkerSet of single pods": (
        make_pod().label(f"{LWS}/group-key", "k1").annotate(f"{LWS}/size", "1"),
        "",
    ),
    "an Indexed Job of several ranks": (
        job(**{f"{JOB}/job-completion-index": "0"}).env("WORLD_SIZE", "8"),
        "WORLD_SIZE=8",
    ),
    "torchrun on several nodes": (make_pod().command("torchrun", "--nnodes=4", "train.py"), "--nnodes=4"),
    "torchrun on several nodes before megabytes": (
        make_pod().command("sh", "-c", "torchrun --nnodes=4 " + "-x " * 1_000_000, *["x" * 1000] * 1000),
        "--nnodes=4",
    ),
    "torchrun on one node": (make_pod().label(KUBEFLOW, "x").command("torchrun", "--nnodes", "1", "t.py"), ""),
    "elastic torchrun": (make_pod().command("sh", "-c", "torchrun --nnodes 1:8 train.py"), "--nnodes=1:8"),
    "accelerate": (make_pod().command("accelerate", "launch", "--num_machines", "2"), "--num-machines=2"),
    "a model over two GPUs": (make_pod().command("vllm", "--tensor-parallel-size", "2"), "--tensor-parallel-size=2"),
    "a model on one GPU": (make_pod().command("sglang", "--tp", "1"), ""),
    "one GPU for a model does not make a group a single pod": (
        make_pod().label("ray.io/cluster", "r").command("vllm", "--tensor-parallel-size=1"),
        "label ray.io/cluster",
    ),
    "a number that only the container knows": (make_pod().env("WORLD_SIZE", "$(N)"), "WORLD_SIZE=$N"),
    "a number from a ConfigMap": (
        make_pod().container("w", env=[{"name": "WORLD_SIZE", "valueFrom": {}}]),
        "WORLD_SIZE",
    ),
    "a number in another variable": (
        make_pod().env("NODES", "4").command("torchrun", "--nnodes", "$(NODES)", "t.py"),
        "--nnodes=4",
    ),
    "one node in another variable": (make_pod().env("NODES", "1").command("torchrun", "--nnodes=$(NODES)", "t.py"), ""),
    "a variable of the shell": (make_pod().command("sh", "-c", "N=4; torchrun --nnodes=$N t.py"), "--nnodes=$N"),
    "a default of the shell": (make_pod().command("sh", "-c", "torchrun --nnodes ${W:-4} t.py"), "--nnodes=${W:-4}"),
    "a command over two lines": (make_pod().command("sh", "-c", "torchrun --nnodes \\\n 4 t.py"), "--nnodes=4"),
    "a flag without a number": (make_pod().command("torchrun", "--nnodes"), "--nnodes="),
    "the first node": (make_pod().command("torchrun", "--node_rank", "0", "t.py"), ""),
    "another node": (make_pod().command("torchrun", "--node_rank=3", "t.py"), "--node-rank=3"),
    "the index of a Job as the rank": (
        make_pod().command("torchrun", "--node-rank", "$(JOB_COMPLETION_INDEX)"),
        "--node-rank=$JOB_COMPLETION_INDEX",
    ),
    "a rank in a variable": (make_pod().env("NODE_RANK", "3"), "NODE_RANK"),
    "processes of JAX": (make_pod().env("JAX_NUM_PROCESSES", "4"), "JAX_NUM_PROCESSES=4"),
    "tasks of Slurm": (make_pod().env("SLURM_NTASKS", "4"), "SLURM_NTASKS=4"),
    "workers of TensorFlow": (make_pod().env("TF_CONFIG", "{}"), "TF_CONFIG"),
    "ranks of Open MPI": (make_pod().command("mpirun", "-np", "4", "-H", "a,b", "python", "t.py"), "mpirun"),
    "ranks of Horovod in a shell": (make_pod().command("sh", "-c", "/opt/horovodrun -H a:1,b:1 t.py"), "horovodrun"),
    "one rank of Open MPI": (make_pod().command("mpirun", "-np", "1", "python", "t.py"), ""),
    "a node that joins Ray": (make_pod().command("sh", "-c", "ray start --address=head:6379"), "ray start --address"),
    "the head of Ray": (make_pod().command("ray", "start", "--head"), ""),
    "copies of a model": (make_pod().command("vllm", "serve", "--data-parallel-size", "4"), "--data-parallel-size=4"),
    "a workload reference": (make_pod().spec(workloadRef={"name": "w", "podGroup": "g"}), "workloadRef"),
    "a size that is no number": (
        make_pod().annotate(GANG_SIZE_ANNOTATION, "four"),
        f"annotation {GANG_SIZE_ANNOTATION}",
    ),
    "a gang of Koordinator": (
        make_pod().annotate(f"{KOORDINATOR}/name", "g").annotate(f"{KOORDINATOR}/min-available", "4"),
        "one of 4 pods",
    ),
    "a gang of Koordinator that may start with one": (
        make_pod().annotate(f"{KOORDINATOR}/name", "g").annotate(f"{KOORDINATOR}/min-available", "1"),
        f"annotation {KOORDINATOR}/name",
    ),
    "a worker of the first MPI operator": (make_pod().label("mpi-job-name", "j"), "label mpi-job-name"),
    "nodes of Slurm": (make_pod().env("SLURM_JOB_NUM_NODES", "2"), "SLURM_JOB_NUM_NODES=2"),
    "processes of Horovod": (make_pod().env("HOROVOD_SIZE", "4"), "HOROVOD_SIZE=4"),
    "processes of PMI": (make_pod().env("PMI_SIZE", "4"), "PMI_SIZE=4"),
    "one process of PMI": (make_pod().env("PMI_SIZE", "1"), ""),
    "another process of Open MPI": (make_pod().env("OMPI_COMM_WORLD_RANK", "1"), "OMPI_COMM_WORLD_RANK"),
    "the address of a first worker": (make_pod().env("MASTER_ADDR", "train-0"), "MASTER_ADDR=train-0"),
    "the address of a first worker that is stated to be alone": (
        make_pod().env("MASTER_ADDR", "train-0").env("WORLD_SIZE", "1"),
        "",
    ),
    "the address of a first worker in a model on one GPU": (
        make_pod().env("MASTER_ADDR", "train-0").command("sglang", "--tp=1"),
        "MASTER_ADDR=train-0",
    ),
    "its own address": (make_pod().env("MASTER_ADDR", "127.0.0.1").env("PET_RDZV_ENDPOINT", "localhost:29400"), ""),
    "an address that only the container knows": (make_pod().env("MASTER_ADDR", "$(HEAD)"), "MASTER_ADDR=$HEAD"),
    "an address from a ConfigMap": (
        make_pod().container("w", env=[{"name": "MASTER_ADDR", "valueFrom": {}}]),
        "MASTER_ADDR=",
    ),
    "an address of NCCL": (make_pod().env("NCCL_COMM_ID", "10.0.0.1:5000"), "NCCL_COMM_ID=10.0.0.1:5000"),
    "an address of torchrun": (make_pod().env("PET_RDZV_ENDPOINT", "head:29400"), "PET_RDZV_ENDPOINT=head:29400"),
    "an address of torchrun on its command line": (
        make_pod().command("torchrun", "--rdzv_backend=c10d", "--rdzv_endpoint=head:29400", "t.py"),
        "--rdzv-endpoint=head:29400",
    ),
    "an address of torchrun in a shell": (
        make_pod().command("sh", "-c", "torchrun --rdzv-endpoint $HEAD:29400 t.py"),
        "--rdzv-endpoint=$HEAD:29400",
    ),
    "an address of torchrun on one node": (
        make_pod().command("torchrun", "--nnodes=1", "--rdzv-endpoint", "head:29400", "t.py"),
        "",
    ),
    "torchrun at its own address": (make_pod().command("torchrun", "--rdzv-endpoint=[::1]:0", "t.py"), ""),
    "an address of SGLang": (
        make_pod().command("python", "-m", "sglang.launch_server", "--dist-init-addr", "head:5000"),
        "--dist-init-addr=head:5000",
    ),
    "a number in an init container": (
        make_pod().spec(initContainers=[{"name": "i", "env": [{"name": "WORLD_SIZE", "value": "4"}]}]),
        "WORLD_SIZE=4",
    ),
    "ranks of PyTorch's ImageNet example": (
        make_pod().command("python", "main.py", "--dist-url", "tcp://a:1", "--world-size", "16", "--rank", "0"),
        "--world-size=16",
    ),
    "one rank of it": (make_pod().command("python", "main.py", "--dist-url", "tcp://a:1", "--world-size=1"), ""),
    "an address of TCP without a number": (
        make_pod().command("python", "t.py", "--dist-url", "tcp://a:1"),
        "--dist-url=tcp://a:1",
    ),
    "an address that variables state": (make_pod().command("python", "t.py", "--dist-url=env://"), ""),
    "a method to initialize weights": (make_pod().command("python", "t.py", "--init-method", "xavier"), ""),
    "nodes of Lightning": (make_pod().command("t.py", "--trainer.num_nodes=4"), "--trainer.num-nodes=4"),
    "nodes of Hydra": (make_pod().command("t.py", "trainer.num_nodes=4"), "trainer.num_nodes=4"),
    "an added property of Hydra": (make_pod().command("t.py", "+trainer.num_nodes=4"), "trainer.num_nodes=4"),
    "ranks of Hydra": (make_pod().command("t.py", "distributed.world_size=4"), "distributed.world_size=4"),
    "one node of Hydra": (make_pod().label(KUBEFLOW, "x").command("t.py", "trainer.num_nodes=1"), ""),
    "ranks of fairseq": (make_pod().command("t", "--distributed-world-size", "4"), "--distributed-world-size=4"),
    "ranks of Composer": (make_pod().command("composer", "--world_size", "4", "t.py"), "--world-size=4"),
    "hosts of DeepSpeed in a file": (make_pod().command("deepspeed", "--hostfile=/h", "t.py"), "--hostfile=/h"),
    "DeepSpeed without its file": (make_pod().command("deepspeed", "--hostfile=/dev/null", "t.py"), ""),
    "parts of a model in Megatron": (
        make_pod().command("p.py", "--tensor-model-parallel-size", "2"),
        "--tensor-model-parallel-size=2",
    ),
    "a number of parts that the server chooses": (make_pod().command("s", "--tensor-parallel-size=auto"), ""),
    "ranks of PRRTE": (make_pod().command("prterun", "-np", "4", "x"), "prterun"),
    "workers of MXNet": (make_pod().env("DMLC_NUM_WORKER", "4"), "DMLC_NUM_WORKER=4"),
    "processes in a variable": (make_pod().env("NUM_PROCESSES", "4"), "NUM_PROCESSES=4"),
    "one process in a variable": (make_pod().env("NUM_PROCESSES", "1"), ""),
    "flags in a variable": (make_pod().env("ARGS", "--nnodes=4 t.py"), "--nnodes=4"),
    "a variable of a shell command": (make_pod().command("sh", "-c", "WORLD_SIZE=4 python t.py"), "WORLD_SIZE=4"),
    "a flag as the default of the shell": (make_pod().command("sh", "-c", "run ${A:---nnodes=4}"), "--nnodes=4"),
    "nodes in inline Python": (make_pod().command("python", "-c", "Trainer(num_nodes = 4)"), "num_nodes=4"),
    "ranks that inline Python sets": (
        make_pod().command("python", "-c", "import os; os.environ['WORLD_SIZE'] = '4'"),
        "WORLD_SIZE=4",
    ),
    "ranks that inline Python reads": (
        make_pod().command("python", "-c", "import os; world_size = int(os.environ['WORLD_SIZE'])"),
        "",
    ),
    "a comparison in inline Python": (make_pod().command("python", "-c", "assert world_size == 4"), ""),
    "words in a path": (make_pod().command("t.py", "--data=/d/num_nodes=4/world_size=2", "s3://b/num_nodes=4"), ""),
    "words in an address": (make_pod().command("t.py", "http://h/q?num_nodes=4"), ""),
    "a rank of LoRA": (make_pod().command("t.py", "--rank", "16", "--lora_rank=16"), ""),
    "workers that load data": (make_pod().command("t.py", "--num_workers=8", "trainer.num_workers=8"), ""),
    "ranks of this pod": (make_pod().env("LOCAL_WORLD_SIZE", "4").command("t.py", "--nproc-per-node=1"), ""),
    "nodes of a graph": (make_pod().command("t.py", "--max-num-nodes=100"), ""),
    "a scheduling group": (make_pod().spec(schedulingGroup={"podGroupName": "g"}), "schedulingGroup"),
    **{
        f"a worker that a {kind} created, without a label": (created_by(kind), f"owner {kind}")
        for kind in sorted(GANG_OWNERS)
    },
    "a worker of an operator that states one": (created_by("PyTorchJob").env("WORLD_SIZE", "1"), ""),
    "a pod of a controller of another group": (created_by("TFJob", "example.com/v1"), ""),
    "a pod that names such a job and is not created by it": (created_by("TFJob", controller=False), ""),
    "a replica of TorchX": (make_pod().label("torchx.pytorch.org/app-name", "a"), "label torchx.pytorch.org/app-name"),
    "the only replica of TorchX": (
        make_pod().label("torchx.pytorch.org/app-name", "a").command("torchrun", "--nnodes", "1", "t.py"),
        "",
    ),
    "a trial of Determined": (determined("TRIAL"), "label determined.ai/task_id"),
    "a generic task of Determined": (determined("GENERIC"), "label determined.ai/task_id"),
    "a notebook of Determined": (determined("NOTEBOOK"), ""),
    "the only pod of a SkyPilot cluster": (skypilot("head"), ""),
    "the head of a SkyPilot cluster with workers": (
        avoids(skypilot("head"), "skypilot-cluster-name"),
        "label skypilot-cluster-name",
    ),
    "a worker of a SkyPilot cluster": (skypilot("worker"), "label skypilot-cluster-name"),
    "a SkyPilot pod with anti-affinity to others": (avoids(skypilot("head"), "app"), ""),
}


@pytest.mark.parametrize(("pod", "want"), SIGNS.values(), ids=SIGNS)
def test_sign_of_a_worker_of_several(pod: PodMaker, want: str) -> None:
    assert gang_sign(parse_pod(pod.build())) == want


@pytest.mark.parametrize("label", [label for label in GROUP_LABELS if label != "skypilot-cluster-name"])
def test_every_label_of_a_group_is_such_a_sign(label: str) -> None:
    assert gang_sign(parse_pod(make_pod().label(label, "g").build())) == f"label {label}"


def test_pods_of_a_scheduling_group_are_a_gang() -> None:
    pod = make_pod().spec(schedulingGroup={"podGroupName": "g"})

    assert gang_of(parse_pod(pod.build())) == Gang("team/podGroupName=g", 0, CLIQUE_LABEL)


GANGS = {
    "workers with only an owner in common": (created_by("MPIJob"), "uid=u-1"),
    "the pods of a SkyPilot cluster": (skypilot("worker"), "skypilot-cluster-name=c"),
    "the replicas of a TorchX app": (
        make_pod().label("torchx.pytorch.org/app-name", "a"),
        "torchx.pytorch.org/app-name=a",
    ),
    "the pods of a trial of Determined": (determined("TRIAL"), "determined.ai/task_id=t"),
}


@pytest.mark.parametrize(("pod", "name"), GANGS.values(), ids=GANGS)
def test_pods_of_one_job_are_a_gang(pod: PodMaker, name: str) -> None:
    assert gang_of(parse_pod(pod.build())) == Gang(f"team/{name}", 0, CLIQUE_LABEL)


@pytest.mark.parametrize("pod", [determined("NOTEBOOK"), skypilot("head")], ids=["Determined", "SkyPilot"])
def test_a_pod_that_runs_alone_is_no_gang(pod: PodMaker) -> None:
    assert gang_of(parse_pod(pod.build())) is None


@pytest.mark.parametrize("name", [*GROUP_LABELS, *sorted(GANG_OWNERS)])
def test_the_page_names_every_sign_of_a_gang(name: str) -> None:
    assert f"`{name}`" in read_checkout_file("docs/extender.md")


@pytest.mark.no_cover
@pytest.mark.parametrize("arguments", [["main " * 600_000], ["main " * 13_000] * 44, ["-" * 130_000], ["${" * 65_000]])
def test_megabytes_of_arguments_take_milliseconds(arguments: list[str]) -> None:
    assert min(_seconds_for(arguments) for _ in range(3)) < 0.025


def _seconds_for(arguments: list[str]) -> float:
    pod = parse_pod(make_pod().command("sh", "-c", *arguments).build())
    with CpuTimer() as timer:
        assert gang_sign(pod) == ""
    return timer.seconds
