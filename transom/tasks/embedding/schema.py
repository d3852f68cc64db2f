"""Recipe of the text embedding task."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from transom.config.data import PairDataConfig, PairTokenizerConfig
from transom.config.decoding import TextInferenceConfig
from transom.config.model import TextEmbedderConfig
from transom.config.recipe import PairRecipe
from transom.config.task_options import PAIRS, Command, TaskHelp
from transom.config.task_registry import register_task
from transom.config.training import EncoderTrainingConfig

ABOUT = TaskHelp(options=PAIRS, order=6, commands=(Command("embed", "Embed texts and print their pairwise cosine similarity."),))


class EmbeddingTrainingConfig(EncoderTrainingConfig):
    """Training settings of a text embedding model."""

    validate_samples: int = Field(3, ge=0, description="number of validation texts shown with their nearest neighbor at each validation")


@register_task
class EmbeddingRecipe(PairRecipe):
    """A text embedding model: an encoder trained contrastively on text pairs, with the other pairs of the batch as negatives."""

    TASK: ClassVar[str] = "transom.tasks.embedding.task:EmbeddingTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    UNIT: ClassVar[str] = "pairs"
    COMMAND: ClassVar[str] = "embed"
    EXAMPLE: ClassVar[tuple[str, str]] = ('"A text" "Another text"', '["A text", "Another text"]')
    GUESSES: ClassVar[bool] = False  # the contrastive loss depends on the number of pairs per batch

    task: Literal["embedding"] = Field("embedding", description="the task")
    data: PairDataConfig = Field(..., description="the data")
    tokenizer: PairTokenizerConfig = Field(PairTokenizerConfig(), description="the tokenizer")
    model: TextEmbedderConfig = Field(
        TextEmbedderConfig(), description="the network; preset = NAME loads the configuration of a published model"
    )
    training: EmbeddingTrainingConfig = Field(EmbeddingTrainingConfig(), description="training settings")
    decoding: TextInferenceConfig = Field(TextInferenceConfig(), description="inference settings")

    @model_validator(mode="after")
    def _one_vocabulary(self) -> Self:
        if not self.tokenizer.joint:
            raise ValueError(
                "one encoder reads both sides of each pair: expected tokenizer.joint = true, found false; set tokenizer.joint to true"
            )
        return self
