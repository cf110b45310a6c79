"""Where a computation runs: the mesh of devices and several processes.

Knows arrays and devices only, nothing of federated learning.
"""
