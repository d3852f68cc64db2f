"""The recipe of an encoder that gives texts vectors, and what it alone has."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from transom.config.data import PairData, PairTokenizer
from transom.config.decoding import Reading
from transom.config.model import TextEmbedder
from transom.config.options import PAIRS, TaskHelp, Verb
from transom.config.recipe import PairRecipe
from transom.config.registry import register_task
from transom.config.training import EncoderTraining

ABOUT = TaskHelp(options=PAIRS, order=6, verbs=(Verb("embed", "Give each text a vector, and how alike texts are."),))


class EmbeddingTraining(EncoderTraining):
    """One training run of an encoder that gives texts vectors."""

    validate_samples: int = Field(3, ge=0, description="validation texts whose nearest text is told at a validation, to be shown")


@register_task
class EmbeddingRecipe(PairRecipe):
    """An encoder that learns vectors of texts: near to each other for the two sides of a pair, far for the others of a batch."""

    TASK: ClassVar[str] = "transom.tasks.embedding.task:EmbeddingTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    COUNTED: ClassVar[str] = "pairs"
    VERB: ClassVar[str] = "embed"
    EXAMPLE: ClassVar[tuple[str, str]] = ('"A text" "Another text"', '["A text", "Another text"]')
    GUESSES: ClassVar[bool] = False  # each pair is told from the others of its batch, however many these are

    task: Literal["embedding"] = Field("embedding", description="what the model learns to do")
    data: PairData = Field(..., description="the examples")
    tokenizer: PairTokenizer = Field(PairTokenizer(), description="text to tokens")
    model: TextEmbedder = Field(TextEmbedder(), description="the network; preset = NAME starts from a published one")
    training: EmbeddingTraining = Field(EmbeddingTraining(), description="the run")
    decoding: Reading = Field(Reading(), description="how texts are read")

    @model_validator(mode="after")
    def _one_vocabulary(self) -> Self:
        if not self.tokenizer.joint:
            raise ValueError("one encoder reads both sides: expected tokenizer.joint = true, found false; change it")
        return self
