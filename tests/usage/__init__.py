"""GPU usage, read from a real Prometheus and from files."""
