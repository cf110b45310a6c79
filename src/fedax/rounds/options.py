"""Options of a simulation: how rounds are run."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypedDict

import numpy as np
from jax.sharding import Mesh

from fedax.devices.mesh import check_mesh
from fedax.rounds.checks import require_training_state
from fedax.rounds.sampling import Available, Sampling
from fedax.rounds.state import TrainingState
from fedax.signatures import has_defaults
from fedax.validate import check_count, check_number, check_seed, plain_options

# What is measured in evaluation rounds besides the usual is no part of the training, either.
MEASURES = ("evaluation_redraw", "evaluate_training")
# What clients fine-tune for in evaluation rounds is no part of the training.
PERSONALIZE = ("personalize_steps", "personalize_epochs", "personalize_learning_rate",
               "personalize_clients")


class SimulateOptions(TypedDict, total=False):
    """How `simulate` runs, besides the number of rounds.

    cohort_size: number of clients per round, default 10, or all clients if there are fewer.
    seed: >= 0, default 0; determines the initial parameters, the cohorts and all local randomness.
    evaluate_every: number of rounds between evaluations on `task.test`; the last round is always
      evaluated. None, the default: the last round only. 0: never.
    evaluation_sample: None, the default: every evaluation uses all test examples, and the rounds
      wait for it. A number: this many examples, drawn once by the seed, are evaluated while
      training continues (see `rounds.meanwhile`); the last round uses all. A report then comes some
      rounds later, when its evaluation is complete, with the same numbers in the same order.
      `evaluated_examples` of `evaluated_of` gives the sample behind a round's `test_*`.
    evaluation_redraw: default False. True: the sample is drawn again for each evaluation, by the
      seed and the round, as Reddi et al. 2021 do on Stack Overflow; points of a curve then vary by
      the draw, too.
    evaluate_training: default False. True: evaluation rounds also measure the loss on the training
      examples of all clients, in evaluation mode: `all_clients_loss`, f(x) = (1/N) sum_i f_i(x) as
      in Charles and Konečný 2020 (Figures 2, 5 and 8), in which every client counts alike, and
      `all_examples_loss`, in which every example does. Training waits for it.
    clients_per_chunk: number of clients that train as one batch. None, the default: 1 on a CPU,
      where batching gains nothing (docs/notebook/log.md), elsewhere as many as fit into memory.
    state: state to continue from; it is not changed (client states are copied). None, the default:
      start from the beginning.
    sampling, available, dropout: which clients are sampled, which are available, and the dropout
      probability, see `fedax.sampler`. By default cohorts are uniform without replacement, all
      clients are available, and none drops out.
    state_every: number of rounds between reports that have a state, default 1; the last round's
      always has one. Short rounds in between may be sent to the device together, up to 64 and for
      about 0.05 s, which saves dispatch time and leaves the results bit-identical; only the last of
      them has a state. Algorithms with client states run round by round, as do data sets that are
      too large to stay on the device.
    donate: default False. True: a report's state is invalid once the next report comes, so that
      only one server state is in memory.
    mesh: devices over which cohorts are spread, see `fedax.client_mesh`; None: one device.
    diagnostics: default False. True: every round also reports `client_drift`, `update_cosine`,
      `pseudo_gradient_norm` and `effective_server_step` (see `measures.diagnostics`), `bytes_down`
      and `bytes_up` of all clients together (see `fedax.communication`), and evaluation rounds
      `gradient_dissimilarity` and `hessian_dissimilarity`, estimated on 5 of the clients that
      finished the round and 32 examples of each (see `fedax.dissimilarity`).
    personalize_steps, personalize_epochs: default None. If one is given, clients also fine-tune the
      model in evaluation rounds, for this many steps or epochs on their own training examples, and
      test it on their own test examples (see `fedax.evaluate_personalized`), with the method's
      batch size or 20. This adds `test_personal_*`, and `test_personal_before_*` for the same
      clients without fine-tuning.
    personalize_learning_rate: learning rate for fine-tuning. None, the default: the method's
      `client_learning_rate` of that round; a method without one needs a number.
    personalize_clients: number of clients that fine-tune at most, drawn once by the seed, default
      100. None: all, which takes about as long as num_clients / cohort_size rounds.
    """

    cohort_size: int
    seed: int
    evaluate_every: int | None
    evaluation_sample: int | None
    evaluation_redraw: bool
    evaluate_training: bool
    clients_per_chunk: int | None
    state: TrainingState | None
    sampling: Sampling | Callable[[int, int], np.ndarray]
    available: Available | None
    dropout: float
    state_every: int
    donate: bool
    mesh: Mesh | None
    diagnostics: bool
    personalize_steps: int | None
    personalize_epochs: int | None
    personalize_learning_rate: float | None
    personalize_clients: int | None


class Settings(NamedTuple):
    """`SimulateOptions` with their defaults."""

    cohort_size: int = 10
    seed: int = 0
    evaluate_every: int | None = None
    evaluation_sample: int | None = None
    evaluation_redraw: bool = False
    evaluate_training: bool = False
    clients_per_chunk: int | None = None
    state: TrainingState | None = None
    sampling: Sampling | Callable[[int, int], np.ndarray] = "uniform"
    available: Available | None = None
    dropout: float = 0.0
    state_every: int = 1
    donate: bool = False
    mesh: Mesh | None = None
    diagnostics: bool = False
    personalize_steps: int | None = None
    personalize_epochs: int | None = None
    personalize_learning_rate: float | None = None
    personalize_clients: int | None = 100

    @property
    def personalizes(self) -> bool:
        """Whether clients fine-tune in evaluation rounds."""
        return self.personalize_steps is not None or self.personalize_epochs is not None

    @classmethod
    def checked(
        cls, num_rounds: int, options: SimulateOptions, num_clients: int | None = None
    ) -> Settings:
        """The options with their defaults; raises a clear error if one is out of range.

        Args:
          num_rounds: T.
          options: those that were given.
          num_clients: of the population, for the default of cohort_size; None: it is given.
        """
        settings = cls(**plain_options(dict(options)))
        drawn_once = settings.sampling in ("uniform", "cyclic")
        if num_clients is not None and "cohort_size" not in options and drawn_once:
            settings = settings._replace(cohort_size=min(settings.cohort_size, num_clients))
        check_count("num_rounds", num_rounds, at_least=0)
        check_count("cohort_size", settings.cohort_size)
        check_seed(settings.seed)
        check_count("state_every", settings.state_every)
        if settings.evaluate_every is not None:
            check_count("evaluate_every", settings.evaluate_every, at_least=0)
        if settings.evaluation_sample is not None:
            check_count("evaluation_sample", settings.evaluation_sample)
        if settings.clients_per_chunk is not None:
            check_count("clients_per_chunk", settings.clients_per_chunk)
        settings.check_personalization()
        if settings.state is not None:
            require_training_state(settings.state)
        check_mesh(settings.mesh)
        return settings

    def check_personalization(self) -> None:
        """Raises a clear error if an option of fine-tuning is out of range."""
        for name in ("personalize_steps", "personalize_epochs"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), at_least=0)
        if self.personalize_clients is not None:
            check_count("personalize_clients", self.personalize_clients)
        if self.personalize_learning_rate is not None:
            check_number("personalize_learning_rate", self.personalize_learning_rate, at_least=0)
            if not self.personalizes:
                raise ValueError(
                    "personalize_learning_rate is given without a number of steps; also give "
                    "personalize_steps or personalize_epochs."
                )


has_defaults(SimulateOptions, Settings._field_defaults)
