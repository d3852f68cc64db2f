"""Split a model into pipeline stages of consecutive blocks: the parameters that each stage needs, and the removal of all others.

Blocks are numbered through the stacks of a model, encoder first. The first stage has the embedding, the last stage the head.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from transom.errors import ConfigError
from transom.layers.stack import Stack
from transom.models.base import Network
from transom.models.decoder import DecoderOnlyTransformer
from transom.models.encoder import EncoderOnlyTransformer
from transom.models.seq2seq import Seq2SeqTransformer
from transom.models.vision import VisionTransformer


class StackSpan(NamedTuple):
    """A stack of a model and its blocks.

    Attributes:
        name: name of the stack in the model, such as ``decoder``.
        embedding: name of the embedding that the stack reads.
        start: number of its first block in the model.
        end: number after its last block.
    """

    name: str
    embedding: str
    start: int
    end: int


class AbsentBlock(nn.Module):
    """Stands for a block of another stage: returns the residual stream unchanged.

    Attributes:
        depth: None, as of a block without a depth router.
        values: V_1, the values of block 0 in the current pass, if the block is block 0 and later blocks need them.
    """

    depth: None = None
    values: Tensor | None = None

    def forward(self, x: Tensor, *args: Any) -> tuple[Tensor, Tensor | None]:
        """Return ``x`` and ``values``."""
        return x, self.values


def list_stacks(model: Network) -> list[StackSpan]:
    """List the stacks of a model in the order of computation.

    Raises:
        ConfigError: the model is of no family whose passes can be cut between blocks.
    """
    if isinstance(model, Seq2SeqTransformer):
        names = {"encoder": "source_embedding", "decoder": "target_embedding"}
    elif isinstance(model, DecoderOnlyTransformer):
        names = {"decoder": "embedding"}
    elif isinstance(model, VisionTransformer) or (
        isinstance(model, EncoderOnlyTransformer) and type(model).last_hidden_state is EncoderOnlyTransformer.last_hidden_state
    ):
        names = {"encoder": "embedding"}
    else:
        raise ConfigError(
            f"parallel.pipeline: expected a Transformer whose stack of blocks can be split into stages, found a {type(model).__name__};"
            " set parallel.pipeline = 1"
        )
    spans, start = list[StackSpan](), 0
    for name, embedding in names.items():
        n_blocks = len(stack_of(model, name).blocks)
        spans.append(StackSpan(name, embedding, start, start + n_blocks))
        start += n_blocks
    return spans


def stack_of(model: Network, name: str) -> Stack:
    """Return the stack with this name."""
    stack = model.get_submodule(name)
    assert isinstance(stack, Stack)
    return stack


def list_stage_parameters(model: Network, stages: Sequence[range]) -> list[list[str]]:
    """List the parameters that each stage needs, by their names in the whole model; a tied parameter has one name.

    Parameters with several uses occur in several stages: embeddings tied to the output projection, and relative position biases.

    Args:
        model: the whole model.
        stages: numbers of the blocks of each stage.
    """
    spans = list_stacks(model)
    positions: list[Any] = [model.get_submodule(f"{span.embedding}.position") for span in spans]
    in_attention = {id(p) for position in positions if position.bias_parameters for p in position.parameters()}
    stages_of = dict[int, set[int]]()
    for name, p in model.named_parameters(remove_duplicate=False):
        stages_of.setdefault(id(p), set()).update(_stages_with(name, spans, stages, id(p) in in_attention))
    return [[name for name, p in model.named_parameters() if i in stages_of[id(p)]] for i in range(len(stages))]


def _stages_with(name: str, spans: Sequence[StackSpan], stages: Sequence[range], in_attention: bool) -> set[int]:
    """Return the stages that need the parameter with this name."""
    last = len(stages) - 1
    blocks = range(stages[last].stop - 1, stages[last].stop)  # the head is computed with the last block
    for span in spans:
        if found := re.match(rf"{span.name}\.(blocks|value_residuals)\.(\d+)\.", name):
            block = span.start + int(found[2]) + (found[1] == "value_residuals")  # block 0 has no value residual
            blocks = range(block, block + 1)
        elif name.startswith(f"{span.name}."):
            blocks = range(span.end - 1, span.end)
        elif name.startswith(f"{span.embedding}."):
            blocks = range(span.start, span.end if in_attention else span.start + 1)
    return {i for i, stage in enumerate(stages) if stage.start < blocks.stop and blocks.start < stage.stop}


def keep_stage(model: Network, stages: Sequence[range], index: int) -> None:
    """Remove all parameters from ``model`` that stage ``index`` does not need, so that their memory is freed.

    Names of modules and parameters stay those of the whole model. Tied parameters keep all their names, also those of unused modules, so
    that optimizers and state dicts treat them as in the whole model. Blocks of other stages become ``AbsentBlock``.

    Args:
        model: the whole model; it may be on the meta device.
        stages: numbers of the blocks of each stage.
        index: the stage that is kept.
    """
    kept_names = set(list_stage_parameters(model, stages)[index])
    kept = {id(p) for name, p in model.named_parameters() if name in kept_names}
    for span in list_stacks(model):
        stack = stack_of(model, span.name)
        blocks = stack.get_submodule("blocks")
        assert isinstance(blocks, nn.ModuleList)
        for i in range(span.end - span.start):
            if span.start + i not in stages[index]:
                blocks[i] = AbsentBlock()
        if span.end - 1 not in stages[index]:
            stack.norm = None
    for module in model.modules():
        for name, p in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(p) not in kept:
                setattr(module, name, None)
