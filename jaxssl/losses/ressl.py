"""ReSSL: match the student's similarities to other examples to the teacher's."""

import jax
from jax import Array, lax
from jax import numpy as jnp

from jaxssl.losses.objective import Scalar, stateless
from jaxssl.losses.pairs import Pairs, count_positives, dot, log_zero, negatives, partners, unit

RANGES = {"student_temperature": "> 0", "teacher_temperature": "> 0"}


def ressl_loss(
    pairs: Pairs, *, student_temperature: Scalar = 0.1, teacher_temperature: Scalar = 0.04
) -> Array:
    r"""Compute the cross-entropy between the query's and the key's softmax over the negatives.

    .. math:: L_i = -\sum_{n \in N_i} \mathrm{softmax}_n\Big(\frac{k_i \cdot c_n}{\tau_t}\Big)
              \log \mathrm{softmax}_n\Big(\frac{q_i \cdot c_n}{\tau_s}\Big)

    Args:
        pairs: n queries, m keys, from `pair_towers`. The paper's negatives are a queue of keys:
            ``pair_towers(q, k, queue=queue, batch_negatives=False)``. With labels, other examples
            of the class are not negatives.
        student_temperature: tau_s, > 0.
        teacher_temperature: tau_t, > 0. It should be below tau_s, so that the target is sharper.

    Returns:
        [n] float32, 0 for an anchor without a positive.

    Raises:
        ValueError: if there is only one view.

    References:
        Zheng et al., ReSSL: Relational Self-Supervised Learning with Weak Augmentation, 2021,
        eq. 3 to 5.

    Checked against: solo-learn.
    """
    neg, candidates = negatives(pairs), unit(pairs.candidate)

    def logits(z: Array, temperature: Scalar) -> Array:
        s = dot(unit(z), candidates)
        return jnp.where(neg, s / temperature, log_zero(s.dtype))

    log_p = jax.nn.log_softmax(logits(pairs.anchor, student_temperature), axis=1)
    keys = [logits(key, teacher_temperature) for key in partners(pairs, "ressl")]
    target = jnp.mean(jax.nn.softmax(lax.stop_gradient(jnp.stack(keys)), axis=2), axis=0)
    loss = -jnp.sum(jnp.where(neg, target * log_p, 0), axis=1)
    return jnp.where(count_positives(pairs) > 0, loss, 0)


objective = stateless(ressl_loss, ranges=RANGES, needs_other_keys=True)
