"""The node agent: NVML and the kubelet in, one GPUNode out."""
