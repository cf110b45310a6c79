"""Cohorts, single rounds, whole simulations, evaluation and reports.

Works for any `fedax.algorithm.FederatedAlgorithm`; it depends on no particular method. Only client
states that do not fit into memory are written to disk.
"""
