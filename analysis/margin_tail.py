"""The lower tail of margins: how fast it falls, and how few samples the exponential moment rests on."""

import numpy as np
from numpy.typing import ArrayLike

from analysis.margins import log_exp_moment
from analysis.plugins import SettingError
from analysis.predictions import Floats, logsumexp, per_row


def moment_share(margin: ArrayLike, share: float) -> Floats:
    """The part of Q = mean exp(-m) that comes from the smallest margins.

    Args:
        margin: [..., n], in logits.
        share: of the samples, in (0, 1]; rounded up to whole samples.

    Returns:
        [...], from ``share`` (all margins equal) to 1.

    Raises:
        SettingError: a share outside (0, 1].
        InputError: NaN, infinite or empty margins.
    """
    lowest = _lowest(margin, share)
    n = np.shape(margin)[-1]
    part = logsumexp(-lowest) - np.log(n) - log_exp_moment(margin)
    return per_row(np.minimum(np.exp(part), 1.0), part.shape)


def tail_rate(margin: ArrayLike, share: float = 0.1) -> Floats:
    """The exponential rate of the lower tail: P(m <= t) falls as exp(rate t) below the tail's upper end.

    The maximum-likelihood rate of an exponential law, one over the mean distance of the tail's margins from its
    largest (Hill 1975, on exp(-m)). Q is carried by the tail, and unbounded in more samples, where the rate is
    below 1.

    Args:
        margin: [..., n], in logits.
        share: of the samples in the tail, in (0, 1]; at least two samples.

    Returns:
        [...], per logit, > 0; inf where the tail's margins are equal.

    Raises:
        SettingError: a share outside (0, 1], or a tail of fewer than two samples.
        InputError: NaN, infinite or empty margins.
    """
    lowest = _lowest(margin, share)
    count = lowest.shape[-1]
    if count < 2:
        raise SettingError(f"share = {share}: the tail has {count} sample; expected two or more")
    total = (lowest.max(axis=-1, keepdims=True) - lowest).sum(axis=-1)
    with np.errstate(divide="ignore"):
        return per_row((count - 1) / total, total.shape)


def _lowest(margin: ArrayLike, share: float) -> Floats:
    if not 0 < share <= 1:
        raise SettingError(f"share = {share}: expected a number in (0, 1]")
    m = np.asarray(margin, np.float64)
    count = int(np.ceil(share * m.shape[-1] - 1e-9))
    return np.asarray(np.partition(m, count - 1, axis=-1)[..., :count])
