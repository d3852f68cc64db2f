"""The Vision Transformer against the transformers library and explicit equations; channel attention against its papers."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import ViTConfig, ViTForImageClassification

from tests.agreement.test_transformers_families import randomized
from transom.config.packaged import packaged_presets
from transom.config.vision import CbamConfig, ConvolutionalNetworkConfig, ConvStemConfig, SqueezeExcitationConfig, VisionTransformerConfig
from transom.data.batch import ImageBatch
from transom.layers.observe import ActivationRecorder
from transom.layers.vision.channel_attention import build_channel_attention
from transom.models.build import build, build_model
from transom.models.vision import VisionTransformer as Vit
from transom.planning.parameters import count_parameters
from transom.training.losses import cross_entropy, mixup_cross_entropy

CLASSES = ("a", "b", "c")
DEIT_BLOCKS = "deit.layers"
DEIT_BLOCK = {
    **{f"attn.{name}": f"attention.{name}_proj" for name in "qkvo"},
    "attn_residual.norm": "layernorm_before",
    "ff_residual.norm": "layernorm_after",
    "ff.up": "mlp.fc1",
    "ff.down": "mlp.fc2",
}


def renamed(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert ViT's weights to our names; their patch embedding is a convolution, whose flattened kernels are our rows."""
    vit = "vit.embeddings."
    ours = {
        "embedding.cls": theirs[f"{vit}cls_token"][0, 0],
        "embedding.position.table.weight": theirs[f"{vit}position_embeddings"][0],
        "embedding.projection.weight": theirs[f"{vit}patch_embeddings.projection.weight"].flatten(1),
        "embedding.projection.bias": theirs[f"{vit}patch_embeddings.projection.bias"],
        "unembedding.weight": theirs["classifier.weight"],
    }
    names = {
        **{f"attn.{short}": f"attention.{short}_proj" for short in "qkvo"},
        "attn_residual.norm": "layernorm_before",
        "ff_residual.norm": "layernorm_after",
        "ff.up": "mlp.fc1",
        "ff.down": "mlp.fc2",
    }
    for part in ("weight", "bias"):
        ours[f"encoder.norm.{part}"] = theirs[f"vit.layernorm.{part}"]
        for i in range(3):
            ours |= {f"encoder.blocks.{i}.{name}.{part}": theirs[f"vit.layers.{i}.{their}.{part}"] for name, their in names.items()}
    return ours


@pytest.fixture
def both() -> tuple[nn.Module, nn.Module]:
    """Return our model and theirs with the same random weights, biases included, without a bias on the logits."""
    torch.manual_seed(1)
    config = ViTConfig(
        hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=40, image_size=12, patch_size=3, num_labels=3,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, layer_norm_eps=1e-6,
    )  # fmt: skip
    theirs = ViTForImageClassification(config).double().eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, 0.1, 0.3)
    nn.init.zeros_(theirs.classifier.bias)
    sizes = {"d_model": 24, "n_layers": 3, "n_heads": 4, "d_ff": 40, "image_size": 12, "patch_size": 3, "dropout": 0.0, "classes": CLASSES}
    ours = build_model(VisionTransformerConfig.model_validate(sizes | {"norm": {"kind": "layernorm", "eps": 1e-6}})).double().eval()
    ours.load_state_dict(renamed(theirs.state_dict()))
    return ours, theirs


def images(n: int = 4, size: int = 12) -> ImageBatch:
    torch.manual_seed(2)
    return ImageBatch(torch.rand(n, 3, size, size, dtype=torch.float64), torch.arange(n) % 3, tuple(range(n)))


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_logits_are_theirs(both: tuple[nn.Module, nn.Module], dtype: torch.dtype, close: float) -> None:
    batch = images()
    batch = ImageBatch(batch.pixels.to(dtype), batch.labels, batch.sample_ids)
    ours, theirs = (model.to(dtype) for model in both)
    expected = theirs(batch.pixels).logits
    assert ((ours(batch) - expected).abs() / expected.abs().max().clamp(min=1.0)).max() <= close


