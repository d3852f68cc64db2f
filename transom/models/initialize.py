"""Weight initialization."""

import math

from torch import nn

from transom.config.architecture import ModelConfig
from transom.layers.approximations.linear_attention import Performer
from transom.layers.attention import Attention

QKV_GAIN = 1 / math.sqrt(2)
"""Xavier gain of W_Q, W_K and W_V, which makes their weights as small as those of one layer from d_model to 3 d_model; with larger weights
a translation model learns much more slowly. W_K and W_V have the standard deviation of W_Q, also in grouped-query attention."""


def initialize(model: nn.Module, config: ModelConfig) -> None:
    """Initialize all weights from the default random generator.

    - Linear layers: Xavier uniform (Glorot & Bengio 2010), W_Q, W_K and W_V with gain ``QKV_GAIN``; biases zero.
    - Embeddings of tokens and positions, and relative position biases: normal with standard deviation d_model^-0.5, so that logits, and
      embeddings scaled by sqrt(d_model), start near unit variance.
    - Recurrent layers: Xavier uniform per gate; biases zero, forget gates 1 (Jozefowicz et al. 2015, section 2.1).
    """
    gains: dict[nn.Module, float] = {
        m: QKV_GAIN * math.sqrt(sum(m.weight.shape) / sum(attention.q.weight.shape))
        for attention in model.modules()
        if isinstance(attention, Attention)
        for m in (attention.q, attention.k, attention.v)
    }
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, gains.get(module, 1.0))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.RNNBase):
            _initialize_rnn(module)
        elif isinstance(module, Performer):
            module.sample_projections()
    for module in model.modules():  # after the linear layers: a tied output projection is an embedding
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=config.d_model**-0.5)


def _initialize_rnn(kernel: nn.RNNBase) -> None:
    for name, parameter in kernel.named_parameters():
        if parameter.dim() == 1:
            nn.init.zeros_(parameter)
        else:
            for gate in parameter.split(kernel.hidden_size):
                nn.init.xavier_uniform_(gate)
        if isinstance(kernel, nn.LSTM) and name.startswith("bias_ih"):
            nn.init.ones_(parameter.chunk(4)[1])  # gates are ordered i, f, g, o
