"""List the activation sites of a model: tensors of the forward pass that can be recorded and edited by their address."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fnmatch import fnmatchcase
from importlib import import_module
from typing import NamedTuple, cast

import torch

from transom.config.architecture import ModelConfig
from transom.config.vision import ImageClassifierConfig
from transom.data.batch import Batch, ImageBatch, contrastive_batch, translation_batch
from transom.data.tokenizer.special_tokens import EOS
from transom.errors import ConfigError
from transom.inspection.activations import Activations
from transom.layers.approximations.approximation import Approximation
from transom.layers.mixture_of_depths import DepthRouter, all_tokens
from transom.layers.mixture_of_experts import MixtureOfExperts, all_experts
from transom.layers.observe import ActivationRecorder
from transom.layers.recurrent.recurrent_layers import RecurrentStack
from transom.models.build import build_model


class ActivationSite(NamedTuple):
    """A tensor of the forward pass that ``ActivationRecorder`` can record and edit; docs/notation.md explains addresses."""

    address: str
    shape: tuple[int, ...]


@contextmanager
def fake_pass(config: ModelConfig) -> Iterator[Activations]:
    """Run a model on tensors without values, with all sites recorded; inside the context, further quantities have shapes only.

    The input has one source of 3 tokens and one target of 2 tokens (text models), or one image. Experts of a mixture and blocks with a
    mixture-of-depths router process all tokens; in a real forward pass they receive a subset.

    Args:
        config: the model's configuration, with vocabulary sizes.
    """
    recorder = ActivationRecorder(["*"])
    with torch.no_grad(), _fake_tensor_mode():
        model = build_model(config).eval()
        for module in model.modules():
            if isinstance(module, MixtureOfExperts):
                module.path = all_experts  # tokens per expert depend on the data: run each expert on all tokens
            if isinstance(module, Approximation | RecurrentStack):
                module.supports_packing = False  # packing depends on the data too: one sequence per row
            if isinstance(module, DepthRouter):
                module.path = all_tokens  # routing of tokens depends on the data too
        batch = _example_batch(config)
        logits = model(batch, recorder)
        yield Activations(model, batch, recorder.activations | {"logits": logits})


def list_sites(config: ModelConfig) -> list[ActivationSite]:
    """List the activation sites of a model in forward order, with the shapes of ``fake_pass``, without allocating its weights."""
    with fake_pass(config) as a:
        return [ActivationSite(address, tuple(x.shape)) for address, x in a.recorded.items() if address != "logits"]


def _fake_tensor_mode() -> AbstractContextManager[object]:
    """Return a context of fake tensors (shapes without values); a null context where PyTorch has no ``FakeTensorMode``."""
    try:
        private = import_module("torch._subclasses.fake_tensor")
    except ImportError:
        return nullcontext()
    mode = getattr(private, "FakeTensorMode", nullcontext)
    return cast(AbstractContextManager[object], mode())


def _example_batch(config: ModelConfig) -> Batch:
    """Build a small batch that a model accepts; a translation batch has the inputs of every text model except embedders."""
    if isinstance(config, ImageClassifierConfig):
        return ImageBatch(torch.zeros(1, config.channels, config.image_size, config.image_size), torch.zeros(1, dtype=torch.long), (0,))
    make_batch = contrastive_batch if config.kind == "text-embedder" else translation_batch
    return make_batch([[EOS, EOS]], [[EOS]], [0])


def select_sites(config: ModelConfig, patterns: Iterable[str]) -> list[str]:
    """Return the addresses of a model's sites that match any of the glob patterns, in forward order.

    Raises:
        ConfigError: a pattern matches no address; the message names the closest ones.
    """
    known, wanted = [site.address for site in list_sites(config)], tuple(patterns)
    for pattern in wanted:
        if not any(fnmatchcase(address, pattern) for address in known):
            near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.4) or known[:3]
            raise ConfigError(
                f"expected a pattern that matches an activation site, found {pattern!r}; the closest sites are {', '.join(near)}"
            )
    return [address for address in known if any(fnmatchcase(address, pattern) for pattern in wanted)]
