"""A number with its confidence interval."""

import math
from dataclasses import dataclass

from mupscale.analysis.slopes import t_quantile


@dataclass(frozen=True)
class Estimate:
    """A value with its confidence interval; an end is infinite if the data set no bound."""

    value: float
    low: float
    high: float
    degrees_of_freedom: float = math.inf

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    def excludes(self, value: float) -> bool:
        """Whether a value lies outside the interval.

        >>> Estimate(0.2, 0.1, 0.3).excludes(0), Estimate(0.2, -0.1, 0.5).excludes(0)
        (True, False)
        """
        return value < self.low or value > self.high

    @staticmethod
    def student(
        value: float, standard_error: float, degrees_of_freedom: float, confidence: float = 0.95
    ) -> "Estimate":
        """Student's interval; unbounded without degrees of freedom.

        >>> Estimate.student(0.5, 0.1, 4)
        Estimate(value=0.5, low=0.22235..., high=0.77764..., degrees_of_freedom=4)
        """
        if degrees_of_freedom <= 0 or not math.isfinite(standard_error):
            return Estimate(value, -math.inf, math.inf, 0)
        half = t_quantile(degrees_of_freedom, confidence, 1) * standard_error
        return Estimate(value, value - half, value + half, degrees_of_freedom)
