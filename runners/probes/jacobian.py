"""Per-sample factors of the Gauss-Newton matrix, and lower bounds on its top eigenvalue."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from analysis.output_hessian import mean_output_hessian, output_hessian, output_hessian_norm, top_eigenvalue
from analysis.plugins import Count
from runners.curvature import jacobian_norms
from runners.observation import Observation
from runners.probes import Probe, Reading


class Jacobian(Probe):
    """|J_i| and lambda_max(H_z,i) of every training sample, the stream ``jacobian``: what lambda_max is bounded with.

    Columns, [n]: ``norm``, the operator norm of the K x d Jacobian of sample i's logits in the trained parameters,
    and ``output_hessian``, the top eigenvalue of the loss's Hessian in sample i's logits (for MSE the constant 2/K),
    float64.

    Scalars, for cross-entropy where the network ends in a linear layer: ``lambda_output_bias``, the top eigenvalue of
    mean_i H_z,i, if that layer has a trained bias; ``lambda_last_layer``, a Rayleigh quotient of the layer's weight
    block. Both are at most lambda_max.

    Attributes:
        iterations: power iterations for ``lambda_last_layer``; any number gives a lower bound.
    """

    iterations: Count = 5

    def measure(self, observation: Observation, memory: dict[str, Any]) -> Reading:
        model, x = observation.model, observation.splits["train"].x
        norms = jacobian_norms(model, x, forward=observation.forward("train"), chunk=observation.chunk)
        logits = observation.logits("train")
        if observation.loss.output == "mse":
            hessian = np.full(len(logits), 2 / logits.shape[1])
        else:
            hessian = output_hessian_norm(logits)
        columns = {"norm": norms.double().cpu().numpy(), "output_hessian": hessian}
        reading: dict[str, Any] = {"jacobian": columns}
        layer = output_layer(model)
        if layer is not None and observation.loss.output == "ce":
            reading["scalars"] = self._lower_bounds(observation, layer)
        return reading

    def _lower_bounds(self, observation: Observation, layer: nn.Linear) -> dict[str, float]:
        logits = observation.logits("train")
        bounds = {}
        if layer.bias is not None and layer.bias.requires_grad:
            bounds["lambda_output_bias"] = float(top_eigenvalue(mean_output_hessian(logits)))
        if layer.weight.requires_grad:
            features = layer_inputs(observation, layer)
            bounds["lambda_last_layer"] = rayleigh_quotient(output_hessian(logits), features, self.iterations)
        return bounds


def output_layer(model: nn.Module) -> nn.Linear | None:
    """The linear layer that gives the logits, or None where the last module is not one."""
    modules = [module for module in model.modules() if not any(True for _ in module.children())]
    return modules[-1] if modules and isinstance(modules[-1], nn.Linear) else None


def layer_inputs(observation: Observation, layer: nn.Linear) -> np.ndarray:
    """What goes into a layer on the training samples, float64 [n, features]."""
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().double().cpu()))
    x = observation.splits["train"].x
    try:
        with torch.no_grad():
            for part in x.split(observation.chunk or len(x)):
                observation.model(part)
    finally:
        handle.remove()
    return torch.cat(seen).numpy()


def rayleigh_quotient(hessians: np.ndarray, features: np.ndarray, iterations: int) -> float:
    """<V, B V> / |V|^2 of the weight block B: V -> mean_i H_i V a_i a_i^T after a few power iterations.

    Args:
        hessians: H_i, [n, K, K].
        features: a_i, [n, features].
        iterations: how many.

    Returns:
        At most lambda_max(H_GN), at least 0; never falls with more iterations.
    """
    n = len(features)

    def product(v: np.ndarray) -> np.ndarray:
        # In two matrix products, because einsum over all three factors would be cubic.
        outer = np.einsum("nkl,nl->nk", hessians, features @ v.T)
        return np.asarray(outer.T @ features / n)

    # From the direction that all samples share; with zero features every quotient is 0.
    v = np.outer(np.linalg.eigh(hessians.mean(axis=0))[1][:, -1], features.mean(axis=0))
    if not v.any():
        return 0.0
    v /= np.linalg.norm(v)
    for _ in range(iterations):
        w = product(v)
        if not w.any():
            return 0.0
        v = w / np.linalg.norm(w)
    return float((v * product(v)).sum())
