"""Tensor and sequence parallelism: attention heads, hidden units and tokens split over the ranks of the mesh axis ``tensor``.

Attention and feed-forward network are split as in Megatron-LM (Shoeybi et al. 2019, section 3): W_Q, W_K, W_V, W_g and W_1 by columns, that
is by heads and hidden units, W_O and W_2 by rows, so that each rank computes one term of the sub-layer's output. Everything between these
layers is split by tokens (Korthikanti et al. 2022, section 4.2.2): their input is gathered from the ranks' tokens, and the terms of their
output are summed and scattered to the ranks' tokens. A split weight is a ``DTensor``, which optimizers, FSDP and checkpoints see with its
global shape, while the layers read this rank's part, a plain tensor.
"""

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from transom.config.architecture import TransformerConfig
from transom.config.components import MultiHeadAttentionConfig
from transom.layers.attention import Attention
from transom.layers.dropout import DropoutSite
from transom.layers.feed_forward import FeedForward, GatedFeedForward
from transom.layers.mixture_of_experts import MixtureOfExperts
from transom.layers.position_encoding import Alibi, PositionEncoding, RelativePositionBias
from transom.layers.stack import Stack
from transom.models.base import Network
from transom.parallel.axes.sequence import chunk_range, gather_sequence, reduce_scatter_sequence, split_sequence, split_token_masks

COLUMNS = {"weight": 0, "bias": 0, "lora_b": 0}
"""Axis along which each parameter of a column-parallel linear layer is split; PyTorch stores W transposed, so axis 0 holds the outputs."""

ROWS = {"weight": 1, "lora_a": 1}
"""Axis along which each parameter of a row-parallel linear layer is split; its bias is whole, and the first rank adds it."""

_LENGTH: ContextVar[int] = ContextVar("tensor_parallel_length")
"""Tokens per row of the present pass through a stack; a block that computes its pass again in the backward pass finds its own."""


def apply_tensor_parallel(model: Network, mesh: DeviceMesh) -> None:
    """Split the stacks of a model over the axis ``tensor`` of a mesh, in place; all ranks of the axis must hold equal weights.

    Layers that cannot be split by heads or hidden units stay whole: attention with a plugin's code, without an output projection, or with
    a number of heads that the ranks do not divide, runs on every rank over all tokens; experts and a plugin's feed-forward network run on
    the rank's tokens. Recurrent and convolutional models, which have no stack of blocks, are unchanged.

    Apply it to a model that has its final dtype and its weights, before ``fully_shard`` and before the optimizer is built. The gradients of
    parameters that are not split are partial afterwards: see ``parallel/gradients.py``.
    """
    tensor = mesh["tensor"]
    stacks = [m for m in model.modules() if isinstance(m, Stack)]
    if tensor.size() == 1 or not stacks:
        return
    positions = [m for m in model.modules() if isinstance(m, PositionEncoding)]
    own_attention = isinstance(model.config, TransformerConfig) and type(model.config.attention) is MultiHeadAttentionConfig
    for stack, position in zip(stacks, positions, strict=True):
        _split_stack(stack, position, tensor, own_attention)
    split_token_masks(model, tensor.get_group())


class _PartialDropout(NamedTuple):
    """A dropout site whose input is a part of a whole tensor.

    Attributes:
        site: the module that draws the masks.
        split_tokens: whether its input holds this rank's tokens, not all of them.
        before: indices of its first element along the axes before that of the tokens: the first head.
        after: index of its first element along the axis after that of the tokens: the first channel.
    """

    site: DropoutSite
    split_tokens: bool
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


