"""Gauss-Newton products against curvlinops' GGN on the paper's network."""

import numpy as np
import torch
from curvlinops import GGNLinearOperator
from scipy.sparse.linalg import eigsh

from runners.curvature import GaussNewton
from runners.models.mlp import Mlp


def test_lambda_max_of_the_cifar_mlp_is_that_of_curvlinops():
    torch.manual_seed(0)
    model = Mlp().build((3, 32, 32), 10)
    x, y = torch.randn(200, 3, 32, 32), torch.randint(10, (200,))
    operator = GGNLinearOperator(
        model, torch.nn.CrossEntropyLoss(), [p for p in model.parameters()], [(x, y)], check_deterministic=False
    )
    expected = eigsh(operator.to_scipy(), k=1, tol=1e-5, return_eigenvectors=False)[0]
    values, _, _ = GaussNewton(model, x).top(tol=1e-4)
    np.testing.assert_allclose(float(values[0]), expected, rtol=1e-4)