def test_gradients_of_every_weight_are_theirs(both: tuple[nn.Module, nn.Module]) -> None:
    ours, theirs = both
    batch = images()
    cross_entropy(ours(batch), batch.labels, 0.1)[0].backward()
    F.cross_entropy(theirs(batch.pixels).logits, batch.labels, reduction="sum", label_smoothing=0.1).backward()
    found = {name: parameter.grad for name, parameter in ours.named_parameters()}
    expected = renamed({name: p.grad for name, p in theirs.named_parameters() if p.grad is not None})
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, rtol=0, atol=1e-10 * max(1.0, float(gradient.abs().max()))), name


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_a_sketch_of_the_paper_gives_the_same(pool: str) -> None:
    """Compute eq. 1-4 of Dosovitskiy et al. 2021 for one block, element by element."""
    torch.manual_seed(1)
    sizes = {"d_model": 6, "n_layers": 1, "n_heads": 1, "d_ff": 5, "image_size": 4, "patch_size": 2, "channels": 1, "dropout": 0.0}
    model = build_model(VisionTransformerConfig.model_validate(sizes | {"classes": CLASSES, "pooling": pool})).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.2, 0.5)
    w: Any = dict(model.named_parameters())
    image = torch.rand(1, 1, 4, 4, dtype=torch.float64)

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]

    cut = torch.stack([image[0, 0, r : r + 2, c : c + 2].flatten() for r in (0, 2) for c in (0, 2)])
    z = linear("embedding.projection", cut)
    z = torch.cat([w["embedding.cls"][None], z]) if pool == "cls" else z
    z = z + w["embedding.position.table.weight"]
    block = "encoder.blocks.0."
    y = norm(f"{block}attn_residual.norm", z)
    q, k, v = (linear(f"{block}attn.{name}", y) for name in "qkv")
    z = z + linear(f"{block}attn.o", torch.softmax(q @ k.T / math.sqrt(6), -1) @ v)
    h = linear(f"{block}ff.up", norm(f"{block}ff_residual.norm", z))
    z = z + linear(f"{block}ff.down", h * 0.5 * (1 + torch.erf(h / math.sqrt(2))))
    z = norm("encoder.norm", z)
    pooled = z[0] if pool == "cls" else z.mean(0)
    found = model(ImageBatch(image, torch.tensor([0]), (0,)))[0]
    assert torch.allclose(found, w["unembedding.weight"] @ pooled, rtol=0, atol=1e-10)


def test_squeeze_and_excitation_is_its_equations() -> None:
    torch.manual_seed(1)
    layer = build_channel_attention(SqueezeExcitationConfig(reduction=2), 6).double()
    x, w = torch.randn(2, 6, 3, 4, dtype=torch.float64), dict(layer.named_parameters())
    for image, found in zip(x, layer(x), strict=True):
        z = image.flatten(1).mean(1)  # eq. 2
        s = torch.sigmoid(w["excite.weight"] @ (w["squeeze.weight"] @ z + w["squeeze.bias"]).clamp(min=0) + w["excite.bias"])  # eq. 3
        assert torch.allclose(found, torch.stack([s[c] * image[c] for c in range(6)]), rtol=0, atol=1e-10)  # eq. 4


def test_cbam_is_its_equations() -> None:
    torch.manual_seed(1)
    layer = build_channel_attention(CbamConfig(reduction=3, kernel_size=3), 6).double()
    x, w = torch.randn(2, 6, 4, 5, dtype=torch.float64), dict(layer.named_parameters())

    def mlp(z: Tensor) -> Tensor:
        return w["excite.weight"] @ (w["squeeze.weight"] @ z + w["squeeze.bias"]).clamp(min=0) + w["excite.bias"]

    for image, found in zip(x, layer(x), strict=True):
        channel = torch.sigmoid(mlp(image.flatten(1).mean(1)) + mlp(image.flatten(1).max(1).values))  # eq. 2
        refined = image * channel[:, None, None]
        planes = F.pad(torch.stack([refined.mean(0), refined.max(0).values]), (1, 1, 1, 1))
        kernel = w["spatial.weight"][0]
        place = torch.stack([torch.stack([(planes[:, r : r + 3, c : c + 3] * kernel).sum() for c in range(5)]) for r in range(4)])
        assert torch.allclose(found, refined * torch.sigmoid(place), rtol=0, atol=1e-10)  # eq. 3


def test_a_stage_of_convolutions_is_torchs_layers_one_after_another() -> None:
    torch.manual_seed(1)
    stem = ConvStemConfig(channels=(4, 8), convs_per_stage=2)
    model = build_model(ConvolutionalNetworkConfig(image_size=8, stem=stem, classes=CLASSES, d_model=5)).double().eval()
    layers: list[nn.Module] = []
    for before, behind in ((3, 4), (4, 8)):
        for channels in (before, behind):
            layers += [nn.Conv2d(channels, behind, 3, padding=1, bias=False), nn.GroupNorm(min(8, behind), behind), nn.ReLU()]
        layers.append(nn.MaxPool2d(3, 2, 1))
    whole = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3, bias=False)).double()
    for ours, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        theirs.data = ours.data
    batch = images(size=8)
    assert torch.allclose(model(batch), whole(batch.pixels), rtol=0, atol=1e-10)


