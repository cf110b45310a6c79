"""The contract that every method keeps, as checks that run on any factory.

Small quadratics, a few compiled rounds, a sentence for each clause. Nothing trains with it.
"""

from fedax.contract.check import Check, Checks, check_algorithm

__all__ = ["Check", "Checks", "check_algorithm"]
