"""Solvers of the SVM dual problems of MMCL, for all anchors at once.

    solution = svm_dual_pgd(kernel, positive, excluded, C=100.0, tol=1e-4, num_steps=1000)

Each solver returns a `DualSolution`. `jaxssl.losses.mmcl_info` builds ``kernel``, ``positive`` and
``excluded`` from embeddings and calls a solver.
"""

from jaxssl.solvers.svm_dual import DualSolution, svm_dual_admm, svm_dual_inv, svm_dual_pgd

__all__ = [
    "DualSolution",
    "svm_dual_admm",  # ADMM needs the fewest steps.
    "svm_dual_inv",  # "inv" clips the unconstrained solution to [0, C].
    "svm_dual_pgd",  # PGD is projected gradient descent.
]
