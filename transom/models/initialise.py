"""Initial weights."""

import math

from torch import nn

from transom.config.architecture import Architecture
from transom.layers.approximations.linear_attention import Performer
from transom.layers.attention import Attention

QUERY_KEY_VALUE_GAIN = 1 / math.sqrt(2)
"""W_Q, W_K and W_V are drawn smaller by this, as square maps joined to one of d_model to 3 d_model; if larger, a translator learns much
more slowly. All three have the spread of W_Q, however few the key heads."""


def initialise(model: nn.Module, config: Architecture) -> None:
    """Draw all weights from the default generator.

    Linear maps: Xavier uniform (Glorot & Bengio 2010), W_Q, W_K and W_V smaller; biases zero. Tables of tokens, learned positions and
    relative biases: normal with deviation d_model^-0.5, so that logits and embeddings scaled by sqrt(d_model) both start near unit
    variance. Recurrent layers: each gate's maps Xavier uniform; biases zero, but a forget gate's 1 (Jozefowicz et al. 2015, section 2.1).
    """
    gains = {
        m: QUERY_KEY_VALUE_GAIN * math.sqrt(sum(m.weight.shape) / sum(attention.q.weight.shape))
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
            _initialise_recurrence(module)
        elif isinstance(module, Performer):
            module.draw()
    for module in model.modules():  # after the linear maps: a tied output map is an embedding
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=config.d_model**-0.5)


def _initialise_recurrence(kernel: nn.RNNBase) -> None:
    for name, parameter in kernel.named_parameters():
        if parameter.dim() == 1:
            nn.init.zeros_(parameter)
        else:
            for gate in parameter.split(kernel.hidden_size):
                nn.init.xavier_uniform_(gate)
        if isinstance(kernel, nn.LSTM) and name.startswith("bias_ih"):
            nn.init.ones_(parameter.chunk(4)[1])  # the gates lie in the order i, f, g, o
