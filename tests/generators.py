"""Synthetic "training studies" with KNOWN truth, for acceptance-testing a coupling/mediation analysis.

A *study* is what one optimizer contributes: R = len(lrs) * seeds runs, each a trajectory of T logged
steps of four positive series: ECE, Gauss-Newton sharpness ``lam``, exponential margin moment ``Q`` and
training ``loss`` (plus a weak mediator, ``gnorm``).  All series are rise-peak-decay curves in log space

    log y(t) = -log(u^-a + u^b) + AR(1) noise,     u = t / tau       (rises as u^a, decays as u^-b)

so any two of them have a large Pearson correlation whether or not they are coupled.  Runs are ordered
lr-major: run = i_lr * seeds + i_seed; ``stratum`` is i_lr.

Nulls (ECE and lam NOT coupled beyond generic shape; truth["coupled"] is False)
  G0    independent peak times / exponents per run, AR(1) noise of moderate size
  G0S   same, almost noiseless (full-batch GD): breaks differencing and prewhitening tests
  G0C   shared clock: learning rate moves BOTH peak times (tau ~ lr^-1/2); independent given lr.
        Breaks every test that pools or permutes across learning rates
  G0D   distinct drivers: ECE, Q and loss share one run-specific driver, lam and gnorm another, same clock.
        Both series carry a detectable run signal, so a sound procedure can answer REFUTED
  G0W   independent random walks with a common generic trend (spurious-regression extreme)
Alternatives (truth["coupled"] is True)
  G1    ECE and lam are both driven by Q: log y = log c + alpha log Q + own AR(1) noise (complete mediation)
  G1S   same, but seeds are replicas (no run-specific driver at all): truth is coupled, the data cannot show
        run-specific coupling (a sound procedure answers INCONCLUSIVE, never SUPPORTED or REFUTED by power)
  G1W   weak G1: near-replica seeds (seed_sd 0.08, sigma_q 0.08) under larger own noise (sigma_own 0.25)
  G1M   G1 with Q observed with error (reliability about 0.9 of its within-stratum variance)
  G2    confounder: both follow the training loss; Q is only a proxy of it, off by ``proxy_sd`` (NOT mediated by Q)
  G3    partial mediation: Q plus a second shared factor Z of size ``gamma`` (NOT completely mediated)
  G4    edge of stability: lam = b min(Q, cap(lr)) (a saturating, lr-dependent link; ECE still follows Q)
  G5    opposed: lam ~ Q^-0.4 (label-noise phase seen in real runs; coupled with the WRONG sign)
  G6    exponents differ: alpha_E = 1, alpha_lam = 0.7; otherwise G1
  G7    lag: lam follows Q ``lag`` steps late; otherwise G1
  GE    tie: Q and loss are equally good proxies of the latent driver (size of mediator comparisons)

>>> s = generate("G1", np.random.default_rng(0)); s.ece.shape
(12, 300)
"""

from dataclasses import dataclass, field

import numpy as np
from scipy.signal import lfilter

K = 10  # classes assumed by the (K-1)Q bound
LRS = (0.01, 0.03, 0.1, 0.3)
NULLS = ("G0", "G0S", "G0C", "G0D", "G0W")
COUPLED = ("G1", "G1W", "G1S", "G1M", "G2", "G3", "G4", "G5", "G6", "G7", "GE")


@dataclass
class Study:
    kind: str
    step: np.ndarray  # (T,)
    ece: np.ndarray  # (R, T), > 0
    lam: np.ndarray
    Q: np.ndarray
    loss: np.ndarray
    gnorm: np.ndarray
    lr: np.ndarray  # (R,)
    seed: np.ndarray  # (R,)
    stratum: np.ndarray  # (R,) index of lr
    truth: dict = field(default_factory=dict)

    def frame(self):
        """Long pandas DataFrame: run, lr, seed, step and the five series."""
        import pandas as pd

        R, T = self.ece.shape
        d = dict(
            run=np.repeat(np.arange(R), T),
            lr=np.repeat(self.lr, T),
            seed=np.repeat(self.seed, T),
            step=np.tile(self.step, R),
        )
        d.update({k: getattr(self, k).ravel() for k in ("ece", "lam", "Q", "loss", "gnorm")})
        return pd.DataFrame(d)


def ar1(rng, R, T, phi):
    """R stationary unit-variance AR(1) paths of length T."""
    e = rng.standard_normal((R, T)) * np.sqrt(1 - phi**2)
    e[:, 0] = rng.standard_normal(R)
    return lfilter([1.0], [1.0, -phi], e, axis=1)


def bump(T, tau, a, b):
    """Log of a rise-peak-decay curve, one row per run; tau is a fraction of training."""
    u = (np.arange(1, T + 1) / T)[None, :] / np.asarray(tau)[:, None]
    a, b = np.asarray(a)[:, None], np.asarray(b)[:, None]
    return -np.logaddexp(-a * np.log(u), b * np.log(u)) + np.log(2.0)


def _shape(rng, R, T, clock, seed_sd):
    tau = 0.15 * clock * np.exp(seed_sd * rng.standard_normal(R))
    a = 0.8 * np.exp(seed_sd * rng.standard_normal(R))
    b = 1.2 * np.exp(seed_sd * rng.standard_normal(R))
    return bump(T, tau, a, b)


