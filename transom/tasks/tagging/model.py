"""The network of the tagging task, which is an encoder with a linear classifier of its tokens."""

from jaxtyping import Float
from torch import Tensor, nn

from transom.config.component_registry import implements
from transom.layers.context import StackContext
from transom.layers.dropout import Dropout
from transom.models.base import SequencesLike
from transom.models.encoder import EncoderOnlyTransformer
from transom.tasks.tagging.schema import TokenTaggerConfig


@implements(TokenTaggerConfig)
class TokenTagger(EncoderOnlyTransformer):
    """An encoder with a linear classifier of its tokens (Devlin et al. 2019, section 5.3).

    p(tag_t | text) = softmax(dropout(h_t) W) for the last hidden state h_t of token t. The tag of a word is predicted from the first token
    of the word. A batch marks these first tokens.
    """

    def __init__(self, config: TokenTaggerConfig) -> None:
        """Build the network from a configuration whose vocabulary size and tags are known."""
        super().__init__(config)
        assert config.classes, "the tags come from the data"
        self.config: TokenTaggerConfig = config
        self.dropout = Dropout(config.classifier_dropout)
        self.unembedding = nn.Linear(config.d_model, len(config.classes), config.head_bias)

    def head(
        self, states: Float[Tensor, "batch source d_model"], text: SequencesLike, ctx: StackContext
    ) -> Float[Tensor, "batch source d_model"]:
        """Return the state of each token after dropout, which is the input of the linear classifier."""
        return self.dropout(states)
