"""The commented policy in audit mode that `rightslice policy new` prints."""

from __future__ import annotations

_STARTER_TEXT = """\
# A policy for pods that request GPUs. In audit mode nothing is rejected or changed:
# rightslice only records what it would do. Try it before a cluster loads it:
#
#   rightslice policy lint {name}.yaml
#   rightslice check --policies {name}.yaml --cluster demo my-pod.yaml
#
# Every section is optional, and may have its own mode.
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata:
  name: {name}
spec:
  description: The purpose of this policy, in one sentence.
  mode: audit                      # audit records, warn tells the user, enforce denies and changes pods
  failurePolicy: Ignore            # if a match condition fails at run time: Fail denies, Ignore warns at most

  # The pods that the policy applies to. All fields must match; * matches any text.
  match:
    resources: [nvidia.com/gpu, "nvidia.com/mig-*"]
    namespaces: ["*"]
    excludeNamespaces: [kube-system, gpu-operator, rightslice-system]

  # Replaces a whole GPU with a slice or a share if the pod needs less.
  rightSizing:
    isolation: hardware            # hardware: MIG only; memory: also MPS; none: also time slicing
    evidence: [declared, observed] # declared: the annotation rightslice.dev/gpu-memory
    marginPercent: 15              # added to observed compute, not to declared needs
    risk: "0.5%"                   # highest accepted hourly probability that a pod runs out of memory
    minSavingPercent: 20           # do not rewrite a pod to save less
    whenFull: keep                 # without a free slice: keep the request; wait: rewrite it anyway

  # Bounds what a pod may request. GPU counts that are powers of two leave no unusable GPUs on a node.
  limits:
    perPod:
      - resource: nvidia.com/gpu
        allowed: [1, 2, 4, 8]
    perGPU:                        # multiplied by the number of GPUs
      - resource: cpu
        max: "24"
      - resource: memory
        max: 240Gi
    limitRanges: evaluate          # report what the namespace's LimitRange will reject
    resourceQuotas: evaluate       # report what its ResourceQuota will reject

  # GPU quotas that namespaces share, in thousandths of a GPU; slices and shares count by their weight:
  # quotas:
  #   shared:
  #     - name: research
  #       gpuMilli: 64000
  #       namespaceSelector: {{matchLabels: {{department: research}}}}

  # Fields to add to the pod; what the user wrote is not changed.
  injection:
    tolerations: auto              # for the taints of the nodes that offer the GPUs, and no others
    spread: preferred              # GPU pods of one workload on different nodes

  # Prefers nodes that link the GPUs of one pod by NVLink.
  topology:
    nvlink: preferred
    whenGPUsAtLeast: 2

  # Compares the CUDA version of the image with the drivers of the nodes.
  cuda:
    driver: evaluate

  # Rejects pods that reach GPUs without requesting them.
  security:
    deny:
      - visibleDevicesEnv
      - cdiAnnotations
      - hostPathDevices
      - privileged
      - runtimeClass
      - nodeName
      - forgedAnnotations

  # Suppresses findings for some pods, with a reason and an expiration time:
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
