"""Claims for which there is no study: the command that tests them, and what docs/ has of them."""

from typing import NamedTuple

from jaxssl.studies.study import Claim, Summary, Verdict, judge_summaries


class UnstudiedClaim(NamedTuple):
    """A claim, the command that tests it ("" if there is none), and what was measured."""

    claim: Claim
    command: str
    verdict: Verdict | None = None


def _train(config: str, *overrides: str) -> str:
    return " ".join(["python train.py --config", f"configs/{config}.py", *overrides])


def _suite(name: str) -> str:
    return f"python eval.py --suite configs/suites/{name}.py --workdir RUN"


def _row(
    text: str, source: str, command: str, published: str = "", quote: str = ""
) -> UnstudiedClaim:
    return UnstudiedClaim(Claim(text, source, quote, published), command)


def _measured(
    claim: Claim, command: str, ours: Summary, theirs: Summary, page: str
) -> UnstudiedClaim:
    verdict = judge_summaries(claim, ours, theirs)
    return UnstudiedClaim(claim, command, Verdict(f"{verdict.measured} ({page})", verdict.holds))


EPOCHS = "--config.epochs={}".format
BATCH = "--config.batch_size={}".format
# Table 9: "The learning rate is fixed to 1e-3".
FIXED = (
    "--config.optim.lr_scaling=none",
    "--config.schedule.name=constant",
    "--config.schedule.warmup_epochs=0",
)
GRAPHS = "[graphs.md](graphs.md)"
AUC_CL = (
    _row(
        "Linear, ImageNet, ResNet-50, batch 256, 100 epochs",
        "AUC-CL, Table 1",
        _train("imagenet_auc_cl_r50", EPOCHS(100)),
        published="69.5 (400 epochs: 73.5; SimCLR at batch 4096: 66.5).",
        quote="Remarkably, our method outperforms several prominent methods that use much larger "
        "batch sizes in order to ensure strong performances.",
    ),
    _row(
        "k-NN and linear, ImageNet, ViT-S, batch 256, 300 epochs",
        "AUC-CL, Table 2",
        _train("imagenet_auc_cl_vit_s"),
        published="70.7 and 73.7 (MoCo-v3 at batch 4096: linear 73.2).",
    ),
    _row(
        "Linear, CIFAR-10, ResNet-18, batch 128, 500 epochs",
        "AUC-CL, Table 3",
        _train("cifar10_auc_cl"),
        published="93.6 (MoCo-v3 at 1000 epochs: 93.1).",
        quote="For the Cifar datasets, a significant margin is gained upon training using merely "
        "half the batch size and number of epochs.",
    ),
    _row(
        "Linear, CIFAR-100, ResNet-18, batch 128, 500 epochs",
        "AUC-CL, Table 3",
        _train("cifar100_auc_cl"),
        published="69.7; the table lists BYOL with 70.5 and Barlow Twins with 70.9.",
        quote="AUC-CL outperforms all the listed methods.",
    ),
    _row(
        "Linear, ImageNet-100, ResNet-18",
        "AUC-CL, Table 3",
        _train("imagenet100_auc_cl"),
        published="81.9 (MoCo-v3 and Barlow Twins 80.4).",
    ),
    _row(
        "Mean of 20 few-shot sets, ViT-S",
        "AUC-CL, Table 4",
        _suite("elevater"),
        published="54.9, the best of four on 11 sets.",
        quote="Notably, our method outperforms on a greater majority of the datasets.",
    ),
    _row(
        "Linear, ImageNet, ResNet-50, batch 128 (256, 512), 100 epochs",
        "AUC-CL, Table 5",
        _train("imagenet_auc_cl_r50", EPOCHS(100), BATCH(128), "--config.crops.number=0"),
        published="66.1 (66.2, 66.2); SogCLR 64.9 (65.2, 65.0), SimCLR 62.6 (62.8, 63.8).",
    ),
    _row(
        "Linear, ImageNet-100, ResNet-50, batch 128 (256, 512), 400 epochs",
        "AUC-CL, Table 5",
        _train("imagenet100_auc_cl", "--config.net.depth=50", BATCH(128)),
        published="82.7 (82.8, 82.8); SogCLR 79.3 (78.7, 78.2), SimCLR 75.7 (76.1, 75.9).",
    ),
    _row(
        "Linear, ImageNet, ResNet-50, batch 256, 800 epochs",
        "AUC-CL, Table 6",
        _train("imagenet_auc_cl_r50", EPOCHS(800)),
        published="75.5 (SwAV and DINO at batch 1024: 75.3).",
        quote="Yet again, our loss function avails a superior result using a far smaller batch "
        "size.",
    ),
    _row(
        "MoCo-v3 with its loss replaced, linear, ImageNet, ViT-S, batch 128, 100 epochs",
        "AUC-CL, Table 7",
        _train("imagenet_auc_cl_vit_s", EPOCHS(100), BATCH(128), "--config.crops.number=0"),
        published="67.9 (MoCo-v3 62.3); CIFAR-100 69.7 (66.6), ImageNet-100 82.5 (77.6).",
    ),
    _row(
        "Transfer by fine-tuning, mean of four sets",
        "AUC-CL, Table 8",
        _suite("transfer"),
        published="89.9 at batch 128 (MoCo-v3 at 256: 88.8; supervised: 92.1).",
    ),
    _row(
        "k-NN, CIFAR-10, ResNet-50, batch 128 (64, 256), 500 epochs",
        "AUC-CL, Table 9",
        _train("cifar10_auc_cl", "--config.net.depth=50", *FIXED),
        published="89.4 (89.1, 88.7); SimCLR 86.2 (84.15, 86.9).",
        quote="Upon convergence, our method outperforms SimCLR in Top-1 accuracy by an average of "
        "3.8%.",
    ),
    _row(
        "k-NN, CIFAR-100, ResNet-50, batch 128 (64, 256), 500 epochs",
        "AUC-CL, Table 9",
        _train("cifar100_auc_cl", "--config.net.depth=50", *FIXED),
        published="57.3 (57.2, 57.1); SimCLR 55.6 (49.9, 56.0).",
    ),
    _row(
        "k-NN, STL-10, ResNet-50, batch 128 (64, 256), 500 epochs",
        "AUC-CL, Table 9",
        _train("stl10_auc_cl"),
        published="80.9 (78.6, 80.4); SimCLR 74.1 (73.6, 76.2).",
    ),
    _row(
        "Linear, CIFAR-100, ResNet-18, batch 256, 200 epochs",
        "AUC-CL, Table 10",
        _train("cifar100_auc_cl", EPOCHS(200), BATCH(256)),
        published="59.5 (DCL 58.5); STL-10 86.3 (85.7).",
    ),
    _row(
        "Linear, ImageNet, ResNet-50, batch 256 (128, 512), 200 epochs",
        "AUC-CL, Table 10",
        _train("imagenet_auc_cl_r50", EPOCHS(200), "--config.crops.number=0"),
        published="67.7 (67.6, 67.9); DCL 65.9 (64.3, 65.8).",
    ),
)
MMCL = (
    _row(
        "Many-shot transfer: Aircraft, Cars, DTD, Flowers, Food",
        "MMCL, Table 1",
        _suite("many_shot"),
        published="85.38, 89.23, 73.51, 95.24, 82.39 (MoCo-v2 82.46, 85.1, 69.41, 95.62, 77.19: "
        "above it on Flowers).",
        quote="We see that MMCL consistently outperforms the competing self-supervised learning "
        "approaches on a wide variety of transfer tasks and across all datasets.",
    ),
    _row(
        "Few-shot transfer to EuroSAT, 5 ways, 20 shots",
        "MMCL, Table 1",
        "python eval.py --workdir RUN --dataset eurosat --config.data.train_split=train[:80%] "
        "--config.data.test_split=train[80%:] --protocols episodes:cdfsl_5way_20shot",
        published="88.75 ± 0.4 (MoCHI 88.26 ± 0.4).",
    ),
    _row(
        "Few-shot transfer to CropDiseases, 5 ways, 20 shots",
        "MMCL, Table 1",
        "python eval.py --workdir RUN --dataset folder --config.data.path=CropDiseases "
        "--protocols episodes:cdfsl_5way_20shot",
        published="93.1 ± 0.45 (PCL-v2 92.58 ± 0.44).",
    ),
    _row(
        "Surface normals, NYUv2, median angular error (there is no protocol for it here)",
        "MMCL, Table 1",
        "",
        published="24.69 (MoCo-v2 24.49, which is better).",
    ),
    _row(
        "Linear, ImageNet-100, ResNet-50, batch 128, 200 epochs",
        "MMCL, Table 2",
        _train("imagenet100_mmcl_pgd"),
        published="80.7 with 254 negatives (the text says 510).",
        quote="We also establish a new state of the art on ImageNet-100 outperforming MoCHI by "
        "1.7% using only 510 negatives (0.008x) and without a memory bank.",
    ),
    _row(
        "Linear, ImageNet, ResNet-50, batch 256, 100 epochs",
        "MMCL, Table 3",
        _train("imagenet_mmcl_pgd"),
        published="63.8 (the table lists SimCLR with 60.62, which is 3.2 less).",
        quote="We see that MMCL-pretrained model outperforms SimCLR by 6.3% on ImageNet-1K using "
        "the same number of negatives.",
    ),
    _row(
        "Linear, ImageNet, ResNet-50, batch 256, 200 and 400 epochs",
        "MMCL, Longer Training",
        _train("imagenet_mmcl_pgd", EPOCHS(400)),
        quote="Using a batch size of 256 (510 negatives), our model reaches 66.5% in 200 and "
        "69.9% in 400 epochs, compared to 62% and 64.5% respectively with same number of "
        "negatives in SimCLR",
    ),
    _measured(
        Claim(
            "MMCL is above GraphCL on MUTAG (SVM on graphs)",
            "MMCL, Table 4",
            "On MUTAG, we obtain an absolute improvement of 1.62% over GraphCL.",
            "88.42 ± 1.33 against 86.80 ± 1.34.",
            1.62,
        ),
        _train("graphs/mmcl", "--config.data.path=MUTAG.zip"),
        Summary(87.33, 1.38, 5),
        Summary(85.87, 1.41, 5),
        GRAPHS,
    ),
    _measured(
        Claim(
            "MMCL is above GraphCL on REDDIT-BINARY (SVM on graphs)",
            "MMCL, Table 4",
            "",
            "90.41 ± 0.60 against 89.53 ± 0.84.",
            0.88,
        ),
        _train("graphs/mmcl", "--config.data.path=REDDIT-BINARY.zip"),
        Summary(90.31, 0.41, 5),
        Summary(90.55, 0.25, 5),
        GRAPHS,
    ),
    _row(
        "MMCL is above GraphCL on DD (SVM on graphs)",
        "MMCL, Table 4",
        _train("graphs/mmcl", "--config.data.path=DD.zip"),
        published="78.74 against 78.62; REDDIT-5K 56.18 (55.99), IMDB-BINARY 71.62 (71.14).",
        quote="We see that adding MMCL is comparable or better than GraphCL for these datasets.",
    ),
    _row(
        "Video, UCF-101, RGB: linear and retrieval R@1",
        "MMCL, Table 5",
        _train("video/ucf101_mmcl_rgb", "--config.data.path=UCF-101"),
        published="52.45 and 45.6 (MoCo-v2 46.8 and 33.1).",
        quote="As seen in Table 5, MMCL outperforms the baseline by 5.65% on RGB and 1.21% on "
        "flow in linear evaluation and 12.5% and 5.74% on Retrieval@1",
    ),
    _row(
        "Video, UCF-101, flow: linear and retrieval R@1",
        "MMCL, Table 5",
        _train("video/ucf101_mmcl_flow", "--config.data.path=UCF-101-flow"),
        published="68.01 and 50.94 (MoCo-v2 66.8 and 45.2).",
    ),
    _row(
        "Linear, CIFAR-100, ResNet-50, PGD",
        "MMCL, Table 8",
        _train("cifar100_mmcl_pgd"),
        published="68.0 (SimCLR 66).",
    ),
    _row(
        "Linear, CIFAR-100, ResNet-50, closed form",
        "MMCL, Table 8",
        _train("cifar100_mmcl_inv"),
        published="68.81 (SimCLR 66).",
    ),
    _row(
        "Linear, STL-10, ResNet-50, PGD, batch 256",
        "MMCL, Table 8",
        _train("stl10_mmcl_pgd"),
        published="88.03 (closed form 88.3, SimCLR 80.15).",
    ),
)
DECL = (
    _row(
        "k-NN, CIFAR-10, ResNet-50, batch 512, 500 epochs",
        "DeCL, Section 4.1",
        _train("cifar10_decl", BATCH(512), EPOCHS(500)),
        published="89.9 (SimCLR's code: 89.1).",
        quote="For directly comparison, we run our method with the same setting, which gives "
        "89.9%, further demonstrating gradient bias in the large-batch setting.",
    ),
    _row(
        "Linear, ImageNet, ResNet-50, batch 256 and 512, 100 epochs",
        "DeCL, Table 2",
        _train("imagenet_decl_r50"),
        published="64.2 and 67.7 (MoCo-v3 59.5 and 68.2, which is above at 512).",
        quote="It is observed that our method outperforms MoCo-v3 in all cases.",
    ),
    _row(
        "Linear, ImageNet, ViT-S, batch 256 and 512",
        "DeCL, Table 2",
        _train("imagenet_decl_vit_s"),
        published="63.4 and 66.4 (MoCo-v3 62.3 and 66.0).",
    ),
    _row(
        "Linear, ImageNet, ViT-B, batch 256 and 512",
        "DeCL, Table 2",
        _train("imagenet_decl_vit_b"),
        published="69.1 and 70.3 (MoCo-v3 68.1 and 70.1).",
    ),
    _row(
        "Linear, ImageNet, ViT-B, batch 2304",
        "DeCL, Table 2",
        _train("imagenet_decl_vit_b", BATCH(2304)),
        published="76.8 (MoCo-v3 at 4096: 76.7).",
        quote="but with around half of the minibatch size compared to previous art",
    ),
    _row(
        "Transfer by fine-tuning as good as MoCo-v3's, mean of four sets",
        "DeCL, Table 3",
        _suite("transfer"),
        published="95.0 at batch 2304 (MoCo-v3 at 4096: 95.1).",
        quote="Nevertheless, with only around half of the batch size, our method perform "
        "similarly with previously reported state of the arts",
    ),
    _row(
        "Mean of 20 few-shot sets, ViT-B",
        "DeCL, Table 4",
        _suite("elevater"),
        quote="Consistently, our method achieves an average accuracy of 54.7%, outperforming "
        "MoCo-v3 by 4.5% on average.",
    ),
    _row(
        "Images and captions, CC3M, ResNet-50x4: text and image retrieval R@1, zero-shot top-1",
        "DeCL, Table 5",
        _train("image_text/cc3m_decl", "--config.data.path=cc3m"),
        published="30.2, 30.2, 19.7 (OpenCLIP 30.0, 29.7, 19.2).",
        quote="Our method gives consistently better results in all metrics, especially in the "
        "R@10 score and top-5 accuracy",
    ),
)
TCL = (
    _row(
        "With labels, linear, CIFAR-10, ResNet-50",
        "TCL, Table 5.1",
        _train("cifar10_tcl_supervised"),
        published="96.4 (SupCon 96.3, cross-entropy 95.0).",
        quote="As Table 5.1 shows, TCL loss consistently performs better than SupCon loss and "
        "outperforms cross-entropy loss on all the datasets.",
    ),
    _row(
        "With labels, linear, CIFAR-100, ResNet-50",
        "TCL, Table 5.1",
        _train("cifar100_tcl_supervised"),
        published="79.8 (SupCon 79.1, cross-entropy 75.3).",
    ),
    _row(
        "With labels, linear, Fashion-MNIST, ResNet-50",
        "TCL, Table 5.1",
        _train("fashion_mnist_tcl_supervised"),
        published="95.7 (SupCon 95.5, cross-entropy 94.5).",
    ),
    _row(
        "With labels, linear, ImageNet-100, ResNet-18",
        "TCL, Table 5.1",
        _train("imagenet100_tcl_supervised"),
        published="86.7 (SupCon 85.9, cross-entropy 84.2).",
    ),
    _row(
        "With labels, linear, CIFAR-100, ResNet-50, 200 + 50 epochs",
        "TCL, Table A.1",
        _train("cifar100_tcl_supervised", EPOCHS(200)),
        published="81.6 (SupCon 81.0); CIFAR-10 96.8 (96.7), Fashion-MNIST 95.7 (95.5), "
        "ImageNet-100 87.1 (86.5).",
        quote="TCL loss performs consistently better than SupCon [23] loss.",
    ),
    _row(
        "Without labels, linear, CIFAR-10, ResNet-18, 1000 epochs",
        "TCL, Table 5.2",
        _train("cifar10_tcl"),
        published="91.8 (SimCLR 90.7).",
    ),
    _row(
        "Without labels, linear, CIFAR-100, ResNet-18, 1000 epochs",
        "TCL, Table 5.2",
        _train("cifar100_tcl"),
        published="67.2 (SimCLR 65.5).",
    ),
    _row(
        "Without labels, linear, ImageNet-100, ResNet-18, 400 epochs",
        "TCL, Table 5.2",
        _train("imagenet100_tcl"),
        published="78.4 (SimCLR 77.5).",
    ),
)
UNSTUDIED_CLAIMS = (*AUC_CL, *MMCL, *DECL, *TCL)
