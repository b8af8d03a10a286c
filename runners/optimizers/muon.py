"""Muon: momentum, orthogonalised, for hidden matrices."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from analysis.plugins import Count, NonNegative, Positive, SettingError
from runners.optimizers import Objective, Optimizer
from runners.optimizers._shared import Decay, one_kernel, trained


class Muon(Optimizer):
    """`torch.optim.Muon` on hidden matrices (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon).

    The step is lr times a scale times the nearest semi-orthogonal matrix to the momentum, found roughly by
    Newton-Schulz iterations of degree five: its singular values end between about 0.7 and 1.2, not at 1.

    Hidden matrices are the weights of two or more dimensions except the last of the network in its order,
    which is taken for the output layer. The filters [out, in, h, w] of a convolution are the matrix
    [out, in*h*w]. The last layer, biases and normalisation gains take the steps of ``rest``.

    Not for embeddings, nor for networks that do not register their output layer last. Not for arithmetic
    beyond bfloat16: torch runs Newton-Schulz in it, so a step carries a relative rounding error near 1e-2 even
    when training in float64. Its steps have the same length however small the gradient, so at constant lr it
    does not settle, and 2/lr is no edge for lambda_max.

    Attributes:
        momentum: decay of the running mean of gradients, in [0, 1).
        nesterov: orthogonalise momentum * mean + (1 - momentum) * gradient in place of the mean.
        ns_steps: Newton-Schulz iterations.
        adjust_lr_fn: the scale, for a matrix [A, B]: "original" max(1, A/B)^(1/2), "match_rms_adamw"
            0.2 max(A, B)^(1/2), "spectral_unclamped" (A/B)^(1/2).
        weight_decay: of all parameters; each step first shrinks them by the factor 1 - lr * weight_decay. For
            rest = "sgd" it is added to the gradient instead, as in `sgd`.
        rest: optimizer of the other parameters: "adamw" (torch's betas and eps) or "sgd" (with the same
            momentum).
        rest_lr: its step size.
    """

    batch_size: Count | None = 50
    momentum: Decay = 0.95
    nesterov: bool = True
    ns_steps: Count = 5
    adjust_lr_fn: Literal["original", "match_rms_adamw", "spectral_unclamped"] = "original"
    weight_decay: NonNegative = 0.0
    rest: Literal["adamw", "sgd"] = "adamw"
    rest_lr: Positive = 1e-3

    def build(self, params: Iterable[nn.Parameter], objective: Objective) -> torch.optim.Optimizer:
        """See `Optimizer.build`.

        Raises:
            SettingError: the network has no hidden matrix to train.
        """
        weights = [p for p in objective.model.parameters() if p.ndim >= 2]
        hidden_ids = {id(p) for p in weights[:-1]}
        chosen = trained(params)
        hidden = [p for p in chosen if id(p) in hidden_ids]
        others = [p for p in chosen if id(p) not in hidden_ids]
        if not hidden:
            raise SettingError(
                "optimizer.name = 'muon': the network has no hidden matrix to train; expected one at least"
            )
        matrices = [p if p.ndim == 2 else nn.Parameter(p.detach().flatten(1)) for p in hidden]
        parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                matrices,
                lr=self.lr,
                weight_decay=self.weight_decay,
                momentum=self.momentum,
                nesterov=self.nesterov,
                ns_steps=self.ns_steps,
                adjust_lr_fn=self.adjust_lr_fn,
            )
        ]
        if others:
            parts.append(self._build_rest(others))
        return MatricesAndRest(hidden, matrices, parts)

    def _build_rest(self, params: list[nn.Parameter]) -> torch.optim.Optimizer:
        if self.rest == "adamw":
            return torch.optim.AdamW(params, lr=self.rest_lr, weight_decay=self.weight_decay, fused=one_kernel(params))
        return torch.optim.SGD(
            params,
            lr=self.rest_lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            fused=one_kernel(params),
        )


class MatricesAndRest(torch.optim.Optimizer):
    """One optimizer made of an optimizer of matrices and another of the remaining parameters.

    Each of its parameter groups is one of a part's, with the network's own parameters in it; a step size that
    a scheduler sets there reaches the part.

    Args:
        hidden: parameters of two or more dimensions.
        matrices: the same parameters as matrices [out, rest], which share their storage where memory order
            allows.
        parts: the optimizer of ``matrices`` and then, if any parameter is left, that of the rest.
    """

    def __init__(
        self, hidden: list[nn.Parameter], matrices: list[nn.Parameter], parts: list[torch.optim.Optimizer]
    ) -> None:
        groups = [{"params": hidden, "lr": parts[0].param_groups[0]["lr"]}]
        groups += [{"params": g["params"], "lr": g["lr"]} for part in parts[1:] for g in part.param_groups]
        super().__init__(groups, {})
        self.parts = parts
        self._pairs = [(p, m) for p, m in zip(hidden, matrices, strict=True) if p is not m]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of each part, after one call of the closure, whose loss is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, inner in zip(self.param_groups, self._inner_groups(), strict=True):
            inner["lr"] = group["lr"]
        for p, matrix in self._pairs:
            # Taken anew each step: moving the network to another device or memory format gives it new
            # storage.
            matrix.data = p.data.flatten(1)
            matrix.grad = None if p.grad is None else p.grad.flatten(1)
        for part in self.parts:
            part.step()
        for p, matrix in self._pairs:
            if not _share_storage(p, matrix):
                p.copy_(matrix.view(p.shape))
        return loss

    def _inner_groups(self) -> list[dict[str, Any]]:
        return [group for part in self.parts for group in part.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """The state of each part, in order."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, bit for bit."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        for group, inner in zip(self.param_groups, self._inner_groups(), strict=True):
            group["lr"] = inner["lr"]


def _share_storage(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr()
