"""The addresses of a model's tap sites, and the observer that records and edits there."""

import difflib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import import_module
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transom.config.architecture import Architecture
from transom.config.vision import ImageClassifier
from transom.data.batch import Batch, ImageBatch, translation_batch
from transom.data.tokenizer.special import EOS
from transom.errors import ConfigError
from transom.layers.approximations.approximation import Approximation
from transom.layers.depth import DepthRouter, every_token
from transom.layers.mixture import Mixture, every_expert
from transom.layers.recurrent.recurrent import RecurrentStack
from transom.layers.tap import Scope
from transom.models.build import build_model


class Edit(NamedTuple):
    """What goes on in place of a site's tensor.

    Attributes:
        value: the new values, of the site's shape or one that broadcasts to it.
        where: True where they count; left out, everywhere.
    """

    value: Float[Tensor, "..."]
    where: Bool[Tensor, "..."] | None = None


@dataclass
class Recorder:
    """Taps that keep the tensors at wanted addresses and replace those at edited ones.

    What is kept is what the model goes on with: at an edited site, the edited tensor.

    Attributes:
        wanted: addresses or patterns of them (``*`` stands for anything, dots included), as in ``decoder.blocks.*.cross.q``.
        edits: replacements by address.
        kept: the sink, tensor by address, in the order of the forward pass; nothing in the pass reads it.
    """

    wanted: Iterable[str] = ()
    edits: Mapping[str, Edit] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Fix the patterns."""
        self.wanted = tuple(self.wanted)

    @property
    def taps(self) -> Scope:
        """What a model's ``forward`` takes as ``taps``."""
        return Scope(self)

    def visit(self, address: str, x: Tensor) -> Tensor:
        """Keep and replace as asked; any other tensor passes untouched."""
        if address in self.edits:
            x = _edited(address, x, self.edits[address])
        if any(fnmatchcase(address, pattern) for pattern in self.wanted):
            self.kept[address] = x
        return x


def _edited(address: str, x: Tensor, edit: Edit) -> Tensor:
    try:
        value = edit.value.to(x).expand_as(x)
        return value if edit.where is None else torch.where(edit.where.to(x.device), value, x)
    except RuntimeError as error:
        found = tuple(edit.value.shape) if edit.where is None else f"{tuple(edit.value.shape)} where {tuple(edit.where.shape)}"
        raise ConfigError(f"an edit at {address} must broadcast to its shape {tuple(x.shape)}, found {found}") from error


class Site(NamedTuple):
    """A place in the forward pass that can be read and edited."""

    address: str
    shape: tuple[int, ...]


@torch.no_grad()
def sites(config: Architecture) -> list[Site]:
    """List every tap site of a model in the order of its forward pass, without building its weights.

    The shapes are those of a batch of one target of 2 tokens and, where there is one, a source of 3, or of one image; of an expert in a
    mixture, or in a block that only chosen tokens pass, they are those of all tokens, of which it gets some.

    Args:
        config: the model's, vocabulary sizes filled in.
    """
    recorder = Recorder(["*"])
    with _shapes_only():
        model = build_model(config).eval()
        for module in model.modules():
            if isinstance(module, Mixture):
                module.path = every_expert  # without data nobody knows how many tokens an expert gets: each has all of them
            if isinstance(module, Approximation | RecurrentStack):
                module.packed = False  # nor how many texts lie in a row: one does
            if isinstance(module, DepthRouter):
                module.path = every_token  # nor how many pass a block
        model(_example(config), recorder.taps)
    return [Site(address, tuple(x.shape)) for address, x in recorder.kept.items()]


def _shapes_only() -> AbstractContextManager[object]:
    """Return a context in which tensors have shapes and no values; one of small real tensors where PyTorch has none such."""
    try:
        private = import_module("torch._subclasses.fake_tensor")
    except ImportError:
        return nullcontext()
    mode = getattr(private, "FakeTensorMode", nullcontext)
    return cast(AbstractContextManager[object], mode())


def _example(config: Architecture) -> Batch:
    """Make a small batch of what a family reads; whatever it reads of texts, a batch of pairs has it."""
    if isinstance(config, ImageClassifier):
        return ImageBatch(torch.zeros(1, config.channels, config.image_size, config.image_size), torch.zeros(1, dtype=torch.long), (0,))
    return translation_batch([[EOS, EOS]], [[EOS]], [0])


def select(config: Architecture, patterns: Iterable[str]) -> list[str]:
    """Name the sites that any of the patterns matches.

    Raises:
        ConfigError: a pattern matches no site; the message names its nearest neighbours.
    """
    known, wanted = [site.address for site in sites(config)], tuple(patterns)
    for pattern in wanted:
        if not any(fnmatchcase(address, pattern) for address in known):
            near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.4) or known[:3]
            raise ConfigError(f"no tap site matches {pattern!r}; near it are {', '.join(near)}")
    return [address for address in known if any(fnmatchcase(address, pattern) for pattern in wanted)]