class _SequenceParallel:
    """Hooks that split the tokens of a stack and gather them around its sub-layers (Korthikanti et al. 2022, figure 5).

    Attributes:
        dropouts: the dropout sites of the stack, whose masks are those of one process.
    """

    def __init__(self, group: ProcessGroup) -> None:
        """Initialize hooks for a stack whose tokens the ranks of ``group`` share."""
        self._group = group
        self.dropouts: list[_PartialDropout] = []

    def split_input(self, stack: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Keep this rank's tokens of the residual stream.

        With context parallelism the stream holds a chunk of the tokens, and the context the index of its first one.
        """
        _LENGTH.set(args[0].shape[1])
        first = getattr(args[1], "first_token", 0)
        own_first = first + chunk_range(args[0].shape[1], self._group.rank(), self._group.size())[0]
        for site, split_tokens, before, after in self.dropouts:
            site.offsets = (*before, own_first if split_tokens else first, *after)
        return split_sequence(args[0], 1, self._group), *args[1:]

    def gather_output(self, stack: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        """Gather the residual stream."""
        return gather_sequence(output, _LENGTH.get(), 1, self._group)

    def gather_input(self, layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Gather the input of attention or of a feed-forward network: g, whose backward pass is a reduce-scatter."""
        return gather_sequence(args[0], _LENGTH.get(), 1, self._group), *args[1:]

    def reduce_scatter_output(self, layer: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Sum the ranks' terms of the output, and keep this rank's tokens: g-bar, whose backward pass is a gather."""
        if isinstance(output, tuple):  # attention returns its values too
            return reduce_scatter_sequence(output[0], 1, self._group), *output[1:]
        return reduce_scatter_sequence(output, 1, self._group)

    def split_output(self, attention: nn.Module, args: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keep this rank's tokens of the output of an attention layer that is whole."""
        return split_sequence(output[0], 1, self._group), output[1]


def _split_stack(stack: Stack, position: PositionEncoding, mesh: DeviceMesh, own_attention: bool) -> None:
    """Split the layers of a stack, the score bias of its position encoding, and the tokens between its layers.

    ``own_attention`` is False if the attention layers are a plugin's.
    """
    assert not stack.routed, "a depth router selects among whole rows"
    hooks = _SequenceParallel(mesh.get_group())
    stack.register_forward_pre_hook(hooks.split_input)
    stack.register_forward_hook(hooks.gather_output, prepend=True)  # before context parallelism gathers what is gathered here
    for block in stack.blocks:
        for layer in block.children():
            if isinstance(layer, Attention):
                splits = own_attention and _splits_heads(layer, mesh.size())
                layer.register_forward_pre_hook(hooks.gather_input)
                layer.register_forward_hook(hooks.reduce_scatter_output if splits else hooks.split_output)
                hooks.dropouts += _split_attention(layer, mesh) if splits else _dropouts(layer, split_tokens=False)
            elif isinstance(layer, FeedForward | GatedFeedForward) and type(layer) in (FeedForward, GatedFeedForward):  # not a plugin's
                layer.register_forward_pre_hook(hooks.gather_input)
                layer.register_forward_hook(hooks.reduce_scatter_output)
                hooks.dropouts += _split_feed_forward(layer, mesh)
            elif isinstance(layer, MixtureOfExperts):
                hooks.dropouts.append(_PartialDropout(layer, split_tokens=True))  # it keys the masks of its experts by token
            else:
                hooks.dropouts += _dropouts(layer, split_tokens=True)
    if all(_is_split(block.attn.q) for block in stack.blocks):
        _split_position_bias(position, mesh)


def _dropouts(module: nn.Module, split_tokens: bool, first_channel: int = 0) -> list[_PartialDropout]:
    """List the dropout sites of a module, whose inputs begin with the channel ``first_channel``."""
    sites = (m for m in module.modules() if isinstance(m, DropoutSite))
    return [_PartialDropout(site, split_tokens, () if not isinstance(site, Attention) else (0,), (first_channel,)) for site in sites]


def _splits_heads(attention: Attention, n: int) -> bool:
    """Return whether the heads of an attention layer can be shared among ``n`` ranks.

    Query heads are split; so are key and value heads, or several ranks share each of them.
    """
    per_head = attention.score is None and isinstance(attention.o, nn.Linear)
    return per_head and attention.n_heads % n == 0 and (attention.n_kv_heads % n == 0 or n % attention.n_kv_heads == 0)


def _split_attention(attention: Attention, mesh: DeviceMesh) -> list[_PartialDropout]:
    """Split an attention layer by heads; return its dropout sites."""
    n, n_kv_heads, keys = mesh.size(), attention.n_kv_heads, (attention.k, attention.v)
    assert isinstance(attention.o, nn.Linear)
    first_head = mesh.get_local_rank() * (attention.n_heads // n)
    _split_linear_layers((attention.q,) if n_kv_heads < n else (attention.q, *keys), attention.o, mesh)
    if n_kv_heads < n:
        kv_head = mesh.get_local_rank() * n_kv_heads // n
        for layer in keys:
            _read_in_forward(layer, dict.fromkeys(COLUMNS, lambda x: x.tensor_split(n_kv_heads)[kv_head]))
    if attention.sinks is not None:
        _split_parameters(attention, {"sinks": 0}, mesh)
    columns = [site for layer in (attention.q, *keys) for site in _dropouts(layer, split_tokens=False)]
    rows = _dropouts(attention.o, split_tokens=False, first_channel=first_head * attention.d_value)
    return [_PartialDropout(attention, False, before=(first_head,)), *columns, *rows]


def _split_feed_forward(network: FeedForward | GatedFeedForward, mesh: DeviceMesh) -> list[_PartialDropout]:
    """Split a feed-forward network by hidden units; return its dropout sites."""
    columns = (network.gate, network.up) if isinstance(network, GatedFeedForward) else (network.up,)
    first_unit, _ = chunk_range(network.down.in_features, mesh.get_local_rank(), mesh.size())
    _split_linear_layers(columns, network.down, mesh)
    hidden = [site for layer in (network.dropout, network.down) for site in _dropouts(layer, split_tokens=False, first_channel=first_unit)]
    return hidden + [site for layer in columns for site in _dropouts(layer, split_tokens=False)]


def _split_linear_layers(columns: Iterable[nn.Module], rows: nn.Linear, mesh: DeviceMesh) -> None:
    """Split linear layers by their outputs, and the layer that reads all these outputs by its inputs."""
    for layer in columns:
        _split_parameters(layer, COLUMNS, mesh)
    _split_parameters(rows, ROWS, mesh)
    if mesh.get_local_rank():
        _read_in_forward(rows, {"bias": lambda _: None})


def _split_position_bias(position: PositionEncoding, mesh: DeviceMesh) -> None:
    """Split the score bias of a position encoding by heads, if it has one."""
    if isinstance(position, RelativePositionBias):
        _split_parameters(position.table, {"weight": 1}, mesh)
        local = property(lambda self: (self.table.weight.to_local(),))
        position.__class__ = type(type(position).__name__, (type(position),), {"bias_parameters": local})
    elif isinstance(position, Alibi):
        position.slopes = position.slopes.tensor_split(mesh.size())[mesh.get_local_rank()]


def _split_parameters(module: nn.Module, axes: Mapping[str, int], mesh: DeviceMesh) -> None:
    """Replace parameters of a module by ``DTensor`` parameters, split along the given axes; its forward pass reads the local parts."""
    for name, axis in axes.items():
        if (whole := module._parameters.get(name)) is not None:
            sharded = distribute_tensor(whole.detach(), mesh, [Shard(axis)], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(sharded, whole.requires_grad))
    _read_in_forward(module, dict.fromkeys(axes, DTensor.to_local))


def _is_split(layer: nn.Module) -> bool:
    """Return whether the weight of a linear layer is split."""
    return isinstance(layer.weight, DTensor)


def _read_in_forward(module: nn.Module, parts: Mapping[str, Callable[[Any], Tensor | None]]) -> None:
    """Let the forward pass of a module read parts of its parameters, which are functions of these, in their place."""
    whole: dict[str, nn.Parameter | None] = {}

    def replace(module: nn.Module, args: tuple[Any, ...]) -> None:
        whole.update({name: parameter for name in parts if (parameter := module._parameters.get(name)) is not None})
        vars(module)["_parameters"] |= {name: parts[name](parameter) for name, parameter in whole.items()}

    def restore(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        module._parameters.update(whole)
        whole.clear()

    module.register_forward_pre_hook(replace)
    module.register_forward_hook(restore, always_call=True)
