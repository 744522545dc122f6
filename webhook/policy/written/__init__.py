"""What admins write, as strict frozen models: GPUPolicy, GPUPolicyException, GPUPolicyTest.

Nothing of this room is on the admission path: `compiling` turns it into plain values once, at load.
"""
