"""Dynamic resource allocation: devices that drivers publish, and how the scheduler selects and allocates them.

Source: `k8s.io/api/resource/v1` and `k8s.io/dynamic-resource-allocation` of Kubernetes 1.36.3.
"""
