"""Image classifiers: the Vision Transformer (ViT), and a small convolutional network as its baseline."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config import vision
from transom.config.component_registry import implements
from transom.layers.context import ALL_PAIRS, UNMASKED, AttentionContext, LayerContext, Part, StackContext
from transom.layers.dropout import Dropout
from transom.layers.embedding import to_autocast_dtype
from transom.layers.masks.attention_contexts import context_of, select_pairs
from transom.layers.masks.block_sparse_mask import build_block_sparse_mask
from transom.layers.masks.mask_rules import FULL
from transom.layers.observe import ActivationRecorder, observe
from transom.layers.stack import Stack
from transom.layers.vision.conv_stem import ConvStem, PixelNormalization
from transom.layers.vision.patch_embedding import PatchEmbedding
from transom.layers.vision.vision_mask import image_mask_rules, image_positions
from transom.models.base import Network
from transom.models.inputs import TensorBatch


@runtime_checkable
class PixelBatch(Protocol):
    """Batch of an image classifier: pixels from 0 to 1."""

    @property
    def pixels(self) -> Float[Tensor, "batch channels height width"]: ...


@implements(vision.VisionTransformerConfig)
class VisionTransformer(Network):
    """Vision Transformer: p(class | image) (Dosovitskiy et al. 2021, section 3.1).

    The logits are a linear function of the last hidden state of the class token, or of the mean of all patches' last hidden states.

    With a distillation head they are the mean of the logits of two heads, (W_c h_cls + W_d h_dist) / 2 + b, as in DeiT at inference
    (Touvron et al. 2021, section 4); ``unembedding`` holds [W_c, W_d] / 2. Training without a teacher minimizes the loss of this mean, so
    that both heads learn the label.
    """

    def __init__(self, config: vision.VisionTransformerConfig) -> None:
        """Initialize all layers; ``config.classes`` must be set."""
        super().__init__()
        assert config.classes, "the classes come from the data"
        self.config: vision.VisionTransformerConfig = config
        self.embedding = PatchEmbedding(config)
        self.encoder = Stack(config, config.n_layers, cross=False)
        self.mask_rules = image_mask_rules(config)
        self.dropout = Dropout(config.head_dropout)
        self.unembedding = nn.Linear(config.n_pooled * config.d_model, len(config.classes), config.head_bias)

    def last_hidden_state(self, batch: PixelBatch, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch width"]:
        """Return the pooled vector of each image, which ``unembedding`` maps to logits; with two heads, both vectors concatenated."""
        ctx = self.context(batch.pixels, observer)
        return self.head(self.encoder(self.embedding(batch.pixels, ctx), ctx), ctx)

    def head(self, x: Float[Tensor, "batch tokens d_model"], ctx: StackContext) -> Float[Tensor, "batch width"]:
        """Pool the encoder's output, with dropout."""
        pooled = x[:, : self.config.n_pooled].flatten(1) if self.config.pooling == "cls" else x.mean(1)
        pooled = observe(ctx, self, "pooled", pooled)
        return self.dropout(pooled)

    def context(
        self,
        pixels: Float[Tensor, "batch channels height width"],
        observer: ActivationRecorder | None = None,
        dense: bool = False,
        part: Part = ALL_PAIRS,
    ) -> StackContext:
        """Build the context of a pass: patches attend to patches that the sparsity pattern allows.

        ``dense`` builds masks as matrices, and ``part`` restricts them to some queries and keys, for inspection.
        """
        patches = image_positions(self.config, pixels.device)
        queries, keys = select_pairs(patches, part)
        contexts = []
        for rule in self.mask_rules:
            block_mask = None if dense or rule == FULL else build_block_sparse_mask(rule, queries, keys, n_rows=len(pixels))
            mask = None if block_mask or rule == FULL else rule.dense(queries, keys)
            contexts.append(AttentionContext(mask=mask, block_mask=block_mask))
        return StackContext(None, self.open_observer(observer, "encoder"), contexts, UNMASKED)

    def make_batch(self, pixels: Tensor, attention_mask: Tensor | None = None) -> TensorBatch:
        """Build a batch in the dtype of the weights from pixels, (batch, channels, height, width), from 0 to 1.

        Images have no ``attention_mask``: it must be None.
        """
        assert attention_mask is None, "an image has no padding"
        return TensorBatch(pixels=pixels.to(self.unembedding.weight.dtype))

    def attention_context(self, attention: str, batch: PixelBatch, part: Part = ALL_PAIRS) -> AttentionContext:
        """Return the context of an attention layer for a batch, with a dense mask, for inspection."""
        return context_of(self.context(batch.pixels, dense=True, part=part).attention_contexts, attention)

    def token_masks(self, site: str, batch: PixelBatch) -> list[Bool[Tensor, "batch length"]]:
        """Return one token mask, all True: images have no padding."""
        return [torch.ones(len(batch.pixels), self.config.n_positions, dtype=torch.bool, device=batch.pixels.device)]


@implements(vision.ConvolutionalNetworkConfig)
class ConvolutionalNetwork(Network):
    """A convolutional image classifier: logits = W relu(V mean(stages(x)) + b) (after LeCun et al. 1998)."""

    def __init__(self, config: vision.ConvolutionalNetworkConfig) -> None:
        """Initialize all layers; ``config.classes`` must be set."""
        super().__init__()
        assert config.classes, "the classes come from the data"
        self.config: vision.ConvolutionalNetworkConfig = config
        self.pixels, self.stem = PixelNormalization(config), ConvStem(config)
        self.pooler = nn.Linear(config.maps[-1], config.d_model)
        self.dropout = Dropout(config.dropout)
        self.unembedding = nn.Linear(config.d_model, len(config.classes), config.head_bias)

    def last_hidden_state(self, batch: PixelBatch, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch d_model"]:
        """Return the pooled vector of each image, which ``unembedding`` maps to logits."""
        ctx = LayerContext(observer=self.open_observer(observer, "stem"))
        pooled = self.stem(self.pixels(batch.pixels), ctx).mean((2, 3))
        pooled = observe(ctx, self, "pooled", pooled)
        return self.dropout(to_autocast_dtype(F.relu(self.pooler(pooled))))

    def make_batch(self, pixels: Tensor, attention_mask: Tensor | None = None) -> TensorBatch:
        """Build a batch in the dtype of the weights from pixels, (batch, channels, height, width), from 0 to 1.

        Images have no ``attention_mask``: it must be None.
        """
        assert attention_mask is None, "an image has no padding"
        return TensorBatch(pixels=pixels.to(self.unembedding.weight.dtype))

    def attention_context(self, attention: str, batch: PixelBatch, part: Part = ALL_PAIRS) -> AttentionContext:
        """Return a context without a mask: the network has no attention."""
        return AttentionContext()
