"""From a cohort to a simulation: who takes part, one round, many rounds, what they report.

Works for any `fedax.algorithm.FederatedAlgorithm`; no method is named here, and nothing is written
to disk but client states that do not fit into memory.
"""
