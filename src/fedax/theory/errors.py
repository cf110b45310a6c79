"""Errors of the theory toolkit."""

from __future__ import annotations

from fedax.outside.text import Told


class TheoryError(Told, ValueError):
    """The question has no answer; the message says why."""


class SingularError(TheoryError):
    """A matrix that must be inverted, or be positive definite, is not."""


class ConditionError(TheoryError):
    """A statement was asked about what it does not cover; the message names its condition."""
