"""Every finding code: `explain`, `docs/codes.md` and the engine read this table.

To add a code, add an entry to `CODES` with the next number of its group, then run
`rightslice explain --all > docs/codes.md`.
Codes are stable: a code never changes its meaning, and a retired one is never reused.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from webhook.model.annotations import (
    DECISION_ANNOTATION,
    GANG_SIZE_ANNOTATION,
    GPU_COMPUTE_ANNOTATION,
    GPU_MEMORY_ANNOTATION,
    KEEP_ANNOTATION,
    ORIGINAL_ANNOTATION,
    TOPOLOGY_ANNOTATION,
)
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE

OBJECT_LINT = "(objects)"
CLAIM_CHECK = "(claims)"


class FindingCode(NamedTuple):
    """The explanation of one code.

    Attributes:
        section: The policy section that reports it, as its key under `spec`; "" for Rightslice itself, OBJECT_LINT for
            findings about LimitRanges and ResourceQuotas, CLAIM_CHECK for those about resource claims.
        title: The finding in a few words.
        reason: Why it matters.
        fix: What to do.
    """

    section: str
    title: str
    reason: str
    fix: str

    @property
    def from_mutation(self) -> bool:
        """True for findings about the mutation, which /mutate reports; False for those of /validate."""
        return self.section in ("rightSizing", "injection")


_security_code = partial(FindingCode, "security")
_limits_code = partial(FindingCode, "limits")
_lint_code = partial(FindingCode, OBJECT_LINT)
_quota_code = partial(FindingCode, "quotas")
_claim_code = partial(FindingCode, CLAIM_CHECK)
_right_sizing_code = partial(FindingCode, "rightSizing")
_injection_code = partial(FindingCode, "injection")
_topology_code = partial(FindingCode, "topology")
_cuda_code = partial(FindingCode, "cuda")
_policy_file_code = partial(FindingCode, "")


def _unschedulable_code(title: str, reason: str, fix: str) -> FindingCode:
    """A pod that current nodes cannot satisfy: see `webhook.engine.node_fit`."""
    reason = f"{reason} In any mode it is at most a warning, because an autoscaler may add a node."
    return _topology_code(title, reason, fix)


CODES: dict[str, FindingCode] = {
    "GPU-S101": _security_code(
        "NVIDIA_VISIBLE_DEVICES is set",
        "The container runtime gives the container every GPU that this variable names, regardless of its request; "
        "scheduler and quota do not count them. CUDA_VERSION without NVIDIA_REQUIRE_CUDA gives it all GPUs.",
        "Remove the variable and request GPUs in resources.limits. The values void and none are fine.",
    ),
    "GPU-S102": _security_code(
        "NVIDIA_IMEX_CHANNELS is set",
        "The variable opens an IMEX channel, memory between nodes that other tenants may share.",
        "Remove the variable; use a compute domain resource claim for multi-node NVLink.",
    ),
    "GPU-S103": _security_code(
        "MIG configuration or monitor devices are requested",
        "NVIDIA_MIG_CONFIG_DEVICES and NVIDIA_MIG_MONITOR_DEVICES let a container see or change the MIG "
        "layout of every GPU on the node.",
        "Remove the variable; only the GPU operator's own pods need it.",
    ),
    "GPU-S104": _security_code(
        "CUDA requirement checks are disabled",
        "With NVIDIA_DISABLE_REQUIRE, an image that does not support the node's driver only fails at run time.",
        "Remove the variable, or use an image that supports the driver.",
    ),
    "GPU-S105": _security_code(
        "driver capabilities other than compute and utility are requested",
        "NVIDIA_DRIVER_CAPABILITIES mounts additional driver libraries and devices (graphics, display, video).",
        "Write compute,utility, or ask the admin to allow the capability in security.allowedDriverCapabilities.",
    ),
    "GPU-S106": _security_code(
        "a loader variable is set",
        "On unpatched nodes, LD_PRELOAD, LD_AUDIT and LD_LIBRARY_PATH make the container toolkit's hooks run the "
        "container's code on the host (CVE-2025-23266).",
        "Remove the variable from the pod; set it inside the image's entry point if it is needed.",
    ),
    "GPU-S107": _security_code(
        "a CUDA_MPS_ variable is set",
        "CUDA_MPS_ variables connect a container to another MPS server or lift its memory and thread limits.",
        "Remove the variable; the device plugin sets it on nodes that share GPUs with MPS.",
    ),
    "GPU-S108": _security_code(
        "CUDA_VISIBLE_DEVICES is set",
        "The variable hides devices from CUDA and grants none. The program fails if the device plugin allocates other "
        "devices.",
        "Remove the variable; the container sees exactly the GPUs it requested.",
    ),
    "GPU-S109": _security_code(
        "GPU variables may come from a source that admission cannot read",
        "envFrom is resolved on the node: admission cannot know which variables it contains.",
        "Give envFrom a prefix that no GPU variable starts with, or list the variables in env.",
    ),
    "GPU-S110": _security_code(
        "a variable adds devices that nobody requested",
        "The container toolkit adds the node's NVSwitch, RDMA, GPUDirect Storage or GDRCopy devices to a container "
        "with visible GPUs. NVSwitch devices control the links of other tenants' GPUs.",
        "Remove the variable; request RDMA devices from their device plugin.",
    ),
    "GPU-S201": _security_code(
        "a container is privileged",
        "A privileged container sees every device of its node, including the GPUs of other pods.",
        "Remove securityContext.privileged: the device plugin mounts the devices.",
    ),
    "GPU-S202": _security_code(
        "a container adds a capability that reaches its host",
        "The container toolkit treats SYS_ADMIN as privileged: such a container may select any GPU. SYS_RAWIO, "
        "SYS_MODULE, DAC_READ_SEARCH, BPF and PERFMON, and SYS_PTRACE together with hostPID, reach the memory of "
        "devices, the kernel, or files and processes of the host. Other capabilities, such as IPC_LOCK and NET_ADMIN, "
        "give no access to GPUs.",
        "Remove the capability from securityContext.capabilities.add.",
    ),
    "GPU-S203": _security_code(
        "the pod uses a host namespace",
        "hostPID and hostIPC give access to the processes and the shared memory of other pods on the GPU.",
        "Remove hostPID and hostIPC.",
    ),
    "GPU-S204": _security_code(
        "a container combines privilege escalation with host namespaces",
        "allowPrivilegeEscalation together with hostPID or hostIPC gives access to the whole node. It is allowed in a "
        "container that does not set the field.",
        "Write securityContext.allowPrivilegeEscalation: false.",
    ),
    "GPU-S205": _security_code(
        "the containers share a process namespace on a shared GPU",
        "Sibling processes can open each other's GPU memory handles.",
        "Remove shareProcessNamespace, or request a whole GPU or a MIG slice.",
    ),
    "GPU-S206": _security_code(
        "the pod uses a user namespace with GPUs",
        "Containers with hostUsers: false and GPUs cannot be created with current versions of the container toolkit.",
        "Remove hostUsers: false from pods that request GPUs.",
    ),
    "GPU-S301": _security_code(
        "the pod sets a GPU runtime class and requests no GPU",
        "The NVIDIA runtime gives GPUs to images that name them in their environment, with or without a request.",
        "Request a GPU, or remove runtimeClassName.",
    ),
    "GPU-S302": _security_code(
        "an annotation injects devices",
        "Annotations of cdi.k8s.io, and of its subdomains, inject GPUs that were not requested and bypass scheduler "
        "and quota. Annotations of other container runtime plugins are not checked.",
        "Remove the annotation and request GPUs in resources.limits.",
    ),
    "GPU-S303": _security_code(
        "a host path gives access to GPU devices or the driver",
        "The path gives access to GPU device files, PCI devices, the driver, or the sockets that allocate devices.",
        "Remove the hostPath volume: the device plugin mounts what a container needs.",
    ),
    "GPU-S304": _security_code(
        "a mount selects devices",
        "The container toolkit reads file names under /var/run/nvidia-container-devices as a list of GPUs.",
        "Mount the volume somewhere else.",
    ),
    "GPU-S305": _security_code(
        "the pod sets spec.nodeName",
        "spec.nodeName bypasses the scheduler, its taints and its accounting of GPUs.",
        "Remove spec.nodeName; use a nodeSelector.",
    ),
    "GPU-S306": _security_code(
        "the pod may get a GPU by a resource claim or by a resource of a device class",
        "The policy denies claims for GPUs, and the resource names by which device classes may serve GPUs. A claim for "
        "other devices is not reported if its template exists before the pod, and the selectors of its device classes "
        "require another driver, as in device.driver == 'dra.net'; nor is a resource of such a class.",
        "Request nvidia.com resources, or ask the admin to allow claims for this namespace. For other devices, "
        "create a claim template before the pod, of a device class that requires its driver.",
    ),
    "GPU-S307": _security_code(
        "a container requests whole GPUs and slices",
        "CUDA uses one of them only, and the pod waits for a node that offers both.",
        "Request one kind of GPU in a container.",
    ),
    "GPU-S308": _security_code(
        "an annotation that only Rightslice may write is set",
        f"{DECISION_ANNOTATION} and {ORIGINAL_ANNOTATION} are records; a forged one hides the original request.",
        "Remove the annotation; Rightslice adds it when it changes a pod.",
    ),
    "GPU-S309": _security_code(
        "the pod has the annotation of a static pod",
        "Many tools ignore pods with the mirror annotation; only a node may create such pods.",
        "Remove the annotation kubernetes.io/config.mirror.",
    ),
    "GPU-S310": _security_code(
        "an annotation requests devices from an NRI plugin",
        "NRI plugins, such as GKE's device injector, add any device of the node to a container, without a request.",
        "Remove the annotation; request the GPU as a resource.",
    ),
    "GPU-S311": _security_code(
        "an annotation requests a fraction of a GPU",
        "KAI and Run:ai give the pod a share of a GPU without memory isolation. Neither ResourceQuota nor a policy "
        "counts it.",
        "Request a MIG slice or a share as a resource, or remove the annotation.",
    ),
    "GPU-S401": _security_code(
        "evaluating the pod would take too long",
        "Rightslice evaluates pods one at a time, so it denies a pod that would take too long. Without "
        "evaluation, the pod could bypass every policy.",
        "Reduce the pod to the limit in the message; typical pods are far below it. If small pods are denied too, the "
        "admin must reduce the number of policies and match conditions.",
    ),
    "GPU-L101": _limits_code(
        "the amount is below the minimum",
        "The policy sets a minimum for this resource, or for the sum of the GPUs that its glob matches.",
        "Request at least the amount in the message.",
    ),
    "GPU-L102": _limits_code(
        "the amount is not allowed",
        "Other amounts, such as three GPUs of a node with eight, leave GPUs that few pods can use.",
        "Request one of the amounts in the message.",
    ),
    "GPU-L103": _limits_code(
        "the amount is above the maximum",
        "The policy sets a maximum for this resource, or for the sum of the GPUs that its glob matches.",
        "Request at most the amount in the message.",
    ),
    "GPU-L104": _limits_code(
        "the GPU amount is not a whole number",
        "Extended resources are counted in whole, non-negative units; the API server rejects anything else. Of a "
        "device class (`deviceclass.resource.kubernetes.io/NAME: 500m`) it stores a part, but the pod stays Pending.",
        "Write a whole number such as 1. For part of a GPU, request a MIG slice or a share.",
    ),
    "GPU-L105": _limits_code(
        "GPU requests and limits differ",
        "Extended resources cannot be overcommitted: the API server rejects a pod whose requests and limits differ.",
        "Write limits only; requests default to them.",
    ),
    "GPU-L106": _limits_code(
        "an amount cannot be computed",
        "The amount is not a quantity, so the API server cannot read the pod, or it is so large that no limit, "
        "LimitRange or quota can be compared with it.",
        "Write an amount as the message says.",
    ),
    "GPU-L107": _limits_code(
        "an amount is null",
        "Everywhere else in an object null means absent. An amount of null is 0: the container gets none of the "
        "resource, and a LimitRange adds no default. Only check and explain see it: the API server stores 0.",
        'Write the amount, or "0"; remove the line to leave the amount out.',
    ),
    "GPU-L108": _limits_code(
        "limits of GPUs cannot be checked",
        "The pod names a resource claim or a template that is not known, so it is not known which GPUs it requests. "
        "Clients of the API server try again for some seconds.",
        "Create the claim or template before the pod.",
    ),
    "GPU-L201": _limits_code(
        "a LimitRange will reject this",
        "The API server checks the namespace's LimitRange after admission webhooks, and its answer is final.",
        "Request an amount inside the range in the message.",
    ),
    "GPU-L202": _limits_code(
        "a LimitRange injected GPUs",
        "A LimitRange with max or default for a GPU adds that amount to every container that does not set it.",
        'Set the resource to "0" in containers that need no GPU; ask the admin to add default: 0.',
    ),
    "GPU-L203": _limits_code(
        "a LimitRange makes this pod invalid",
        "The LimitRange adds amounts that the API server then rejects: a default limit below the pod's own request, "
        "or, if it has only min, a request without a limit for an extended resource. The API server's message names "
        "a field that the pod does not set.",
        "Write the resource yourself: a request of at most its limit, and for extended resources an equal one.",
    ),
    "GPU-L301": _lint_code(
        "the LimitRange maximum also sets a default",
        "The API server stores max as the default too: every container that does not set the GPU gets that amount.",
        'Write default: "0" together with the maximum.',
    ),
    "GPU-L302": _lint_code(
        "the LimitRange minimum makes pods without GPUs invalid",
        "The API server stores min as the default request, and an extended resource also needs a limit.",
        "Remove it; limits.perContainer of a policy applies only to containers that request the resource.",
    ),
    "GPU-L303": _lint_code(
        "the LimitRange gives GPUs to every container by default",
        "Pods without GPUs, sidecars, and pods that request MIG slices all get a GPU.",
        'Write "0", or remove it.',
    ),
    "GPU-L304": _lint_code(
        "the LimitRange bound for pods rejects pods without GPUs",
        "A bound of type Pod rejects every pod that does not set the resource, unless a LimitRange sets it to zero.",
        'Write default: "0" of type Container together with a maximum; remove a minimum.',
    ),
    "GPU-L305": _lint_code(
        "the LimitRange sets a ratio for GPUs",
        "Limit and request of an extended resource are always equal: a ratio only rejects pods that request none.",
        "Remove it.",
    ),
    "GPU-Q301": _limits_code(
        "a quota will reject this",
        "The API server checks the namespace's ResourceQuota last, and its answer is final.",
        "Request what would fit, wait until a pod named in the message ends, or ask for a higher quota.",
    ),
    "GPU-Q302": _limits_code(
        "the amount of the accounting resource is wrong",
        f"Quotas on every form of GPU count {ACCOUNTING_RESOURCE}; only Rightslice may set it.",
        "Omit it. If it is missing, the mutating webhook did not answer: create the pod again.",
    ),
    "GPU-Q303": _quota_code(
        "a shared quota would be exceeded",
        "The policy's namespaces share these GPUs, counted in thousandths of a GPU, including slices and shares.",
        "Request what would fit, wait until a pod named in the message ends, or ask for a higher quota.",
    ),
    "GPU-Q304": _quota_code(
        "a shared quota cannot be checked",
        "The cluster's pods have not been confirmed for a minute, the replica could not renew its part of the quota "
        "for ten seconds, or a resource claim or template of the pod is unknown. If the policy enforces quotas, the "
        "answer is 429 with Retry-After; otherwise it is a warning.",
        "Create missing claims and templates first, or the pod again later. For admins: /readyz?verbose shows which "
        "check fails.",
    ),
    "GPU-Q305": _limits_code(
        "the accounting resource is not added",
        f"A pod that requests {ACCOUNTING_RESOURCE} stays Pending unless the scheduler ignores the resource, or every "
        "candidate node has it and the pod has no resource claims. So Rightslice does not add it, and no quota on it "
        "counts the pod.",
        "For admins: rightslice accounting check shows what is missing.",
    ),
    "GPU-Q306": _limits_code(
        "a quota will reject a claim of this pod",
        "Kubernetes creates a claim from its template after it stores the pod, and then charges the claim to quotas. "
        "So the pod is accepted and stays Pending. The same applies to a resource of a device class, for which the "
        "scheduler creates the claim.",
        "Request what would fit, wait until a pod named in the message ends, or ask for a higher quota.",
    ),
    "GPU-Q307": _quota_code(
        "the free part of a shared quota is held by another replica",
        "Each replica may admit pods up to a part of the free amount, and this pod is larger than the rest of that "
        "part. The quota is not exceeded: the answer is 429 with Retry-After, and the replicas redistribute the "
        "quota immediately.",
        "Create the pod again in a second; kubectl and controllers do so by themselves.",
    ),
    "GPU-Q401": _lint_code(
        "the quota key has no effect",
        "Quotas count GPUs only under keys with the prefix requests.; the API server accepts and ignores others. "
        "Quotas count devices of claims only without scopes and only by the name of an existing DeviceClass.",
        "Write the key as in the message: with the prefix requests., or in a quota without scopes.",
    ),
    "GPU-Q402": _lint_code(
        "other GPU resource names bypass this quota",
        "Each resource name is counted separately. A quota on nvidia.com/gpu counts no MIG slices and shares, and "
        "devices of claims only if their class has that extendedResourceName.",
        f"Add requests.{ACCOUNTING_RESOURCE}, 1000 for each GPU, with limits.accounting: native in a policy;"
        " devices of claims always count under CLASS.deviceclass.resource.k8s.io/devices.",
    ),
    "GPU-Q403": _lint_code(
        "the quota is not a whole number of GPUs",
        "The API server accepts a fraction, but pods request whole numbers: 1.5 has the same effect as 1.",
        "Write the whole number below it.",
    ),
    "GPU-R101": _right_sizing_code(
        "the GPU request was right-sized",
        "The pod needs less than it requested, and a slice or share that covers the need exists.",
        f'Nothing. To keep whole GPUs, annotate the pod with {KEEP_ANNOTATION}: "true".',
    ),
    "GPU-R102": _right_sizing_code(
        "the GPU request could be smaller",
        "A policy in audit or warn mode would give this pod a slice or share.",
        "Nothing: the finding shows the effect of enforcing the policy. To keep whole GPUs then, annotate the pod with "
        f'{KEEP_ANNOTATION}: "true".',
    ),
    "GPU-R103": _right_sizing_code(
        "the GPU request is unchanged",
        "The message says why right-sizing keeps the request: for example, no suitable slice is free, a LimitRange "
        "would reject it, or the pod opts out with the keep annotation.",
        "Follow the advice after the reason in the message. Without advice nothing can be done, and the pod keeps its "
        "request.",
    ),
    "GPU-R104": _right_sizing_code(
        "an annotation of Rightslice cannot be read",
        f"{GPU_MEMORY_ANNOTATION}, {GPU_COMPUTE_ANNOTATION}, {TOPOLOGY_ANNOTATION}, {GANG_SIZE_ANNOTATION} or "
        f"{KEEP_ANNOTATION} has an unknown value; an annotation under rightslice.dev does not exist; or it is set on a "
        "workload instead of its pod template. A pod whose keep annotation is not false keeps its request.",
        f'Write {GPU_MEMORY_ANNOTATION}: 8Gi, {GPU_COMPUTE_ANNOTATION}: "20%", {TOPOLOGY_ANNOTATION}: nvlink=required '
        f'(preferred, ignored), {GANG_SIZE_ANNOTATION}: "4" or {KEEP_ANNOTATION}: "true".',
    ),
    "GPU-I101": _injection_code(
        "a field was added to the pod",
        "The policy adds what the pod needs to reach the nodes with its GPUs. A change that was made is a note, "
        "reported as audit.",
        "Nothing, if the field was added. If it would be added: write it in the pod, or ask the admin to enforce the "
        "policy.",
    ),
    "GPU-I102": _injection_code(
        "a field could not be added",
        "The addition would contradict the pod's own fields or another policy.",
        "Remove the contradicting field, or ask the admin to change the policy.",
    ),
    "GPU-D101": _claim_code(
        "the selectors of a request match no device",
        "No device of this cluster satisfies all conditions of the request and its class: the pod will stay Pending "
        "with 'cannot allocate all claims', unless such a device is published.",
        "Change the condition in the message, which the nearest device fails.",
    ),
    "GPU-D102": _claim_code(
        "a selector reads a key that some devices lack",
        "A missing attribute or capacity is an error, not a mismatch. When the scheduler evaluates such a device, "
        "scheduling of the pod ends on all nodes, even if other nodes have matching devices.",
        "Test whether the key exists first, as in the message.",
    ),
    "GPU-D103": _claim_code(
        "a bound is just above what a device has",
        "MIG devices publish a little less memory than their names say: a 1g.10gb of an H100 has 9850Mi, less than "
        "10Gi. Such a bound excludes it, and the claim gets a device that is twice as large.",
        "Write the bound in the message, if that is enough.",
    ),
    "GPU-D104": _claim_code(
        "no node has as many devices as a claim requests",
        "All devices of a claim, and of all claims of a pod, come from one node: the pod will stay Pending. Devices "
        "that other claims have are counted here as if they were free. So are those that cluster-autoscaler expects "
        "of new machines of Cluster API. A claim that other pods use keeps its devices, and its pods run where they "
        "are. Devices with a taint go only to requests of claims that tolerate it; tolerations of pods do not count.",
        "Request fewer devices, or a class with more.",
    ),
    "GPU-D105": _claim_code(
        "no devices satisfy the constraints of a claim",
        "Some nodes have enough matching devices, but no node has a set whose values are equal or different as "
        "required, or no device has the attribute.",
        "Write the attribute in the message, remove the constraint, or request fewer devices.",
    ),
    "GPU-D106": _claim_code(
        "the device class does not exist",
        "A pod with such a claim stays Pending until the class is created, and so does a pod that requests its "
        "devices by the name deviceclass.resource.kubernetes.io/CLASS.",
        "Write one of the classes in the message, or create the class.",
    ),
    "GPU-D107": _claim_code(
        "a selector does not compile",
        "The API server rejects the object with status 422. An expression on a device may use `device.driver`, "
        "`device.attributes['DOMAIN'].NAME`, `device.capacity['DOMAIN'].NAME` and `device.allowMultipleAllocations`.",
        "Correct the expression at the position in the message.",
    ),
    "GPU-D108": _claim_code(
        "administrative access is not allowed in this namespace",
        "The API server rejects claims and templates with adminAccess, except in namespaces with the label "
        "resource.kubernetes.io/admin-access: true.",
        "Remove adminAccess, or ask the admin for the label.",
    ),
    "GPU-D109": _claim_code(
        "a quota will reject the claim",
        "The API server counts claims, and the devices of each class that they request; of alternatives, the largest "
        "count for each class. It rejects the claim with status 403.",
        "Request fewer devices, delete claims that are not in use, or ask the admin for a higher quota.",
    ),
    "GPU-D110": _claim_code(
        "a pod names a claim or template that does not exist",
        "The pod stays Pending until it exists. A missing template shows only in an event of the pod, "
        "FailedResourceClaimCreation.",
        "Create it before the pod, or correct the name.",
    ),
    "GPU-D111": _claim_code(
        "a claim requests all devices of a node",
        "allocationMode All takes every matching device of a node, and the pod stays Pending while another claim has "
        "one of them that claims cannot share. In namespaces with the label "
        "resource.kubernetes.io/admin-access: true it is expected.",
        "Write allocationMode ExactCount and a count.",
    ),
    "GPU-D112": _claim_code(
        "a pod may get a device that is published twice",
        "The device plugin and a DRA driver, or two DRA drivers, publish the same device. The scheduler does not "
        "know that they are the same, so two pods can get it. Devices of two drivers are the same if they have the "
        "same PCI address or UUID.",
        "Remove one of the publishers from the nodes in the message; `rightslice doctor` says how. A class or selector "
        "that matches no device of these nodes avoids them.",
    ),
    "GPU-D113": _claim_code(
        "a container names a request that its claim lacks",
        "The API server accepts it, and all devices of the claim are allocated. The container gets none of them, "
        "because kubelet gives a container the devices of the request that it names.",
        "Write the name of a request of the claim, or remove it to get the devices of all requests.",
    ),
    "GPU-D114": _claim_code(
        "no container uses a claim for GPUs",
        "The scheduler allocates the devices of every claim in `spec.resourceClaims`, and quotas count them. Only "
        "containers that name the claim in `resources.claims` get them.",
        "Name the claim in `resources.claims` of the container that needs the GPUs, or remove the claim.",
    ),
    "GPU-T101": _topology_code(
        "several shares may be the same GPU",
        "With time-slicing, two shares may be on one GPU: they add neither memory nor speed.",
        "Request one share, or whole GPUs.",
    ),
    "GPU-T102": _topology_code(
        "nodes reject several MPS shares in one container",
        "The device plugin does not allocate them, so the kubelet rejects the pod with UnexpectedAdmissionError, and "
        "the scheduler does not retry.",
        "Request one share in a container, or a larger slice.",
    ),
    "GPU-T201": _unschedulable_code(
        "no node offers this resource",
        "The pod will stay Pending unless such a node joins.",
        "Request one of the resources in the message.",
    ),
    "GPU-T202": _unschedulable_code(
        "the pod requests more GPUs than any node has",
        "All GPUs of a pod come from one node: the pod will stay Pending.",
        "Request at most the number in the message, or split the work over several pods.",
    ),
    "GPU-T203": _unschedulable_code(
        "no node has this GPU product",
        "The pod will stay Pending unless such a node joins.",
        "Write one of the products in the message.",
    ),
    "GPU-T204": _unschedulable_code(
        "no node satisfies selector and affinity",
        "nodeSelector or affinity excludes every node that has the GPU: the pod will stay Pending.",
        "Relax the constraint in the message.",
    ),
    "GPU-T205": _unschedulable_code(
        "the taints of the GPU nodes are not tolerated",
        "Every node that has the GPU is tainted: the pod will stay Pending.",
        "Add the toleration in the message, or set injection.tolerations: auto.",
    ),
    "GPU-T206": _unschedulable_code(
        "the nodes cannot run all pods of the workload at once",
        "The nodes that these pods may use have too few GPUs for all of them, or the pods exclude each other. The "
        "others will stay Pending until some end. All GPUs of these nodes count, allocated or not, and those of nodes "
        "that an autoscaler may add; rightslice place counts free ones only.",
        "Run at most the number in the message at once.",
    ),
    "GPU-T301": _unschedulable_code(
        "no node connects this many GPUs by NVLink",
        "The policy requires NVLink between the GPUs of this pod.",
        "Request the number of GPUs in the message, or ask the admin for nvlink: preferred.",
    ),
    "GPU-T302": _topology_code(
        "the request may be satisfied by a partial GPU",
        "On some nodes of this cluster the same resource name stands for a MIG slice or a share. It is a warning for "
        "several GPUs, for a declared need that a part does not cover, and for frameworks that take the memory they "
        "see; otherwise a note.",
        f"Add a node affinity on nvidia.com/gpu.product, or declare {GPU_MEMORY_ANNOTATION}.",
    ),
    "GPU-C101": _cuda_code(
        "the driver is too old for this image",
        "The program would fail at its first CUDA call: the driver is below the minimum for the image's CUDA major "
        "version.",
        "Use an image with an older CUDA, or nodes with a newer driver.",
    ),
    "GPU-C102": _cuda_code(
        "the driver is older than the image's toolkit; minor-version compatibility applies",
        "Minor-version compatibility covers most programs: a program built with a toolkit runs on drivers of the "
        "same CUDA major version. Kernels compiled at run time (PTX) and newer calls fail.",
        "Nothing, unless the program compiles kernels at run time (PTX) or uses newer calls. Then use an image whose "
        "CUDA version the driver supports.",
    ),
    "GPU-C103": _cuda_code(
        "the image may have no kernels for this GPU",
        "GPUs of this architecture need a program built with a newer CUDA toolkit.",
        "Use an image built with the toolkit in the message.",
    ),
    "GPU-C104": _cuda_code(
        "a CUDA requirement cannot be read",
        "The requirement has the form of NVIDIA_REQUIRE_CUDA, for example cuda>=12.4.",
        "Correct the annotation or the variable.",
    ),
    "GPU-P101": _policy_file_code(
        "a file cannot be read as a policy",
        "The last valid policies stay in use.",
        "Correct the file at the position shown.",
    ),
    "GPU-P102": _policy_file_code(
        "a field is unknown",
        "A misspelled key would silently disable a rule, so it is an error.",
        "Write the field that the message suggests.",
    ),
    "GPU-P103": _policy_file_code(
        "a value is invalid",
        "The last valid policies stay in use.",
        "Write an allowed value.",
    ),
    "GPU-P104": _policy_file_code(
        "two policies conflict",
        "Both may apply to one pod, and they add different values to the same field.",
        "Make their matches disjoint, or the values equal.",
    ),
    "GPU-P105": _policy_file_code("two policies have the same name", "Policies are identified by name.", "Rename one."),
    "GPU-P106": _policy_file_code(
        "a match condition does not compile",
        "Match conditions are CEL over object, oldObject, request and namespaceObject, and return true or false.",
        "Correct the expression at the position shown.",
    ),
    "GPU-P201": FindingCode(
        "match",
        "a match condition failed on this object",
        "The expression read a field that the object does not have, or exceeded its budget of 10,000 loop iterations. "
        "Unless failurePolicy is Ignore, a policy then denies what it cannot evaluate.",
        "Use fewer list entries in the object (such as variables), or have the admin guard optional fields with has().",
    ),
}

MUTATION_CODES = frozenset(code for code, meaning in CODES.items() if meaning.from_mutation)
"""Findings of /mutate; /validate reports the rest."""

LIMIT_RANGE_CODES = frozenset({"GPU-L201", "GPU-L203"})
"""Findings about a pod that the API server rejects between /mutate and /validate: /mutate warns of them."""

RETRIED_CODES = frozenset({"GPU-L108", "GPU-Q304", "GPU-Q307"})
"""Temporary denials: a client that creates the pod again is admitted, or gets another reason."""
