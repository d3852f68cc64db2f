"""Recurrent decoders: how their steps look at the source, and what they make of it. Training and a step of a search are the same pass."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transom.config.components import implementation, implements
from transom.config.recurrent import Additive, Luong, NoAttention, RecurrentSeq2Seq
from transom.layers.attention import Terms, not_padding, pattern
from transom.layers.context import AttentionContext, LayerContext
from transom.layers.observe import UnrolledObserver, observe
from transom.layers.recurrent.recurrent import RecurrentStack, State


class SourceKeys(NamedTuple):
    """What a decoder's steps look at; there is one head.

    Attributes:
        k: what states are compared with.
        v: the encoder's states themselves.
        mask: True where there is no padding.
    """

    k: Float[Tensor, "batch 1 key d_head"]
    v: Float[Tensor, "batch 1 key d_model"]
    mask: Bool[Tensor, "batch 1 1 key"]


class SourceAttention(nn.Module, ABC):
    """Attention of a decoder's states over an encoder's, with one head: c_t = sum_j a_tj h_j, a_t = softmax(score(h_t, h_j)).

    Attributes:
        q, k: maps of the decoder's and of the encoder's states, or neither's.
    """

    q: nn.Module
    k: nn.Module

    @abstractmethod
    def scores(
        self, q: Float[Tensor, "batch 1 query d_head"], k: Float[Tensor, "batch 1 key d_head"]
    ) -> Float[Tensor, "batch 1 query key"]:
        """Compare each query with each key."""

    def weights(
        self, q: Float[Tensor, "batch 1 query d_head"], k: Float[Tensor, "batch 1 key d_head"], ctx: AttentionContext
    ) -> Float[Tensor, "batch 1 query key"]:
        """Give each query's weights of the keys that are no padding."""
        return pattern(self.scores(q, k), Terms(ctx.mask))

    def keys(
        self, memory: Float[Tensor, "batch key d_model"], segments: Int[Tensor, "batch key"], ctx: LayerContext = LayerContext()
    ) -> SourceKeys:
        """Map the encoder's states, once for all steps."""
        k, v = self.k(memory)[:, None], memory[:, None]
        k = observe(ctx, self, "k", k)
        v = observe(ctx, self, "v", v)
        return SourceKeys(k, v, not_padding(segments))

    def forward(
        self, h: Float[Tensor, "rows query d_model"], source: SourceKeys, ctx: LayerContext = LayerContext()
    ) -> Float[Tensor, "rows query d_model"]:
        """Gather a context for each state; ``h`` may hold several rows (beams) for each source."""
        q = self.q(h).view(len(source.k), 1, -1, source.k.shape[-1])
        q = observe(ctx, self, "q", q)
        z = self.weights(q, source.k, AttentionContext(mask=source.mask)).to(source.v.dtype) @ source.v
        z = observe(ctx, self, "z", z)
        return z.view(h.shape)


class DotScore(SourceAttention):
    """Luong's products (2015, section 3.1): h_t^T h_j (dot), or h_t^T W h_j (general)."""

    def __init__(self, d_model: int, general: bool) -> None:
        """Make W, where there is one; it multiplies the source's states, once a sentence."""
        super().__init__()
        self.q = nn.Identity()
        self.k = nn.Linear(d_model, d_model, bias=False) if general else nn.Identity()

    def scores(
        self, q: Float[Tensor, "batch 1 query d_head"], k: Float[Tensor, "batch 1 key d_head"]
    ) -> Float[Tensor, "batch 1 query key"]:
        """Compare by products, which are not scaled."""
        return q @ k.transpose(-2, -1)


class AdditiveScore(SourceAttention):
    """Bahdanau's sum (2015, appendix A.1.2) and Luong's concat: v^T tanh(W s + U h_j + b)."""

    def __init__(self, d_model: int, width: int) -> None:
        """Make W (``q``), U with b (``k``) and v."""
        super().__init__()
        self.q = nn.Linear(d_model, width, bias=False)
        self.k = nn.Linear(d_model, width)
        self.score = nn.Linear(width, 1, bias=False)

    def scores(
        self, q: Float[Tensor, "batch 1 query d_head"], k: Float[Tensor, "batch 1 key d_head"]
    ) -> Float[Tensor, "batch 1 query key"]:
        """Compare by sums."""
        return self.score(torch.tanh(q[..., :, None, :] + k[..., None, :, :]))[..., 0]


