"""Which node a pod should go to."""
