"""NumPy oracles: every loss as float64 loops over scalars, written from the papers' equations.

Pairs are of a single device. Each function has the name of its loss.
"""

from dataclasses import replace
from itertools import combinations

import jax
import numpy as np
from scipy.optimize import lsq_linear

from jaxssl.losses.lejepa import draw_directions


def cosine(u: np.ndarray, v: np.ndarray) -> float:
    length = np.linalg.norm(u) * np.linalg.norm(v)
    return float(u @ v / length) if length > 0 else 0.0


def rows(x) -> np.ndarray:
    return np.asarray(x, np.float64)


def relations(pairs) -> tuple[list[list[int]], list[list[int]]]:
    """Indices of the positives and of the negatives of each anchor."""
    pos, neg = [], []
    candidate_id, self_index = np.asarray(pairs.candidate_id), np.asarray(pairs.self_index)
    for i, anchor_id in enumerate(np.asarray(pairs.anchor_id)):
        others = [j for j in range(len(candidate_id)) if j != self_index[i]]
        pos.append([j for j in others if candidate_id[j] == anchor_id])
        neg.append([j for j in others if candidate_id[j] != anchor_id])
        if pairs.queue_only:
            neg[-1] = [j for j in neg[-1] if candidate_id[j] == -1]
    return pos, neg


def similarities(pairs, score=cosine) -> tuple[list[list[float]], list[list[float]]]:
    """Similarities of the positives and of the negatives of each anchor."""
    anchor, candidate = rows(pairs.anchor), rows(pairs.candidate)
    return tuple(
        [[score(u, candidate[j]) for j in group] for u, group in zip(anchor, groups, strict=True)]
        for groups in relations(pairs)
    )


def per_anchor(pairs, term, score=cosine) -> np.ndarray:
    """Apply `term(positive similarities, negative similarities, i)`; 0 without a positive."""
    pos, neg = similarities(pairs, score)
    both = enumerate(zip(pos, neg, strict=True))
    return np.array([term(np.array(p), np.array(n), i) if p else 0.0 for i, (p, n) in both])


def partners(pairs) -> list[np.ndarray]:
    """Embeddings of the other views of each anchor's example, or of its key."""
    if pairs.num_views == 0:
        return [rows(pairs.partner)[i : i + 1] for i in range(len(pairs.anchor))]
    index, anchor = np.asarray(pairs.index), rows(pairs.anchor)
    same = [
        [k for k in range(len(index)) if index[k] == example and k != i]
        for i, example in enumerate(index)
    ]
    return [anchor[k] for k in same]


def views(pairs) -> list[np.ndarray]:
    if pairs.num_views == 0:
        return [rows(pairs.anchor), rows(pairs.partner)]
    return np.split(rows(pairs.anchor), pairs.num_views)


def off_diagonal(c: np.ndarray) -> float:
    """Sum the squares of the entries off the diagonal."""
    return sum(c[d, e] ** 2 for d in range(len(c)) for e in range(len(c)) if d != e)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def nt_xent(pairs, *, temperature=0.5, score=cosine, **_) -> np.ndarray:
    def term(pos, neg, i):
        below = np.exp((np.concatenate([pos, neg]) - 1) / temperature).sum()
        return np.mean([-np.log(np.exp((p - 1) / temperature) / below) for p in pos])

    return per_anchor(pairs, term, score)


def sup_con(pairs, *, temperature=0.1, base_temperature=None, **_) -> np.ndarray:
    scale = 1 if base_temperature is None else temperature / base_temperature
    return scale * nt_xent(pairs, temperature=temperature)


def info_nce(pairs, *, temperature=0.2, scale_by_temperature=True, **_) -> np.ndarray:
    scale = 2 * temperature if scale_by_temperature else 1
    return scale * nt_xent(pairs, temperature=temperature)


