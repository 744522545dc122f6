"""LimitRanges: predict their rejections, and handle the GPUs that they inject.

`validation` predicts the API server's answer exactly, `fast_path` recognizes most accepted pods without it,
`findings` words the rejections, and `injected_gpus` finds and removes GPUs that the pod did not request.
Defaulting itself is `webhook.model.defaulting`.
"""
