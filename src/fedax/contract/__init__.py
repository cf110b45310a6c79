"""The contract that every method keeps, as checks for any factory.

Each clause is checked on small quadratics in a few compiled rounds. Training does not use it.
"""

from fedax.contract.check import Check, Checks, check_algorithm
from fedax.contract.privacy_audit import PrivacyAudit, audit_privacy

__all__ = ["Check", "Checks", "PrivacyAudit", "audit_privacy", "check_algorithm"]