def mochi(
    pairs,
    draws=None,
    *,
    temperature=0.2,
    weight=1.0,
    hardest=1024,
    mixed=512,
    mixed_with_anchor=256,
) -> np.ndarray:
    if draws is None:
        draws = jax.random.uniform(jax.random.key(0), (3 * mixed + 2 * mixed_with_anchor,))
    (pos, neg), out = relations(pairs), []
    candidate = [z / max(np.linalg.norm(z), 1e-300) for z in rows(pairs.candidate)]
    for i, z in enumerate(z / max(np.linalg.norm(z), 1e-300) for z in rows(pairs.anchor)):
        u = rows(draws)[i] if np.ndim(draws) == 2 else rows(draws)
        hard = sorted(neg[i], key=lambda j: -z @ candidate[j])[:hardest]
        pick = lambda x: candidate[hard[int(x * len(hard))]]  # noqa: B023, E731
        mixtures = []
        for k in range(mixed if hard else 0):
            a = u[2 * mixed + k]
            mixtures.append(a * pick(u[k]) + (1 - a) * pick(u[mixed + k]))
        for k in range(3 * mixed, 3 * mixed + mixed_with_anchor if hard else 0):
            b = u[mixed_with_anchor + k] / 2
            mixtures.append(b * z + (1 - b) * pick(u[k]))
        below = sum(np.exp(z @ candidate[j] / temperature) for j in pos[i] + neg[i])
        below += weight * sum(np.exp(cosine(z, h) / temperature) for h in mixtures)
        terms = [np.log(below) - z @ candidate[j] / temperature for j in pos[i]]
        out.append(np.mean(terms) if terms else 0.0)
    return np.array(out)


def clip(pairs, logit_scale=2.659260036932778, *, max_scale=100.0, **_) -> np.ndarray:
    t = min(np.exp(logit_scale), max_scale)
    if pairs.num_views:
        return nt_xent(pairs, temperature=1 / t)
    s = np.array([[t * cosine(u, v) for v in rows(pairs.candidate)] for u in rows(pairs.anchor)])
    ids = np.asarray(pairs.anchor_id)
    out = []
    for i in range(len(s)):
        same = ids == ids[i]
        row = np.log(np.exp(s[i]).sum()) - s[i, same].mean()
        column = np.log(np.exp(s[:, i]).sum()) - s[same, i].mean()
        out.append((row + column) / 2)
    return np.array(out)


def siglip(pairs, logit_scale=2.302585092994046, bias=-10.0) -> np.ndarray:
    def term(pos, neg, i):
        t = np.exp(logit_scale)
        yes = np.log(1 + np.exp(-(t * pos + bias))).sum()
        return yes + np.log(1 + np.exp(t * neg + bias)).sum()

    return per_anchor(pairs, term)


def tcl(pairs, *, temperature=0.2, k1=1.0, k2=1.5, **_) -> np.ndarray:
    def term(pos, neg, i):
        below = np.exp(pos / temperature).sum() + k1 * np.exp(-pos).sum()
        below += k2 * np.exp(neg / temperature).sum()
        return np.mean([-np.log(np.exp(p / temperature) / below) for p in pos])

    return per_anchor(pairs, term)


def dcl(pairs, *, temperature=0.1, **_) -> np.ndarray:
    def term(pos, neg, i):
        below = np.exp(neg / temperature).sum() if len(neg) else 1.0
        return np.mean([-np.log(np.exp(p / temperature) / below) for p in pos])

    return per_anchor(pairs, term)


def graphcl(pairs, *, temperature=0.2, **_) -> np.ndarray:
    return dcl(pairs, temperature=temperature)


