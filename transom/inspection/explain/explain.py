"""Explain a forward pass: the articles' hand calculation for a model and an input of one's own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from transom.config.architecture import TransformerConfig
from transom.config.vision import VisionTransformerConfig
from transom.decoding.inference import eval_mode
from transom.errors import ConfigError
from transom.files.message import joined
from transom.inspection.activations import Activations, find_network, sequences_of
from transom.inspection.example_batch import build_example_batch
from transom.inspection.explain.block import BlockSteps
from transom.inspection.explain.builder import Builder
from transom.inspection.explain.edited import EditedSites, edited_text
from transom.inspection.explain.embedding import embedding_section, patch_section
from transom.inspection.explain.explanation import Explanation
from transom.inspection.explain.norm import norm_steps
from transom.inspection.explain.output import Candidates, output_sections
from transom.inspection.explain.recurrent import recurrent_sections
from transom.inspection.messages.tables import message
from transom.inspection.trace import CLASS_TOKENS, token_symbols
from transom.layers.observe import ActivationRecorder
from transom.layers.recurrent.recurrent_layers import RecurrentEncoder, RecurrentStack
from transom.layers.stack import Stack

StackName = Literal["encoder", "decoder"]

_STACKS: tuple[StackName, ...] = ("encoder", "decoder")

_SIDES = {"encoder": "source", "decoder": "target"}
"""Side of a batch that a stack reads."""

TEMPERATURES = (0.5, 1.0, 2.0)
"""Temperatures of the probabilities by default."""


def explain(
    model: Any,
    inputs: Any,
    *,
    block: int = 0,
    head: int = 0,
    query: int | None = None,
    stack: StackName | None = None,
    dim: int = 0,
    temperatures: Sequence[float] = TEMPERATURES,
    top: int = 5,
    key: int | None = None,
    candidate: int | None = None,
    every: bool = False,
) -> Explanation:
    """Write out by hand how a model computes its numbers for one token: embedding, attention, feed-forward, logits, probabilities.

    One element of each vector is worked out. Every step is compared with the number that the model computed, and printed with so many
    digits that the printed operands give the printed result.

    Args:
        model: a run loaded by ``transom.load``, or a model.
        inputs: a text, or for a model without a tokenizer a batch or tensor, of which the first row is explained. For a translator, the
            target is its own translation of the text.
        block: block, or layer of a recurrent model, from 0.
        head: attention head, from 0.
        query: position of the token, from 0; None for the last token, or the class token if the model pools it.
        stack: "encoder" or "decoder" for one side of a translator; None for both.
        dim: element of each vector that is worked out; in narrower vectors, ``dim`` modulo their width.
        temperatures: divisors of the logits.
        top: number of candidates whose logits and probabilities are worked out.
        key: position of a key that is worked out, from 0, beside those with the largest weights; its projections are worked out in place
            of those of the key with the largest weight.
        candidate: index of a symbol or class that is worked out beside the best ones.
        every: also work out quantities that no later step needs: logsumexp, the scale of a norm, the output of a head through W_O,
            log-probabilities.

    Raises:
        ConfigError: an argument is out of range.
        DataError: a text exceeds the context window.
        CertificationError: attention weights do not give the head output that the kernel computed.
        ExplanationError: a step does not give the number of the model.
    """
    _, network = find_network(model, inputs)
    notes = list[str]()
    if isinstance(inputs, str):
        inputs, notes, _ = build_example_batch(model, inputs, None, "refuse")
    batch, candidates = network.as_batch(inputs), Candidates(top, candidate)
    return _Writer(model, batch, block, head, query, stack, dim, temperatures, candidates, key, every).write(tuple(notes))


def explain_run(
    predictor: Any, text: str | None, file: Path | None, target: str | None = None, batch: Any = None, **options: Any
) -> Explanation:
    """Explain a loaded run on a text, which is truncated to the context window, on a file, or on a batch.

    Args:
        predictor: a run loaded by ``transom.load``.
        text: the text; None to read ``file``.
        file: a text file, or an image or sound for such a model.
        target: the target text of a translator; None for its own translation.
        batch: a batch of one row, in place of text, file and target.
        **options: further arguments of ``explain``.

    Raises:
        ConfigError: a target is given for a model that does not translate, or an argument is out of range.
    """
    if batch is not None:
        return explain(predictor, batch, **options)
    example = build_example_batch(predictor, text, file, target=target)
    explanation = explain(predictor, example.batch, **options)
    return replace(explanation, notes=tuple(example.notes))


class _Writer:
    """Checks the choices, and writes the sections of the parts of a model in the order of the data flow."""

    def __init__(
        self,
        run: Any,
        batch: Any,
        block: int,
        head: int,
        query: int | None,
        stack: StackName | None,
        dim: int,
        temperatures: Sequence[float],
        candidates: Candidates,
        key: int | None,
        every: bool,
    ) -> None:
        """Run the model on a batch; store and check the choices, which are the arguments of ``explain``."""
        given, self.model = find_network(run, batch)
        recorder, edits = ActivationRecorder(["*"]), EditedSites(self.model.edits)
        with torch.no_grad(), eval_mode(self.model), edits.watch(self.model):
            logits = (self.model if edits.watched else given)(batch, recorder)
        self.a = Activations(self.model, batch, recorder.activations | {"logits": logits})
        self.run, self.block, self.dim, self.candidates = run, block, dim, candidates
        self.temperatures = tuple(temperatures)
        own: list[StackName] = [name for name in _STACKS if hasattr(self.model, name)]
        if stack is not None and stack not in own:
            raise ConfigError(f"stack: expected {' or '.join(own) or 'none for this model'}, found {stack!r}")
        self.stacks = own if stack is None else [stack]
        symbols = token_symbols(run, batch)
        self.tokens: dict[str, list[str]] = {name: self._symbols(name, symbols) for name in own}
        self.queries = self._queries(query)
        for name in self.stacks:
            _check_range("block", block, range(self._n_blocks(name)), f" of the {name}")
        config = self.model.config
        if self.stacks:
            n_heads = min(config.of_stack(name).n_heads for name in self.stacks) if isinstance(config, TransformerConfig) else 1
            _check_range("head", head, range(n_heads))
        _check_range("dim", dim, range(max(1, *(getattr(config, name, 0) for name in ("d_model", "d_ff", "decoder_d_ff", "patch_width")))))
        if not self.temperatures or not all(1e-6 <= t <= 1e6 for t in self.temperatures):
            raise ConfigError(
                f"temperatures: expected numbers from 1e-6 to 1e6, found {', '.join(f'{t:g}' for t in self.temperatures) or 'none'}"
            )
        if candidates.top < 1:
            raise ConfigError(f"top: expected a number of candidates from 1, found {candidates.top}")
        if candidates.candidate is not None:
            _check_range("candidate", candidates.candidate, range(logits.shape[-1]))
        if key is not None and self.stacks:
            _check_range("key", key, range(max(len(listed) for listed in self.tokens.values())))
        names = {_SIDES[name]: listed for name, listed in self.tokens.items()}
        self.b = Builder(self.a, dim, head, names, edits, key, every)

    def write(self, notes: tuple[str, ...]) -> Explanation:
        """Write all sections."""
        edits = self.b.edits.configs()
        if edits:
            self.b.section(message("explain.edits.title"))
        for config in edits:
            self.b.note(edited_text([config]))
        with torch.no_grad(), eval_mode(self.model):
            for name in self.stacks:
                self.b.prefix = joined(", ", [message(f"stacks.{name}"), ""]) if len(self.tokens) > 1 else ""
                self._stack(name)
            if not self.stacks or self.stacks[-1] == ("decoder" if hasattr(self.model, "decoder") else "encoder"):
                last = self.stacks[-1] if self.stacks else "stem"
                self._following(last)
                output_sections(self.b, last, self.queries.get(last, 0), self.candidates, self.temperatures, self._symbol_of_logit())
        settings = {
            "block": self.block,
            "head": self.b.head,
            "queries": self.queries,
            "dim": self.dim,
            "temperatures": list(self.temperatures),
            "top": self.candidates.top,
            "tokens": self.tokens,
        }
        settings |= {name: value for name, value in (("key", self.b.key), ("candidate", self.candidates.candidate)) if value is not None}
        if edits:
            settings["edits"] = [config.model_dump(mode="json") for config in edits]
        return Explanation(self._title(), settings, tuple(self.b.sections), self._summary(), notes)

    def _title(self) -> str:
        """Return what is calculated."""
        where = [message(f"explain.title.{name}", query=str(query)) for name, query in self.queries.items()]
        if not where:
            return message("explain.title.whole", parts=message("explain.title.output"))
        tokens = where[0] if len(where) == 1 else message("explain.title.both", first=where[0], second=where[1])
        parts = message("explain.title.block", block=str(self.block), head=str(self.b.head), tokens=tokens)
        return message("explain.title.whole", parts=parts)

    def _summary(self) -> str:
        """Return which element is worked out, and how many steps were compared."""
        element = message("explain.summary.narrower" if self.dim else "explain.summary.element", element=str(self.dim))
        compared = message("explain.summary.compared", steps=self.b.n_compared, worst=f"{self.b.worst:.2g}")
        return joined(" ", [element, compared])

    def _stack(self, name: str) -> None:
        """Write embedding, block and, for the encoder of a translator, the final norm."""
        b, query, names = self.b, self.queries[name], self.tokens[name]
        own = {"encoder": "source_embedding", "decoder": "target_embedding"}[name]
        embedding = own if hasattr(self.model, own) else "embedding"
        if isinstance(self.model.config, VisionTransformerConfig):
            patch_section(b, embedding, query)
        else:
            embedding_section(b, embedding, _SIDES[name], query)
        source = self.tokens.get("encoder", [])
        module = self.a.module(name)
        if not isinstance(module, Stack):
            recurrent_sections(b, name, self.block, query, source)
            return
        BlockSteps(b, name, self.block, query, names, source).sections()
        if name == "encoder" and hasattr(self.model, "decoder"):
            self._following(name)
            if module.norm is not None:
                b.section(message("explain.output.norm", token=str(query)))
                norm_steps(b, f"{name}.norm", (0, query), f"h_{query}")

    def _following(self, name: str) -> None:
        """Note how many blocks follow the one that was written out."""
        n = self._n_blocks(name) if self.stacks else 0
        if n - 1 > self.block:
            kind = "block" if isinstance(self.a.module(name), Stack) else "layer"
            if n - 2 == self.block:
                self.b.note(message(f"explain.follows.{kind}", last=str(n - 1)))
            else:
                self.b.note(message(f"explain.follows.{kind}s", first=str(self.block + 1), last=str(n - 1)))

    def _n_blocks(self, name: str) -> int:
        """Return the number of blocks or layers of a stack."""
        module = self.a.module(name)
        return len(module.layers if isinstance(module, RecurrentStack | RecurrentEncoder) else module.blocks)

    def _symbols(self, name: str, known: Mapping[str, list[str]]) -> list[str]:
        """Return a name for each token of a stack."""
        config = self.model.config
        if isinstance(config, VisionTransformerConfig):
            return [*CLASS_TOKENS[: config.n_class_tokens], *(f"patch {i}" for i in range(config.grid**2))]
        return known.get(_SIDES[name]) or [str(token) for token in sequences_of(self.a, name).tokens[0].tolist()]

    def _queries(self, query: int | None) -> dict[str, int]:
        """Return the position of the token per stack.

        Raises:
            ConfigError: a stack has no token at this position.
        """
        valid = {name: self._positions(name) for name in self.stacks}
        if query is None:
            first = getattr(self.model.config, "pooling", "") == "cls"
            return {name: positions[0 if first else -1] for name, positions in valid.items()}
        if not all(query in positions for positions in valid.values()):
            ranges = " and ".join(f"from {positions[0]} to {positions[-1]} in the {name}" for name, positions in valid.items())
            one = "; choose one side, the encoder or the decoder" if len(valid) > 1 else ""
            raise ConfigError(f"query: expected the position of a token, {ranges}, found {query}{one}")
        return dict.fromkeys(valid, query)

    def _positions(self, name: str) -> list[int]:
        """Return the positions of the tokens of a stack, padding excluded."""
        if isinstance(self.model.config, VisionTransformerConfig):
            return list(range(self.model.config.n_positions))
        positions: list[int] = (sequences_of(self.a, name).segments[0] > 0).nonzero()[:, 0].tolist()
        return positions

    def _symbol_of_logit(self) -> Callable[[int], str]:
        """Return the function that names the candidate of a logit."""
        classes = getattr(self.model.config, "classes", None)
        tokenizers = getattr(self.run, "tokenizers", None)
        tokenizer = tokenizers.target if tokenizers else getattr(self.run, "tokenizer", None)
        if classes:
            return lambda index: str(classes[index])
        if tokenizer is None or self.a["logits"].ndim < 3:
            return str
        return lambda index: str(tokenizer.symbols([index])[0])


def _check_range(name: str, value: int, valid: range, where: str = "") -> None:
    """Raise if a choice is not in its range.

    Raises:
        ConfigError: it is not; the message has the range.
    """
    if value not in valid:
        raise ConfigError(f"{name}: expected a number from {valid.start} to {valid.stop - 1}{where}, found {value}")
