"""Where a pod goes: links between GPUs, MIG layouts, what free room is still worth, and the order of nodes."""
