"""Every finding code, once: `explain`, `docs/codes.md` and the engine read this table.

Codes are stable: a code never changes its meaning, and a retired one is never given out again.
"""

from __future__ import annotations

from typing import NamedTuple

OBJECT_LINT = "(objects)"


class FindingCode(NamedTuple):
    """What a code means to the person who meets it.

    Attributes:
        title: What was found, a few words.
        section: The policy section that speaks, as its key under `spec`; "" for the program itself, OBJECTS where it
            speaks about an object that is no pod.
        shapes: True for what /mutate says about its own work; False for what /validate judges.
        why: Why it matters.
        fix: What to do.
    """

    title: str
    section: str
    from_mutation: bool
    reason: str
    fix: str


def _security_code(title: str, why: str, fix: str) -> FindingCode:
    return FindingCode(title, "security", False, why, fix)


def _limits_code(title: str, why: str, fix: str) -> FindingCode:
    return FindingCode(title, "limits", False, why, fix)


def _lint_code(title: str, why: str, fix: str) -> FindingCode:
    return FindingCode(title, OBJECT_LINT, False, why, fix)


def _topology_code(title: str, why: str, fix: str) -> FindingCode:
    return FindingCode(title, "topology", False, why, fix)


def _unschedulable_code(title: str, why: str, fix: str) -> FindingCode:
    """What the nodes that there are cannot do: see `webhook.engine.node_fit`."""
    return _topology_code(
        title, f"{why} It is a warning at most, whatever the mode: an autoscaler may add a node.", fix
    )


