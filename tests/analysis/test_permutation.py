"""The permutation test and its parts against slow twins that follow the definitions word by word."""

import math
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from analysis.mediation import sign_flip
from analysis.permutation import Grouping, ar1, associate, centre, whiten
from analysis.pooling import holm, pool


def study(seed: int, sizes: tuple[int, ...] = (3, 3, 2), steps: tuple[int, ...] = (40, 25, 33)):
    """x, y and grouping of random walks with a common part; strata of unlike sizes and lengths, padded with 9."""
    random = np.random.default_rng(seed)
    stratum = np.repeat(np.arange(len(sizes)), sizes)
    valid = np.arange(max(steps)) < np.array(steps)[stratum][:, None]
    common = random.normal(size=valid.shape).cumsum(1)
    x, y = (np.where(valid, common + random.normal(size=valid.shape).cumsum(1), 9.0) for _ in range(2))
    return x, y, Grouping(stratum, valid)


def slow(x, y, grouping, coefficient=None, drop=None):
    """Level and whitened rho of the definition, and the coefficient; without run ``drop``."""
    strata: dict[int, list] = {}
    for i, code in enumerate(grouping.stratum):
        if i != drop:
            strata.setdefault(int(code), []).append((x[i][grouping.valid[i]], y[i][grouping.valid[i]]))
    a, b = [], []
    for members in strata.values():
        for own in members:
            a.append(own[0] - sum(m[0] for m in members) / len(members))
            b.append(own[1] - sum(m[1] for m in members) / len(members))

    def rho(p, q):
        return sum(u @ v for u, v in zip(p, q, strict=True)) / math.sqrt(sum(u @ u for u in p) * sum(v @ v for v in q))

    if coefficient is None:
        scale = [sum(u @ u for u in p) for p in (a, b)]
        over = sum(sum(u[1:] @ u[:-1] for u in p) / s for p, s in zip((a, b), scale, strict=True))
        coefficient = over / sum(sum(u[:-1] @ u[:-1] for u in p) / s for p, s in zip((a, b), scale, strict=True))
    white = [[u[1:] - coefficient * u[:-1] for u in p] for p in (a, b)]
    return rho(a, b), rho(*white), coefficient


@pytest.mark.parametrize("seed", range(4))
def test_estimates_and_jackknife_follow_the_definition(seed):
    x, y, grouping = study(seed)
    found = associate(x, y, grouping)
    level, whitened, coefficient = slow(x, y, grouping)
    assert found.coefficient == pytest.approx(coefficient, rel=1e-10)
    assert (found.level.value, found.whitened.value) == pytest.approx((level, whitened), rel=1e-10)
    # The filter is kept while runs are left out.
    left = np.array([slow(x, y, grouping, coefficient, drop)[:2] for drop in range(len(x))])
    errors = np.sqrt((len(x) - 1) / len(x) * ((left - left.mean(0)) ** 2).sum(0))
    assert (found.level.error, found.whitened.error) == pytest.approx(tuple(errors), rel=1e-8)
    assert found.level.freedom == len(x) - 3
    half = stats.t.ppf(0.95, 5) * errors[1]
    assert found.whitened.interval(0.9) == pytest.approx((max(-1, whitened - half), min(1, whitened + half)), rel=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_pvalue_counts_all_pairings_within_strata(seed):
    x, y, grouping = study(seed)
    rows = [np.flatnonzero(grouping.stratum == code) for code in range(3)]
    coefficient = slow(x, y, grouping)[2]
    rhos = []
    for pairing in product(*(permutations(block) for block in rows)):
        rhos.append(slow(x, y[np.concatenate(pairing)], grouping, coefficient)[:2])
    rhos = np.array(rhos)
    assert len(rhos) == grouping.pairings == 72
    largest = np.abs(rhos / rhos.std(0)).max(1)  # the mean over all pairings is 0
    found = associate(x, y, grouping)
    assert found.pvalue == np.mean(largest >= largest[0] - 1e-9)
    assert (found.level.z, found.whitened.z) == pytest.approx(tuple(rhos[0] / rhos.std(0)), rel=1e-8)
    assert found.exact
    assert grouping.smallest_pvalue == 1 / 72


def test_drawn_pairings_agree_with_all_of_them(monkeypatch):
    x, _, grouping = study(2, (4, 3, 3))
    y = study(3, (4, 3, 3))[1]  # drawn apart from x, so that p is not small
    exact = associate(x, y, grouping)
    monkeypatch.setattr("analysis.permutation.MAX_EXACT", 800)  # below 864, the number of pairings
    drawn = associate(x, y, grouping)
    assert (exact.exact, drawn.exact) == (True, False)
    assert abs(drawn.pvalue - exact.pvalue) < 4 * math.sqrt(exact.pvalue * (1 - exact.pvalue) / 800)
    assert drawn.pvalue == associate(x, y, grouping).pvalue


def test_padding_is_not_looked_at():
    x, y, grouping = study(1)
    other = [np.where(grouping.valid, series, -1e6) for series in (x, y)]
    assert associate(*other, grouping) == associate(x, y, grouping)
    assert not whiten(centre(x, grouping), 0.9, grouping)[~grouping.valid[:, 1:]].any()


def test_one_coefficient_recovers_the_noise_of_both_series():
    random = np.random.default_rng(0)
    grouping = Grouping(np.repeat(np.arange(4), 5), np.ones((20, 3000), bool))
    shocks = random.normal(size=(2, 20, 3000))
    paths = np.zeros_like(shocks)
    for t in range(1, 3000):
        paths[..., t] = 0.8 * paths[..., t - 1] + shocks[..., t]
    assert ar1((centre(paths[0], grouping), centre(paths[1] * 100, grouping)), grouping) == pytest.approx(0.8, abs=0.01)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.1, 10), st.floats(-5, 5))
