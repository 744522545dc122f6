"""The extender: scores a stock kube-scheduler's nodes over HTTP for pods that request GPUs."""
