"""Recurrent decoders with the attention of Bahdanau et al. (2015), of Luong et al. (2015), or none; decoding also runs ``forward``."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transom.config.component_registry import implementation, implements
from transom.config.recurrent import AdditiveAttentionConfig, LuongAttentionConfig, NoSourceAttentionConfig, RecurrentSeq2SeqConfig
from transom.layers.attention import AttentionArgs, attention_weights, non_padding_mask
from transom.layers.context import AttentionContext, LayerContext
from transom.layers.dropout import Dropout
from transom.layers.observe import UnrolledObserver, observe
from transom.layers.recurrent.recurrent_layers import RecurrentStack, State


class ProjectedSource(NamedTuple):
    """Encoder states projected for attention with a single head.

    Attributes:
        k: keys.
        v: values: the encoder states themselves.
        mask: True at source tokens, False at padding.
    """

    k: Float[Tensor, "batch 1 key d_head"]
    v: Float[Tensor, "batch 1 key d_model"]
    mask: Bool[Tensor, "batch 1 1 key"]


class SourceAttention(nn.Module, ABC):
    """Attention of decoder states over encoder states, with one head: c_t = sum_j a_tj h_j, a_t = softmax(score(s_t, h_j)).

    Attributes:
        q, k: projections of the decoder and of the encoder states, or identities.
    """

    q: nn.Module
    k: nn.Module

    @abstractmethod
    def scores(
        self, q: Float[Tensor, "batch 1 query d_head"], k: Float[Tensor, "batch 1 key d_head"]
    ) -> Float[Tensor, "batch 1 query key"]:
        """Compute the score of each pair of a query and a key."""

    def attention_weights(
        self, q: Float[Tensor, "batch 1 query d_head"], k: Float[Tensor, "batch 1 key d_head"], ctx: AttentionContext
    ) -> Float[Tensor, "batch 1 query key"]:
        """Compute the attention weights over source tokens."""
        return attention_weights(self.scores(q, k), AttentionArgs(ctx.mask))

    def project_source(
        self, memory: Float[Tensor, "batch key d_model"], segments: Int[Tensor, "batch key"], ctx: LayerContext = LayerContext()
    ) -> ProjectedSource:
        """Project the encoder states, once for all decoding steps; ``segments`` is 0 at padding."""
        k, v = self.k(memory)[:, None], memory[:, None]
        k = observe(ctx, self, "k", k)
        v = observe(ctx, self, "v", v)
        return ProjectedSource(k, v, non_padding_mask(segments))

    def forward(
        self, h: Float[Tensor, "rows query d_model"], source: ProjectedSource, ctx: LayerContext = LayerContext()
    ) -> Float[Tensor, "rows query d_model"]:
        """Return the context vector c_t of each decoder state in ``h``, which may have several rows (beams) per source."""
        q = self.q(h).view(len(source.k), 1, -1, source.k.shape[-1])
        q = observe(ctx, self, "q", q)
        z = self.attention_weights(q, source.k, AttentionContext(mask=source.mask)).to(source.v.dtype) @ source.v
        z = observe(ctx, self, "z", z)
        return z.view(h.shape)


class DotAttention(SourceAttention):
    """Luong's dot score s_t^T h_j, or general score s_t^T W h_j (Luong et al. 2015, section 3.1)."""

    def __init__(self, d_model: int, general: bool) -> None:
        """Initialize W of the general score as layer ``k``, which maps the encoder states once per sentence."""
        super().__init__()
        self.q = nn.Identity()
        self.k = nn.Linear(d_model, d_model, bias=False) if general else nn.Identity()

    def scores(
        self, q: Float[Tensor, "batch 1 query d_head"], k: Float[Tensor, "batch 1 key d_head"]
    ) -> Float[Tensor, "batch 1 query key"]:
        """Compute q k^T, without the factor 1 / sqrt(d_head)."""
        return q @ k.transpose(-2, -1)


class AdditiveAttention(SourceAttention):
    """Additive score v^T tanh(W s_t + U h_j + b) (Bahdanau et al. 2015, appendix A.1.2); Luong's concat score is the same."""

    def __init__(self, d_model: int, width: int) -> None:
        """Initialize W (``q``), U with b (``k``) and v (``score``)."""
        super().__init__()
        self.q = nn.Linear(d_model, width, bias=False)
        self.k = nn.Linear(d_model, width)
        self.score = nn.Linear(width, 1, bias=False)

    def scores(
        self, q: Float[Tensor, "batch 1 query d_head"], k: Float[Tensor, "batch 1 key d_head"]
    ) -> Float[Tensor, "batch 1 query key"]:
        """Compute v^T tanh(q + k)."""
        return self.score(torch.tanh(q[..., :, None, :] + k[..., None, :, :]))[..., 0]


