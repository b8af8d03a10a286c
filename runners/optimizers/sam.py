"""Sharpness-aware minimisation."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from analysis.plugins import Count, NonNegative
from runners.optimizers import Objective, Optimizer
from runners.optimizers._shared import Decay, Nesterov, one_kernel, trained
from runners.passes import running_averages_kept


class SharpnessAwareMinimization(Optimizer):
    """SAM (Foret et al. 2021, arXiv 2010.01412, algorithm 1) on top of SGD.

    The step is SGD's, with the batch's gradient taken at theta + rho g / |g| in place of theta, where g is
    the gradient of the same batch at theta and |.| the Euclidean norm over all trained parameters. Each step
    costs two passes. Batch norm's running averages follow the pass at theta only. Where g is zero theta is
    not perturbed.

    Attributes:
        rho: length of the perturbation; 0 is SGD at twice the price.
        momentum: as in `sgd`.
        weight_decay: as in `sgd`: of theta, and no part of the perturbation.
        nesterov: as in `sgd`.
    """

    batch_size: Count | None = 50
    rho: NonNegative = 0.05
    momentum: Decay = 0.0
    weight_decay: NonNegative = 0.0
    nesterov: Nesterov = False

    def build(self, params: Iterable[nn.Parameter], objective: Objective) -> torch.optim.Optimizer:
        chosen = trained(params)
        base = torch.optim.SGD(
            chosen,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
            fused=one_kernel(chosen),
        )
        return PerturbedGradient(base, self.rho, objective.model)


class PerturbedGradient(torch.optim.Optimizer):
    """Steps ``base`` with the gradient at the point that SAM perturbs to.

    Parameter groups and state are the base's own.

    Args:
        base: makes the step.
        rho: length of the perturbation.
        model: the network, whose running averages the second pass must not move.
    """

    def __init__(self, base: torch.optim.Optimizer, rho: float, model: nn.Module) -> None:
        super().__init__(base.param_groups, base.defaults)
        self.base = base
        self.rho = rho
        self.model = model
        self._share()

    def _share(self) -> None:
        self.param_groups = self.base.param_groups
        self.state = self.base.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; the closure is called twice.

        Returns:
            The loss at the unperturbed parameters.

        Raises:
            ValueError: no closure.
        """
        if closure is None:
            raise ValueError("sam: step() needs the closure that computes the loss, because it calls it twice")
        with torch.enable_grad():
            loss = closure()
        moved: list[Tensor] = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        saved = [p.clone() for p in moved]
        try:
            self._perturb(moved)
            with torch.enable_grad(), running_averages_kept(self.model):
                closure()
        finally:
            # Copies, because subtracting the perturbation again would leave its rounding error in the
            # weights.
            torch._foreach_copy_(moved, saved)
        self.base.step()
        return loss

    def _perturb(self, moved: list[Tensor]) -> None:
        gradients = [p.grad for p in moved if p.grad is not None]
        norm: Tensor = get_total_norm(gradients)
        scale = torch.where(norm > 0, self.rho / norm, 0.0)
        torch._foreach_add_(moved, torch._foreach_mul(gradients, scale))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, bit for bit."""
        self.base.load_state_dict(state_dict)
        self._share()

    def state_dict(self) -> dict[str, Any]:
        """The base's state: SAM itself has none."""
        return self.base.state_dict()
