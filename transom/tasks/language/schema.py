"""Recipe of the language modeling task."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from transom.config.data import TextDataConfig, TokenizerConfig
from transom.config.decoding import SamplingConfig
from transom.config.model import AnyLanguageModel, DecoderConfig
from transom.config.recipe import TextRecipe
from transom.config.task_options import TEXT, Command, TaskHelp
from transom.config.task_registry import register_task
from transom.config.training import AdamWConfig, AdamWTrainingConfig, AnyEarlyExit, AnyOptimizer, NoEarlyExitConfig, RDropTrainingConfig

ABOUT = TaskHelp(
    options=TEXT,
    order=2,
    commands=(Command("generate", "Continue a text, printing tokens as they are sampled."),),
    evaluated_by="transom score RUN --text PATH",
)


class LanguageTrainingConfig(AdamWTrainingConfig, RDropTrainingConfig):
    """Training settings of a language model."""

    early_exit_loss: AnyEarlyExit = Field(
        NoEarlyExitConfig(), description="loss that trains the outputs of earlier blocks to predict tokens, for early exit"
    )
    blank_noising: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description="mean fraction of the input tokens replaced by [UNK] in training (blank noising, Xie et al. 2017), resampled in each"
        " epoch; the fraction of each window is uniform from 0 to twice the mean. Useful for many epochs on little text",
    )
    optimizer: AnyOptimizer = Field(AdamWConfig(beta2=0.95, eps=1e-8, weight_decay=0.1), description="the optimizer")
    best_checkpoint_metric: Literal["loss"] = Field("loss", description="validation metric that selects the saved weights")
    validate_samples: int = Field(
        3, ge=0, description="number of excerpts of the validation documents that are continued and shown at each validation"
    )


@register_task
class LanguageRecipe(TextRecipe):
    """A language model: a decoder trained on plain text."""

    TASK: ClassVar[str] = "transom.tasks.language.task:LanguageTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    UNIT: ClassVar[str] = "tokens"
    COMMAND: ClassVar[str] = "generate"
    EXAMPLE: ClassVar[tuple[str, str]] = ('"The beginning of a text"', '["The beginning of a text"]')

    task: Literal["language"] = Field("language", description="the task")
    data: TextDataConfig = Field(..., description="the data")
    tokenizer: TokenizerConfig = Field(TokenizerConfig(), description="the tokenizer")
    model: AnyLanguageModel = Field(DecoderConfig(), description="the network; preset = NAME loads the configuration of a published model")
    training: LanguageTrainingConfig = Field(LanguageTrainingConfig(), description="training settings")
    decoding: SamplingConfig = Field(SamplingConfig(), description="sampling settings")

    @model_validator(mode="after")
    def _exits_need_blocks_for_all(self) -> Self:
        early = self.training.early_exit_loss.kind != "none" or self.decoding.early_exit_threshold < 1
        if early and not (isinstance(self.model, DecoderConfig) and self.model.depth.kind == "full"):
            raise ValueError(
                "training.early_exit_loss and decoding.early_exit_threshold need model.kind = 'decoder' with"
                " model.depth = 'full'; change these, or set early_exit_loss = 'none' and early_exit_threshold = 1"
            )
        return self

    @model_validator(mode="after")
    def _plain_text_has_no_prefix(self) -> Self:
        if isinstance(self.model, DecoderConfig) and self.model.mask.kind == "prefix-lm":
            raise ValueError(
                "model.mask: expected 'causal' for task 'language', found 'prefix-lm': plain text has no prefix; set it to 'causal'"
                " or use task 'instruction', which may start from a causal model"
            )
        return self