def test_rho_is_a_correlation(seed, factor, shift):
    x, y, grouping = study(seed)
    found = associate(x, y, grouping)
    for rho in (found.level, found.whitened):
        low, high = rho.interval()
        assert -1 <= low <= rho.value <= high <= 1
    other = associate(factor * y + shift, x, grouping)
    assert other.pvalue == found.pvalue
    assert other.level.value == pytest.approx(found.level.value, abs=1e-9)
    assert associate(x, -y, grouping).level.value == pytest.approx(-found.level.value, abs=1e-9)
    assert 1 / 72 <= found.pvalue <= 1


def test_replicas_have_no_rho():
    x, y, grouping = study(0)
    same = x[[0, 0, 0, 3, 3, 3, 6, 6]] * (1 + 1e-15 * np.arange(8)[:, None])
    with pytest.raises(ValueError, match="does not differ"):
        associate(same, y, grouping)


def test_sign_flips_agree_with_scipy():
    values = np.random.default_rng(5).normal(0.4, 1, 10)
    expected = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", alternative="greater", n_resamples=np.inf
    )
    assert sign_flip(values) == pytest.approx(expected.pvalue, abs=1e-12)
    many = np.random.default_rng(5).normal(0.2, 1, 60)
    t = stats.ttest_1samp(many, 0, alternative="greater").pvalue
    assert sign_flip(many) == pytest.approx(t, abs=0.02)
    assert sign_flip(np.zeros(6)) == 1


def test_holm_agrees_with_statsmodels():
    pvalues = [0.01, 0.2, 0.03, 0.03, 0.9]
    assert holm(pvalues) == pytest.approx(multipletests(pvalues, method="holm")[1])
    assert holm([]) == []


def test_pooled_rho_is_dersimonian_and_laird():
    rhos = [associate(*study(seed)).level for seed in range(5)]
    found = pool(rhos)
    z = np.arctanh([r.value for r in rhos])
    v = np.array([(r.error / (1 - r.value**2)) ** 2 for r in rhos])
    w = 1 / v
    q = np.sum(w * (z - np.sum(w * z) / w.sum()) ** 2)
    tau2 = max(0.0, (q - 4) / (w.sum() - np.sum(w**2) / w.sum()))
    w = 1 / (v + tau2)
    assert found.mean == pytest.approx(np.tanh(np.sum(w * z) / w.sum()), rel=1e-6)
    assert found.tau == pytest.approx(math.sqrt(tau2), rel=1e-6, abs=1e-12)
    half = stats.t.ppf(0.975, 4) / math.sqrt(w.sum())
    assert found.interval == pytest.approx(tuple(np.tanh(np.arctanh(found.mean) + np.array([-half, half]))), rel=1e-6)
    with pytest.raises(ValueError, match="2 or more"):
        pool(rhos[:1])
