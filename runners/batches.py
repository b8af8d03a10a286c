"""The order of minibatches: a fresh permutation every epoch, resumable in the middle of one."""

from typing import Any

import torch
from torch import Tensor


class Batches:
    """Endless minibatch indices without replacement within an epoch; a shorter rest of an epoch is dropped.

    Args:
        n: number of samples.
        size: samples per batch, at most n.
        seed: seeds the permutations.
        device: where the indices live.
    """

    def __init__(self, n: int, size: int, seed: int, device: torch.device) -> None:
        self.n = n
        self.size = size
        self.device = device
        self._generator = torch.Generator().manual_seed(seed)
        self._order = torch.empty(0, dtype=torch.long)
        self._position = 0

    def draw(self) -> Tensor:
        """Indices of the next batch, int64 [size]."""
        if self._position + self.size > len(self._order):
            self._order = torch.randperm(self.n, generator=self._generator)
            self._position = 0
        batch = self._order[self._position : self._position + self.size]
        self._position += self.size
        return batch.to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on with the same batches."""
        return {"generator": self._generator.get_state(), "order": self._order, "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._generator.set_state(state["generator"])
        self._order = state["order"]
        self._position = state["position"]