def test_the_loss_of_mixtures_is_torchs_with_soft_targets() -> None:
    torch.manual_seed(1)
    logits, share = torch.randn(5, 3, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    own, other = torch.tensor([0, 1, 2, 1, 0]), torch.tensor([1, 1, 0, 2, 2])
    soft = share[:, None] * F.one_hot(own, 3) + (1 - share)[:, None] * F.one_hot(other, 3)
    loss, nll = mixup_cross_entropy(logits, (own, other), share, 0.1)
    assert loss.item() == pytest.approx(F.cross_entropy(logits, soft, reduction="sum", label_smoothing=0.1).item(), abs=1e-10)
    assert nll.item() == pytest.approx(F.cross_entropy(logits, soft, reduction="sum").item(), abs=1e-10)


@pytest.mark.parametrize(
    ("preset", "n_classes", "counted"),
    [
        ("vit-base-16", 1000, 86_566_656),  # the paper says 86 million
        ("vit-small-example", 10, 464_064),
    ],
)
def test_presets_have_their_size(preset: str, n_classes: int, counted: int) -> None:
    fields = packaged_presets()[preset]["model"]
    config = VisionTransformerConfig.model_validate(fields | {"classes": [str(i) for i in range(n_classes)]})
    assert count_parameters(config).total == counted


def test_the_example_reads_an_image_of_its_size() -> None:
    """The article's model: 224 x 224 pixels, patches of 16 x 16, twelve post-norm layers of width 64."""
    fields = packaged_presets()["vit-small-example"]["model"]
    config = VisionTransformerConfig.model_validate(fields | {"classes": [str(i) for i in range(10)]})
    model = build_model(config).eval()
    assert isinstance(model, Vit) and len(model.encoder.blocks) == 12 and config.norm_placement == "post" and config.pooling == "mean"
    recorder = ActivationRecorder(["embedding*", "encoder.blocks.11.attn.q"])
    logits = model.unembedding(model.last_hidden_state(ImageBatch(torch.rand(2, 3, 224, 224), torch.tensor([0, 1]), (0, 1)), recorder))
    assert logits.shape == (2, 10) and bool(logits.isfinite().all())
    assert recorder.activations["encoder.blocks.11.attn.q"].shape == (2, 8, 196, 8)


def test_the_example_counts_as_its_keras_layers_do() -> None:
    """196 patches of 768 values, width 64, 128 hidden units, 12 layers, 10 classes; theirs also has 10 biases on the logits."""
    dense = {"tokens": 768 * 64 + 64, "positions": 196 * 64, "logits": 64 * 10}
    layer = 4 * (64 * 64 + 64) + 64 * 128 + 128 + 128 * 64 + 64 + 2 * 2 * 64
    assert sum(dense.values()) + 12 * layer == 464_064


@pytest.mark.parametrize("head", ["head", "token"])
@torch.no_grad()
def test_deit_is_theirs_with_and_without_the_second_head(head: str) -> None:
    """The two heads of DeiT are one map of both vectors, with half the weights; without a teacher only the class token is read."""
    config = transformers.DeiTConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        image_size=12,
        patch_size=4,
        num_labels=3,
        layer_norm_eps=1e-3,
        attn_implementation="sdpa",  # their eager softmax is in float32
    )
    kind = transformers.DeiTForImageClassificationWithTeacher if head == "head" else transformers.DeiTForImageClassification
    theirs = randomized(kind(config))
    fields = {"kind": "vision-transformer", "classes": ["a", "b", "c"], "distillation": head, "head_bias": True, "dropout": 0.0}
    sizes = {"d_model": 24, "n_layers": 2, "n_heads": 4, "d_ff": 40, "image_size": 12, "patch_size": 4}
    ours = build(fields | sizes | {"norm": {"kind": "layernorm", "eps": 1e-3}}).double().eval()
    w = theirs.state_dict()
    found = {
        "embedding.cls": w["deit.embeddings.cls_token"][0, 0],
        "embedding.distillation": w["deit.embeddings.distillation_token"][0, 0],
        "embedding.position.table.weight": w["deit.embeddings.position_embeddings"][0],
        "embedding.projection.weight": w["deit.embeddings.patch_embeddings.projection.weight"].flatten(1),
        "embedding.projection.bias": w["deit.embeddings.patch_embeddings.projection.bias"],
    }
    for part in ("weight", "bias"):
        found[f"encoder.norm.{part}"] = w[f"deit.layernorm.{part}"]
        if head == "token":
            found[f"unembedding.{part}"] = w[f"classifier.{part}"]
        for i in range(2):
            for name, their in DEIT_BLOCK.items():
                found[f"encoder.blocks.{i}.{name}.{part}"] = w[f"{DEIT_BLOCKS}.{i}.{their}.{part}"]
    if head == "head":
        found["unembedding.weight"] = torch.cat([w["cls_classifier.weight"], w["distillation_classifier.weight"]], 1) / 2
        found["unembedding.bias"] = (w["cls_classifier.bias"] + w["distillation_classifier.bias"]) / 2
    ours.load_state_dict(found)
    pixels = torch.rand(3, 3, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = theirs(pixels).logits
    assert (ours(pixels) - expected).abs().max() <= 1e-10 and expected.std() > 1e-2