class DecoderState(NamedTuple):
    """What a decoder goes on from.

    Attributes:
        layers: each layer's state.
        fed: the last step's last vector, where it enters the next step.
    """

    layers: tuple[State, ...]
    fed: Float[Tensor, "rows d_model"] | None = None

    def of_rows(self, rows: Int[Tensor, "rows"]) -> "DecoderState":
        """Let row i continue from old row ``rows[i]``."""
        layers = tuple(tuple(part[rows] for part in state) for state in self.layers)
        return DecoderState(layers, None if self.fed is None else self.fed[rows])


@implements(NoAttention)
class PlainDecoder(RecurrentStack):
    """A decoder that sees nothing of the source but the state that it starts from (Sutskever et al. 2014)."""

    def __init__(self, config: RecurrentSeq2Seq) -> None:
        """Make the layers and the maps to the states that they start from."""
        super().__init__(config.cell, config.decoder_inputs, config.d_model, config.dropout)
        n_states, d_model = config.cell.STATES, config.d_model
        self.start = cast(Sequence[nn.Linear], nn.ModuleList(nn.Linear(d_model, n_states * d_model) for _ in self.layers))

    def begin(self, ends: Sequence[Float[Tensor, "batch d_model"]]) -> DecoderState:
        """Start each layer where the encoder's ended: s_0 = tanh(W h_end + b) (Bahdanau et al. 2015, A.2.2), an LSTM's c_0 likewise.

        The two sides' last layers belong together, and so on down; the lowest of the encoder serves all that are left.
        """
        n_above = range(len(self.layers) - 1, -1, -1)
        matched = [ends[max(len(ends) - 1 - n, 0)] for n in n_above]
        states = [torch.tanh(start(end)).to(start.weight.dtype) for start, end in zip(self.start, matched, strict=True)]
        return DecoderState(tuple(state.chunk(layer.n_states, -1) for state, layer in zip(states, self.layers, strict=True)))

    def keys(
        self, memory: Float[Tensor, "batch source d_model"], segments: Int[Tensor, "batch source"], ctx: LayerContext = LayerContext()
    ) -> SourceKeys | None:
        """Prepare the source for all steps."""
        return None

    def forward(
        self, y: Float[Tensor, "rows new d_embedding"], state: DecoderState, source: SourceKeys | None, ctx: LayerContext = LayerContext()
    ) -> tuple[Float[Tensor, "rows new d_model"], DecoderState]:
        """Read the next tokens of each row; return the last vectors, and the state behind them.

        Args:
            y: the embedded tokens.
            state: what to go on from.
            source: what ``keys`` gave; ``y`` may hold several rows (beams) for each source.
            ctx: has the observer.
        """
        h, layers = self.run(y, state.layers, ctx)
        return self.dropout(h), DecoderState(layers)


class AttendingDecoder(PlainDecoder):
    """A decoder that attends to the source by its states.

    Attributes:
        cross: the attention.
    """

    cross: SourceAttention

    def keys(
        self, memory: Float[Tensor, "batch source d_model"], segments: Int[Tensor, "batch source"], ctx: LayerContext = LayerContext()
    ) -> SourceKeys | None:
        """Map the source's states to keys."""
        return self.cross.keys(memory, segments, ctx)


class LuongDecoder(AttendingDecoder):
    """A recurrence, then attention over the source by its states: h~_t = tanh(W_c [c_t; h_t]) (Luong et al. 2015, eq. 5)."""

    def __init__(self, config: RecurrentSeq2Seq) -> None:
        """Make the attention and W_c."""
        super().__init__(config)
        d_model, brick = config.d_model, config.attention
        assert isinstance(brick, Luong)
        concat = brick.score == "concat"
        self.cross = AdditiveScore(d_model, brick.width(d_model)) if concat else DotScore(d_model, general=brick.score == "general")
        self.joined = nn.Linear(2 * d_model, d_model, bias=False)

    def forward(
        self, y: Float[Tensor, "rows new d_embedding"], state: DecoderState, source: SourceKeys | None, ctx: LayerContext = LayerContext()
    ) -> tuple[Float[Tensor, "rows new d_model"], DecoderState]:
        """Run the recurrence over all tokens, then attend; arguments as in ``PlainDecoder``."""
        h, layers = self.run(y, state.layers, ctx)
        return self.attentional(h, source, ctx), DecoderState(layers)

    def attentional(
        self, h: Float[Tensor, "rows new d_model"], source: SourceKeys | None, ctx: LayerContext
    ) -> Float[Tensor, "rows new d_model"]:
        """Join each state with its context."""
        assert source is not None
        c = self.cross(h, source, ctx)
        return self.dropout(torch.tanh(self.joined(torch.cat([c, h.to(c.dtype)], -1))))