def dclw(pairs, *, temperature=0.1, sigma=0.5, stop_weight_gradient=True, **_) -> np.ndarray:
    pos, _neg = similarities(pairs)
    mean = [np.mean(p) if p else None for p in pos]
    b = len(pos) // max(pairs.num_views, 1)
    out = []
    for i, loss in enumerate(dcl(pairs, temperature=temperature)):
        if mean[i] is None:
            out.append(0.0)
            continue
        view = [p for p in mean[i // b * b : i // b * b + b] if p is not None]
        share = np.exp(mean[i] / sigma) / np.exp(np.array(view) / sigma).sum()
        weight = 2 - len(view) * share
        out.append(loss + mean[i] / temperature - weight * mean[i] / temperature)
    return np.array(out)


def hcl(pairs, *, temperature=0.5, beta=1.0, positive_prior=0.1) -> np.ndarray:
    def term(pos, neg, i):
        e, count = np.exp(neg / temperature), len(neg)
        weight = e**beta / np.mean(e**beta) if count else e
        total, floor = (weight * e).sum(), count * np.exp(-1 / temperature)
        terms = []
        for p in np.exp(pos / temperature):
            rest = max((total - count * positive_prior * p) / (1 - positive_prior), floor)
            terms.append(-np.log(p / (p + rest)))
        return np.mean(terms)

    return per_anchor(pairs, term)


def debiased(pairs, *, temperature=0.5, positive_prior=0.1) -> np.ndarray:
    return hcl(pairs, temperature=temperature, beta=0.0, positive_prior=positive_prior)


def auc_cl(
    pairs,
    b=0.0,
    *,
    a=10.0,
    alpha=0.5,
    negative_weight=64.0,
    negative_reduction="mean",
    similarity="cosine",
    positive_margin=0.0,
    clip_positive=False,
    count_positive_as_negative=False,
    **_,
) -> np.ndarray:
    def term(pos, neg, i):
        if similarity == "unit":
            pos, neg = (1 + pos) / 2, (1 + neg) / 2
        if count_positive_as_negative:
            neg = np.concatenate([neg, pos])
        pos = pos - positive_margin
        if clip_positive:
            pos = np.clip(pos, 0, 1)
        weight = negative_weight
        if negative_reduction == "mean":
            weight = weight / len(neg) if len(neg) else 0.0
        total = 0.0
        for p in pos:  # AUC-CL's eq. 8 for each positive
            total += (p - a) ** 2 + weight * sum((n - b) ** 2 for n in neg)
            total += 2 * alpha * (1 - p + weight * sum(neg)) - alpha**2
        return total / len(pos)

    return per_anchor(pairs, term)


def svm_dual(delta, C) -> np.ndarray:
    """Minimise 1/2 a'Da - 2 1'a over 0 <= a <= C as least squares in the square root of D."""
    root = np.linalg.cholesky(delta).T
    right = np.linalg.solve(root.T, np.full(len(delta), 2.0))
    return lsq_linear(root, right, (0, C), method="bvls", tol=1e-14).x


def mmcl(
    pairs, *, kernel="rbf", gamma=0.1, eta=0.0, C=100.0, solver="pgd", regularization=0.1, **_
) -> np.ndarray:
    def k(u, v) -> float:
        u, v = (x / max(np.linalg.norm(x), 1e-300) for x in (u, v))
        return {
            "rbf": lambda: np.exp(-gamma * ((u - v) ** 2).sum()),
            "linear": lambda: u @ v,
            "tanh": lambda: np.tanh(gamma * (u @ v) + eta),
            "poly": lambda: (u @ v + 0.5) ** 3,
            "min": lambda: np.minimum(np.maximum(u, 0), np.maximum(v, 0)).sum(),
        }[kernel]()

    candidate, losses = rows(pairs.candidate), []
    for z, x, neg in zip(rows(pairs.anchor), rows(pairs.partner), relations(pairs)[1], strict=True):
        y = candidate[neg]
        delta = np.array([[k(u, v) - k(x, u) - k(x, v) + 1 for u in y] for v in y])
        delta = delta.reshape(len(y), len(y)) + regularization * np.eye(len(y))
        if solver == "inv":
            alpha = np.clip(np.linalg.solve(delta, np.full(len(y), 2.0)), 0, C)
        else:
            alpha = svm_dual(delta, C)
        losses.append(sum(a * (k(v, z) - k(x, z)) for a, v in zip(alpha, y, strict=True)))
    return np.array(losses)


def decl(
    pairs, rate=None, *, weight=1.0, temperature=0.5, similarity="cosine", include_positive=False
) -> np.ndarray:
    def score(u, v):
        return cosine(u, v) if similarity == "cosine" else -np.linalg.norm(u - v)

    def term(pos, neg, i):
        pos, neg = np.exp(pos / temperature), np.exp(neg / temperature)
        log_positive = np.log(pos).mean()
        u = 1 / (neg.mean() if rate is None else rate[i])
        below = neg.sum() + (pos.sum() if include_positive else 0)
        first, second = u * neg.mean() - log_positive, np.log(below) - log_positive
        return weight * first + (1 - weight) * second

    return per_anchor(pairs, term, score)


def moving_average(g, logs, i, gamma):
    first = logs is None or np.isneginf(logs[i])
    return g if first else (1 - gamma) * np.exp(float(logs[i])) + gamma * g


def fastclip(pairs, log_u=None, log_v=None, *, temperature=0.03, gamma=0.2) -> np.ndarray:
    def direction(pairs, logs):
        def term(pos, neg, i):
            g = np.exp((neg - pos.mean()) / temperature).mean() if len(neg) else 1.0
            return g / moving_average(g, logs, i, gamma)

        return per_anchor(pairs, term)

    texts = pairs
    if not pairs.num_views:
        texts = replace(pairs, anchor=pairs.candidate, candidate=pairs.anchor)
    return direction(pairs, log_u) + direction(texts, log_v)


def sogclr(pairs, log_u=None, *, temperature=0.1, gamma=0.9) -> np.ndarray:
    def term(pos, neg, i):
        e = np.exp(neg / temperature)
        u = moving_average(e.mean(), log_u, i, gamma)
        return 2 * ((e / u * neg).mean() - pos.mean())

    return per_anchor(pairs, term)


def spectral(pairs, *, mu=1.0) -> np.ndarray:
    def cut(u):
        return u * min(1.0, np.sqrt(mu) / max(np.linalg.norm(u), 1e-300))

    def term(pos, neg, i):
        return (-2 * pos.mean() + ((neg**2).mean() if len(neg) else 0)) / mu

    return per_anchor(pairs, term, lambda u, v: cut(u) @ cut(v))


def simsiam(pairs) -> np.ndarray:
    both = zip(rows(pairs.anchor), partners(pairs), strict=True)
    return np.array([-np.mean([cosine(u, v) for v in others]) for u, others in both])


def byol(pairs) -> np.ndarray:
    return 2 + 2 * simsiam(pairs)


def barlow_twins(pairs, *, off_diagonal_weight=0.005, scale=1.0, epsilon=1e-5) -> np.ndarray:
    normal = [(z - z.mean(0)) / np.sqrt(z.var(0) + epsilon) for z in views(pairs)]
    values = []
    for one, other in combinations(normal, 2):
        c = one.T @ other / len(one)
        value = sum((1 - c[d, d]) ** 2 for d in range(len(c)))
        value += off_diagonal_weight * off_diagonal(c)
        values.append(scale * value)
    return np.full(len(pairs.anchor), np.mean(values))


def arb(pairs, *, groups=1, epsilon=1e-5) -> np.ndarray:
    def standard(z):
        return (z - z.mean(0)) / (z.std(0, ddof=1) + epsilon)

    def basis(z):
        blocks = []
        for x in np.split(z, groups, axis=1):
            values, vectors = np.linalg.eigh(x.T @ x / (len(x) - 1))
            blocks.append(x @ vectors @ np.diag((values + epsilon) ** -0.5) @ vectors.T)
        return np.hstack(blocks)

    values = []
    for pair in combinations([standard(z) for z in views(pairs)], 2):
        terms = [((1 - (z * basis(x)).mean(0)) ** 2).sum() for z, x in (pair, pair[::-1])]
        values.append(sum(terms))
    return np.full(len(pairs.anchor), np.mean(values))


def vicreg(
    pairs, *, invariance_weight=25.0, variance_weight=25.0, covariance_weight=1.0, epsilon=1e-4
) -> np.ndarray:
    def spread(z):
        c = np.atleast_2d(np.cov(z.T))
        hinge = np.mean([max(0.0, 1 - np.sqrt(v + epsilon)) for v in np.diag(c)])
        return variance_weight * hinge / 2 + covariance_weight * off_diagonal(c) / len(c)

    values = [
        invariance_weight * ((one - other) ** 2).mean() + spread(one) + spread(other)
        for one, other in combinations(views(pairs), 2)
    ]
    return np.full(len(pairs.anchor), np.mean(values))


def lejepa(
    pairs, directions=None, *, weight=0.02, num_slices=256, num_knots=17, t_max=3.0
) -> np.ndarray:
    z = np.stack(views(pairs))
    if directions is None:
        directions = draw_directions(jax.random.key(0), z.shape[-1], num_slices)
    t = np.linspace(-t_max, t_max, 2 * num_knots - 1)
    normal = np.exp(-(t**2) / 2)
    statistics = []
    for view in z:
        for direction in rows(directions).T:
            characteristic = np.mean([np.exp(1j * t * (row @ direction)) for row in view], axis=0)
            integrand = np.abs(characteristic - normal) ** 2 * normal
            statistics.append(len(view) * np.trapezoid(integrand, t))
    invariance = ((z - z.mean(axis=0)) ** 2).mean()
    value = (1 - weight) * invariance + weight * np.mean(statistics)
    return np.full(len(pairs.anchor), value)


def w_mse(pairs, *, epsilon=1e-3) -> np.ndarray:
    white = []
    for z in views(pairs):
        c = (1 - epsilon) * np.cov(z.T) + epsilon * np.eye(z.shape[1])
        white.append((np.linalg.inv(np.linalg.cholesky(c)) @ (z - z.mean(0)).T).T)
    out = []
    for v in range(max(pairs.num_views, 1)):
        for i in range(len(white[v])):
            others = [w for w in range(len(white)) if w != v]
            out.append(np.mean([2 - 2 * cosine(white[v][i], white[w][i]) for w in others]))
    return np.array(out)


def swav(pairs, prototypes, *, temperature=0.1, epsilon=0.05, num_iters=3) -> np.ndarray:
    def scores(z):
        return np.array([[cosine(u, c) for c in rows(prototypes)] for u in z])

    def codes(s):
        q = np.exp(s / epsilon)
        for _ in range(num_iters):
            q = q / q.sum(0, keepdims=True) / q.shape[1]
            q = q / q.sum(1, keepdims=True) / q.shape[0]
        return q * q.shape[0]

    all_views = views(pairs)
    targets = [codes(scores(z)) for z in all_views]
    out = []
    for v in range(max(pairs.num_views, 1)):
        for i, s in enumerate(scores(all_views[v])):
            log_p = np.log(softmax(s / temperature))
            others = [targets[w][i] for w in range(len(all_views)) if w != v]
            out.append(np.mean([-(q * log_p).sum() for q in others]))
    return np.array(out)


def dino(pairs, center=None, *, student_temperature=0.1, teacher_temperature=0.04) -> np.ndarray:
    center = 0 if center is None else rows(center)
    out = []
    for s, teachers in zip(rows(pairs.anchor), partners(pairs), strict=True):
        log_p = np.log(softmax(s / student_temperature))
        targets = [softmax((t - center) / teacher_temperature) for t in teachers]
        out.append(np.mean([-(t * log_p).sum() for t in targets]))
    return np.array(out)


def auc_dino(pairs, center=0.0, *, a=10.0, b=0.0, alpha=1.0, negative_weight=32.0, **tau):
    tau_s, tau_t = tau.get("student_temperature", 0.1), tau.get("teacher_temperature", 0.04)
    w = negative_weight * max(pairs.num_views, 1) / len(pairs.anchor)

    def score(z, t):
        return (1 + softmax((t - rows(center)) / tau_t) @ z / tau_s) / 2

    def term(pos, neg, i):
        total = alpha + np.mean([(p - a) ** 2 - 2 * alpha * p for p in pos])
        return total + w * sum((n - b) ** 2 + 2 * alpha * n for n in neg)

    return per_anchor(pairs, term, score)


def nnclr(pairs, support=None, *, temperature=0.1) -> np.ndarray:
    def nearest(u):
        return u if support is None else max(rows(support), key=lambda v: cosine(u, v))

    return nt_xent(pairs, temperature=temperature, score=lambda u, v: cosine(nearest(u), v))


def ressl(pairs, *, student_temperature=0.1, teacher_temperature=0.04) -> np.ndarray:
    (pos, neg), candidate = relations(pairs), rows(pairs.candidate)
    out = []
    for i, (q, keys) in enumerate(zip(rows(pairs.anchor), partners(pairs), strict=True)):
        if not pos[i] or not neg[i]:
            out.append(0.0)
            continue
        to_others = lambda z: np.array([cosine(z, candidate[j]) for j in neg[i]])  # noqa: E731, B023
        log_p = np.log(softmax(to_others(q) / student_temperature))
        targets = [softmax(to_others(k) / teacher_temperature) for k in keys]
        out.append(np.mean([-(t * log_p).sum() for t in targets]))
    return np.array(out)
