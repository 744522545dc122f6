"""The commented policy in audit mode that `rightslice policy new` prints."""

from __future__ import annotations

_STARTER_TEXT = """\
# A policy for pods that ask for GPUs. Nothing is refused or changed while mode is audit:
# rightslice only notes what it would do. Try it on files before it meets a cluster:
#
#   rightslice policy lint {name}.yaml
#   rightslice check --policies {name}.yaml --cluster demo my-pod.yaml
#
# Every section may be left out, and may set its own mode.
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata:
  name: {name}
spec:
  description: What this policy is for, in one sentence.
  mode: audit                      # audit notes, warn tells the user, enforce denies and patches
  failurePolicy: Ignore            # a match condition that fails at run time: Fail is a fault, Ignore a warning at most

  # Which pods it is about. Everything given must hold; * stands for any text.
  match:
    resources: [nvidia.com/gpu, "nvidia.com/mig-*"]
    namespaces: ["*"]
    excludeNamespaces: [kube-system, gpu-operator, rightslice-system]

  # Gives a slice or a share instead of a whole GPU where the pod says (or was seen) to need less.
  rightSizing:
    isolation: hardware            # hardware: MIG only; memory: MPS too; none: time slicing too
    evidence: [declared, observed] # declared: the annotation rightslice.dev/gpu-memory
    marginPercent: 15              # added to observed compute, never to what is declared
    risk: "0.5%"                   # an hour, that a pod comes to need more memory than what was seen lets it be given
    minSavingPercent: 20           # do not touch a pod to save less than this
    whenFull: keep                 # no slice free now: keep the request; wait: shrink it all the same

  # What a pod may ask for. GPUs in powers of two leave no odd ones stranded on a node.
  limits:
    perPod:
      - resource: nvidia.com/gpu
        allowed: [1, 2, 4, 8]
    perGPU:                        # grows with the GPUs asked for
      - resource: cpu
        max: "24"
      - resource: memory
        max: 240Gi
    limitRanges: evaluate          # say now what the namespace's LimitRange would say
    resourceQuotas: evaluate       # say now what its ResourceQuota would say

  # What namespaces may hold together, in thousandths of a GPU, slices and shares counted by their part:
  # quotas:
  #   shared:
  #     - name: research
  #       gpuMilli: 64000
  #       namespaceSelector: {{matchLabels: {{department: research}}}}

  # What is added to the pod; what the user wrote stays.
  injection:
    tolerations: auto              # exactly those that the taints of the chosen nodes need
    spread: preferred              # several GPU pods of one workload on different nodes

  # Several GPUs in one pod talk faster over NVLink.
  topology:
    nvlink: preferred
    whenGPUsAtLeast: 2

  # The CUDA version of the image against the driver of the nodes.
  cuda:
    driver: evaluate

  # Ways to a GPU that no scheduler and no quota sees.
  security:
    deny:
      - visibleDevicesEnv
      - cdiAnnotations
      - hostPathDevices
      - privileged
      - runtimeClass
      - nodeName
      - forgedAnnotations

  # Take a finding back for somebody, for a reason, until a day:
  # exemptions:
  #   - name: driver-debugging
  #     codes: [GPU-S201]
  #     match: {{namespaces: [ml-infra], serviceAccounts: [debugger]}}
  #     reason: "INC-4711: needs ptrace"
  #     expirationTime: "2027-01-01T00:00:00Z"
"""


def render_starter_policy(name: str) -> str:
    """Return a commented GPUPolicy in audit mode.

    Args:
        name: The policy's name: lower-case letters, digits, "-" and ".".
    """
    return _STARTER_TEXT.format(name=name)
