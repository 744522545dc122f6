"""The filters of kube-scheduler, one module for each of its plugins: on which nodes a pod fits, and why not on others.

Right-sizing, `place`, `explain`, `simulate` and the extender use them alike. Source: `pkg/scheduler/framework/plugins`.
"""
