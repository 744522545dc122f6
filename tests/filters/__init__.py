"""The filters of kube-scheduler, and ours: random clusters, and the nodes that both allow for each pod."""
