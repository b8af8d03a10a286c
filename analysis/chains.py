"""The paper's inequalities between per-sample quantities as chains of numbers, on arrays.

Two chains, each term at most the next (arXiv 2604.20614, section 4; the terms marked * are sharper than the paper's):

    confidence_gap* <= ece <= mean_absolute_gap <= mean_one_minus_p_true <= sigmoid_moment* <= bound_ece
    lambda_output_bias*, lambda_last_layer* <= lambda_max <= jacobian_hessian* <= norm_hessian
        <= norm_gini* <= norm_one_minus_confidence <= norm_one_minus_p_true <= norm_sigmoid* <= bound_lambda

and one-sided statements beside them, all in float64.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from analysis import margins
from analysis.calibration import confidence_gap, ece, mean_absolute_gap
from analysis.output_hessian import mean_output_hessian, top_eigenvalue
from analysis.predictions import Floats

RELATIVE = 1e-9
"""A link lower <= upper is violated where lower exceeds upper by more than this share of upper."""
CONFIDENCE = 2.0**-52
"""What a term made from confidences may be off by, absolutely: 1 - phat is lost in a float64 phat below 1.1e-16."""
CONFIDENCE_TERMS = ("confidence_gap", "ece", "mean_absolute_gap", "ece_when_correct")
UNDERFLOW = 1e-300
"""Below this numbers lose digits, so nothing is compared with them."""

ECE_CHAIN = (
    "confidence_gap",
    "ece",
    "mean_absolute_gap",
    "mean_one_minus_p_true",
    "sigmoid_moment",
    "bound_ece",
)
LAMBDA_CHAIN = (
    "lambda_max",
    "jacobian_hessian",
    "norm_hessian",
    "norm_gini",
    "norm_one_minus_confidence",
    "norm_one_minus_p_true",
    "norm_sigmoid",
    "bound_lambda",
)
_PAIRS = (
    *pairwise(ECE_CHAIN),
    *pairwise(LAMBDA_CHAIN),
    ("norm_one_minus_confidence", "bound_lambda_label_free"),
    ("bound_lambda_label_free", "bound_lambda"),
    ("mean_inverse_sigmoid", "mean_one_minus_p_true"),
    ("half_moment", "ece"),
    ("paper_lower", "ece"),
    ("mean_one_minus_p_true", "ece_when_correct"),
    ("bound_ece", "bound_gamma"),
    ("lambda_output_trace", "lambda_output_bias"),
    ("lambda_output_bias", "lambda_max"),
    ("lambda_last_layer", "lambda_max"),
)
ROBUST = "bound_ece_"
"""Before the name of a radius: (K-1) times the moment of PGD margins, a lower estimate of (K-1) Q_eps."""


@dataclass(frozen=True)
class Samples:
    """What the chains are computed from, one row per step.

    Attributes:
        margin: true margins m, [..., n], logits.
        predicted_margin: mhat, [..., n], logits, at least 0.
        correct: argmax is the label, bool [..., n].
        log_one_minus_confidence: log(1 - phat), [..., n].
        log_one_minus_p_true: log(1 - p_y), [..., n].
        classes: K.
        rounding: relative error of each entry; 0 for samples computed here from logits.
    """

    margin: Floats
    predicted_margin: Floats
    correct: NDArray[np.bool_]
    log_one_minus_confidence: Floats
    log_one_minus_p_true: Floats
    classes: int
    rounding: float = 0.0

    @classmethod
    def of_logits(cls, logits: ArrayLike, labels: ArrayLike) -> "Samples":
        """From logits [..., n, K] and labels [..., n] or [n].

        Raises:
            InputError: NaN, infinite or empty logits, mismatched lengths, a label out of range.
        """
        z = np.asarray(logits, np.float64)
        return cls(
            margins.true_margin(z, labels),
            margins.predicted_margin(z),
            z.argmax(axis=-1) == np.asarray(labels),
            margins.log_one_minus_confidence(z),
            margins.log_one_minus_p_true(z, labels),
            z.shape[-1],
        )


def ece_chain(samples: Samples, bins: int = 15) -> dict[str, Floats]:
    """The terms of the calibration chain, each [...], and the one-sided statements beside it.

    Terms: ``confidence_gap`` |accuracy - mean confidence|, ``ece``, ``mean_absolute_gap`` mean|c - phat|,
    ``mean_one_minus_p_true``, ``sigmoid_moment`` mean sigmoid(log(K-1) - m), ``bound_ece`` (K-1) Q.
    ``mean_inverse_sigmoid``, mean sigmoid(-m), is at most mean(1 - p_y). NaN unless they apply: with every sample
    strictly correct (gamma > 0) ``half_moment`` Q/2 and ``paper_lower`` Q/K are at most the ECE, ``ece_when_correct``
    is mean(1 - p_y) <= ECE from the other side (equality), and ``bound_gamma`` (K-1) exp(-gamma) is above (K-1) Q.

    Args:
        samples: [..., n].
        bins: equal-width bins of the ECE.
    """
    confidence = -np.expm1(samples.log_one_minus_confidence)
    q = margins.exp_moment(samples.margin)
    gamma = samples.margin.min(axis=-1)
    calibration = ece(confidence, samples.correct, bins=bins)
    one_minus_p_true = np.exp(samples.log_one_minus_p_true).mean(axis=-1)
    with np.errstate(over="ignore"):
        terms = {
            "confidence_gap": np.abs(confidence_gap(confidence, samples.correct)),
            "ece": calibration,
            "mean_absolute_gap": mean_absolute_gap(confidence, samples.correct),
            "mean_one_minus_p_true": one_minus_p_true,
            "sigmoid_moment": margins.sigmoid_moment(samples.margin, samples.classes),
            "bound_ece": (samples.classes - 1) * q,
            "exp_moment": q,
            "gamma": gamma,
            "mean_inverse_sigmoid": np.exp(-np.logaddexp(0.0, samples.margin)).mean(axis=-1),
        }
        only = {
            "half_moment": q / 2,
            "paper_lower": q / samples.classes,
            "ece_when_correct": calibration,
            "bound_gamma": (samples.classes - 1) * np.exp(-gamma),
        }
    return terms | {name: np.where(gamma > 0, value, np.nan) for name, value in only.items()}


def lambda_chain(
    samples: Samples, lambda_max: ArrayLike, norms: ArrayLike, output_hessian: ArrayLike
) -> dict[str, Floats]:
    """The terms of the sharpness chain for cross-entropy, each [...].

    With C_J = max_i |J_i|: ``lambda_max``; ``jacobian_hessian`` mean |J_i|^2 lambda_max(H_z,i); ``norm_hessian``
    C_J^2 mean lambda_max(H_z,i); ``norm_gini`` 2 C_J^2 mean phat(1-phat); ``norm_one_minus_confidence``
    2 C_J^2 mean(1-phat); ``norm_one_minus_p_true`` 2 C_J^2 mean(1-p_y); ``norm_sigmoid`` 2 C_J^2 times the sigmoid
    moment; ``bound_lambda`` 2 C_J^2 (K-1) Q; label-free, ``bound_lambda_label_free`` 2 C_J^2 (K-1) Q^ (R6). Also
    ``trivial_lambda`` C_J^2 / 2, which holds for any prediction.

    Args:
        samples: [..., n].
        lambda_max: of the Gauss-Newton matrix on these samples, [...].
        norms: |J_i|, [..., n].
        output_hessian: lambda_max(H_z,i), [..., n].
    """
    norm, hessian = np.asarray(norms, np.float64), np.asarray(output_hessian, np.float64)
    square = norm.max(axis=-1) ** 2
    others = samples.classes - 1
    uncertainty = np.exp(samples.log_one_minus_confidence)
    with np.errstate(over="ignore"):
        return {
            "lambda_max": np.asarray(lambda_max, np.float64),
            "jacobian_hessian": (norm**2 * hessian).mean(axis=-1),
            "norm_hessian": square * hessian.mean(axis=-1),
            "norm_gini": 2 * square * (uncertainty * (1 - uncertainty)).mean(axis=-1),
            "norm_one_minus_confidence": 2 * square * uncertainty.mean(axis=-1),
            "norm_one_minus_p_true": 2 * square * np.exp(samples.log_one_minus_p_true).mean(axis=-1),
            "norm_sigmoid": 2 * square * margins.sigmoid_moment(samples.margin, samples.classes),
            "bound_lambda": 2 * square * others * margins.exp_moment(samples.margin),
            "bound_lambda_label_free": 2 * square * others * margins.exp_moment(samples.predicted_margin),
            "trivial_lambda": square / 2,
        }


def output_bias_bounds(logits: ArrayLike) -> dict[str, Floats]:
    """Lower bounds on lambda_max of a network with a trained output bias, from logits [..., n, K], each [...].

    ``lambda_output_trace`` mean(1 - |p|^2)/(K-1) <= ``lambda_output_bias`` lambda_max(mean_i H_z,i) <= lambda_max.
    """
    hessian = mean_output_hessian(logits)
    trace = np.trace(hessian, axis1=-2, axis2=-1) / (hessian.shape[-1] - 1)
    return {"lambda_output_trace": np.asarray(trace), "lambda_output_bias": top_eigenvalue(hessian)}


def storage_error(samples: Samples, norms: ArrayLike | None = None) -> dict[str, Floats]:
    """How far rounding can move each term of the chains, absolutely, each [...]; first order.

    A stored x is off by at most u |x|, u = ``samples.rounding``, so exp(x) by u |x| exp(x). Terms that
    `analysis.calibration` makes from confidences are off by `CONFIDENCE` besides, from logits too.
    """
    u = samples.rounding
    confidence, p_true = samples.log_one_minus_confidence, samples.log_one_minus_p_true
    log_odds = samples.margin - np.log(max(samples.classes - 1, 1))
    weight = np.exp(-np.logaddexp(0.0, log_odds))
    others = samples.classes - 1
    with np.errstate(over="ignore", invalid="ignore"):
        moment = u * others * (np.abs(samples.margin) * np.exp(-samples.margin)).mean(axis=-1)
        label_free = u * others * (samples.predicted_margin * np.exp(-samples.predicted_margin)).mean(axis=-1)
        uncertainty = u * (np.abs(confidence) * np.exp(confidence)).mean(axis=-1)
        one_minus_p_true = u * (np.abs(p_true) * np.exp(p_true)).mean(axis=-1)
        sigmoid = u * (np.abs(samples.margin) * weight).mean(axis=-1)
    errors = dict.fromkeys(CONFIDENCE_TERMS, uncertainty + CONFIDENCE) | {
        "mean_one_minus_p_true": one_minus_p_true,
        "sigmoid_moment": sigmoid,
        "mean_inverse_sigmoid": sigmoid,
        "bound_ece": moment,
        "half_moment": moment,
        "paper_lower": moment,
        "bound_gamma": moment,
    }
    if norms is None:
        return errors
    square = 2 * np.asarray(norms, np.float64).max(axis=-1) ** 2
    return errors | {
        "norm_gini": square * uncertainty,
        "norm_one_minus_confidence": square * uncertainty,
        "norm_one_minus_p_true": square * one_minus_p_true,
        "norm_sigmoid": square * sigmoid,
        "bound_lambda": square * moment,
        "bound_lambda_label_free": square * label_free,
    }


def violations(
    terms: Mapping[str, ArrayLike], errors: Mapping[str, ArrayLike] | None = None, relative: float = RELATIVE
) -> pd.DataFrame:
    """Where a link does not hold.

    Args:
        terms: values by name, all [...]; a link with a NaN does not apply. A term bound_ece_<radius> is taken as an
            estimate of (K-1) Q_eps, at least (K-1) Q.
        errors: what each term may be off by, absolutely.
        relative: what a link may be off by, as a share of its upper side.

    Returns:
        One row per failure: link, at (flat position), lower, upper, excess ((lower - upper) / upper).
    """
    errors = errors or {}
    rows = []
    for low, high in pairs(terms):
        lower, upper = np.asarray(terms[low], np.float64).ravel(), np.asarray(terms[high], np.float64).ravel()
        allowed = UNDERFLOW + relative * np.abs(upper) + sum(np.ravel(errors.get(name, 0.0)) for name in (low, high))
        with np.errstate(invalid="ignore"):
            broken = lower > upper + allowed
        rows += [
            (f"{low} <= {high}", at, lower[at], upper[at], lower[at] / upper[at] - 1 if upper[at] else np.inf)
            for at in np.flatnonzero(broken)
        ]
    return pd.DataFrame(rows, columns=["link", "at", "lower", "upper", "excess"])


def pairs(terms: Iterable[str]) -> list[tuple[str, str]]:
    """The links (lower, upper) between the terms at hand."""
    names = list(terms)
    robust = [("bound_ece", name) for name in names if name.startswith(ROBUST)]
    return [(low, high) for low, high in (*_PAIRS, *robust) if low in names and high in names]
