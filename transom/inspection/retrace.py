"""Trace a pass again under edits: blocks before the first edited one keep the activations of the pass without edits."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from transom.decoding.inference import eval_mode
from transom.inspection.activations import Activations, autocast_as, find_network
from transom.inspection.trace import Trace, edited_layers, names_of
from transom.layers.observe import ActivationRecorder
from transom.layers.stack import Stack
from transom.models.base import Network


def unedited_blocks(network: Network) -> list[str]:
    """Return the addresses of the blocks before the first edited one, in the order of the pass.

    There are none where an edit acts outside the blocks, since it may change the input of the first one, and none in stacks with depth
    routers or value residuals, whose blocks pass on more than the recorded stream.
    """
    found, sites = list[str](), list(network.edits or ())
    if any(".blocks." not in address for address in sites):
        return found
    stacks = [(name, module) for name, module in network.named_children() if isinstance(module, Stack)]  # the encoder before the decoder
    for name, stack in stacks:
        if stack.routed or stack.value_residuals:
            return found
        edited = [int(at.partition(".blocks.")[2].partition(".")[0]) for at in sites if at.startswith(f"{name}.blocks.")]
        found += [f"{name}.blocks.{i}" for i in range(min(edited, default=len(stack.blocks)))]
        if edited:
            return found
    return found


@contextmanager
def replayed(network: Network, blocks: Sequence[str], recorded: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside the context, let some blocks return their recorded outputs instead of computing them."""
    with ExitStack() as undo:
        for path in blocks:
            block, output = network.get_submodule(path), (recorded[f"{path}.resid_post"], None)  # None: no values for later blocks
            vars(block)["forward"] = lambda *args, output=output: output
            undo.callback(vars(block).pop, "forward")
        yield


@torch.no_grad()
def retrace(model: Any, found: Trace) -> tuple[Tensor, Trace]:
    """Return the logits and the trace of the same input under the edits in force, with the same numbers as ``trace`` returns.

    Args:
        model: the run or model that was traced.
        found: trace of all quantities without edits, with every site, all heads and all positions (``trace`` with ``store="all"``).

    Raises:
        ConfigError: the weights have changed since the trace.
    """
    given, network = find_network(model, None)
    a = found.activations
    a.require_unchanged_weights()
    blocks, recorder = unedited_blocks(network), ActivationRecorder(["*"])
    with eval_mode(network), autocast_as(network, a.autocast), replayed(network, blocks, a.recorded):
        logits = given(a.batch, recorder)
        kept = {address: x for address, x in a.recorded.items() if address.startswith(tuple(f"{path}." for path in blocks))}
        activations = Activations(network, a.batch, kept | recorder.activations | {"logits": logits}, a.temperature)
    known = {*found.quantities, *found.idle}
    quantities = [each for each in names_of(network.config) if each.address in known]
    return logits, Trace(activations, quantities, tokens=found.tokens, edited=edited_layers(network))
