"""SGD in the bulk: without the gradient's part along the top Hessian eigenvectors."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from analysis.plugins import Count, Positive, SettingError
from runners.curvature import hessian_top
from runners.optimizers import Objective, Optimizer
from runners.optimizers._shared import trained
from runners.passes import in_evaluation


class BulkSGD(Optimizer):
    """theta <- theta - lr (g - V V^T g), with V the top ``k`` eigenvectors of the training loss's Hessian.

    Removes the dominant subspace from the batch's gradient g (Song, Ahn and Yun 2025, arXiv 2405.16002, call
    it Bulk-SGD); the paper uses k = 1, 3 and 5. Without the part that overshoots, sharpness is not held near
    2/lr; the paper names the step sizes by that edge all the same, 2/70 and 2/30.

    V is found at steps 0, ``refresh``, 2 ``refresh``, ... on the whole training set in evaluation mode,
    starting from the last V and one random vector, and kept in between, so for refresh > 1 it is that of
    earlier weights.

    Attributes:
        k: number of eigenvectors, those of the k largest eigenvalues.
        refresh: steps between updates of V.
        tol: relative residual at which the search for V stops.
        hessian_samples: number of training samples, drawn once at random, that the Hessian is taken over;
            None takes all of them.
    """

    batch_size: Count | None = 50
    k: Count = 1
    refresh: Count = 1
    tol: Positive = 1e-3
    hessian_samples: Count | None = None

    def build(self, params: Iterable[nn.Parameter], objective: Objective) -> torch.optim.Optimizer:
        """See `Optimizer.build`.

        Raises:
            SettingError: more eigenvectors than parameters, more samples than the training set has, or
                parameters that are not all those the network trains.
        """
        chosen = trained(params)
        model_ids = [id(p) for p in objective.model.parameters() if p.requires_grad]
        if [id(p) for p in chosen] != model_ids:
            raise SettingError(
                "optimizer.name = 'bulk_sgd': eigenvectors span all trained parameters of the network; "
                "expected exactly these, in the network's order"
            )
        dimension = sum(p.numel() for p in chosen)
        if self.k > dimension:
            raise SettingError(f"optimizer.k = {self.k}: expected at most the {dimension} parameters of the network")
        n = len(objective.y)
        if self.hessian_samples is not None:
            if self.hessian_samples > n:
                raise SettingError(
                    f"optimizer.hessian_samples = {self.hessian_samples}: expected at most the {n} training samples"
                )
            rows = subset(n, self.hessian_samples).to(objective.y.device)
            objective = replace(objective, x=objective.x[rows], y=objective.y[rows])
        return BulkDescent(chosen, self, objective)


def subset(n: int, size: int) -> Tensor:
    """Sorted row numbers of a random subset, the same at each call; int64 [size]."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:size].sort().values


class BulkDescent(torch.optim.Optimizer):
    """The steps of `BulkSGD`.

    The state of a parameter holds its rows of V: "eigenvectors", [k, *shape].

    Args:
        params: all trained parameters of the network, in its order.
        settings: see `BulkSGD`.
        objective: the loss and samples that define the Hessian.
    """

    def __init__(self, params: list[nn.Parameter], settings: BulkSGD, objective: Objective) -> None:
        super().__init__(params, {"lr": settings.lr, "step": 0})
        self.settings = settings
        self.objective = objective

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step after one call of the closure, whose loss is returned."""
        group = self.param_groups[0]
        params: list[nn.Parameter] = group["params"]
        if group["step"] % self.settings.refresh == 0:
            self._refresh(params)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moved = [(p, p.grad, self.state[p]["eigenvectors"]) for p in params if p.grad is not None]
        along = sum(torch.tensordot(v, g, dims=g.ndim) for _, g, v in moved)
        for p, g, v in moved:
            p.sub_(g - torch.tensordot(along, v, dims=1), alpha=group["lr"])
        group["step"] += 1
        return loss

    def _refresh(self, params: list[nn.Parameter]) -> None:
        objective, k = self.objective, self.settings.k
        start = None
        if "eigenvectors" in self.state[params[0]]:
            last = torch.cat([self.state[p]["eigenvectors"].flatten(1) for p in params], dim=1).T
            # A search from V alone stays with V when another eigenvector overtakes one of its own.
            generator = torch.Generator().manual_seed(self.param_groups[0]["step"])
            fresh = torch.randn(len(last), 1, generator=generator, dtype=torch.float64)
            start = torch.cat([last, fresh.to(last)], dim=1)
        with torch.enable_grad(), in_evaluation(objective.model):
            _, vectors, _ = hessian_top(
                objective.model,
                objective.x,
                objective.y,
                objective.loss,
                k=k,
                tol=self.settings.tol,
                start=start,
                chunk=objective.chunk,
            )
        # Orthonormal to rounding, whatever the search left: the projection needs it.
        basis = torch.linalg.qr(vectors).Q.T
        for p, rows in zip(params, basis.split([p.numel() for p in params], dim=1), strict=True):
            self.state[p]["eigenvectors"] = rows.reshape(k, *p.shape).contiguous()
