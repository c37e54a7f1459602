"""All config keys with their defaults. Every other config starts from them."""

from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

# A run can resume with other values of these keys, because they do not change its result.
CHANGEABLE_KEYS = ("data.dir", "data.cache", "data.workers", "optim.sharding", "log")
# A mapping that names one of these components replaces its group in `changed`.
COMPONENTS = ("augment", "net", "head", "text", "predictor", "method", "loss")
STRONG_JITTER = {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2}  # SimCLR's


def get_config() -> ConfigDict:
    """Return the default config. Groups with a name get the defaults of that component later."""
    config = ConfigDict()
    config.seed = 0  # seed of initial weights, image order and augmentation
    config.batch_size = 256  # images in a step, over all devices
    config.epochs = 100  # passes over the training set, unless total_steps > 0
    config.total_steps = 0  # number of steps. If it is > 0, epochs is ignored.
    config.views = 2  # augmented views of each image
    config.precision = "float32"  # precision of the networks: "float32" or "bf16"
    config.accumulate_steps = 1  # chunks in which a batch is encoded, with all its negatives
    config.batch_norm_group = 0  # devices that share BatchNorm's statistics (0: all)
    config.init = ""  # run or weights file to start the backbone from ("": random weights)
    config.init_projector = False  # also start the projector from the run `init`
    config.log_every = 20  # steps between two lines of metrics.jsonl
    config.log = ("tensorboard",)  # loggers beside metrics.jsonl: a name or several
    config.max_skipped = 10  # The run stops after so many steps in a row that are not finite.

    config.data = ConfigDict()
    config.data.name = "digits"  # in TFDS, of docs/data.md (as "folder"), or FILE.py:NAME
    config.data.path = ""  # folder or archive of images, or of a small data set's raw files
    config.data.dir = ""  # folder of prepared data sets ("": ~/tensorflow_datasets)
    config.data.train_split = "train"  # split to pretrain on, with slices and sums as in TFDS
    config.data.bank_split = ""  # labelled split to fit probes on ("": train_split)
    config.data.test_split = "test"  # split to evaluate on
    config.data.classes = ""  # file with one class a line, to leave out other classes
    config.data.labels = ""  # CSV file "file,label" ("": labels are names of folders)
    config.data.channels = 0  # of pictures in files, up to 16 (0: 3, which is RGB)
    config.data.normalise = "auto"  # "half" (mean, std 0.5), "measured", "auto" (half for 1, 3)
    config.data.frame_size = 128  # largest side of the stored, square video frames, in pixels
    config.data.context = 77  # largest number of tokens of a caption
    config.data.test_fraction = 0.2  # share of examples for "test" in data without splits
    config.data.split_seed = 0  # seed of the draw of test examples in data without splits
    config.data.on_error = "stop"  # for unreadable images in a folder: "stop" or "skip"
    config.data.cache = "auto"  # "device", "none" (read from disk), "auto" (device if it fits)
    config.data.workers = -1  # processes that read from disk (0: threads, -1: automatic)

    config.augment = ConfigDict({"name": "simclr"})  # a file of jaxssl/augment/recipes/
    config.second_view = ConfigDict()  # augment arguments that differ for the second view
    config.crops = ConfigDict({"number": 0})  # number of small crops, and their augment arguments

    config.net = ConfigDict({"name": "resnet"})  # backbone: a file of jaxssl/models/
    config.head = ConfigDict({"name": "mlp"})  # projector: a file of jaxssl/models/heads/
    config.text = ConfigDict({"name": "none"})  # network of captions: "text" or "none"
    config.predictor = ConfigDict({"name": "none"})  # predictor network: "mlp" or "none"
    config.method = ConfigDict({"name": "siamese"})  # training scheme: a file of jaxssl/methods/
    config.loss = ConfigDict({"name": "nt_xent"})  # loss: a file of jaxssl/losses/

    config.optim = ConfigDict()
    config.optim.name = "adamw"  # "adamw", "adam", "sgd", "lars" or "larc"
    config.optim.lr = 1e-3  # base learning rate
    config.optim.lr_scaling = "none"  # "linear" lr * B / 256, "sqrt" lr * sqrt(B), "none"
    config.optim.weight_decay = 1e-4  # weight decay, without biases, norms and trained scalars
    config.optim.decay_all = False  # decay these too (adam, adamw, sgd), as PyTorch does by default
    config.optim.momentum = 0.9  # momentum of sgd, lars and larc
    config.optim.nesterov = False  # Nesterov momentum in sgd, lars and larc
    config.optim.trust_coefficient = 1e-3  # trust coefficient of lars and larc
    config.optim.lars_clip = False  # cap the trust ratio of larc at 1
    config.optim.sharding = "none"  # split over devices: "none", "optimizer" (its state) or "all"
    config.optim.clip_norm = 0.0  # largest global norm of the gradient (0: no clipping)
    config.optim.backbone_lr = 1.0  # learning rate of the backbone, relative to lr
    config.optim.layer_decay = 1.0  # rate of a layer of the backbone, relative to the next layer
    config.optim.lora = 0  # rank of trained adapters of the attention of a fixed backbone
    config.optim.freeze = ()  # networks or modules that are not trained, such as "net/Conv_0"
    config.optim.freeze_blocks = 0  # number of first blocks, with the stem, that are not trained
    config.optim.freeze_stats = True  # frozen BatchNorms of the backbone keep their statistics

    config.schedule = ConfigDict()
    config.schedule.name = "cosine"  # "constant", "cosine", "linear", "step"
    config.schedule.warmup_epochs = 0.0  # epochs of linear warm-up
    config.schedule.warmup_start = 0.0  # first learning rate of the warm-up, relative to the peak
    config.schedule.milestones = ()  # schedule "step": epochs at which gamma multiplies the rate
    config.schedule.gamma = 0.1  # factor of the schedule "step" at each milestone
    config.schedule.end_factor = 0.0  # last learning rate, relative to the peak

    config.eval = ConfigDict()
    config.eval.every = 10.0  # epochs between online k-NN evaluations
    config.eval.held_out_loss = False  # log the training loss on the test split too
    config.eval.online_linear = False  # train a linear probe beside the encoder, and log it
    config.eval.knn = "cifar_simclr"  # k-NN preset during training: k=200, T=0.5
    config.eval.protocols = ("knn", "linear", "fewshot")  # run after training: NAME or NAME:PRESET

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 10.0  # epochs between checkpoints (also at each evaluation)
    return config


def changed(*changes: Mapping[str, Any]) -> ConfigDict:
    """Return the default config with changes by key. Later changes replace earlier ones.

    A mapping updates its group. One that names a component, such as another loss, replaces it.
    """
    config = get_config().to_dict()
    for change in changes:
        for key, value in change.items():
            if key == "about":  # a line of text for `jaxssl list`
                continue
            if key in COMPONENTS and "name" in value:
                config[key] = value
            else:
                config[key] = _merged(config[key], value)
    return ConfigDict(config)


def _merged(old: Any, new: Any) -> Any:
    """Return ``new``, merged into ``old`` key by key if both are mappings."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


def make_get_config(
    variants: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any] | None = None
) -> Callable[[str], ConfigDict]:
    """Return get_config(variant) for a config file with variants, such as "auc_cl:cifar10".

    Args:
        variants: by name, the changes of `base` and "about", a line of text.
        shared: changes that come before the changes of each variant.
    """

    def get_config(variant: str) -> ConfigDict:
        return changed(shared or {}, variants[variant])

    return get_config
