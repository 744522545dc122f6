"""ResourceQuotas and shared quotas: predict rejections, and keep a smaller GPU from escaping a quota.

ResourceQuotas are enforced by the API server: `admission` predicts its answer, `findings` words it, `charges` computes
usage, `coverage` guards rewrites. `shared_quotas` is enforced here.
"""
