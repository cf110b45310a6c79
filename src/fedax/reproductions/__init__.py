"""Published tables and figures, computed anew, one file a paper: what `fedax reproduce` runs.

Settings, sources and deviations; the methods and the rounds are those that users run.
"""

from fedax.reproductions import (
    adaptive,
    adaptive_curves,
    adaptive_tuning,
    decaying_steps,
    decaying_training,
    elastic_training,
    mime_quadratics,
    mime_training,
    outsized_rates,
    outsized_training,
)
from fedax.reproductions.common import Reproduction
from fedax.reproductions.experiment import Experiment

REPRODUCTIONS: dict[str, Reproduction] = {
    "decaying-steps-figure-1": decaying_steps.figure_1,
    "mime-figure-2": mime_quadratics.figure_2,
    "outsized-rates-figure-1": outsized_rates.figure_1,
    "outsized-rates-section-4": outsized_rates.section_4,
}

# What is trained; what is computed stands above.
EXPERIMENTS: dict[str, Experiment] = {
    **adaptive.EXPERIMENTS,
    **adaptive_curves.EXPERIMENTS,
    **adaptive_tuning.EXPERIMENTS,
    **outsized_training.EXPERIMENTS,
    **decaying_training.EXPERIMENTS,
    **elastic_training.EXPERIMENTS,
    **mime_training.EXPERIMENTS,
}
