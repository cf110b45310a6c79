"""Published tables and figures, computed again, by the papers' keys: what `fedax reproduce` runs.

Settings, sources and deviations; the methods and the rounds are those that users run.
"""

from fedax.reproductions import (
    charles2020,
    charles2020_training,
    decay2021,
    decay2021_training,
    elastic2023,
    mime2020,
    mime2020_quadratics,
    reddi2021,
    reddi2021_curves,
    reddi2021_heat_maps,
    reddi2021_tuning,
)
from fedax.reproductions.common import Reproduction
from fedax.reproductions.experiment import Experiment

REPRODUCTIONS: dict[str, Reproduction] = {
    "decay2021-figure-1": decay2021.figure_1,
    "mime2020-figure-2": mime2020_quadratics.figure_2,
    "charles2020-figure-1": charles2020.figure_1,
    "charles2020-section-4": charles2020.section_4,
}

# What is trained; what is computed stands above.
EXPERIMENTS: dict[str, Experiment] = {
    **reddi2021.EXPERIMENTS,
    **reddi2021_curves.EXPERIMENTS,
    **reddi2021_tuning.EXPERIMENTS,
    **reddi2021_heat_maps.EXPERIMENTS,
    **charles2020_training.EXPERIMENTS,
    **decay2021_training.EXPERIMENTS,
    **elastic2023.EXPERIMENTS,
    **mime2020.EXPERIMENTS,
}
