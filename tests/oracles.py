"""The losses again, as loops over scalars in float64 NumPy, from the papers' equations."""

import numpy as np


def cosine(u: np.ndarray, v: np.ndarray) -> float:
    length = np.linalg.norm(u) * np.linalg.norm(v)
    return float(u @ v / length) if length > 0 else 0.0


def similarities(pairs) -> tuple[list[list[float]], list[list[float]]]:
    """For each anchor the similarities of its positives and of its negatives."""
    pos, neg = [], []
    pairs = type(pairs)(*map(np.asarray, pairs))
    for i, u in enumerate(np.asarray(pairs.anchor, np.float64)):
        pos.append([])
        neg.append([])
        for j, v in enumerate(np.asarray(pairs.candidate, np.float64)):
            if j == pairs.self_index[i]:
                continue
            same = pairs.anchor_id[i] == pairs.candidate_id[j]
            (pos if same else neg)[i].append(cosine(u, v))
    return pos, neg


def nt_xent(pairs, *, temperature: float = 0.5) -> np.ndarray:
    out = []
    for pos, neg in zip(*similarities(pairs), strict=True):
        below = sum(np.exp((s - 1) / temperature) for s in pos + neg)
        terms = [-np.log(np.exp((p - 1) / temperature) / below) for p in pos]
        out.append(np.mean(terms) if terms else 0.0)
    return np.array(out)


def auc_cl(
    pairs,
    b: float = 0.0,
    *,
    a: float = 1.0,
    alpha: float = 0.5,
    similarity: str = "cosine",
    positive_margin: float = 0.0,
    clip_positive: bool = False,
    count_positive_as_negative: bool = False,
    negative_weight: float = 1.0,
) -> np.ndarray:
    out = []
    for pos, neg in zip(*similarities(pairs), strict=True):
        if similarity == "unit":
            pos, neg = [(1 + s) / 2 for s in pos], [(1 + s) / 2 for s in neg]
        if count_positive_as_negative:
            neg = neg + pos
        pos = [s - positive_margin for s in pos]
        if clip_positive:
            pos = [min(max(s, 0.0), 1.0) for s in pos]
        if not pos:
            out.append(0.0)
            continue
        total = 0.0
        for p in pos:  # eq. 8 for each positive, then their mean
            total += (p - a) ** 2 + negative_weight * sum((n - b) ** 2 for n in neg)
            total += 2 * alpha * (1 - p + negative_weight * sum(neg)) - alpha**2
        out.append(total / len(pos))
    return np.array(out)
