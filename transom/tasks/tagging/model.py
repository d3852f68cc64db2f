"""Network of the tagging task: an encoder with a linear classifier per token."""

from jaxtyping import Float
from torch import Tensor, nn

from transom.config.component_registry import implements
from transom.layers.dropout import Dropout
from transom.layers.observe import ActivationRecorder
from transom.models.encoder import EncoderBatch, EncoderOnlyTransformer
from transom.tasks.tagging.schema import TokenTaggerConfig


@implements(TokenTaggerConfig)
class TokenTagger(EncoderOnlyTransformer):
    """p(tag_t | text) = softmax(dropout(h_t) W) for every token t (Devlin et al. 2019, section 5.3).

    The tag of a word is predicted from its first token; the batch marks these tokens.
    """

    def __init__(self, config: TokenTaggerConfig) -> None:
        """Build from a configuration whose vocabulary size and tags are known."""
        super().__init__(config)
        assert config.classes, "the tags come from the data"
        self.config: TokenTaggerConfig = config
        self.dropout = Dropout(config.classifier_dropout)
        self.unembedding = nn.Linear(config.d_model, len(config.classes), config.head_bias)

    def last_hidden_state(self, batch: EncoderBatch, observer: ActivationRecorder | None = None) -> Float[Tensor, "batch source d_model"]:
        """Return the last hidden state of each token after dropout, the input of the linear classifier."""
        return self.dropout(self.encode(batch.source, self.context(batch.source, observer)))
