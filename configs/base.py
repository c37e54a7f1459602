"""Every default with its comment. A config is its difference from these."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The defaults; groups with a name are completed from the component's own defaults."""
    config = ConfigDict()
    config.seed = 0  # of weights, order and augmentation
    config.batch_size = 256  # images, over all devices
    config.epochs = 100  # passes over the training set; or:
    config.total_steps = 0  # steps, when > 0
    config.views = 2  # augmented views of an image
    config.precision = "float32"  # of the networks' computation; or "bf16"
    config.accumulate_steps = 1  # parts a batch is encoded in; negatives stay those of all of it
    config.log_every = 20  # steps between lines of metrics.jsonl
    config.max_skipped = 10  # steps in a row that are left out, not finite, before the run stops

    config.data = ConfigDict()
    config.data.name = (
        "digits"  # a name of TFDS, "imagenet100", "folder", "captions", "video", "tu"
    )
    config.data.path = ""  # a folder or an archive: of pictures, or of a small set's raw files
    config.data.dir = ""  # where prepared sets lie; "" is ~/tensorflow_datasets
    config.data.train_split = "train"  # pretrained on; slices and sums as in TFDS
    config.data.bank_split = ""  # labelled images evaluation learns from; "" is train_split
    config.data.test_split = "test"  # evaluated on
    config.data.classes = ""  # a file: use these classes alone, one a line
    config.data.labels = ""  # of a folder: CSV file "file,label"; "" takes the folders' names
    config.data.frame_size = 128  # of videos: largest side of a frame, in pixels
    config.data.context = 77  # of captions: tokens that are kept
    config.data.test_fraction = 0.2  # of a folder without splits: share set aside as "test"
    config.data.split_seed = 0  # of a folder without splits: which share
    config.data.on_error = "stop"  # of a folder: at unreadable pictures; or "skip"
    config.data.cache = "auto"  # "device", "none" (stream), "auto" (on the device if it fits)
    config.data.workers = -1  # processes that read a stream; 0 threads, -1 automatic

    config.augment = ConfigDict({"name": "simclr"})  # a function of augment/recipes.py
    config.second_view = ConfigDict()  # arguments of augment that differ in the second view
    config.crops = ConfigDict({"number": 0})  # multi-crop: small crops, and what differs in them

    config.net = ConfigDict({"name": "resnet"})  # a file of jaxssl/models/
    config.head = ConfigDict({"name": "mlp"})  # the projector, a function of nets/heads.py
    config.text = ConfigDict({"name": "none"})  # of two_tower: the captions' network, or "text"
    config.predictor = ConfigDict({"name": "none"})  # or "mlp"
    config.method = ConfigDict({"name": "siamese"})  # a file of jaxssl/methods/
    config.loss = ConfigDict({"name": "nt_xent"})  # a file of jaxssl/losses/

    config.optim = ConfigDict()
    config.optim.name = "adamw"  # adamw, adam, sgd, lars, larc
    config.optim.lr = 1e-3  # base rate
    config.optim.lr_scaling = "none"  # "linear" lr * B / 256, "sqrt" lr * sqrt(B), "none"
    config.optim.weight_decay = 1e-4  # not on biases, norms and trained scalars
    config.optim.momentum = 0.9  # of sgd, lars and larc
    config.optim.nesterov = False  # of sgd, lars and larc
    config.optim.trust_coefficient = 1e-3  # of lars and larc
    config.optim.lars_clip = False  # cap larc's trust ratio at 1
    config.optim.sharded = False  # split the optimiser's state over the devices (ZeRO-1)
    config.optim.clip_norm = 0.0  # largest global norm of the gradient; 0 does not clip

    config.schedule = ConfigDict()
    config.schedule.name = "cosine"  # constant, cosine, linear, step
    config.schedule.warmup_epochs = 0.0
    config.schedule.warmup_start = 0.0  # first rate of the warm-up as a share of the peak
    config.schedule.milestones = ()  # of step: epochs at which the rate is multiplied by gamma
    config.schedule.gamma = 0.1
    config.schedule.end_factor = 0.0  # last rate as a share of the peak

    config.eval = ConfigDict()
    config.eval.every = 10.0  # epochs between online k-NN evaluations
    config.eval.knn = "cifar_simclr"  # preset of the online k-NN: k=200, T=0.5
    config.eval.protocols = ("knn", "linear", "fewshot")  # run at the end; NAME or NAME:PRESET

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 10.0  # epochs; fractions are allowed
    return config
