"""Rightslice: the admission layer for GPU pods in Kubernetes."""

__version__ = "0.1.0"
