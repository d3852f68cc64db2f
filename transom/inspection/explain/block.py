"""The sections of one Transformer block for one query."""

from collections.abc import Sequence

from transom.config.architecture import TransformerConfig
from transom.inspection.activations import stream_after
from transom.inspection.explain.attention import attention_sections
from transom.inspection.explain.builder import Builder, number
from transom.inspection.explain.expressions import Expression, Number
from transom.inspection.explain.feed_forward import feed_forward_steps
from transom.inspection.explain.norm import norm_steps
from transom.inspection.messages.tables import message
from transom.layers.attention import Attention
from transom.layers.block import ParallelBlock

PARTS = {"attn": "resid_mid", "cross": "resid_cross", "ff": "resid_post"}
"""Sub-layers of a block in order, with the residual stream after each."""


class BlockSteps:
    """Steps of one block and query.

    Attributes:
        b: the hand calculation.
        stack: "encoder" or "decoder".
        path: path of the block.
        i: position of the query in its text.
        query: index of the query in the tensors of the block; in a routed block, among the selected tokens.
        positions: positions of the tokens that the block processes.
        source: symbols of the tokens of the encoder, for cross-attention.
        names: symbols of the tokens of the stack.
    """

    def __init__(self, b: Builder, stack: str, block: int, query: int, names: Sequence[str], source: Sequence[str]) -> None:
        """Store what the steps read; ``names`` are the symbols of the tokens of the stack, ``source`` those of the encoder."""
        self.b, self.stack, self.block, self.path, self.i = b, stack, block, f"{stack}.blocks.{block}", query
        self.module = b.a.module(self.path)
        self.names, self.source = names, source
        self.positions, self.query = list(range(len(names))), query

    def sections(self) -> None:
        """Add all sections of the block."""
        if self.module.depth is not None and not self._route():
            return
        config = self.b.a.model.config
        assert isinstance(config, TransformerConfig)
        if self.block and self.module.depth is None:
            self.b.section(message("explain.block.input", block=str(self.block), token=str(self.i)))
            first = self.block == 1
            self.b.note(message("explain.block.precedes") if first else message("explain.block.precede", last=str(self.block - 1)))
        if self.module.depth is None:
            self._before()
        if self.module.parallel:
            self._parallel()
        else:
            for part in PARTS:
                if getattr(self.module, part) is not None:
                    self._sublayer(part, config.norm_placement)
        if self.module.depth is not None:
            self._mix()

    def _before(self) -> None:
        """Add the edits of the residual stream before the block, and after the first one the stream itself."""
        b, site = self.b, f"{self.path}.resid_pre"
        x = b.a[site][0, self.query]
        edited = bool(b.edits.at(site))
        if edited and not self.block:
            b.section(message("explain.block.input_first"))
        b.after_edits(f"X_{self.i}[{b.at(len(x))}]", site, (0, self.query, b.at(len(x))))
        if edited or self.block:
            b.values(f"X_{self.i}", message("explain.block.stream_before"), x)

    def _route(self) -> bool:
        """Add the score of the depth router; return whether it selects the token."""
        a, b, i = self.b.a, self.b, self.i
        b.section(message("explain.block.router", block=str(self.block)))
        x, site = stream_after(a, self.stack, self.block)[0, i], f"{self.path}.depth.score"
        b.values(f"X_{i}", message("explain.block.stream_before"), x)
        score = b.linear(f"r_{i}", message("explain.block.router_score"), self.module.depth.map, x, 0, b.unedited(site)[0, i])
        b.after_edits(f"r_{i}", site, (0, i), score)
        selected = a[f"{self.path}.depth.selected"][0]
        if not bool(selected[i]):
            b.note(message("explain.block.skips", token=str(i)))
            return False
        self.positions = selected.nonzero()[:, 0].tolist()
        self.query = self.positions.index(i)
        b.note(message("explain.block.passes", token=str(i), tokens=", ".join(map(str, self.positions))))
        if b.edits.at(f"{self.path}.resid_pre"):
            self._before()
        return True

    def _mix(self) -> None:
        """Add the change of the block times the router's score."""
        a, b, i = self.b.a, self.b, self.i
        before, after = b.unedited(f"{self.path}.resid_pre")[0, self.query], a[f"{self.path}.resid_post"][0, self.query]
        d, r = b.at(len(before)), number(a[f"{self.path}.depth.score"][0, i])
        x, y = number(before[d]), number(after[d])
        label, traced = message("explain.labels.routed", label=f"X_{i}[{d}]"), stream_after(a, self.stack, self.block + 1)[0, i, d]
        b.calculate(label, "x + r (Block(x) - x)", x + r * (y - x), traced)

    def _part(self, part: str) -> Number | None:
        """Add the steps of a sub-layer; return the element of its output that is worked out, None if it is unknown."""
        path, b = f"{self.path}.{part}", self.b
        if part == "ff":
            b.section(message("explain.block.feed_forward", token=str(self.i)))
            return feed_forward_steps(b, path, (0, self.query), self.i)
        if not isinstance(b.a.module(path), Attention):
            b.section(message("explain.block.attention"))
            b.note(message("explain.block.attention_unknown", name=type(b.a.module(path)).__name__))
            return None
        cross = part == "cross"
        keys = range(len(self.source)) if cross else self.positions
        names = [(self.source if cross else self.names)[j] for j in keys]
        return attention_sections(b, path, self.query, self.positions, list(keys), names)

    def _sublayer(self, part: str, placement: str) -> None:
        """Add norm, sub-layer and residual sum, in the order of the placement of the norms."""
        a, b, i, residual = self.b.a, self.b, self.i, f"{self.path}.{part}_residual"
        x = a[f"{self.path}.{self._stream_before(part)}"][0, self.query]
        stream = f"{self.path}.{PARTS[part]}"
        after, d = a[stream][0, self.query], b.at(len(x))
        if placement != "post":
            self._norm(f"{residual}.norm", message(f"explain.block.norm_before.{part}"), "h")
        y = self._part(part)
        if placement == "sandwich":
            path = f"{residual}.norm_out"
            self._norm(path, message(f"explain.block.norm_after.{part}"), "y'")
            y = number(a[f"{path}.out"][0, self.query, d])
        if y is None:
            b.values(f"X_{i}", message("explain.block.stream_sublayer"), after)
            return
        b.section(message(f"explain.block.residual.{part}"))
        if placement == "post":
            summed = b.unedited(f"{residual}.norm.x")[0, self.query, d]
            b.calculate(f"(x + y)_{i}[{d}]", message("explain.block.sum_post"), number(x[d]) + y, summed)
            norm_steps(b, f"{residual}.norm", (0, self.query), f"X_{i}")
            b.after_edits(f"X_{i}[{d}]", stream, (0, self.query, d))
        else:
            b.site(f"X_{i}[{d}]", message("explain.block.sum_pre"), number(x[d]) + y, stream, (0, self.query, d))
            b.values(f"X_{i}", message(f"explain.block.stream.{part}"), after)

    def _stream_before(self, part: str) -> str:
        """Return the name of the residual stream before a sub-layer."""
        before = {"attn": "resid_pre", "cross": "resid_mid", "ff": "resid_mid" if self.module.cross is None else "resid_cross"}
        return before[part]

    def _norm(self, path: str, title: str, name: str) -> None:
        """Add a section with the steps of a norm."""
        self.b.section(title)
        norm_steps(self.b, path, (0, self.query), f"{name}_{self.i}")

    def _parallel(self) -> None:
        """Add the norms, all sub-layers, and the sum of the stream and their outputs."""
        a, b, i, outputs = self.b.a, self.b, self.i, list[Number | None]()
        shared = isinstance(self.module, ParallelBlock)
        if shared:
            self._norm(f"{self.path}.norm", message("explain.block.norm_before.all"), "h")
        for part in (each for each in PARTS if getattr(self.module, each) is not None):
            if not shared:
                self._norm(f"{self.path}.{part}_residual.norm", message(f"explain.block.norm_before.{part}"), "h")
            outputs.append(self._part(part))
        stream = f"{self.path}.resid_post"
        x, after = a[f"{self.path}.resid_pre"][0, self.query], a[stream][0, self.query]
        d = b.at(len(x))
        b.section(message("explain.block.residual.all"))
        known = [each for each in outputs if each is not None]
        if len(known) == len(outputs):
            expression: Expression = number(x[d])
            for each in known:
                expression = expression + each
            b.site(f"X_{i}[{d}]", message("explain.block.sum_all"), expression, stream, (0, self.query, d))
        b.values(f"X_{i}", message("explain.block.stream_after"), after)
