"""Strict, frozen pydantic models of what admins write: GPUPolicy, GPUPolicyException, GPUPolicyTest, GPUPriceList.

They are not used at admission: `policy.compiler` converts them once, when they are loaded.
"""
