"""Networks that name what an image shows: the Vision Transformer, and a small convolutional network as its baseline."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config import vision
from transom.config.components import implements
from transom.layers.dropout import Dropout
from transom.layers.embedding import in_autocast_type
from transom.layers.masks.rule import EVERYWHERE
from transom.layers.masks.sight import EVERYTHING, Sight, of_block, visible_tiles
from transom.layers.stack import Stack
from transom.layers.tap import Scope, scope, tap
from transom.layers.vision.grid import image_places, image_rules
from transom.layers.vision.patches import PatchEmbedding
from transom.layers.vision.stem import Pixels, Stem
from transom.models.network import Network


@runtime_checkable
class Batch(Protocol):
    """What the models read of a batch: pixels from 0 to 1."""

    @property
    def pixels(self) -> Float[Tensor, "batch channels height width"]: ...


@implements(vision.VisionTransformer)
class VisionTransformer(Network):
    """A classifier of images: p(class | image) (Dosovitskiy et al. 2021, section 3.1).

    The logits are a linear map, without a bias, of the classification token's last vector or of the mean of all patches'.
    """

    def __init__(self, config: vision.VisionTransformer) -> None:
        """Build from a configuration whose classes are known."""
        super().__init__()
        assert config.classes, "the classes come from the data"
        self.config: vision.VisionTransformer = config
        self.embedding = PatchEmbedding(config)
        self.encoder = Stack(config, config.n_layers, cross=False)
        self.rules = image_rules(config)
        self.dropout = Dropout(config.head_dropout)
        self.unembedding = nn.Linear(config.d_model, len(config.classes), bias=False)

    def hidden(self, batch: Batch, taps: Scope | None = None) -> Float[Tensor, "batch d_model"]:
        """Return a vector an image, of which the logits are a linear map."""
        x = self.embedding(batch.pixels, scope(taps, "embedding"))
        x = self.encoder(x, self.image_sight(batch), taps=scope(taps, "encoder"))
        pooled = x[:, 0] if self.config.pool == "cls" else x.mean(1)
        pooled = tap(taps, "pooled", pooled)
        return self.dropout(pooled)

    def sight(self, attention: str, batch: Batch) -> Sight:
        """Return what the queries of an attention may see of a batch: what its pattern lets them see of their image."""
        return of_block(self.image_sight(batch, written_out=True), attention)

    def image_sight(self, batch: Batch, written_out: bool = False) -> list[Sight]:
        """Let patches see what the pattern allows."""
        places = image_places(self.config, batch.pixels.device)
        sights = []
        for rule in self.rules:
            tiles = None if written_out or rule == EVERYWHERE else visible_tiles(rule, places, places, n_rows=len(batch.pixels))
            sights.append(Sight(None if tiles or rule == EVERYWHERE else rule.matrix(places, places), tiles=tiles))
        return sights

    def tokens(self, site: str, batch: Batch) -> list[Bool[Tensor, "batch length"]]:
        """Tell tokens from padding, of which images have none."""
        return [torch.ones(len(batch.pixels), self.config.n_positions, dtype=torch.bool, device=batch.pixels.device)]


@implements(vision.ConvolutionalNetwork)
class ConvolutionalNetwork(Network):
    """A classifier of images by convolutions alone: logits = W relu(V mean(stages(x)) + b) (after LeCun et al. 1998)."""

    def __init__(self, config: vision.ConvolutionalNetwork) -> None:
        """Build from a configuration whose classes are known."""
        super().__init__()
        assert config.classes, "the classes come from the data"
        self.config: vision.ConvolutionalNetwork = config
        self.pixels, self.stem = Pixels(config), Stem(config)
        self.pooler = nn.Linear(config.maps[-1], config.d_model)
        self.dropout = Dropout(config.dropout)
        self.unembedding = nn.Linear(config.d_model, len(config.classes), bias=False)

    def hidden(self, batch: Batch, taps: Scope | None = None) -> Float[Tensor, "batch d_model"]:
        """Return a vector an image, of which the logits are a linear map."""
        pooled = self.stem(self.pixels(batch.pixels), scope(taps, "stem")).mean((2, 3))
        pooled = tap(taps, "pooled", pooled)
        return self.dropout(in_autocast_type(F.relu(self.pooler(pooled))))

    def sight(self, attention: str, batch: Batch) -> Sight:
        """Return what an attention may see: there is none."""
        return EVERYTHING
