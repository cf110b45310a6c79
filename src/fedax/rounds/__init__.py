"""Cohorts, single rounds, whole simulations, evaluation and reports.

Works for any `fedax.algorithm.FederatedAlgorithm`; no method is named here. Only client states that
do not fit into memory are written to disk.
"""
