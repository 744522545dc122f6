"""Use of GPUs, read from a real Prometheus and from files."""