class InputFeedingDecoder(LuongDecoder):
    """Luong's decoder whose last vector enters the next step beside its token (Luong et al. 2015, section 3.3)."""

    def begin(self, ends: Sequence[Float[Tensor, "batch d_model"]]) -> DecoderState:
        """Start with zeros in the last vector's place."""
        return super().begin(ends)._replace(fed=torch.zeros_like(ends[-1]))

    def forward(
        self, y: Float[Tensor, "rows new d_embedding"], state: DecoderState, source: SourceKeys | None, ctx: LayerContext = LayerContext()
    ) -> tuple[Float[Tensor, "rows new d_model"], DecoderState]:
        """Take a step a token; arguments as in ``PlainDecoder``."""
        (layers, fed), vectors = state, list[Tensor]()
        ctx = unrolled(ctx, y.shape[1])
        for token in y.unbind(1):
            assert fed is not None
            layers = self.step(torch.cat([token, fed], -1), layers, ctx)
            fed = self.attentional(layers[-1][0][:, None], source, ctx)[:, 0]
            vectors.append(fed)
        return torch.stack(vectors, 1), DecoderState(layers, fed)


@implements(Additive)
class AdditiveDecoder(AttendingDecoder):
    """A decoder each of whose steps begins with attention over the source by the state before it (Bahdanau et al. 2015, eq. 4 to 6)."""

    def __init__(self, config: RecurrentSeq2Seq) -> None:
        """Make the attention and the maxout map T."""
        super().__init__(config)
        d_model, brick = config.d_model, config.attention
        assert isinstance(brick, Additive)
        self.cross = AdditiveScore(d_model, brick.width(d_model))
        self.maxout = nn.Linear(2 * d_model + config.width_of_embedding, 2 * d_model)

    def forward(
        self, y: Float[Tensor, "rows new d_embedding"], state: DecoderState, source: SourceKeys | None, ctx: LayerContext = LayerContext()
    ) -> tuple[Float[Tensor, "rows new d_model"], DecoderState]:
        """Take a step a token; arguments as in ``PlainDecoder``."""
        assert source is not None
        layers, contexts, states = state.layers, list[Tensor](), list[Tensor]()
        ctx = unrolled(ctx, y.shape[1])
        for token in y.unbind(1):
            c = self.cross(layers[-1][0][:, None], source, ctx)[:, 0]
            layers = self.step(torch.cat([token, c], -1), layers, ctx)
            contexts.append(c)
            states.append(layers[-1][0])
        s, c = torch.stack(states, 1), torch.stack(contexts, 1)
        t = self.maxout(torch.cat([s.to(y.dtype), y, c], -1)).unflatten(-1, (-1, 2)).amax(-1)  # (rows, new, d_model)
        return self.dropout(t), DecoderState(layers)


def unrolled(ctx: LayerContext, n_places: int) -> LayerContext:
    """Enter a loop over places, in which each site has one tensor for all of them."""
    return ctx if ctx.observer is None else replace(ctx, observer=UnrolledObserver(ctx.observer, n_places))


@implements(Luong)
def build_luong(config: RecurrentSeq2Seq) -> LuongDecoder:
    """Build Luong's decoder, with input feeding or without."""
    assert isinstance(config.attention, Luong)
    return InputFeedingDecoder(config) if config.attention.input_feeding else LuongDecoder(config)


def build_recurrent_decoder(config: RecurrentSeq2Seq) -> PlainDecoder:
    """Build the decoder that a configuration describes."""
    return implementation(config.attention)(config)


class RecurrentCache:
    """What a recurrent decoder remembers between steps; its rows are source-major.

    Attributes:
        state: of each row.
        source: kept once a source and never copied a beam; None where the decoder does not look at it.
    """

    def __init__(self, state: DecoderState, source: SourceKeys | None = None) -> None:
        """Start from a state."""
        self.state, self.source = state, source

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Let row i continue from old row ``rows[i]``; fewer rows than before drop the rest. A row's source must stay the same."""
        self.state = self.state.of_rows(rows)

    def keep_sources(self, sources: Int[Tensor, "kept"]) -> None:
        """Go on with these sources only; their rows must be chosen by ``reorder`` in the same order."""
        if self.source is not None:
            self.source = SourceKeys(*(part[sources] for part in self.source))
