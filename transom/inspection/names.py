"""The addresses of a model's sites."""

import difflib
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from importlib import import_module
from typing import NamedTuple, cast

import torch

from transom.config.architecture import Architecture
from transom.config.vision import ImageClassifier
from transom.data.batch import Batch, ImageBatch, translation_batch
from transom.data.tokenizer.special import EOS
from transom.errors import ConfigError
from transom.layers.approximations.approximation import Approximation
from transom.layers.depth import DepthRouter, every_token
from transom.layers.mixture import Mixture, every_expert
from transom.layers.observe import ActivationRecorder
from transom.layers.recurrent.recurrent import RecurrentStack
from transom.models.build import build_model


class Site(NamedTuple):
    """A place in the forward pass that can be read and edited."""

    address: str
    shape: tuple[int, ...]


@torch.no_grad()
def sites(config: Architecture) -> list[Site]:
    """List every site of a model in the order of its forward pass, without building its weights.

    The shapes are those of a batch of one target of 2 tokens and, where there is one, a source of 3, or of one image; of an expert in a
    mixture, or in a block that only chosen tokens pass, they are those of all tokens, of which it gets some.

    Args:
        config: the model's, vocabulary sizes filled in.
    """
    recorder = ActivationRecorder(["*"])
    with _shapes_only():
        model = build_model(config).eval()
        for module in model.modules():
            if isinstance(module, Mixture):
                module.path = every_expert  # without data nobody knows how many tokens an expert gets: each has all of them
            if isinstance(module, Approximation | RecurrentStack):
                module.packed = False  # nor how many texts lie in a row: one does
            if isinstance(module, DepthRouter):
                module.path = every_token  # nor how many pass a block
        model(_example(config), recorder)
    return [Site(address, tuple(x.shape)) for address, x in recorder.activations.items()]


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
            raise ConfigError(f"no site matches {pattern!r}; near it are {', '.join(near)}")
    return [address for address in known if any(fnmatchcase(address, pattern) for pattern in wanted)]
