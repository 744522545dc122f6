"""From what GPUs were measured to do to what workloads need: recorded use in, a `UsageView` out."""
