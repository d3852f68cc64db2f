"""A foreign family of models: its tables, and the conversion of configurations in both directions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from transom.config.architecture import ModelConfig
from transom.config.error_messages import error_path
from transom.config.model import AnyModel, EncoderConfig
from transom.errors import CheckpointError
from transom.exchange.config_rows import ConfigRow, Fields, flatten, unflatten
from transom.exchange.tensor_rows import TensorRow

MODULES = ("gpt2", "gpt_neox", "llama", "gemma", "phi", "bert", "vit", "marian", "bart", "t5")
"""Modules of ``transom.exchange.families``, each with a tuple ``FAMILIES``."""

_HARMLESS = (
    (
        "_name_or_path",
        "architectures",
        "model_type",
        "transformers_version",
        "dtype",
        "torch_dtype",
        "torchscript",
        "finetuning_task",
        "prefix",
    ),
    ("add_cross_attention", "auto_map", "cross_attention_hidden_size", "is_encoder_decoder", "tie_encoder_decoder", "tokenizer_class"),
    (
        "bos_token_id",
        "decoder_start_token_id",
        "eos_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "pad_token_id",
        "sep_token_id",
    ),
    ("id2label", "label2id", "problem_type", "task_specific_params", "return_dict", "return_dict_in_generate", "use_bfloat16", "use_cache"),
    (
        "init_std",
        "initializer_factor",
        "initializer_range",
        "classifier_dropout",
        "gradient_checkpointing",
        "pretraining_tp",
        "pruned_heads",
    ),
    ("output_attentions", "output_hidden_states", "output_router_logits", "output_scores", "chunk_size_feed_forward", "encoder_stride"),
    ("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
    ("bad_words_ids", "begin_suppress_tokens", "suppress_tokens", "remove_invalid_values", "exponential_decay_length_penalty"),
    ("diversity_penalty", "encoder_no_repeat_ngram_size", "no_repeat_ngram_size", "repetition_penalty", "length_penalty", "typical_p"),
    (
        "do_sample",
        "early_stopping",
        "max_length",
        "min_length",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "temperature",
        "top_k",
        "top_p",
    ),
)
HARMLESS_FIELDS = frozenset(name for group in _HARMLESS for name in group)
"""Foreign fields on which no output of the model depends, or that are read elsewhere: labels, special tokens, settings of generation."""

TASKS = {
    "decoder": "language",
    "seq2seq": "translation",
    "encoder": "masked",
    "text-classifier": "classification",
    "text-embedder": "embedding",
    "vision-transformer": "image-classification",
}
"""The task of an imported model, by our kind of model."""


class Obstacle(NamedTuple):
    """A field of a model that a foreign family cannot express.

    Attributes:
        field: our field, such as ``attention.sinks``.
        found: its value.
        needed: the value that every model of the family has.
    """

    field: str
    found: Any
    needed: Any

    def __str__(self) -> str:
        return f"model.{self.field} = {_toml(self.found)} (set model.{self.field} = {_toml(self.needed)})"


def _toml(value: Any) -> str:
    """Return a value as a recipe writes it; none for None."""
    return str(value).lower() if isinstance(value, bool | None) else repr(value)


@dataclass(frozen=True)
class Family:
    """A class of models of the transformers library that one kind of our models can equal.

    Attributes:
        model_type: value of ``model_type`` in ``config.json``.
        architecture: class of the model, as in ``architectures``.
        kind: our kind of model.
        fields: table of configuration fields.
        tensors: table of tensors.
        prefix: first part of the tensors' names that files of the bare model omit, such as ``transformer.``.
        auto_class: class of the library that loads an export.
        pipeline: name of the library's pipeline for the model; empty if there is none.
        derived: patterns of foreign tensors that the library computes or does not use; they are not read.
    """

    model_type: str
    architecture: str
    kind: str
    fields: tuple[ConfigRow, ...]
    tensors: tuple[TensorRow, ...]
    prefix: str
    auto_class: str
    pipeline: str = ""
    derived: tuple[str, ...] = ()

    @property
    def reads_text(self) -> bool:
        """Whether the model has a tokenizer."""
        return self.kind != "vision-transformer"

    def is_output(self, name: str) -> bool:
        """Return whether a foreign tensor is the matrix of the output layer."""
        return name == self.output_names()[1]

    def is_derived(self, name: str) -> bool:
        """Return whether a foreign tensor is one that the library computes or does not use, with or without the prefix."""
        return any(re.fullmatch(pattern, each) for pattern in self.derived for each in (name, self.prefix + name))

    def read_config(self, foreign: Mapping[str, Any], from_data: Mapping[str, Any]) -> ModelConfig:
        """Convert a foreign configuration.

        Args:
            foreign: fields of ``config.json``.
            from_data: our fields that other files determine, such as ``classes``.

        Raises:
            CheckpointError: a value is one that transom cannot express, or is invalid.
        """
        leaves: Fields = {"kind": self.kind}
        for row in self.fields:
            leaves |= row.read(foreign)
        try:
            found: ModelConfig = TypeAdapter(AnyModel).validate_python(unflatten(leaves) | dict(from_data))
        except ValidationError as error:
            first = error.errors()[0]
            path = ".".join(error_path(first, unflatten(leaves)))
            raise CheckpointError(
                f"config.json: expected values that a model can have, found {first['input']!r:.80} for {path} ({first['msg'][:200]})"
            ) from error
        return found

    def unread_fields(self, foreign: Mapping[str, Any]) -> list[str]:
        """Return the foreign fields that no row reads and that may change the model's outputs."""
        known = HARMLESS_FIELDS.union(*(row.names for row in self.fields))
        return sorted(name for name, value in foreign.items() if name not in known and value not in (None, False, [], {}))

    def write_config(self, config: ModelConfig) -> Fields:
        """Return the foreign fields of a model, which equal it if there are no ``obstacles``."""
        ours, foreign = _leaves(config), Fields()
        for row in self.fields:
            foreign |= row.write(ours)
        return foreign | {"model_type": self.model_type, "architectures": [self.architecture]}

    def output_names(self) -> tuple[str | None, str | None]:
        """Return the foreign names of the embedding and of the output matrix; None for one that the family lacks."""
        found = dict.fromkeys(("embedding", "unembedding"))
        for row in self.tensors:
            for name in ("embedding.tokens.weight", "source_embedding.tokens.weight"):
                if (match := row.match(name)) is not None:
                    found["embedding"] = match[1][0]
            if (match := row.match("unembedding.weight")) is not None:
                found["unembedding"] = match[1][0]
        return found["embedding"], found["unembedding"]

    def obstacles(self, config: ModelConfig) -> list[Obstacle]:
        """Return the fields of a model that the family cannot express; empty if an export equals the model.

        The foreign configuration is read back and compared with ``config``. Dropout and weights of additional losses are not compared,
        since no output of a trained model depends on them.
        """
        if config.kind != self.kind:
            return [Obstacle("kind", config.kind, self.kind)]
        try:
            ours, back, changed = self._compare(config)
        except CheckpointError as error:
            return [Obstacle("kind", str(error), self.kind)]
        changed = [name for name in changed if not _adds_zeros(name, ours, back)]
        kinds = [name.removesuffix("kind") for name in changed if name.endswith(".kind")]
        own = [name for name in changed if not any(name.startswith(kind) and name != f"{kind}kind" for kind in kinds)]
        return [Obstacle(name.removesuffix(".kind"), ours.get(name), back.get(name)) for name in own]

    def added_zeros(self, config: ModelConfig) -> list[str]:
        """Return the fields of parameters that an export has, set to 0, and a model that has no obstacles lacks."""
        ours, back, changed = self._compare(config)
        return [name for name in changed if _adds_zeros(name, ours, back)]

    def _compare(self, config: ModelConfig) -> tuple[Fields, Fields, list[str]]:
        """Return the fields of a model, those of its export as read back, and the names of those that differ."""
        ours, back = _leaves(config), _leaves(self.target_config(config))
        names = [name for name in {**ours, **back} if not name.endswith(("dropout", *_TRAINING_FIELDS))]
        return ours, back, [name for name in names if ours.get(name) != back.get(name)]

    def target_config(self, config: ModelConfig) -> ModelConfig:
        """Return the configuration of a model of ours that an export is read back as; it may have biases that ``config`` lacks."""
        ours = _leaves(config)
        given = {name: ours[name] for name in (*config.FROM_DATA, *_TOKEN_IDS) if name in ours}
        return self.read_config(self.write_config(config), given)


