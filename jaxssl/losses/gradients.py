"""Value and gradient of a loss whose batch is split over devices."""

from collections.abc import Callable, Sequence

import jax

from jaxssl import collectives


def global_value_and_grad(
    share: Callable,
    axis_name: str | None,
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
) -> Callable[..., tuple]:
    """Return a function that computes a loss and its gradient from all devices' contributions.

    It is `jax.value_and_grad` for the inside of `jax.shard_map` or `jax.pmap`:

        def step(params, x1, x2):
            share = lambda params: losses.nt_xent(net(params, x1), net(params, x2), axis_name="i")
            return losses.global_value_and_grad(share, "i")(params)

    The value is the mean of the contributions over devices, and the gradient is the gradient of
    this mean. On every device, they equal the results of the whole batch on one device. This holds
    under `jax.pmap` and under `jax.shard_map` with either value of ``check_vma``. By hand,
    ``check_vma=True`` needs the gradient of the mean, and the others need the mean of the
    gradients. The wrong one of the two is wrong by a factor of the number of devices or more,
    without an error.

    Args:
        share: function of the parameters that returns this device's contribution to the loss, [].
        axis_name: mapped axis whose devices share the batch, or None for `jax.value_and_grad`.
        argnums: positions of the parameters: trees of arrays that are equal on all devices.
        has_aux: True if ``share`` returns ``(share, aux)``.

    Returns:
        A function with the arguments of ``share`` that returns ``(value, gradient)``, or
        ``((value, aux), gradient)``. ``aux`` is this device's, without a mean.
    """
    compute = jax.value_and_grad(share, argnums, has_aux)
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def value_and_grad(*args: object, **kwargs: object) -> tuple:
        if len(args) <= max(positions):
            raise TypeError(f"argnums={argnums} needs positional arguments, got {len(args)}")
        # The gradient of an array that varies over devices is not summed over them yet.
        varying = list(args)
        for position in positions:
            varying[position] = collectives.vary(args[position], axis_name)
        out, gradient = compute(*varying, **kwargs)
        value, aux = out if has_aux else (out, None)
        value, gradient = collectives.mean((value, gradient), axis_name)
        return ((value, aux) if has_aux else value), gradient

    return value_and_grad
