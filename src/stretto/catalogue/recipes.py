"""Which models the catalogue has, where their figures come from, and how long each is trained. Table data.

Sources, all outside the package:

* *Pollux*: profiles of `petuum/adaptdl`, branch `osdi21-artifact`, on T4 (g4dn.12xlarge, 4 a node), and its
  training curves by batch size; Apache-2.0. Also in `pkusys/ElasticFlow`.
* *ElasticFlow*: throughput tables of `pkusys/ElasticFlow` on A100, 8 a node; Apache-2.0.
* *Gavel*: throughput tables published with Gavel and Shockwave (`uw-mad-dash/shockwave`) on K80, P100 and
  V100; MIT. Their V100 figures come from another campaign than the others; some V100 are slower than P100.
"""

from collections.abc import Mapping
from dataclasses import dataclass

IMAGENET_IMAGES = 1_281_167
CIFAR10_IMAGES = 50_000
WIKITEXT2_TOKENS = 2_088_628
MULTI30K_PAIRS = 29_000


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What the data sheet of a GPU says."""

    memory_gb: float
    fp32_tflops: float  # peak
    network_like: str = ""  # the type whose synchronisation it shares, where its own was not measured


# NVIDIA's data sheets. K80: one of the two GPUs of the board. The order is that of the catalogue file.
# network_like is chosen: like the T4 nodes, those of the other Turing cards have PCIe and Ethernet.
GPUS: Mapping[str, GpuFacts] = {
    "t4": GpuFacts(16, 8.1),
    "v100": GpuFacts(16, 15.7),
    "a100": GpuFacts(40, 19.5),
    "rtx2080ti": GpuFacts(11, 13.4, network_like="t4"),
    "quad": GpuFacts(24, 16.3, network_like="t4"),
    "p100": GpuFacts(16, 10.6),
    "k80": GpuFacts(12, 4.4),
}

# Relative speeds are those of this model, a GPU by itself with so many samples, where it was measured.
YARDSTICK, YARDSTICK_SAMPLES = "resnet50-imagenet", 64


@dataclass(frozen=True, slots=True)
class Recipe:
    """One model: names of it in the sources, and what the sources do not say."""

    about: str
    aliases: tuple[str, ...] = ()
    pollux: str = ""  # folder of the profiles; "" = none
    elasticflow: str = ""  # name of the table
    gavel: str = ""  # name in the job types
    size_class: str = ""  # by GPU time, as Sia (SOSP 2023, table 2) puts it; "" = computed
    init_batch: int = 0  # 0 = the smallest of the training curves
    steps: float = 0.0  # optimiser steps at init_batch; 0 = as in the training curves
    steps_source: str = "training curves of Pollux"
    like: str = ""  # the model that lends its noise, restart time and range of batch sizes; "" = measured
    restart_s: float = 30.0  # Pollux (OSDI 2021), section 5.3, unless the comment beside it says otherwise


RECIPES: Mapping[str, Recipe] = {
    # Restart times of those with Pollux figures: github.com/siasosp23/artifacts. The paper has 25 to 250 s.
    "resnet18-cifar10": Recipe(
        about="ResNet-18 on CIFAR-10",
        aliases=("cifar10", "ResNet-18", "resnet18"),
        pollux="cifar10",
        gavel="ResNet-18",
        size_class="S",
        restart_s=50.0,
    ),
    "bert-squad": Recipe(
        about="BERT fine-tuned on SQuAD", aliases=("bert",), pollux="bert", size_class="M", restart_s=120.0
    ),
    "deepspeech2": Recipe(
        about="DeepSpeech2 on CMU-ARCTIC", pollux="deepspeech2", size_class="M", restart_s=25.0
    ),
    "yolov3": Recipe(about="YOLOv3 on Pascal VOC", pollux="yolov3", size_class="L", restart_s=80.0),
    "resnet50-imagenet": Recipe(
        about="ResNet-50 on ImageNet",
        aliases=("imagenet", "ResNet-50", "resnet50"),
        pollux="imagenet",
        elasticflow="resnet50",
        gavel="ResNet-50",
        size_class="XL",
        restart_s=250.0,
    ),
    "ncf": Recipe(about="Neural collaborative filtering on MovieLens", pollux="ncf", restart_s=15.0),
    "vgg16": Recipe(
        about="VGG-16 on ImageNet",
        elasticflow="vgg16",
        init_batch=256,
        steps=74 * IMAGENET_IMAGES / 256,
        steps_source="74 epochs, Simonyan and Zisserman (2015), section 3.1",
        like=YARDSTICK,
    ),
    "inception3": Recipe(
        about="Inception v3 on ImageNet",
        aliases=("inception_v3", "inceptionv3"),
        elasticflow="inception3",
        init_batch=128,
        steps=100 * IMAGENET_IMAGES / 128,
        steps_source="100 epochs, Szegedy et al. (2016), section 8",
        like=YARDSTICK,
    ),
    "resnet50-cifar10": Recipe(
        about="ResNet-50 on CIFAR-10",
        aliases=("resnet50_cifar10",),
        elasticflow="resnet50_cifar10",
        init_batch=128,
        steps=100 * CIFAR10_IMAGES / 128,
        steps_source="chosen: 100 epochs, as long as resnet18-cifar10",
        like="resnet18-cifar10",
    ),
    "gpt2": Recipe(
        about="GPT-2, fine-tuned",
        aliases=("GPT-2",),
        elasticflow="gpt2",
        init_batch=128,
        steps=20_000,
        steps_source="chosen",
        like="bert-squad",
    ),
    "bert-short": Recipe(
        about="BERT, fine-tuned on short texts: 30 times as fast as on SQuAD",
        elasticflow="bert",
        init_batch=64,
        steps=10_000,
        steps_source="chosen",
        like="bert-squad",
    ),
    "transformer": Recipe(
        about="Transformer on Multi30k",
        aliases=("Transformer",),
        gavel="Transformer",
        init_batch=64,
        steps=100 * MULTI30K_PAIRS / 64,
        steps_source="chosen: 100 epochs",
        like="bert-squad",
    ),
    "lstm-wikitext2": Recipe(
        about="LSTM language model on WikiText-2",
        aliases=("LM",),
        gavel="LM",
        init_batch=20,
        steps=40 * WIKITEXT2_TOKENS / (20 * 35),
        steps_source="40 epochs of 35-token sequences, defaults of PyTorch's word_language_model example",
        like="bert-squad",
    ),
}
