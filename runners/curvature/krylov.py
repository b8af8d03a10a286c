"""Rayleigh-Ritz on a growing subspace, certified by residuals."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Dimensions kept before the space is cut back to its best Ritz vectors.
MOST_DIMENSIONS = 60


class Ritz(NamedTuple):
    """The best pairs of a subspace.

    Attributes:
        values: descending, [k].
        vectors: orthonormal rows, [k, d].
        residuals: |A v - value v| of each pair, [k]: an eigenvalue lies within that distance of the value.
        products: products with the matrix that were spent.
        second: the value below the k-th, NaN where the subspace has no more dimensions.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    products: int
    second: float


class Subspace:
    """An orthonormal basis, rows [m, d], and its images under a symmetric matrix.

    Args:
        product: rows [k, d] -> A applied to each, [k, d].
        like: a tensor of the dtype and device to work in.
        size: d.
        capacity: most dimensions.
    """

    def __init__(self, product: Callable[[Tensor], Tensor], like: Tensor, size: int, capacity: int) -> None:
        self._product = product
        self._basis = like.new_empty(capacity, size)
        self._images = like.new_empty(capacity, size)
        self._projected = np.zeros((capacity, capacity))
        self.dimensions = 0
        self.products = 0

    @property
    def basis(self) -> Tensor:
        """Orthonormal rows [m, d]."""
        return self._basis[: self.dimensions]

    @property
    def images(self) -> Tensor:
        """A times each row of the basis, [m, d]."""
        return self._images[: self.dimensions]

    def extend(self, vectors: Tensor) -> int:
        """Add the span of rows [k, d] with one block product; dependent ones are dropped.

        Returns:
            The number of dimensions added.
        """
        old = self.dimensions
        end = old
        for vector in vectors:
            if end == len(self._basis) or not _orthonormal(vector, self._basis, end):
                continue
            end += 1
        added = end - old
        if added:
            self._images[old:end] = self._product(self._basis[old:end])
            self.products += added
            self.dimensions = end
            block = (self.basis @ self._images[old:end].T).double().cpu().numpy()
            self._projected[:end, old:end] = block
            self._projected[old:end, :end] = block.T
            corner = self._projected[old:end, old:end]
            corner[:] = (block[old:end] + block[old:end].T) / 2
        return added

    def ritz(self) -> tuple[np.ndarray, Tensor]:
        """All Ritz values, descending float64 [m], and their coordinates as rows [m, m]."""
        m = self.dimensions
        values, rotation = np.linalg.eigh(self._projected[:m, :m])
        coordinates = torch.from_numpy(rotation[:, ::-1].T.copy()).to(self._basis)
        return values[::-1].copy(), coordinates

    def compress(self, coordinates: Tensor, values: np.ndarray) -> None:
        """Go on with these Ritz vectors, rows [k, m], alone."""
        k = len(coordinates)
        self._basis[:k] = coordinates @ self.basis
        self._images[:k] = coordinates @ self.images
        self._projected[:k, :k] = np.diag(values[:k])
        self.dimensions = k


def _orthonormal(vector: Tensor, basis: Tensor, m: int) -> bool:
    """Write the unit part of a vector that is orthogonal to the first m rows into row m; False if there is none."""
    length = float(torch.linalg.vector_norm(vector))
    if not 0 < length < float("inf"):
        return False
    row = torch.mul(vector, 1 / length, out=basis[m])
    if not m:
        return True
    for _ in range(2):
        torch.addmv(row, basis[:m].T, basis[:m] @ row, alpha=-1, out=row)
        rest = float(torch.linalg.vector_norm(row))
        if rest < 100 * torch.finfo(row.dtype).eps:
            return False
        row.mul_(1 / rest)
        if rest > 0.5:
            return True
    # What a second pass still shortens is the rounding of the first.
    return False


def start_vectors(count: int, size: int, like: Tensor, seed: int) -> Tensor:
    """Random rows [count, size], the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=generator, dtype=torch.float64).to(like)


def search(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    k: int,
    tol: float,
    *,
    max_products: int = 300,
    least: int = 0,
    seed: int = 0,
) -> Ritz:
    """Grow a space by residuals until each of the k residuals is at most tol times the largest |value|.

    Args:
        product: rows [m, d] -> A applied to each.
        start: rows [s, d] that span the first space; dependent ones are dropped.
        k: number of pairs.
        tol: relative residual.
        max_products: where the search gives up; the residuals then say so.
        least: dimensions to build whatever the residuals say.
        seed: of random vectors, where residuals leave no direction.

    Returns:
        The k pairs of the largest (most positive) values.
    """
    size = start.shape[1]
    k = min(k, size)
    capacity = min(size, MOST_DIMENSIONS + 2 * k + len(start))
    space = Subspace(product, start, size, capacity)
    space.extend(start)
    tries = 0
    while True:
        m = space.dimensions
        if m >= k:
            values, coordinates = space.ritz()
            vectors = coordinates[:k] @ space.basis
            scale = torch.from_numpy(values[:k]).to(start)
            differences = coordinates[:k] @ space.images - vectors * scale[:, None]
            residuals = torch.linalg.vector_norm(differences, dim=1)
            wanting = (residuals > tol * max(abs(values[0]), abs(values[-1]))).tolist()
            if m == size or space.products >= max_products or (m >= least and not any(wanting)):
                second = float(values[k]) if m > k else float("nan")
                return Ritz(scale, vectors, residuals, space.products, second)
            if m == capacity:
                space.compress(coordinates[: capacity // 2], values)
            worst = [i for i in range(k) if wanting[i]]
            if worst and space.extend(differences[worst[:1]]):
                continue
        # The residuals lie in the space (or there are none): only a random vector leads on.
        tries += 1
        if not space.extend(start_vectors(1, size, start, seed + 7919 * tries)) and tries > 10:
            max_products = 0
