"""ReSSL: the student's relations to other examples should be the teacher's."""

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.losses.objective import Number, require_positive, stateless
from jaxssl.losses.pairs import Pairs, count_positives, dot, negatives, partners, unit


def ressl_loss(
    pairs: Pairs, *, student_temperature: Number = 0.1, teacher_temperature: Number = 0.04
) -> Array:
    r"""Cross-entropy between two softmaxes over the negatives: the query's and its key's.

    .. math:: L_i = -\sum_{n \in N_i} \mathrm{softmax}_n\Big(\frac{k_i \cdot c_n}{\tau_t}\Big)
              \log \mathrm{softmax}_n\Big(\frac{q_i \cdot c_n}{\tau_s}\Big)

    Args:
        pairs: n queries, m keys, from `pair_towers`. The paper's negatives are a queue of keys:
            ``pair_towers(q, k, queue=queue, batch_negatives=False)``.
        student_temperature: tau_s, > 0.
        teacher_temperature: tau_t, > 0 and below tau_s: the target is sharper.

    Returns:
        [n] float32; 0 for an anchor without a positive.

    Raises:
        ValueError: if there is a single view.

    References:
        Zheng et al., ReSSL: Relational Self-Supervised Learning with Weak Augmentation, 2021,
        eq. 3 to 5.
    """
    require_positive(
        student_temperature=student_temperature, teacher_temperature=teacher_temperature
    )
    neg = negatives(pairs)
    candidates = unit(pairs.candidate)
    least = jnp.finfo(candidates.dtype).min / 4
    s = dot(unit(pairs.anchor), candidates) / student_temperature
    log_p = jax.nn.log_softmax(jnp.where(neg, s, least), axis=1)
    targets = []
    for key in partners(pairs, "ressl"):
        t = lax.stop_gradient(dot(unit(key), candidates)) / teacher_temperature
        targets.append(jax.nn.softmax(jnp.where(neg, t, least), axis=1))
    target = sum(targets) / len(targets)
    loss = -jnp.sum(jnp.where(neg, target * log_p, 0), axis=1)
    return jnp.where(count_positives(pairs) > 0, loss, 0)


objective = stateless(ressl_loss, needs_other_keys=True, takes_labels=False)
