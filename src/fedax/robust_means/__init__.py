"""Robust means: what a server takes in place of the mean when some clients may lie.

Each works on the uploads as rows of a matrix; `fedax.robust` puts one into the server of a method.
"""

from fedax.robust_means.clipping import centred_clipping, norm_bound
from fedax.robust_means.coordinates import coordinate_median, trimmed_mean
from fedax.robust_means.geometric import geometric_median
from fedax.robust_means.krum import krum, multi_krum
from fedax.robust_means.robust_mean import RobustMean

# The robust means by name.
ROBUST_MEANS = {
    "trimmed_mean": trimmed_mean,
    "coordinate_median": coordinate_median,
    "geometric_median": geometric_median,
    "krum": krum,
    "multi_krum": multi_krum,
    "centred_clipping": centred_clipping,
    "norm_bound": norm_bound,
}

__all__ = [
    "ROBUST_MEANS",
    "RobustMean",
    "centred_clipping",
    "coordinate_median",
    "geometric_median",
    "krum",
    "multi_krum",
    "norm_bound",
    "trimmed_mean",
]
