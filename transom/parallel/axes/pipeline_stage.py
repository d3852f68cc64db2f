"""One pipeline stage: the part of a model's forward pass that one process computes, from received activations to those that it sends.

The activations that leave a stage for one micro-batch are sent as one flat tensor: the residual stream of each pass that has begun, the
encoder's output while the decoder's blocks are computed, and what later blocks or the loss read of earlier blocks. Micro-batches of
different shapes are padded to the same number of elements, since the library's buffers have one size per step.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from transom.config.architecture import TransformerConfig
from transom.data.batch import Batch
from transom.layers.context import StackContext
from transom.layers.dropout import keyed_rows
from transom.layers.observe import ActivationRecorder
from transom.models.base import Network
from transom.models.decoder import DecoderOnlyTransformer
from transom.models.encoder import EncoderOnlyTransformer, TextEmbedderTransformer
from transom.models.seq2seq import Seq2SeqTransformer
from transom.models.vision import VisionTransformer
from transom.parallel.axes.pipeline_split import AbsentBlock, StackSpan, list_stacks, stack_of

LogitFactors = tuple[Float[Tensor, "*positions d_model"], Float[Tensor, "vocab d_model"]]
"""H and W with logits = H W^T, as ``Network.logit_factors`` returns them."""

Activations = Mapping[str, Sequence[Tensor]]
"""Recorded activations by site, one tensor per pass through the site."""


class StageLoss(NamedTuple):
    """Loss of a micro-batch on one stage.

    Attributes:
        backward_loss: what this stage adds to the loss from which gradients are computed: on the last stage the task's loss, on each stage
            auxiliary losses of its own modules; None for nothing.
        loss: loss to log, on the last stage.
        nll: negative log-likelihood to log, on the last stage.
    """

    backward_loss: Float[Tensor, ""] | None = None
    loss: Float[Tensor, ""] | float = 0.0
    nll: Float[Tensor, ""] | float = 0.0


@runtime_checkable
class LossFunction(Protocol):
    """Computes the loss of a micro-batch on one stage."""

    def __call__(self, batch: Any, factors: LogitFactors | None, activations: Activations, counted: bool) -> StageLoss:
        """Compute the loss.

        Args:
            batch: the micro-batch.
            factors: None on all stages but the last.
            activations: those at the sites of this stage's modules.
            counted: False for a pass whose loss gets weight 0.
        """
        ...


class StackPass(NamedTuple):
    """A pass of a micro-batch through one stack.

    Attributes:
        span: the stack and its blocks.
        shape: shape of the residual stream.
        context: builds the context of the pass.
        embed: computes the embeddings that the first block reads.
        reads_memory: whether the stack attends to the output of the pass before.
    """

    span: StackSpan
    shape: tuple[int, ...]
    context: Callable[[], StackContext]
    embed: Callable[[StackContext], Tensor]
    reads_memory: bool = False


def list_passes(model: Network, spans: Sequence[StackSpan], batch: Any, observer: ActivationRecorder | None = None) -> list[StackPass]:
    """List the passes through stacks of which a forward pass consists."""

    def stream(tokens: Tensor) -> tuple[int, ...]:
        return (*tokens.shape, config.d_model)

    config = model.config
    assert isinstance(config, TransformerConfig)
    if isinstance(model, Seq2SeqTransformer):
        source, target = batch.source, batch.decoder_input
        return [
            StackPass(
                spans[0],
                stream(source.tokens),
                lambda: model.source_context(source, observer),
                lambda ctx: model.source_embedding(source.tokens, source.positions, ctx),
            ),
            StackPass(
                spans[1],
                stream(target.tokens),
                lambda: model.target_context(target, source.segments, observer),
                lambda ctx: model.target_embedding(target.tokens, target.positions, ctx),
                reads_memory=True,
            ),
        ]
    if isinstance(model, VisionTransformer):
        shape = (len(batch.pixels), model.config.n_positions, config.d_model)
        return [StackPass(spans[0], shape, lambda: model.context(batch.pixels, observer), lambda ctx: model.embedding(batch.pixels, ctx))]
    assert isinstance(model, DecoderOnlyTransformer | EncoderOnlyTransformer)
    texts = [batch.decoder_input] if isinstance(model, DecoderOnlyTransformer) else [batch.source]
    texts += [batch.target] if isinstance(model, TextEmbedderTransformer) else []
    return [
        StackPass(
            spans[0],
            stream(text.tokens),
            lambda text=text: model.context(text, observer),  # type: ignore[misc]
            lambda ctx, text=text: model.embedding(text.tokens, text.positions, ctx, text.token_types),  # type: ignore[misc]
        )
        for text in texts
    ]


def compute_factors(model: Network, batch: Any, states: Sequence[Tensor], contexts: Sequence[StackContext]) -> LogitFactors:
    """Return ``model.logit_factors`` from the output and the context of each pass."""
    if isinstance(model, TextEmbedderTransformer):
        left, right = (model.head(*each) for each in zip(states, (batch.source, batch.target), contexts, strict=True))
        return left, right / model.config.temperature
    hidden = states[-1]
    if isinstance(model, EncoderOnlyTransformer):
        hidden = model.head(hidden, batch.source, contexts[-1])
    elif isinstance(model, VisionTransformer):
        hidden = model.head(hidden, contexts[-1])
    return model.factor_logits(hidden)


class PipelineModule(nn.Module):
    """Computes one stage of a model as one module, which ``fully_shard`` may wrap.

    Attributes:
        model: the model, of which only this stage's parameters are left.
        blocks: numbers of this stage's blocks.
        is_last: whether this is the last stage.
        sums: sums of the logged loss and negative log-likelihood over the micro-batches so far, on the last stage.
        received_size: number of elements that the stage receives per micro-batch: those of the largest micro-batch.
        sent_size: number of elements that the stage sends per micro-batch.
        recorded: recorded activations of each micro-batch, if there is no loss.
    """

    def __init__(self, model: Network, stages: Sequence[range], index: int, autocast: Callable[[], torch.autocast]) -> None:
        """Wrap a model from which ``keep_stage`` has removed the other stages.

        Args:
            model: the model.
            stages: numbers of the blocks of each stage.
            index: number of this stage.
            autocast: returns the context in which matrix products use the dtype of the run.
        """
        super().__init__()
        self.model, self.blocks, self.is_last = model, stages[index], index == len(stages) - 1
        self.sums = torch.zeros(2, dtype=torch.float64)
        self._spans, self._autocast = list_stacks(model), autocast
        self._first_values: Tensor | None = None
        self._batches: Iterator[tuple[Batch, bool]] = iter(())
        self._loss: LossFunction | None = None
        self._sites: Sequence[str] = ()
        self._carried: dict[str, int] = {}
        self.received_size = self.sent_size = 0
        self.recorded: list[Activations] = []
        for span in self._spans:
            if self._has_value_residuals(span):
                stack_of(model, span.name).get_submodule("blocks.0").register_forward_hook(self._keep_values)

    def start(
        self,
        batches: Sequence[Batch],
        loss: LossFunction | None,
        sites: Sequence[str] = (),
        carried: Sequence[str] = (),
        n_counted: int = 0,
    ) -> None:
        """Set what the next calls of ``forward`` compute, one micro-batch each.

        Args:
            batches: micro-batches in order.
            loss: computes the loss; None to record activations only.
            sites: activations of this stage to record.
            carried: sites of the residual stream after blocks (``resid_post``), which the loss on the last stage reads.
            n_counted: number of first micro-batches that contribute to loss and gradients.
        """
        self._batches = iter([(batch, i < n_counted) for i, batch in enumerate(batches)])
        self._loss, self._sites = loss, (*sites, *carried)
        self._carried = {site: self._block_of(site) for site in carried}
        self.received_size, self.sent_size = (
            max(sum(map(math.prod, self._shapes(list_passes(self.model, self._spans, batch), block).values())) for batch in batches)
            for block in (self.blocks.start, self.blocks.stop)
        )
        self.sums, self.recorded = torch.zeros(2, dtype=torch.float64, device=self.model.device), []

    def forward(self, received: Float[Tensor, "received"] | None = None) -> Float[Tensor, "*sent"]:
        """Compute the next micro-batch.

        Args:
            received: activations of the stage before; None on the first stage.

        Returns:
            The activations for the next stage, or on the last stage the loss.
        """
        batch, counted = next(self._batches)
        with self._autocast(), keyed_rows(batch.sample_ids, self.model.device):
            recorder = ActivationRecorder(self._sites)
            passes = list_passes(self.model, self._spans, batch, recorder if self._sites else None)
            streams = self._unpack(passes, received)
            contexts = [self._run(i, each, streams) for i, each in enumerate(passes)]
            found = {site: [each[site] for each in recorder.passes if site in each] for site in self._sites}
            for site in self._carried:
                if found[site]:
                    streams[site] = found[site][0]
                elif site in streams:
                    found[site] = [streams[site]]
            if self._loss is None:
                self.recorded.append(found)
            factors = None
            if self.is_last:
                states = [streams[str(i)] for i in range(len(passes))]
                factors = compute_factors(self.model, batch, states, [ctx for ctx in contexts if ctx is not None])
            loss = StageLoss() if self._loss is None else self._loss(batch, factors, found, counted)
        own = loss.backward_loss if loss.backward_loss is None or counted else 0.0 * loss.backward_loss
        if self.is_last:
            if counted:
                self.sums += torch.stack([torch.as_tensor(x, device=self.sums.device).detach().double() for x in (loss.loss, loss.nll)])
            return self.sums.new_zeros(()) if own is None else own
        sent = self._pack(passes, streams)
        return sent if own is None else _AddLoss.apply(sent, own)  # type: ignore[no-untyped-call]

    def _run(self, i: int, each: StackPass, streams: dict[str, Tensor]) -> StackContext | None:
        """Compute this stage's blocks of pass ``i``, if it has any: replace the residual stream in ``streams``; return the context."""
        if each.span.end <= self.blocks.start or self.blocks.stop <= each.span.start:
            return None
        ctx, stack = each.context(), stack_of(self.model, each.span.name)
        x = each.embed(ctx) if self.blocks.start <= each.span.start else streams[str(i)]
        first = stack.blocks[0]
        if isinstance(first, AbsentBlock):
            first.values = streams.get(f"{i}.values")
        streams[str(i)] = stack(x, ctx, streams[str(i - 1)] if each.reads_memory else None)
        if self._first_values is not None:
            streams[f"{i}.values"], self._first_values = self._first_values, None
        if isinstance(first, AbsentBlock):
            first.values = None
        return ctx

    def _shapes(self, passes: Sequence[StackPass], block: int) -> dict[str, tuple[int, ...]]:
        """Return name and shape of what the stage before ``block`` sends to the stage that begins with it."""
        shapes = dict[str, tuple[int, ...]]()
        for i, each in enumerate(passes):
            if each.span.start < block:
                shapes[str(i)] = each.shape
            if each.span.start < block < each.span.end and self._has_value_residuals(each.span):
                stack, (rows, length, _) = self._config.of_stack(each.span.name), each.shape
                shapes[f"{i}.values"] = rows, stack.n_kv_heads, length, stack.d_value
        return shapes | {site: passes[0].shape for site, of in self._carried.items() if of < block}

    def _unpack(self, passes: Sequence[StackPass], received: Tensor | None) -> dict[str, Tensor]:
        """Return the received activations by name."""
        if received is None:
            return {}
        shapes = self._shapes(passes, self.blocks.start)
        sizes = [math.prod(shape) for shape in shapes.values()]
        parts = received[: sum(sizes)].split(sizes)
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    def _pack(self, passes: Sequence[StackPass], streams: Mapping[str, Tensor]) -> Float[Tensor, "sent"]:
        """Return the activations to send as one tensor of ``sent_size`` elements."""
        shapes = self._shapes(passes, self.blocks.stop)
        flat = torch.cat([streams[name].reshape(-1) for name in shapes])
        assert flat.numel() == sum(map(math.prod, shapes.values())), "the sender's shapes are those that the receiver expects"
        return F.pad(flat, (0, self.sent_size - flat.numel()))

    def _block_of(self, site: str) -> int:
        """Return the number of the block whose output a carried site is."""
        found = re.fullmatch(r"(\w+)\.blocks\.(\d+)\.resid_post", site)
        assert found and len(self._spans) == 1, f"{site}: only the residual stream after blocks of a single stack can be sent to the loss"
        return int(found[2])

    @property
    def _config(self) -> TransformerConfig:
        assert isinstance(self.model.config, TransformerConfig)
        return self.model.config

    def _has_value_residuals(self, span: StackSpan) -> bool:
        return len(stack_of(self.model, span.name).value_residuals) > 0

    def _keep_values(self, module: nn.Module, args: Any, output: tuple[Tensor, Tensor | None]) -> None:
        """Keep the values of block 0 of the pass; a forward hook."""
        self._first_values = output[1]


class _AddLoss(Function):
    """Returns ``x`` and adds a loss to the total loss: its gradient is 1, whatever the gradient of ``x`` is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.loss = loss.detach()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, torch.ones_like(ctx.loss)
