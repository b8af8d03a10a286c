"""The linearisation of any network by automatic differentiation."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, linearize, vjp, vmap

from runners.curvature.flat import flatten, trained, unflatten

# Tracing the tangent map costs about three steps and makes each product cheaper by about one.
PUSHES_BEFORE_TRACING = 3
# Samples times parameters below which tracing, a tenth of a second even for small networks, does not pay.
LEAST_WORK_TO_TRACE = 2**24


class LinearizedNetwork:
    """J v and J^T u of the logits in the trained parameters, at one point, for any ``nn.Module``.

    Products differentiate forward anew; for large networks a traced tangent map is kept from the fourth on, which costs
    less per product. In chunks nothing is kept, so that memory stays that of one chunk.

    Attributes:
        size: number of trained parameters d, in the order of ``model.parameters()``.

    Args:
        model: the network, in the mode to evaluate in.
        x: inputs [n, ...].
        chunk: samples per pass; None takes all at once.
    """

    def __init__(self, model: nn.Module, x: Tensor, chunk: int | None = None) -> None:
        self.parameters = trained(model)
        self.size = sum(p.numel() for p in self.parameters.values())
        self._model = model
        self._x = x
        self._chunk = chunk if chunk is not None and chunk < len(x) else None
        self._traces = self._chunk is None and len(x) * self.size >= LEAST_WORK_TO_TRACE
        self._pushes = 0
        self._forward_mode = True
        self._tangent_map: Callable[..., Tensor] | None = None
        self._pull: Callable[..., tuple[dict[str, Tensor]]] | None = None

    def push(self, vectors: Tensor) -> Tensor:
        """J V: rows [k, d] -> [n, k, K]."""
        columns = []
        for vector in vectors:
            tangent = unflatten(vector, self.parameters)
            columns.append(torch.cat([self._push(f, tangent) for f in self._functions()]))
        return torch.stack(columns, dim=1)

    def _push(self, function: Callable[..., Tensor], tangent: dict[str, Tensor]) -> Tensor:
        if self._forward_mode:
            try:
                return self._push_forward(function, tangent)
            except NotImplementedError:
                # Some of torch's operations cannot be differentiated forward.
                self._forward_mode = False
        # J v as the derivative in u of the linear map u -> J^T u.
        z, pull = vjp(function, self.parameters)[:2]
        return vjp(lambda u: pull(u)[0], torch.zeros_like(z))[1](tangent)[0]

    def _push_forward(self, function: Callable[..., Tensor], tangent: dict[str, Tensor]) -> Tensor:
        self._pushes += 1
        if self._tangent_map is None and self._traces and self._pushes > PUSHES_BEFORE_TRACING:
            with warnings.catch_warnings():
                # torch complains of the way in which it traces itself.
                warnings.simplefilter("ignore")
                _, self._tangent_map = linearize(function, self.parameters)
        if self._tangent_map is not None:
            return self._tangent_map(tangent)
        return jvp(function, (self.parameters,), (tangent,))[1]

    def pull(self, cotangents: Tensor) -> Tensor:
        """J^T U: [n, k, K] -> rows [k, d]."""
        total = cotangents.new_zeros(cotangents.shape[1], self.size)
        parts = cotangents.split(self._chunk or len(cotangents))
        for function, part in zip(self._functions(), parts, strict=True):
            pull = self._pull or vjp(function, self.parameters)[1]
            if self._chunk is None:
                self._pull = pull
            for row, u in zip(total, part.unbind(1), strict=True):
                row += flatten(pull(u.contiguous())[0].values())
        return total

    def grams(self, cotangents: Tensor) -> Tensor:
        """J_i^T U_i of every sample against itself: [n, k, K] -> U_i^T J_i J_i^T U_i, [n, k, k]."""
        k = cotangents.shape[1]

        def rows(x: Tensor, u: Tensor) -> Tensor:
            pull = vjp(lambda p: functional_call(self._model, p, (x[None],))[0], self.parameters)[1]
            (parts,) = vmap(pull)(u)
            return torch.cat([part.flatten(1) for part in parts.values()], dim=1)

        # Explicit Jacobians: as many samples at once as make about 64 million entries.
        size = max(1, min(self._chunk or len(self._x), 2**26 // (k * self.size)))
        found = []
        for x, u in zip(self._x.split(size), cotangents.split(size), strict=True):
            jacobians = vmap(rows)(x, u)
            found.append(jacobians @ jacobians.transpose(1, 2))
        return torch.cat(found)

    def _functions(self) -> Iterator[Callable[[dict[str, Tensor]], Tensor]]:
        for part in self._x.split(self._chunk or len(self._x)):
            yield partial(self._logits, part)

    def _logits(self, x: Tensor, parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(self._model, parameters, (x,))
