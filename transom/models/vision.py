"""Image classifiers: the Vision Transformer (ViT), and a small convolutional network as its baseline."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config import vision
from transom.config.components import implements
from transom.layers.context import UNMASKED, AttentionContext, LayerContext, StackContext, open_observer
from transom.layers.dropout import Dropout
from transom.layers.embedding import in_autocast_type
from transom.layers.masks.contexts import of_block
from transom.layers.masks.rule import EVERYWHERE
from transom.layers.masks.visible_tiles import visible_tiles
from transom.layers.observe import ActivationRecorder, observe
from transom.layers.stack import Stack
from transom.layers.vision.grid import image_places, image_rules
from transom.layers.vision.patches import PatchEmbedding
from transom.layers.vision.stem import Pixels, Stem
from transom.models.inputs import TensorBatch
from transom.models.network import Network


@runtime_checkable
class Batch(Protocol):
    """Batch of an image classifier: pixels from 0 to 1."""

    @property
    def pixels(self) -> Float[Tensor, "batch channels height width"]: ...


@implements(vision.VisionTransformer)
class VisionTransformer(Network):
    """Vision Transformer: p(class | image) (Dosovitskiy et al. 2021, section 3.1).

    The logits are a linear function of the class token's last hidden state, or of the mean over all patches.
    """

    def __init__(self, config: vision.VisionTransformer) -> None:
        """Initialize from a configuration with classes."""
        super().__init__()
        assert config.classes, "the classes come from the data"
        self.config: vision.VisionTransformer = config
        self.embedding = PatchEmbedding(config)
        self.encoder = Stack(config, config.n_layers, cross=False)
        self.rules = image_rules(config)
        self.dropout = Dropout(config.head_dropout)
        self.unembedding = nn.Linear(config.d_model, len(config.classes), config.head_bias)

    def hidden(self, batch: Batch, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch d_model"]:
        """Return the pooled vector of each image, which ``unembedding`` maps to logits."""
        ctx = self.context(batch.pixels, observer)
        x = self.encoder(self.embedding(batch.pixels, ctx), ctx)
        pooled = x[:, 0] if self.config.pool == "cls" else x.mean(1)
        pooled = observe(ctx, self, "pooled", pooled)
        return self.dropout(pooled)

    def context(
        self, pixels: Float[Tensor, "batch channels height width"], observer: ActivationRecorder | None = None, dense: bool = False
    ) -> StackContext:
        """Build the context of a pass: patches attend within the sparsity pattern; ``dense`` builds masks as matrices."""
        places = image_places(self.config, pixels.device)
        contexts = []
        for rule in self.rules:
            tiles = None if dense or rule == EVERYWHERE else visible_tiles(rule, places, places, n_rows=len(pixels))
            contexts.append(AttentionContext(mask=None if tiles or rule == EVERYWHERE else rule.matrix(places, places), tiles=tiles))
        return StackContext(None, open_observer(observer, "encoder"), contexts, UNMASKED)

    def batch_of(self, pixels: Tensor, attention_mask: Tensor | None = None) -> TensorBatch:
        """Build a batch from pixels (batch, channels, height, width), from 0 to 1; images have no padding."""
        assert attention_mask is None, "an image has no padding"
        return TensorBatch(pixels=pixels)

    def attention_context(self, attention: str, batch: Batch) -> AttentionContext:
        """Return the context of an attention layer for a batch, with a dense mask."""
        return of_block(self.context(batch.pixels, dense=True).attentions, attention)

    def tokens(self, site: str, batch: Batch) -> list[Bool[Tensor, "batch length"]]:
        """Return an all-True token mask: images have no padding."""
        return [torch.ones(len(batch.pixels), self.config.n_positions, dtype=torch.bool, device=batch.pixels.device)]


@implements(vision.ConvolutionalNetwork)
class ConvolutionalNetwork(Network):
    """A convolutional image classifier: logits = W relu(V mean(stages(x)) + b) (after LeCun et al. 1998)."""

    def __init__(self, config: vision.ConvolutionalNetwork) -> None:
        """Initialize from a configuration with classes."""
        super().__init__()
        assert config.classes, "the classes come from the data"
        self.config: vision.ConvolutionalNetwork = config
        self.pixels, self.stem = Pixels(config), Stem(config)
        self.pooler = nn.Linear(config.maps[-1], config.d_model)
        self.dropout = Dropout(config.dropout)
        self.unembedding = nn.Linear(config.d_model, len(config.classes), config.head_bias)

    def hidden(self, batch: Batch, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch d_model"]:
        """Return the pooled vector of each image, which ``unembedding`` maps to logits."""
        ctx = LayerContext(observer=open_observer(observer, "stem"))
        pooled = self.stem(self.pixels(batch.pixels), ctx).mean((2, 3))
        pooled = observe(ctx, self, "pooled", pooled)
        return self.dropout(in_autocast_type(F.relu(self.pooler(pooled))))

    def batch_of(self, pixels: Tensor, attention_mask: Tensor | None = None) -> TensorBatch:
        """Build a batch from pixels (batch, channels, height, width), from 0 to 1; images have no padding."""
        assert attention_mask is None, "an image has no padding"
        return TensorBatch(pixels=pixels)

    def attention_context(self, attention: str, batch: Batch) -> AttentionContext:
        """Return a context without a mask: the network has no attention."""
        return AttentionContext()
