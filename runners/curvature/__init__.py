"""Curvature of the training loss: Gauss-Newton and Hessian eigenvalues, batch sharpness, Jacobian norms."""

from runners.curvature.batch_sharpness import batch_sharpness
from runners.curvature.forward import Forward, run_forward
from runners.curvature.gauss_newton import GaussNewton
from runners.curvature.hessian import hessian_product, hessian_top
from runners.curvature.jacobian import jacobian_norms
from runners.curvature.tracker import SharpnessReading, SharpnessTracker

__all__ = [
    "Forward",
    "GaussNewton",
    "SharpnessReading",
    "SharpnessTracker",
    "batch_sharpness",
    "hessian_product",
    "hessian_top",
    "jacobian_norms",
    "run_forward",
]