class DecoderState(NamedTuple):
    """Decoder state between time steps.

    Attributes:
        layers: state of each layer.
        input_feed: attentional vector of the previous step with input feeding; else None.
    """

    layers: tuple[State, ...]
    input_feed: Float[Tensor, "rows d_model"] | None = None

    def select_rows(self, rows: Int[Tensor, "rows"]) -> "DecoderState":
        layers = tuple(tuple(part[rows] for part in state) for state in self.layers)
        return DecoderState(layers, None if self.input_feed is None else self.input_feed[rows])


@implements(NoSourceAttentionConfig)
class PlainDecoder(RecurrentStack):
    """A decoder without attention: the source enters through the initial state only (Sutskever et al. 2014)."""

    def __init__(self, config: RecurrentSeq2SeqConfig) -> None:
        """Initialize the recurrent layers, and for each a linear layer that computes its initial state (``bridge``)."""
        super().__init__(config.cell, config.decoder_inputs, config.d_model, config.dropout)
        self.output_dropout = Dropout(config.dropout)
        n_states, d_model = config.cell.N_STATES, config.d_model
        self.bridge = cast(Sequence[nn.Linear], nn.ModuleList(nn.Linear(d_model, n_states * d_model) for _ in self.layers))

    def initial_state(self, final_states: Sequence[Float[Tensor, "batch d_model"]]) -> DecoderState:
        """Compute initial states from the encoder's final states: s_0 = tanh(W h_end + b) (Bahdanau et al. 2015, A.2.2); c_0 likewise.

        The top decoder layer starts from the top encoder layer, and so on downwards. If the decoder has more layers than the encoder, its
        other layers start from the lowest encoder layer.
        """
        n_above = range(len(self.layers) - 1, -1, -1)
        matched = [final_states[max(len(final_states) - 1 - n, 0)] for n in n_above]
        states = [torch.tanh(bridge(end)).to(bridge.weight.dtype) for bridge, end in zip(self.bridge, matched, strict=True)]
        return DecoderState(tuple(state.chunk(layer.n_states, -1) for state, layer in zip(states, self.layers, strict=True)))

    def project_source(
        self, memory: Float[Tensor, "batch source d_model"], segments: Int[Tensor, "batch source"], ctx: LayerContext = LayerContext()
    ) -> ProjectedSource | None:
        """Return None: without attention the encoder states are not used."""
        return None

    def forward(
        self,
        y: Float[Tensor, "rows new d_embedding"],
        state: DecoderState,
        source: ProjectedSource | None,
        ctx: LayerContext = LayerContext(),
    ) -> tuple[Float[Tensor, "rows new d_model"], DecoderState]:
        """Process the next tokens of each row; return the output vectors, and the state after these tokens.

        Args:
            y: embeddings of the next tokens.
            state: state before these tokens.
            source: result of ``project_source``; ``y`` may have several rows (beams) per source.
            ctx: context with the observer.
        """
        h, layers = self.forward_from(y, state.layers, ctx)
        return self.output_dropout(h), DecoderState(layers)


class AttendingDecoder(PlainDecoder):
    """A decoder with attention over the encoder states.

    Attributes:
        cross: attention layer.
    """

    cross: SourceAttention

    def project_source(
        self, memory: Float[Tensor, "batch source d_model"], segments: Int[Tensor, "batch source"], ctx: LayerContext = LayerContext()
    ) -> ProjectedSource | None:
        """Project the encoder states, once for all decoding steps; ``segments`` is 0 at padding."""
        return self.cross.project_source(memory, segments, ctx)


class LuongDecoder(AttendingDecoder):
    """Decoder that runs the RNN, then attends with its states h_t: h~_t = tanh(W_c [c_t; h_t]) (Luong et al. 2015, eq. 5)."""

    def __init__(self, config: RecurrentSeq2SeqConfig) -> None:
        """Initialize the attention and W_c (``output_proj``)."""
        super().__init__(config)
        d_model, options = config.d_model, config.attention
        assert isinstance(options, LuongAttentionConfig)
        concat = options.score == "concat"
        self.cross = (
            AdditiveAttention(d_model, options.width(d_model)) if concat else DotAttention(d_model, general=options.score == "general")
        )
        self.output_proj = nn.Linear(2 * d_model, d_model, bias=False)

    def forward(
        self,
        y: Float[Tensor, "rows new d_embedding"],
        state: DecoderState,
        source: ProjectedSource | None,
        ctx: LayerContext = LayerContext(),
    ) -> tuple[Float[Tensor, "rows new d_model"], DecoderState]:
        """Run the RNN over all tokens, then attend with its states; arguments as in ``PlainDecoder``."""
        h, layers = self.forward_from(y, state.layers, ctx)
        return self.attentional_vector(h, source, ctx), DecoderState(layers)

    def attentional_vector(
        self, h: Float[Tensor, "rows new d_model"], source: ProjectedSource | None, ctx: LayerContext
    ) -> Float[Tensor, "rows new d_model"]:
        """Compute the attentional vectors h~_t = tanh(W_c [c_t; h_t])."""
        assert source is not None
        c = self.cross(h, source, ctx)
        return self.output_dropout(torch.tanh(self.output_proj(torch.cat([c, h.to(c.dtype)], -1))))


