"""Temperature scaling."""

from typing import ClassVar

import numpy as np

from analysis.predictions import Array, Floats, softmax
from analysis.recalibration import Parameters, Recalibration
from analysis.temperature import fit_temperature


class Temperature(Recalibration):
    """softmax(z / T) with the T > 0 of least NLL (Guo et al. 2017); see `analysis.temperature`.

    Preserves the argmax.
    """

    preserves_argmax: ClassVar[bool] = True

    def _fit(self, logits: Floats, labels: Array) -> Parameters:
        return {"temperature": np.asarray(fit_temperature(logits, labels))}

    def _apply(self, parameters: Parameters, logits: Floats) -> Floats:
        # Differences first: an infinite quotient of a large logit by a small T must not meet another.
        below_top = logits - logits.max(axis=-1, keepdims=True)
        return softmax(np.maximum(below_top / parameters["temperature"], -1e300))
