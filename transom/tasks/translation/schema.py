"""Recipe of the translation task."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from transom.config.data import FilesConfig, LanguageConfig, PairDataConfig, PairTokenizerConfig
from transom.config.decoding import BeamSearchConfig
from transom.config.model import AnySeq2SeqModel, Seq2SeqConfig
from transom.config.recipe import PairRecipe
from transom.config.task_options import PAIRS, Command, TaskHelp
from transom.config.task_registry import register_task
from transom.config.training import RDropTrainingConfig

ABOUT = TaskHelp(
    options=PAIRS,
    order=1,
    commands=(
        Command("translate", "Translate a sentence, a file or standard input."),
        Command("evaluate", "Translate a test set, or answer its prompts, and score the results against references."),
    ),
)


class TranslationDataConfig(PairDataConfig):
    """Sentence pairs with one or several target languages."""

    ORIGINS: ClassVar[tuple[str, ...]] = ("train", "generate", "languages")

    languages: tuple[LanguageConfig, ...] = Field(
        (), strict=False, description="files of sentence pairs for each of several target languages, with the tag of the language"
    )
    sampling_temperature: float = Field(
        5.0,
        ge=1,
        description="temperature of sampling among the target languages: a language with n_l pairs is sampled in proportion to"
        " n_l^(1 / temperature) (Arivazhagan et al. 2019); 1 samples in proportion to n_l; higher values favor languages with few pairs",
    )

    @model_validator(mode="after")
    def _tags_differ(self) -> "TranslationDataConfig":
        tags = [language.tag for language in self.languages]
        if twice := next((tag for tag in tags if tags.count(tag) > 1), None):
            raise ValueError(f"data.languages: expected distinct tags, found {twice!r} twice; change one of them")
        return self

    @property
    def train_parts(self) -> list[FilesConfig]:
        """The files of the training pairs of all target languages."""
        return [part for part in (self.train, *(language.train for language in self.languages)) if part is not None]

    @property
    def test_parts(self) -> list[FilesConfig]:
        """The files of the test pairs of all target languages."""
        return [part for part in (self.test, *(language.test for language in self.languages)) if part is not None]

    @property
    def parts(self) -> list[FilesConfig]:
        """The files of the training, validation and test pairs of all target languages."""
        own = (part for language in self.languages for part in (language.train, language.valid) if part is not None)
        return [*super().parts, *own]


class TranslationTrainingConfig(RDropTrainingConfig):
    """Training settings of a translator."""

    validate_bleu: int = Field(
        200,
        ge=0,
        description="number of validation sentences per language that are translated at each validation to compute BLEU and chrF; 0"
        " computes neither",
    )
    best_checkpoint_metric: Literal["loss", "bleu"] = Field("loss", description="validation metric that selects the saved weights")

    @model_validator(mode="after")
    def _selectable(self) -> "TranslationTrainingConfig":
        if self.best_checkpoint_metric == "bleu" and self.validate_bleu == 0:
            raise ValueError("training.best_checkpoint_metric = 'bleu' needs training.validate_bleu > 0")
        return self


@register_task
class TranslationRecipe(PairRecipe):
    """A translator: an encoder-decoder trained on sentence pairs."""

    TASK: ClassVar[str] = "transom.tasks.translation.task:TranslationTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    UNIT: ClassVar[str] = "target tokens"
    COMMAND: ClassVar[str] = "translate"
    EXAMPLE: ClassVar[tuple[str, str]] = ('"A sentence in the source language."', '["A sentence in the source language."]')

    task: Literal["translation"] = Field("translation", description="the task")
    data: TranslationDataConfig = Field(..., description="the data")
    tokenizer: PairTokenizerConfig = Field(PairTokenizerConfig(), description="the tokenizer")
    model: AnySeq2SeqModel = Field(Seq2SeqConfig(), description="the network; preset = NAME loads the configuration of a published model")
    training: TranslationTrainingConfig = Field(TranslationTrainingConfig(), description="training settings")
    decoding: BeamSearchConfig = Field(BeamSearchConfig(), description="beam search settings")

    @model_validator(mode="after")
    def _one_table_needs_one_vocabulary(self) -> Self:
        if self.model.ties_inputs and not self.tokenizer.joint:
            raise ValueError(
                f"model.tie_embeddings = {self.model.tie_embeddings!r} needs tokenizer.joint = true; change one of them, or set"
                " model.tie_embeddings = 'decoder'"
            )
        return self

    @property
    def example(self) -> tuple[str, str]:
        """Example arguments of the command and of the method. For a multilingual model, they contain the tag of its first language."""
        arguments, call = self.EXAMPLE
        if not self.data.languages:
            return arguments, call
        tag = self.data.languages[0].tag
        return f"--to {tag} {arguments}", f'{call}, to="{tag}"'

    def measured_on(self, figures: Mapping[str, Any]) -> str:
        """Describe the sentence pairs on which BLEU and chrF were measured. The text is empty if ``figures`` contains no BLEU."""
        if "bleu" not in figures:
            return ""
        case = ", case-insensitive" if self.tokenizer.lowercase else ""
        each = " of each language" if self.data.languages else ""
        return f" (BLEU and chrF on at most its first {self.training.validate_bleu:,} pairs{each}{case})"