class InputFeedingDecoder(LuongDecoder):
    """Luong's decoder with input feeding: h~_{t-1} is concatenated to the embedding of token t (Luong et al. 2015, section 3.3)."""

    def initial_state(self, final_states: Sequence[Float[Tensor, "batch d_model"]]) -> DecoderState:
        """Compute the initial states; the vector that is fed to the first step is 0."""
        return super().initial_state(final_states)._replace(input_feed=torch.zeros_like(final_states[-1]))

    def forward(
        self,
        y: Float[Tensor, "rows new d_embedding"],
        state: DecoderState,
        source: ProjectedSource | None,
        ctx: LayerContext = LayerContext(),
    ) -> tuple[Float[Tensor, "rows new d_model"], DecoderState]:
        """Process the next tokens one by one; arguments as in ``PlainDecoder``."""
        (layers, input_feed), vectors = state, list[Tensor]()
        ctx = unrolled_context(ctx, y.shape[1])
        for token in y.unbind(1):
            assert input_feed is not None
            layers = self.step(torch.cat([token, input_feed], -1), layers, ctx)
            input_feed = self.attentional_vector(layers[-1][0][:, None], source, ctx)[:, 0]
            vectors.append(input_feed)
        return torch.stack(vectors, 1), DecoderState(layers, input_feed)


@implements(AdditiveAttentionConfig)
class AdditiveDecoder(AttendingDecoder):
    """A decoder whose step t attends to the source with state s_{t-1}, then runs the RNN (Bahdanau et al. 2015, eq. 4 to 6)."""

    def __init__(self, config: RecurrentSeq2SeqConfig) -> None:
        """Initialize the attention and the maxout layer before the output projection (``maxout``)."""
        super().__init__(config)
        d_model, options = config.d_model, config.attention
        assert isinstance(options, AdditiveAttentionConfig)
        self.cross = AdditiveAttention(d_model, options.width(d_model))
        self.maxout = nn.Linear(2 * d_model + config.d_embedding, 2 * d_model)

    def forward(
        self,
        y: Float[Tensor, "rows new d_embedding"],
        state: DecoderState,
        source: ProjectedSource | None,
        ctx: LayerContext = LayerContext(),
    ) -> tuple[Float[Tensor, "rows new d_model"], DecoderState]:
        """Process the next tokens one by one; arguments as in ``PlainDecoder``."""
        assert source is not None
        layers, contexts, states = state.layers, list[Tensor](), list[Tensor]()
        ctx = unrolled_context(ctx, y.shape[1])
        for token in y.unbind(1):
            c = self.cross(layers[-1][0][:, None], source, ctx)[:, 0]
            layers = self.step(torch.cat([token, c], -1), layers, ctx)
            contexts.append(c)
            states.append(layers[-1][0])
        s, c = torch.stack(states, 1), torch.stack(contexts, 1)
        t = self.maxout(torch.cat([s.to(y.dtype), y, c], -1)).unflatten(-1, (-1, 2)).amax(-1)  # (rows, new, d_model)
        return self.output_dropout(t), DecoderState(layers)


def unrolled_context(ctx: LayerContext, n_steps: int) -> LayerContext:
    """Return a context for a loop over ``n_steps`` time steps; each observed activation site records one tensor for all steps."""
    return ctx if ctx.observer is None else replace(ctx, observer=UnrolledObserver(ctx.observer, n_steps))


@implements(LuongAttentionConfig)
def build_luong(config: RecurrentSeq2SeqConfig) -> LuongDecoder:
    """Build Luong's decoder, with or without input feeding."""
    assert isinstance(config.attention, LuongAttentionConfig)
    return InputFeedingDecoder(config) if config.attention.input_feeding else LuongDecoder(config)


def build_recurrent_decoder(config: RecurrentSeq2SeqConfig) -> PlainDecoder:
    """Build the recurrent decoder that ``config.attention`` selects."""
    return implementation(config.attention)(config)


class RecurrentCache:
    """State of a recurrent decoder between decoding steps.

    Attributes:
        state: state of each row; row ``source * n_beams + beam`` belongs to this source and beam.
        source: projected encoder states, one row per source, which all beams of the source share; None without attention.
    """

    def __init__(self, state: DecoderState, source: ProjectedSource | None = None) -> None:
        self.state, self.source = state, source

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Move old row ``rows[i]`` to row i of the state, for every i; afterwards the state has ``len(rows)`` rows."""
        self.state = self.state.select_rows(rows)

    def select_sources(self, sources: Int[Tensor, "kept"]) -> None:
        """Keep the projected encoder states of these sources only. Select their rows of the state with ``reorder``, in the same order."""
        if self.source is not None:
            self.source = ProjectedSource(*(part[sources] for part in self.source))
