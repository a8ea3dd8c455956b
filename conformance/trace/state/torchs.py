"""What the optimizers of torch.optim keep in their state. A trainer may keep more there, which they do not read."""

from __future__ import annotations

KEPT_BY_TORCH = frozenset(
    {
        *("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "mu_product", "momentum_buffer"),
        *("sum", "square_avg", "acc_delta", "grad_avg", "mu", "ax", "eta", "prev", "step_size"),
        *("variance", "row_var", "col_var", "func_evals", "n_iter", "d", "t", "al", "ro", "H_diag"),
        *("old_dirs", "old_stps", "prev_flat_grad", "prev_loss"),
    }
)
