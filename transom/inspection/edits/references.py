"""Passes from which edits take values: of reference texts, of another run, or saved in a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transom.checkpoints.run_files import TOKENIZER
from transom.checkpoints.run_folder import RunFolder
from transom.checkpoints.tensors import read_tensors
from transom.decoding.inference import eval_mode, prepare_for_inference
from transom.errors import ConfigError
from transom.inspection.edits.schemas import Patch
from transom.inspection.example_batch import SupportsFileInput, build_example_batch
from transom.layers.observe import ActivationRecorder
from transom.models.base import Network
from transom.models.build import build_uninitialized


class References:
    """Runs reference inputs through a model without edits.

    Attributes:
        run: the loaded run that is edited; None for a model without a run.
        network: its network.
        inputs: batch by name; a text of an edit may be such a name.
    """

    def __init__(self, run: Any, network: Network, inputs: Mapping[str, Any] | None = None) -> None:
        """Store the run or model and its named inputs."""
        self.run, self.network, self.inputs = run, network, dict(inputs or {})

    def record(self, text: str, addresses: Sequence[str], network: Network | None = None) -> dict[str, Tensor]:
        """Run ``network``, by default the edited model without its edits, on a text; return the recorded sites.

        An expert to which no token is sent records nothing.

        Raises:
            ConfigError: the model has no tokenizer, and the text is not the name of an input.
            DataError: the text is empty or longer than the context window.
        """
        batch, recorder, network = self._batch(text), ActivationRecorder(addresses), network or self.network
        before, network.edits = network.edits, None
        try:
            with torch.no_grad(), eval_mode(network):
                network(batch, recorder)
        finally:
            network.edits = before
        return recorder.activations

    def _batch(self, text: str) -> Any:
        """Return the batch of a text, of a file for models of images or sounds, or of a named input."""
        if text in self.inputs:
            return self.network.as_batch(self.inputs[text])
        if self.run is self.network or (not hasattr(self.run, "encode") and not isinstance(self.run, SupportsFileInput)):
            known = ", ".join(self.inputs) or "none"
            raise ConfigError(
                f"expected the name of an input for a model without a tokenizer, found the text {text[:60]!r} (inputs: {known}); pass"
                " inputs={...}, or edit a run that transom.load returns"
            )
        before, self.network.edits = self.network.edits, None  # the target of a translator is its own translation
        try:
            if isinstance(self.run, SupportsFileInput):
                return build_example_batch(self.run, None, Path(text)).batch
            return build_example_batch(self.run, text, None, "refuse").batch
        finally:
            self.network.edits = before

    def patch_values(self, edit: Patch, addresses: Sequence[str]) -> dict[str, Tensor]:
        """Return the tensors from which a patch takes its values, by address."""
        if edit.file is not None:
            return read_tensors(Path(edit.file))
        assert edit.text is not None, "the schema requires a text or a file"
        return self.record(edit.text, addresses, None if edit.run is None else self._network_of(Path(edit.run)))

    def _network_of(self, folder: Path) -> Network:
        """Load the model of another run, which must have the shapes and the tokenizer of the edited one."""
        origin = getattr(self.run, "origin", None)
        with RunFolder.open(folder) as run:
            config = run.load_config()
            network = build_uninitialized(config)
            if type(network) is not type(self.network) or _shapes(network) != _shapes(self.network):
                raise ConfigError(f"{folder}: expected a run with the shapes of the edited model, found others; choose another run")
            if origin is not None and config.VOCABULARIES:
                with RunFolder.open(Path(origin)) as own:
                    if own.read(TOKENIZER) != run.read(TOKENIZER):
                        raise ConfigError(f"{folder}: expected the tokenizer of {origin}, found another one; choose another run")
            run.load_weights(network)
        parameter = next(self.network.parameters())
        prepare_for_inference(network, parameter.dtype, parameter.device)
        return network


def _shapes(network: Network) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter."""
    return {name: tuple(x.shape) for name, x in network.named_parameters()}
