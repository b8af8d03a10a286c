"""The linearisation of a multilayer perceptron, from the activations that one forward pass left behind."""

import torch
from torch import Tensor, nn

from runners.curvature.forward import SLOPES, Forward, perceptron_stages, run_forward


class LinearizedPerceptron:
    """J v and J^T u of the logits in the parameters, at one point.

    With a = W h + b and h' = phi(a) layer by layer, a tangent moves as da = W dh + dW h + db, dh' = phi'(a) da, and
    a cotangent g of a gives g h^T to dW, g to db and phi'(a_before) (W^T g) to the layer before. For k vectors at once
    tangents are [n, k, width], so that each layer stays one matrix product.

    Attributes:
        size: number of parameters d, in the order of ``model.parameters()``.
        inputs: what each layer read, [n, width_{l-1}].
        biased: whether each layer has a bias.
        shapes: outputs and inputs of each layer.

    Args:
        weights: [width_l, width_{l-1}] of each layer.
        biased: whether each layer has a bias.
        inputs: what each layer read, [n, width_{l-1}].
        slopes: phi'(a_l), [n, width_l], of each layer but the last; None where no activation follows.
    """

    def __init__(
        self, weights: list[Tensor], biased: list[bool], inputs: list[Tensor], slopes: list[Tensor | None]
    ) -> None:
        self.inputs = inputs
        self._weights = weights
        self.biased = biased
        self._slopes = slopes
        widths = [w.shape[0] for w in weights]
        self.shapes = [(wide, h.shape[1]) for wide, h in zip(widths, inputs, strict=True)]
        self._sizes: list[int] = []
        for (wide, deep), has_bias in zip(self.shapes, biased, strict=True):
            self._sizes += [wide * deep, wide] if has_bias else [wide * deep]
        self.size = sum(self._sizes)

    @classmethod
    def at(cls, model: nn.Module, x: Tensor, forward: Forward | None = None) -> "LinearizedPerceptron | None":
        """Linearise at the network's present parameters; None if it is no multilayer perceptron.

        Args:
            model: the network.
            x: inputs [n, ...].
            forward: a pass already made over the same inputs at the same parameters.
        """
        stages = perceptron_stages(model)
        if not stages:
            return None
        if forward is None or forward.outputs is None:
            forward = run_forward(model, x)
        outputs = forward.outputs
        if outputs is None or forward.logits.ndim != 2 or x.flatten(1).shape[1] != stages[0].linear.in_features:
            return None
        first = stages[0].position
        inputs = [outputs[first - 1] if first else x.detach()]
        inputs += [outputs[stage.position - 1] for stage in stages[1:]]
        modules = list(model.children())
        slopes = [
            None
            if stage.activation is None
            else SLOPES[type(modules[stage.activation])](
                modules[stage.activation], outputs[stage.activation - 1], outputs[stage.activation]
            )
            for stage in stages[:-1]
        ]
        return cls(
            [stage.linear.weight.detach() for stage in stages],
            [stage.linear.bias is not None for stage in stages],
            inputs,
            slopes,
        )

    def with_inputs(self, inputs: list[Tensor]) -> "LinearizedPerceptron":
        """The same with other coordinates [n, r] for the first layers' inputs: dW = A Q^T with h Q in place of h."""
        return LinearizedPerceptron(self._weights, self.biased, inputs + self.inputs[len(inputs) :], self._slopes)

    def push(self, vectors: Tensor) -> Tensor:
        """J V: rows [k, d] -> [n, k, K]."""
        k, n = len(vectors), len(self.inputs[0])
        pieces = iter(vectors.split(self._sizes, dim=1))
        tangent = vectors
        for layer, (h, (wide, deep)) in enumerate(zip(self.inputs, self.shapes, strict=True)):
            weight = next(pieces).reshape(k * wide, deep).T
            moved = torch.addmm(next(pieces).reshape(-1), h, weight) if self.biased[layer] else h @ weight
            if layer:
                moved.view(n * k, wide).addmm_(tangent, self._weights[layer].T)
            moved = moved.view(n, k, wide)
            if layer < len(self._slopes):
                slope = self._slopes[layer]
                if slope is not None:
                    moved.mul_(slope[:, None, :])
                tangent = moved.view(n * k, wide)
        return moved

    def pull(self, cotangents: Tensor) -> Tensor:
        """J^T U: [n, k, K] -> rows [k, d]."""
        return self.gather(self.backward(cotangents))

    def gather(self, backward: list[tuple[int, Tensor]]) -> Tensor:
        """J^T U, rows [k, d], from the cotangents that `backward` gives."""
        n, k, _ = backward[0][1].shape
        out = backward[0][1].new_empty(k, self.size)
        pieces = list(out.split(self._sizes, dim=1))
        for layer, g in backward:
            h, (wide, deep) = self.inputs[layer], self.shapes[layer]
            flat = g.reshape(n, k * wide)
            if self.biased[layer]:
                pieces.pop().copy_(flat.sum(0).view(k, wide))
            target = pieces.pop()
            if k == 1:
                torch.mm(flat.T, h, out=target.view(wide, deep))
            else:
                target.copy_((flat.T @ h).view(k, wide * deep))
        return out

    def grams(self, cotangents: Tensor) -> Tensor:
        """J_i^T U_i of every sample against itself: [n, k, K] -> U_i^T J_i J_i^T U_i, [n, k, k].

        A sample's dW_l is g h^T, so its inner products are those of g times those of h.
        """
        total = cotangents.new_zeros(len(cotangents), cotangents.shape[1], cotangents.shape[1])
        for layer, g in self.backward(cotangents):
            square = self.inputs[layer].square().sum(1) + float(self.biased[layer])
            total += (g @ g.transpose(1, 2)) * square[:, None, None]
        return total

    def backward(self, cotangents: Tensor) -> list[tuple[int, Tensor]]:
        """The cotangents [n, k, width_l] of each layer's output, last layer first, from those of the logits."""
        n, k, _ = cotangents.shape
        found = []
        g = cotangents
        for layer in range(len(self._weights) - 1, -1, -1):
            found.append((layer, g))
            if layer:
                g = (g.reshape(n * k, -1) @ self._weights[layer]).view(n, k, -1)
                slope = self._slopes[layer - 1]
                if slope is not None:
                    g.mul_(slope[:, None, :])
        return found