def _leaves(config: ModelConfig) -> Fields:
    """Return the fields of a configuration; of an encoder, with the size of the embedding and the mask token written out."""
    leaves = flatten(config.model_dump(mode="json"))
    if isinstance(config, EncoderConfig) and config.vocab_size is not None:
        mask = config.vocab_size if config.mask_token_id is None else config.mask_token_id
        leaves |= {"vocab_size": config.n_embeddings, "mask_token_id": mask}
    return leaves


def _adds_zeros(name: str, ours: Mapping[str, Any], back: Mapping[str, Any]) -> bool:
    """Return whether the family only adds a bias or a token type, which an export sets to 0."""
    if name == "n_token_types":
        return ours[name] == 0 and back[name] == 1
    return name.endswith("bias") and ours.get(name) is False and back.get(name) is True


_TOKEN_IDS = ("pad_token_id", "mask_token_id")
_TRAINING_FIELDS = ("aux_loss_coef", "bias_update_rate", "z_loss_coef", "capacity_factor", "load_balancing.kind")
"""Fields on which only training depends."""


@cache
def all_families() -> tuple[Family, ...]:
    """Return all families, imported on the first call."""
    return tuple(family for name in MODULES for family in import_module(f"transom.exchange.families.{name}").FAMILIES)


def find_family(foreign: Mapping[str, Any]) -> Family:
    """Return the family of a ``config.json``.

    Raises:
        CheckpointError: no family has this class of models.
    """
    model_type, architectures = foreign.get("model_type"), foreign.get("architectures") or []
    if foreign.get("quantization_config") is not None:
        raise CheckpointError(
            "config.json: quantization_config: expected weights of 16 bits or more, found quantized ones; save the model without"
            " quantization"
        )
    of_type = [family for family in all_families() if family.model_type == model_type]
    if not of_type:
        known = ", ".join(sorted({family.model_type for family in all_families()}))
        raise CheckpointError(f"config.json: model_type: expected one of {known}, found {model_type!r:.80}; transom has no table for it")
    chosen = [family for family in of_type if family.architecture in architectures]
    if not chosen:
        known = ", ".join(family.architecture for family in of_type)
        raise CheckpointError(
            f"config.json: architectures: expected {known}, found {', '.join(map(str, architectures))[:80] or 'none'};"
            " save the model with a head that transom has"
        )
    return chosen[0]


class Candidate(NamedTuple):
    """A family that a model could be exported as, and what stands in the way."""

    family: Family
    obstacles: Sequence[Obstacle]


def nearest_families(config: ModelConfig) -> list[Candidate]:
    """Return the families of a model's kind: first those with the fewest obstacles, of these the ones that add the fewest parameters."""
    found = [Candidate(family, family.obstacles(config)) for family in all_families() if family.kind == config.kind]
    return sorted(found, key=lambda each: (len(each.obstacles), 0 if each.obstacles else len(each.family.added_zeros(config))))


def export_record(candidates: Sequence[Candidate]) -> dict[str, Any]:
    """Return the model types that equal a model, and what stands in the way of the nearest one, as JSON-serializable data."""
    fitting = [candidate.family for candidate in candidates if not candidate.obstacles]
    nearest = candidates[0] if candidates and not fitting else None
    return {
        "model_types": list(dict.fromkeys(family.model_type for family in fitting)),
        "nearest": None if nearest is None else nearest.family.model_type,
        "obstacles": [] if nearest is None else [obstacle._asdict() for obstacle in nearest.obstacles],
    }
