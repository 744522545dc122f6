"""What a node's free GPUs are still worth to the pods to come, by several rules."""