def generate(
    kind,
    rng,
    T=300,
    lrs=LRS,
    seeds=3,
    phi=0.95,
    seed_sd=0.25,
    sigma=0.12,
    sigma_q=0.12,
    sigma_own=0.10,
    proxy_sd=0.12,
    gamma=0.10,
    lag=10,
    alpha_e=1.0,
    alpha_lam=1.0,
    tau_sd_lr=0.5,
):
    """Draw one study.  ``seed_sd``: log-sd of run-specific peak time and exponents.  ``sigma``: AR(1) noise of
    a null series, ``sigma_q`` of the shared driver, ``sigma_own`` of each follower (all on the log scale)."""
    L, R = len(lrs), len(lrs) * seeds
    lr = np.repeat(np.asarray(lrs, float), seeds)
    one = np.ones(R)
    # In every alternative, and in G0C, faster learning rates run the clock faster.
    clock = (lr / np.exp(np.log(lrs).mean())) ** (-tau_sd_lr)
    truth = dict(
        coupled=kind in COUPLED,
        mediated_by_Q=kind in ("G1", "G1W", "G1S", "G1M", "G4", "G5", "G6", "G7"),
        alpha_e=alpha_e,
        alpha_lam=alpha_lam,
        lag=0,
        sign=1,
    )
    if kind in ("G0S", "G1S"):
        sigma = sigma_q = sigma_own = 0.005
    if kind == "G1S":
        seed_sd, sigma_q = 0.0, 0.0
    if kind == "G1W":
        seed_sd, sigma_q, sigma_own = 0.08, 0.08, 0.25

    def n(s, p=phi):
        return s * ar1(rng, R, T, p)

    if kind in NULLS:
        if kind == "G0D":
            D, D2 = (_shape(rng, R, T, clock, seed_sd) + n(sigma_q) for _ in range(2))
            lE, lL, lQ, lLoss = D + n(sigma_own), D2 + n(sigma_own), D, 0.9 * D + n(sigma_own)
        elif kind == "G0W":
            trend = bump(T, 0.15 * one, 0.8 * one, 1.2 * one)

            def w():
                return trend + np.cumsum(rng.standard_normal((R, T)), 1) * (2.0 / np.sqrt(T))

            lE, lL, lQ, lLoss = w(), w(), w(), w()
        else:
            c = clock if kind == "G0C" else one
            lE, lL, lQ, lLoss = (_shape(rng, R, T, c, seed_sd) + n(sigma) for _ in range(4))
    else:
        pad = lag if kind == "G7" else 0
        base = _shape(rng, R, T, clock, seed_sd)
        D = base + n(sigma_q)  # latent driver (log)
        if kind == "G2":
            lLoss, lQ = D, D + n(proxy_sd) + proxy_sd * rng.standard_normal((R, 1)) * np.linspace(0, 1, T)
        elif kind == "GE":
            lQ, lLoss = D + n(sigma_own), D + n(sigma_own)
        else:
            lQ, lLoss = D, 0.9 * D + n(sigma_own) + 0.1 * rng.standard_normal((R, 1)) * np.linspace(0, 1, T)
        if kind == "G6":
            alpha_lam = 0.7
        if kind == "G5":
            alpha_lam, truth["sign"] = -0.4, -1
        drive = D
        if pad:
            truth["lag"] = pad
            drive = np.concatenate([np.repeat(D[:, :1], pad, 1), D[:, :-pad]], 1)
        lE, lL = alpha_e * D + n(sigma_own), alpha_lam * drive + n(sigma_own)
        truth["alpha_lam"] = alpha_lam
        if kind == "G3":
            Z = n(gamma)
            lE, lL = lE + Z, lL + Z
        if kind == "G4":
            cap = np.log(0.5) + 0.3 * np.log(clock)[:, None]  # stability cap, lower at larger lr
            lL = np.minimum(D, cap) + n(sigma_own)
            truth["alpha_lam"] = np.nan
        if kind == "G1M":
            # measurement error with variance = 1/9 of the within-stratum variance of log Q  (reliability 0.9)
            q = lQ.reshape(L, seeds, T)
            v = ((q - q.mean(1, keepdims=True)) ** 2).sum() / (L * (seeds - 1) * T)
            lQ = lQ + n(np.sqrt(v / 9), 0.0)
    lG = 0.6 * (D2 if kind == "G0D" else lLoss) + n(sigma_own, 0.5)
    ex = np.exp
    return Study(
        kind,
        np.arange(T),
        0.3 * ex(lE),
        20.0 * ex(lL),
        0.6 * ex(lQ),
        0.8 * ex(lLoss),
        ex(lG),
        lr,
        np.tile(np.arange(seeds), L),
        np.repeat(np.arange(L), seeds),
        truth,
    )


if __name__ == "__main__":
    for k in NULLS + COUPLED:
        z = [generate(k, np.random.default_rng(i)) for i in range(50)]
        raw = [np.corrcoef(s.ece[i], s.lam[i])[0, 1] for s in z for i in range(12)]
        lg = [np.corrcoef(np.log(s.ece[i]), np.log(s.lam[i]))[0, 1] for s in z for i in range(12)]
        sw = [np.corrcoef(s.ece[i], s.lam[i - i % 3 + (i % 3 + 1) % 3])[0, 1] for s in z for i in range(12)]
        print(
            f"{k:4s} r(raw) {np.mean(raw):5.2f}+-{np.std(raw):.2f}  r(log) {np.mean(lg):5.2f}+-{np.std(lg):.2f}"
            f"  other-seed r(raw) {np.mean(sw):5.2f}  {z[0].truth}"
        )
