"""The extender: a stock kube-scheduler asks over HTTP which of its nodes suit a pod that wants GPUs, and how well."""
