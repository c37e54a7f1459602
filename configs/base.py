"""All config keys with their defaults. Other configs change some of them."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Return the defaults. Groups with a name are completed from the component's defaults."""
    config = ConfigDict()
    config.seed = 0  # of the initial weights, the order of images and the augmentation
    config.batch_size = 256  # images in a step, over all devices
    config.epochs = 100  # passes over the training set, or:
    config.total_steps = 0  # number of steps; if > 0, epochs is ignored
    config.views = 2  # augmented views of each image
    config.precision = "float32"  # of the networks: "float32" or "bf16"
    config.accumulate_steps = 1  # encode a batch in this many parts; all of it gives negatives
    config.log_every = 20  # steps between two lines of metrics.jsonl
    config.max_skipped = 10  # stop after so many consecutive steps that are not finite

    config.data = ConfigDict()
    config.data.name = (
        "digits"  # a name in TFDS, "imagenet100", "folder", "captions", "video", "tu"
    )
    config.data.path = ""  # folder or archive of images, or of a small data set's raw files
    config.data.dir = ""  # folder of prepared data sets; "" is ~/tensorflow_datasets
    config.data.train_split = "train"  # to pretrain on; slices and sums as in TFDS
    config.data.bank_split = ""  # labelled images to fit probes on; "" is train_split
    config.data.test_split = "test"  # to evaluate on
    config.data.classes = ""  # file with one class a line; other classes are left out
    config.data.labels = ""  # folder: CSV file "file,label"; "" takes the names of folders
    config.data.frame_size = 128  # videos: longer side of a frame, in pixels
    config.data.context = 77  # captions: largest number of tokens
    config.data.test_fraction = 0.2  # folder without splits: share of images for "test"
    config.data.split_seed = 0  # folder without splits: seed of the draw of test images
    config.data.on_error = "stop"  # folder with unreadable images: "stop" or "skip"
    config.data.cache = "auto"  # "device", "none" (read from disk), "auto" (device if it fits)
    config.data.workers = -1  # processes that read from disk; 0: threads, -1: automatic

    config.augment = ConfigDict({"name": "simclr"})  # a file of jaxssl/augment/recipes/
    config.second_view = ConfigDict()  # arguments of augment that differ for the second view
    config.crops = ConfigDict({"number": 0})  # small crops and their arguments of augment

    config.net = ConfigDict({"name": "resnet"})  # a file of jaxssl/models/
    config.head = ConfigDict({"name": "mlp"})  # projector, a file of models/heads/
    config.text = ConfigDict({"name": "none"})  # network of captions: "text" or "none"
    config.predictor = ConfigDict({"name": "none"})  # "mlp" or "none"
    config.method = ConfigDict({"name": "siamese"})  # a file of jaxssl/methods/
    config.loss = ConfigDict({"name": "nt_xent"})  # a file of jaxssl/losses/

    config.optim = ConfigDict()
    config.optim.name = "adamw"  # "adamw", "adam", "sgd", "lars", "larc"
    config.optim.lr = 1e-3  # base learning rate
    config.optim.lr_scaling = "none"  # "linear" lr * B / 256, "sqrt" lr * sqrt(B), "none"
    config.optim.weight_decay = 1e-4  # not applied to biases, norms and trained scalars
    config.optim.momentum = 0.9  # sgd, lars and larc
    config.optim.nesterov = False  # sgd, lars and larc
    config.optim.trust_coefficient = 1e-3  # lars and larc
    config.optim.lars_clip = False  # larc: cap the trust ratio at 1
    config.optim.sharded = False  # shard the optimiser's state over devices (ZeRO-1)
    config.optim.clip_norm = 0.0  # largest global norm of the gradient; 0 does not clip

    config.schedule = ConfigDict()
    config.schedule.name = "cosine"  # "constant", "cosine", "linear", "step"
    config.schedule.warmup_epochs = 0.0
    config.schedule.warmup_start = 0.0  # first rate of the warm-up, relative to the peak
    config.schedule.milestones = ()  # step: epochs at which the rate is multiplied by gamma
    config.schedule.gamma = 0.1
    config.schedule.end_factor = 0.0  # last rate, relative to the peak

    config.eval = ConfigDict()
    config.eval.every = 10.0  # epochs between online k-NN evaluations
    config.eval.knn = "cifar_simclr"  # preset of the online k-NN: k=200, T=0.5
    config.eval.protocols = ("knn", "linear", "fewshot")  # at the end; NAME or NAME:PRESET

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 10.0  # epochs; fractions are allowed
    return config
