"""The order of minibatches: a fresh permutation every epoch, resumable in the middle of one."""

from typing import Any

import torch
from torch import Tensor

from runners.augmentation import Augment


class Batches:
    """Endless minibatches without replacement within an epoch; a shorter rest of an epoch is dropped.

    Args:
        n: number of samples.
        size: samples per batch, at most n.
        seed: seeds the permutations and, apart from them, the augmentation: batches hold the same samples with it.
        device: where the indices live. An epoch's are sent there at once.
        augment: changes the images of a batch, after `Augment.for_data`; None leaves them.
    """

    def __init__(self, n: int, size: int, seed: int, device: torch.device, augment: Augment | None = None) -> None:
        self.n = n
        self.size = size
        self.device = device
        self.augment = augment
        self._generator = torch.Generator().manual_seed(seed)
        # A seed of its own, far from those of other runs.
        self._changes = torch.Generator().manual_seed(seed + 2**40)
        self._set(torch.empty(0, dtype=torch.long), torch.empty(3, 0, dtype=torch.int16), 0)

    def draw(self) -> Tensor:
        """Indices of the next batch, int64 [size]."""
        if self._position + self.size > len(self._order):
            order = torch.randperm(self.n, generator=self._generator)
            drawn = self._drawn if self.augment is None else self.augment.draw(self.n, self._changes)
            self._set(order, drawn, 0)
        batch = self._order_there[self._position : self._position + self.size]
        self._position += self.size
        return batch

    def take(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [size, ...], augmented if so wished, and labels [size] of the next batch of samples x, y."""
        batch = self.draw()
        if self.augment is None:
            return x[batch], y[batch]
        return self.augment(x[batch], self._drawn_there[:, self._position - self.size : self._position]), y[batch]

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on with the same batches."""
        state = {"generator": self._generator.get_state(), "order": self._order, "position": self._position}
        if self.augment is not None:
            state |= {"changes": self._changes.get_state(), "drawn": self._drawn}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        # A checkpoint is loaded onto the run's device, and generators live on the CPU.
        self._generator.set_state(state["generator"].cpu())
        if self.augment is not None:
            self._changes.set_state(state["changes"].cpu())
        self._set(state["order"].cpu(), state.get("drawn", self._drawn).cpu(), state["position"])

    def _set(self, order: Tensor, drawn: Tensor, position: int) -> None:
        self._order, self._drawn, self._position = order, drawn, position
        self._order_there, self._drawn_there = order.to(self.device), drawn.to(self.device)
