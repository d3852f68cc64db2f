"""The recipe of a language model, and what it alone has."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from transom.config.data import TextData, Tokenizer
from transom.config.decoding import Sampling
from transom.config.model import Decoder, LanguageModel
from transom.config.options import TEXT, TaskHelp, Verb
from transom.config.recipe import TextRecipe
from transom.config.registry import register_task
from transom.config.training import AdamW, AdamWTraining, AnyExits, ConsistentTraining, NoExits, Optimizer

ABOUT = TaskHelp(options=TEXT, order=2, verbs=(Verb("generate", "Go on with a text, as it is drawn."),))


class LanguageTraining(AdamWTraining, ConsistentTraining):
    """One training run of a language model."""

    exits: AnyExits = Field(NoExits(), description="behind which blocks the model learns to answer")
    token_dropout: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description="share of the tokens read in training that [UNK] stands for (blank noising, Xie et al. 2017), drawn anew each time; it"
        " is a mean: each window's own is anything from 0 to twice it. For little text, read many times",
    )
    optimizer: Optimizer = Field(AdamW(beta2=0.95, eps=1e-8, weight_decay=0.1), description="the optimizer brick")
    select_by: Literal["loss"] = Field("loss", description="validation figure that chooses the kept weights")
    validate_samples: int = Field(3, ge=0, description="validation documents whose beginning is continued at a validation, to be shown")


@register_task
class LanguageRecipe(TextRecipe):
    """A language model: a decoder that learns to go on with plain text."""

    TASK: ClassVar[str] = "transom.tasks.language.task:LanguageTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    COUNTED: ClassVar[str] = "tokens"
    VERB: ClassVar[str] = "generate"
    EXAMPLE: ClassVar[tuple[str, str]] = ('"The beginning of a text"', '["The beginning of a text"]')

    task: Literal["language"] = Field("language", description="what the model learns to do")
    data: TextData = Field(..., description="the examples")
    tokenizer: Tokenizer = Field(Tokenizer(), description="text to tokens")
    model: LanguageModel = Field(Decoder(), description="the network; preset = NAME starts from a published one")
    training: LanguageTraining = Field(LanguageTraining(), description="the run")
    decoding: Sampling = Field(Sampling(), description="how text is gone on with")

    @model_validator(mode="after")
    def _exits_need_blocks_for_all(self) -> Self:
        early = self.training.exits.kind != "none" or self.decoding.exit_threshold < 1
        if early and not (isinstance(self.model, Decoder) and self.model.depth.kind == "full"):
            raise ValueError(
                "training.exits and decoding.exit_threshold need model.kind = 'decoder' with model.depth = 'full'; change these, or set"
                " exits = 'none' and exit_threshold = 1"
            )
        return self

    @model_validator(mode="after")
    def _plain_text_has_no_prefix(self) -> Self:
        if isinstance(self.model, Decoder) and self.model.mask.kind == "prefix":
            raise ValueError(
                "model.mask: expected 'causal' for task 'language', found 'prefix': plain text has none to learn from; task 'instruction'"
                " has, also from a model that was trained so"
            )
        return self