CODES: dict[str, FindingCode] = {
    "GPU-S101": _security_code(
        "NVIDIA_VISIBLE_DEVICES is set by hand",
        "The container runtime gives a container every GPU that this variable names, whatever it asked for: "
        "scheduler and quota never see them. CUDA_VERSION without NVIDIA_REQUIRE_CUDA stands for all of them.",
        "Remove the variable and ask for GPUs in resources.limits. The values void and none are fine.",
    ),
    "GPU-S102": _security_code(
        "IMEX channels are asked for by hand",
        "NVIDIA_IMEX_CHANNELS opens a memory channel between nodes that other tenants may share.",
        "Remove the variable; use a compute domain resource claim for multi-node NVLink.",
    ),
    "GPU-S103": _security_code(
        "MIG configuration or monitor devices are asked for",
        "NVIDIA_MIG_CONFIG_DEVICES and NVIDIA_MIG_MONITOR_DEVICES let a container see or change the MIG "
        "layout of every card on the node.",
        "Remove the variable; only the GPU operator's own pods need it.",
    ),
    "GPU-S104": _security_code(
        "CUDA requirement checks are switched off",
        "NVIDIA_DISABLE_REQUIRE hides that an image does not fit the node's driver until it fails at run time.",
        "Remove the variable, or use an image that fits the driver.",
    ),
    "GPU-S105": _security_code(
        "driver capabilities beyond compute and utility",
        "NVIDIA_DRIVER_CAPABILITIES mounts further driver libraries and devices (graphics, display, video).",
        "Write compute,utility, or ask the admin to allow the capability in security.allowedDriverCapabilities.",
    ),
    "GPU-S106": _security_code(
        "the loader is told to load other libraries",
        "LD_PRELOAD, LD_AUDIT and LD_LIBRARY_PATH reach the container toolkit's hooks on unpatched nodes "
        "(CVE-2025-23266) and run code on the host.",
        "Remove the variable from the pod; set it inside the image's entry point if it is needed.",
    ),
    "GPU-S107": _security_code(
        "MPS is steered by hand",
        "The CUDA_MPS_ variables point a container at another MPS server or lift its memory and thread limits.",
        "Remove the variable; the device plugin sets it on nodes that share GPUs with MPS.",
    ),
    "GPU-S108": _security_code(
        "CUDA_VISIBLE_DEVICES is set by hand",
        "It hides devices from CUDA, grants none, and breaks when the device plugin hands out other ones.",
        "Remove the variable; the container sees exactly the GPUs it asked for.",
    ),
    "GPU-S109": _security_code(
        "GPU variables may come from where admission cannot read them",
        "envFrom is resolved on the node: nobody can tell at admission which variables it will hold.",
        "Give envFrom a prefix that keeps it apart from GPU variables, or write the variables one by one.",
    ),
    "GPU-S201": _security_code(
        "a privileged container",
        "A privileged container sees every device of its node, GPUs of other pods included.",
        "Remove securityContext.privileged: the device plugin mounts the devices.",
    ),
    "GPU-S202": _security_code(
        "the SYS_ADMIN capability",
        "The container toolkit treats SYS_ADMIN as privileged: such a container may name any GPU.",
        "Remove SYS_ADMIN from securityContext.capabilities.add.",
    ),
    "GPU-S203": _security_code(
        "a host namespace",
        "hostPID and hostIPC reach the processes and the shared memory of other pods on the card.",
        "Remove hostPID and hostIPC.",
    ),
    "GPU-S204": _security_code(
        "privilege escalation beside host access",
        "allowPrivilegeEscalation beside host namespaces or added capabilities leads to the whole node.",
        "Write securityContext.allowPrivilegeEscalation: false.",
    ),
    "GPU-S205": _security_code(
        "a shared process namespace on a shared GPU",
        "Sibling processes can open each other's GPU memory handles.",
        "Remove shareProcessNamespace, or ask for a whole GPU or a MIG slice.",
    ),
    "GPU-S206": _security_code(
        "a user namespace with GPUs",
        "Containers with hostUsers: false and GPUs cannot be created with today's container toolkit.",
        "Remove hostUsers: false from pods that ask for GPUs.",
    ),
    "GPU-S301": _security_code(
        "a GPU runtime class without a GPU request",
        "The NVIDIA runtime gives GPUs to images that name them in their environment, request or not.",
        "Ask for a GPU, or remove runtimeClassName.",
    ),
    "GPU-S302": _security_code(
        "a device annotation",
        "Annotations of cdi.k8s.io, and of domains that end in it, inject GPUs that nobody requested, past scheduler "
        "and quota. Those of other plugins of a container runtime are not looked at.",
        "Remove the annotation and ask for GPUs in resources.limits.",
    ),
    "GPU-S303": _security_code(
        "a host path to GPU devices or their managers",
        "The path reaches GPU device files, the driver, or the sockets that hand devices out.",
        "Remove the hostPath volume: the device plugin mounts what a container needs.",
    ),
    "GPU-S304": _security_code(
        "a mount that asks for devices",
        "The container toolkit reads file names under /var/run/nvidia-container-devices as a list of GPUs.",
        "Mount the volume somewhere else.",
    ),
    "GPU-S305": _security_code(
        "a node is named in the pod",
        "spec.nodeName goes past the scheduler, its taints and its accounting of GPUs.",
        "Remove spec.nodeName; use a nodeSelector.",
    ),
    "GPU-S306": _security_code(
        "a resource claim",
        "Devices of a resource claim are not counted as nvidia.com resources by this policy's limits.",
        "Ask for nvidia.com resources, or ask the admin to allow claims for this namespace.",
    ),
    "GPU-S307": _security_code(
        "whole GPUs and slices in one container",
        "CUDA uses one of them only, and the pod waits for a node that offers both.",
        "Ask for one kind of GPU in a container.",
    ),
    "GPU-S308": _security_code(
        "an annotation that only Rightslice writes",
        "rightslice.dev/decision and rightslice.dev/original-resources are a record; a forged one hides what "
        "was asked for.",
        "Remove the annotation; Rightslice adds it where it changed a pod.",
    ),
    "GPU-S309": _security_code(
        "a pod that claims to be static",
        "The mirror annotation makes many tools look away; only a node may create such pods.",
        "Remove the annotation kubernetes.io/config.mirror.",
    ),
    "GPU-S401": _security_code(
        "a pod too large to be judged",
        "No other pod is judged while one is, so one that would take too long is not begun; and a pod that nobody "
        "looked at could hold anything.",
        "Keep below the amount named in the message; it is many times what pods have.",
    ),
    "GPU-L101": _limits_code(
        "less than the least that is allowed",
        "The policy sets a floor for this resource.",
        "Ask for at least the amount named in the message.",
    ),
    "GPU-L102": _limits_code(
        "an amount that is not one of those allowed",
        "Odd numbers of GPUs strand the rest of a node.",
        "Ask for one of the amounts named in the message.",
    ),
    "GPU-L103": _limits_code(
        "more than the most that is allowed",
        "The policy sets a ceiling for this resource.",
        "Ask for at most the amount named in the message.",
    ),
    "GPU-L104": _limits_code(
        "a GPU amount that is not a whole number",
        "Extended resources are counted in whole, non-negative units: the API server refuses anything else.",
        "Write a whole number such as 1. For a part of a GPU ask for a MIG slice or a share.",
    ),
    "GPU-L105": _limits_code(
        "GPU requests and limits differ",
        "Extended resources cannot be overcommitted: the API server refuses a pod whose two numbers differ.",
        "Write limits only; requests follow.",
    ),
    "GPU-L201": _limits_code(
        "a LimitRange will refuse this",
        "The namespace's LimitRange is checked after admission, and its answer is final.",
        "Ask for an amount inside the range named in the message.",
    ),
    "GPU-L202": _limits_code(
        "GPUs that a LimitRange put in",
        "A LimitRange whose max or default names a GPU gives that many to every container that names none.",
        'Write the resource with "0" in containers that need no GPU; ask the admin to add default: 0.',
    ),
    "GPU-L203": _limits_code(
        "a LimitRange makes this pod invalid",
        "A LimitRange gives amounts that the API server then refuses: min alone gives a request without a limit, "
        "which no extended resource may have.",
        'Write the resource yourself, the same in limits and requests, or "0" in both where it is not needed.',
    ),
    "GPU-L301": _lint_code(
        "a maximum that gives GPUs to everybody",
        "The API server stores max as the default too: every container that does not name the GPU is given that many.",
        'Write default: "0" beside the maximum.',
    ),
    "GPU-L302": _lint_code(
        "a minimum that makes pods without GPUs invalid",
        "The API server stores min as the default request, and an extended resource needs a limit beside a request.",
        "Remove it; limits.perContainer of a policy holds only containers that ask.",
    ),
    "GPU-L303": _lint_code(
        "a default that everybody inherits",
        "Pods without GPUs, sidecars, and pods that ask for MIG slices are all given a GPU of their own.",
        'Write "0", or remove it.',
    ),
    "GPU-L304": _lint_code(
        "a bound on pods that refuses pods without GPUs",
        "A bound of type Pod refuses every pod that does not name the resource, where no LimitRange gives it zero.",
        'Write default: "0" of type Container beside a maximum; remove a minimum.',
    ),
    "GPU-L305": _lint_code(
        "a ratio on GPUs",
        "Limit and request of an extended resource are always equal: a ratio only refuses whoever asks for none.",
        "Remove it.",
    ),
    "GPU-Q301": FindingCode(
        "a quota will refuse this",
        "limits",
        False,
        "The namespace's ResourceQuota is checked last, and its answer is final.",
        "Ask for what would fit, wait until a holder named in the message ends, or ask for the quota to be raised.",
    ),
    "GPU-Q302": FindingCode(
        "a wrong amount of the accounting resource",
        "limits",
        False,
        "rightslice.dev/gpu-milli is what a quota over every form of GPU counts; it is written by Rightslice alone.",
        "Leave it out. If it is missing, the mutating webhook did not answer: create the pod again.",
    ),
    "GPU-Q303": FindingCode(
        "a quota of several namespaces would be exceeded",
        "quotas",
        False,
        "The namespaces named by the policy share these GPUs, counted in thousandths whatever their form.",
        "Ask for what would fit, wait until a holder named in the message ends, or ask for the quota to be raised.",
    ),
    "GPU-Q304": FindingCode(
        "a quota of several namespaces cannot be checked",
        "quotas",
        False,
        "What the pods of the cluster hold was not confirmed for a minute, so nobody knows what is left.",
        "Create the pod again later. For admins: /readyz?verbose says what does not answer.",
    ),
    "GPU-Q305": FindingCode(
        "the accounting resource is left out",
        "limits",
        False,
        "A pod that asks for rightslice.dev/gpu-milli is Pending for ever where neither the scheduler ignores the"
        " resource nor every node that it may come to has it. So it is not written, and no quota on it counts the pod.",
        "For admins: rightslice accounting check says what is missing.",
    ),
    "GPU-Q306": FindingCode(
        "a quota will refuse a claim of this pod",
        "limits",
        False,
        "Claims are made from their templates once the pod is stored, and charged to quotas then: the pod is taken, and"
        " stays Pending without its claim.",
        "Use a template that asks for what would fit, wait until a holder named in the message ends, or ask for the"
        " quota to be raised.",
    ),
    "GPU-Q401": _lint_code(
        "a quota key that is never counted",
        "GPUs count under requests. only; limits. and bare names are accepted, and bound nothing. Devices of claims"
        " count in quotas without scopes only, by the name of a DeviceClass that there is.",
        "Write the key as the message says: with requests. before it, or in a quota without scopes.",
    ),
    "GPU-Q402": _lint_code(
        "a quota that other forms of GPU walk round",
        "Each resource name has its own counter: a MIG slice, a share or a claim is no nvidia.com/gpu.",
        "Add requests.rightslice.dev/gpu-milli, 1000 for each GPU, with limits.accounting: native in a policy;"
        " devices of claims count under CLASS.deviceclass.resource.k8s.io/devices alone.",
    ),
    "GPU-Q403": _lint_code(
        "a quota of a part of a GPU",
        "The API server accepts a fraction, and pods ask for whole numbers: 1.5 holds like 1.",
        "Write the whole number below it.",
    ),
    "GPU-R101": FindingCode(
        "the GPU request was right-sized",
        "rightSizing",
        True,
        "The pod needs less than it asked for, and a slice or share that covers the need exists.",
        'Nothing. To keep whole GPUs, annotate the pod with rightslice.dev/keep: "true".',
    ),
    "GPU-R102": FindingCode(
        "the GPU request could be smaller",
        "rightSizing",
        True,
        "A policy on trial would give this pod a slice or share.",
        "Nothing now; it shows what the policy would do once it is enforced.",
    ),
    "GPU-R103": FindingCode(
        "the GPU request stays as it is",
        "rightSizing",
        True,
        "The pod says what it needs, and something stands in the way of a smaller request.",
        "See the reason in the message.",
    ),
    "GPU-R104": FindingCode(
        "a declared need cannot be read",
        "rightSizing",
        True,
        "rightslice.dev/gpu-memory, rightslice.dev/gpu-compute, rightslice.dev/topology, rightslice.dev/gang-size or "
        "rightslice.dev/keep says nothing that is known. A pod with any other keep than false is kept.",
        'Write rightslice.dev/gpu-memory: 8Gi, rightslice.dev/gpu-compute: "20%", rightslice.dev/topology: '
        'nvlink=required (preferred, ignored), rightslice.dev/gang-size: "4" or rightslice.dev/keep: "true".',
    ),
    "GPU-I101": FindingCode(
        "something was added to the pod",
        "injection",
        True,
        "The policy adds what the pod needs to reach the nodes it asked for.",
        "Nothing.",
    ),
    "GPU-I102": FindingCode(
        "something could not be added",
        "injection",
        True,
        "What the user wrote, or another policy required, stays; this addition would contradict it.",
        "Remove the contradicting field, or ask the admin to change the policy.",
    ),
    "GPU-T101": _topology_code(
        "several shares may be the same GPU",
        "With time slicing, two shares can be two turns on one card: they add no memory and no speed.",
        "Ask for one share, or for whole GPUs.",
    ),
    "GPU-T102": _topology_code(
        "several shares are refused by the device plugin",
        "The kubelet ends such a pod with UnexpectedAdmissionError, and the scheduler does not try again.",
        "Ask for one share in a container, or for a larger slice.",
    ),
    "GPU-T201": _unschedulable_code(
        "no node offers this resource",
        "The pod will stay Pending unless such a node joins.",
        "Ask for one of the resources named in the message.",
    ),
    "GPU-T202": _unschedulable_code(
        "more than any node has",
        "All GPUs of a pod come from one node: the pod will stay Pending.",
        "Ask for at most the number named in the message, or split the work over several pods.",
    ),
    "GPU-T203": _unschedulable_code(
        "no node has this GPU product",
        "The pod will stay Pending unless such a node joins.",
        "Write one of the products named in the message.",
    ),
    "GPU-T204": _unschedulable_code(
        "no node satisfies selector and affinity",
        "Every node that has the GPU is ruled out by nodeSelector or affinity: the pod will stay Pending.",
        "Loosen the constraint named in the message.",
    ),
    "GPU-T205": _unschedulable_code(
        "the taints of the GPU nodes are not tolerated",
        "Every node that has the GPU is tainted: the pod will stay Pending.",
        "Add the toleration named in the message, or switch on injection.tolerations: auto.",
    ),
    "GPU-T301": _unschedulable_code(
        "no node can link this many GPUs with NVLink",
        "The policy requires NVLink between the GPUs of this pod.",
        "Ask for the number of GPUs named in the message, or ask the admin for nvlink: preferred.",
    ),
    "GPU-T302": _topology_code(
        "a whole GPU was asked for, a part may come",
        "On some nodes of this cluster the same resource name stands for a MIG instance or a share.",
        "Add a node affinity on nvidia.com/gpu.product, or declare rightslice.dev/gpu-memory.",
    ),
    "GPU-C101": FindingCode(
        "the driver is too old for this image",
        "cuda",
        False,
        "The program would fail at its first CUDA call: the driver is below the floor of the image's CUDA major.",
        "Use an image with an older CUDA, or nodes with a newer driver.",
    ),
    "GPU-C102": FindingCode(
        "the driver is older than the image's toolkit",
        "cuda",
        False,
        "Minor-version compatibility carries most programs; kernels compiled at run time (PTX) and newer calls fail.",
        "Test it, or use an image whose CUDA the driver knows.",
    ),
    "GPU-C103": FindingCode(
        "the image may have no kernels for this GPU",
        "cuda",
        False,
        "GPUs of this architecture need a program built with a newer CUDA toolkit.",
        "Use an image built with the toolkit named in the message.",
    ),
    "GPU-C104": FindingCode(
        "a CUDA requirement cannot be read",
        "cuda",
        False,
        "The requirement follows the form of NVIDIA_REQUIRE_CUDA, for example cuda>=12.4.",
        "Correct the annotation or the variable.",
    ),
    "GPU-P101": FindingCode(
        "a file cannot be read as a policy", "", False, "The last good set stays.", "See the place."
    ),
    "GPU-P102": FindingCode(
        "a field that does not exist",
        "",
        False,
        "A misspelt key would switch a rule off without a word, so it is an error.",
        "Write the field that the message suggests.",
    ),
    "GPU-P103": FindingCode(
        "a value that cannot be", "", False, "The last good set stays.", "Write what the message says."
    ),
    "GPU-P104": FindingCode(
        "two policies contradict each other",
        "",
        False,
        "Both may speak about one pod, and they add different values to the same field.",
        "Make their matches disjoint, or the values equal.",
    ),
    "GPU-P105": FindingCode("two policies of one name", "", False, "It is not clear which one holds.", "Rename one."),
    "GPU-P106": FindingCode(
        "a match condition does not compile",
        "",
        False,
        "Match conditions are CEL over object, oldObject, request and namespaceObject, and give true or false.",
        "Correct the expression at the place shown.",
    ),
    "GPU-P201": FindingCode(
        "a match condition failed on this object",
        "match",
        False,
        "The expression met a field that the object does not have.",
        "Guard optional fields with has(); failurePolicy says what happens meanwhile.",
    ),
}

MUTATION_CODES = frozenset(code for code, meaning in CODES.items() if meaning.from_mutation)
"""What /mutate says of its own work; the rest is for /validate."""
