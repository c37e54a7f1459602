"""Networks in Flax Linen: backbones in this folder, projectors and predictors in `heads/`.

A public file with a function ``net(**hyper) -> nn.Module`` is a network, and its file name is the
value of `net.name` (or `text.name`) in a config. To add a network, add such a file. The module is
called as

    module.apply(variables, images, train=True, axis_name=None, keys=None) -> features

- images: float array [n, h, w, c]. If a network takes other examples, its file has a constant:
  ``EXAMPLES = "graph"``, ``"video"`` or ``"captions"``.
- train: whether BatchNorm uses the statistics of the batch, and random layers are active.
- axis_name: name of a mapped axis. In training, BatchNorm averages its statistics over its devices.
- keys: typed random keys [n], one per image, for stochastic depth. None switches random layers off.
- features: float array [n, f].

The random numbers for an image depend only on its own key, so the result does not depend on how a
batch is split over devices.

Modules compute in the dtype of their inputs and parameters: cast both to bfloat16 for mixed
precision. Running statistics, the statistics of norms, and softmax are always float32.

Parameters of a submodule whose name starts with ``frozen_`` are not trained. The submodule stops
their gradient, and optimisers must not apply weight decay to them.
"""
