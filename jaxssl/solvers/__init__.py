"""Solvers of quadratic programs with bounds, and MMCL's SVM dual for all anchors at once.

from jaxssl.solvers import box_qp_pgd, svm_dual_pgd

x = box_qp_pgd(matrix, linear, 0.0, 1.0).x
alpha = svm_dual_pgd(kernel, positive, excluded, C=100.0, tol=1e-4, num_steps=1000).alpha
"""

from jaxssl.solvers.box_qp import BoxQPSolution, box_qp_pgd, box_qp_truncated_ls
from jaxssl.solvers.svm_dual import DualSolution, svm_dual_admm, svm_dual_inv, svm_dual_pgd

__all__ = [
    "BoxQPSolution",
    "DualSolution",
    "box_qp_pgd",  # any box-constrained QP, projected gradient
    "box_qp_truncated_ls",  # the clipped unconstrained solution
    "svm_dual_admm",  # all anchors' duals, fewest steps
    "svm_dual_inv",  # all anchors' clipped unconstrained duals, from one inverse
    "svm_dual_pgd",  # all anchors' duals, projected gradient
]
