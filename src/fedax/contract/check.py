"""Checks of the contract for your own method."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedax.algorithm import FederatedAlgorithm
from fedax.contract import behaviour, structure
from fedax.contract.bench import Bench, Broken, NotApplicable

WIDTH = 100

# Name -> the check, in the order in which they run. What comes after the first three needs them.
CHECKS: dict[str, Callable[[Bench], str]] = {
    "factory": structure.is_made,
    "types": structure.keeps_types,
    "finite": behaviour.gives_numbers,
    "precision": structure.keeps_low_precision,
    "program": structure.is_one_program,
    "compiles once": behaviour.compiles_once,
    "pure": structure.is_pure,
    "traced": structure.can_be_traced,
    "loop": structure.is_noted,
    "vmap": behaviour.maps_over_settings,
    "chunks": behaviour.keeps_to_chunks,
    "cohort order": behaviour.keeps_to_cohorts,
    "own examples": behaviour.keeps_to_its_examples,
    "empty clients": behaviour.leaves_out_the_empty,
    "non-finite": behaviour.rejects_the_infinite,
    "resume": behaviour.resumes,
    "learns": behaviour.learns,
    "elastic": behaviour.works_inside_elastic,
    "decay": behaviour.works_inside_decay,
}
NEEDED = {"factory": list(CHECKS), "types": list(CHECKS), "finite": list(CHECKS),
          "traced": ["vmap", "decay"]}


class Check(NamedTuple):
    """One clause of the contract.

    Attributes:
      name: short name, see the guide `contract.md`.
      passed: True or False; None if it was not run, because it does not apply to this method or
        depends on a check that failed.
      sentence: the result in words; if it failed, what to do.
    """

    name: str
    passed: bool | None
    sentence: str


class Checks(tuple[Check, ...]):
    """Result of `check_algorithm`; prints as a table."""

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self if check.passed is False]

    def raise_if_failed(self) -> None:
        """Raises an error if any check failed.

        Raises:
          AssertionError: if any check failed; the message describes each failure.
        """
        if self.failed:
            raise AssertionError(
                "The contract does not hold. "
                + " ".join(f"{check.name}: {check.sentence}" for check in self.failed)
            )

    def __repr__(self) -> str:
        words = {True: "passed", False: "FAILED", None: "not run"}
        width = max((len(check.name) for check in self), default=0)
        lines = []
        for check in self:
            lead = f"{words[check.passed]:7}  {check.name:{width}}  "
            lines += textwrap.wrap(
                check.sentence, WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead)
            )
        return "\n".join(lines)


def check_algorithm(
    factory: Callable[..., FederatedAlgorithm], /, **settings: Any
) -> Checks:
    """Checks your own factory against the contract that every method of fedax keeps.

    It runs on small quadratics and takes well under half a minute. docs/guides/contract.md
    describes each check and its reason. No error is raised; a failed check says what was wrong and
    what to do.

    Args:
      factory: (model, **settings) -> algorithm, as for `fedax run`.
      **settings: settings to use instead of the factory's defaults. The quadratics have curvatures
        from 0.3 to 2, and clients have 1 to 40 examples.

    Returns:
      A `Check` (name, passed, sentence) for each clause; prints as a table. In a test:
      `fedax.check_algorithm(factory).raise_if_failed()`.

    Example:
      >>> import fedax
      >>> checks = fedax.check_algorithm(lambda model: fedax.fedavg)
      >>> checks[0].sentence.split("; ")[0], len(checks.failed)
      ('The factory returned the function fedavg', 1)
      >>> checks[1]
      Check(name='types', passed=None, sentence="Not run, as 'factory' failed.")
    """
    return run_checks(factory, settings, list(CHECKS))


def run_checks(
    factory: Callable[..., FederatedAlgorithm], settings: dict[str, Any], names: Sequence[str]
) -> Checks:
    """Some of the checks, in their order.

    Args:
      factory, settings: as for `check_algorithm`.
      names: names from `CHECKS`.
    """
    bench = Bench(factory, settings)
    found: list[Check] = []
    blocked: dict[str, str] = {}
    for name in CHECKS:
        if name not in names:
            continue
        if name in blocked:
            sentence = f"Not run, as {blocked[name]!r} failed."
            found.append(Check(name, None, sentence))
            continue
        check = _run(name, bench)
        if check.passed is False:
            for later in NEEDED.get(name, []):
                blocked.setdefault(later, name)
        found.append(check)
    return Checks(found)


def _run(name: str, bench: Bench) -> Check:
    try:
        return Check(name, True, CHECKS[name](bench))
    except NotApplicable as reason:
        return Check(name, None, str(reason))
    except Broken as broken:
        return Check(name, False, str(broken))
    except Exception as error:
        return Check(name, False, structure.sentence(error))
