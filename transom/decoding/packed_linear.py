"""Linear layers with weights prepacked for repeated inference."""

import ctypes
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transom.layers.activation import ACTIVATIONS, GATES
from transom.layers.dispatch import operation

Activation = Callable[[Tensor], Tensor]
WeightType = Literal["bf16", "int8", "fp32"]
WEIGHT_TYPES: dict[WeightType, int] = {"bf16": 0, "int8": 1, "fp32": 2}
"""Codes of the weight types in ``products.h``."""

ACTIVATION_CODES: dict[Activation | None, int] = {
    None: 0,
    **{ACTIVATIONS[kind]: number for kind, number in {"relu": 1, "gelu": 2, "gelu-tanh": 3, "silu": 4, "squared-relu": 6}.items()},
    **{GATES[kind]: number for kind, number in {"glu": 5, "reglu": 1, "geglu": 2, "geglu-tanh": 3, "swiglu": 4}.items()},
}
"""Codes of the activations in ``products.h``."""


@runtime_checkable
class PackedLinear(Protocol):
    """A linear layer y = f(x W^T + b), with an optional activation f."""

    def __call__(
        self, x: Float[Tensor, "*axes inner"], residual: Float[Tensor, "*axes outer"] | None = None
    ) -> Float[Tensor, "*axes outer"]:
        """Return f(x W^T + b), with ``residual`` added if given."""
        ...


class UnpackedLinear:
    """Linear layer computed by ``torch.nn.functional.linear``, without prepacking."""

    def __init__(
        self, weight: Float[Tensor, "outer inner"], bias: Float[Tensor, "outer"] | None = None, activation: Activation | None = None
    ) -> None:
        self.weight, self.bias, self.activation = weight, bias, activation

    def __call__(
        self, x: Float[Tensor, "*axes inner"], residual: Float[Tensor, "*axes outer"] | None = None
    ) -> Float[Tensor, "*axes outer"]:
        """Return f(x W^T + b), with ``residual`` added if given."""
        y = F.linear(x, self.weight, self.bias)
        if self.activation is not None:
            y = self.activation(y)
        return y if residual is None else residual + y


DECODE_ROWS = 32
"""Typical number of rows of x in a decoding step."""

PREFILL_ROWS = 2048
"""Typical number of rows of x when whole texts are encoded."""


@operation("packed_linear")
def pack_linear(
    weight: Float[Tensor, "outer inner"], bias: Float[Tensor, "outer"] | None, activation: Activation | None, rows: int
) -> PackedLinear:
    """Build a linear layer with an optional activation, optimized for about ``rows`` rows of x; it accepts any number."""
    return UnpackedLinear(weight, bias, activation)


def library_structs(library: ctypes.CDLL) -> Any:
    """Return the ctypes structures of a library's functions (``kernels/native_structs.py``)."""
    return library.structs


class TiledLinear:
    """The weights of a linear map y = f(x W^T + b) for the native library, in tiles of 16 outputs, in float32, bfloat16 or int8.

    In int8 y_o = f(s_o s_x sum_i w_oi x_i + b_o) (Wu et al. 2016, section 6, with one scale per output and per row): w and x are rounded to
    -127 ... 127 with s_o = max_i |W_oi| / 127 and s_x = max_i |x_i| / 127. The scale s_x is per row, so that no result depends on the other
    rows of the batch. Sums are exact in int8, and in float32 otherwise.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        kind: WeightType,
        weight: Float[Tensor, "outer inner"],
        bias: Float[Tensor, "outer"] | None = None,
        activation: Activation | None = None,
    ) -> None:
        """Pack the weights; ``activation`` is the activation f, one of ``ACTIVATION_CODES``."""
        self.out_features, self.in_features = weight.shape
        code = WEIGHT_TYPES[kind]
        self.weight = torch.empty(library.transom_packed_bytes(code, self.in_features, self.out_features), dtype=torch.uint8)
        self.scale = torch.zeros(self.out_features, dtype=torch.float32)
        weight_fp32 = weight.float().contiguous()
        library.transom_pack(
            code, weight_fp32.data_ptr(), self.in_features, self.out_features, self.weight.data_ptr(), self.scale.data_ptr()
        )
        self.bias = None if bias is None else bias.float().contiguous()
        self.layout = library_structs(library).LinearStruct(
            self.weight.data_ptr(),
            self.scale.data_ptr(),
            pointer(self.bias),
            self.in_features,
            self.out_features,
            activation=ACTIVATION_CODES[activation],
        )


def pointer(x: Tensor | None) -> int | None:
    """Return the address of a tensor's first element; None without a tensor."""
    return None if x is None else x.data_ptr()


class LinearFactory(NamedTuple):
    """Builds linear layers for one expected number of rows, such as that of a decoding step.

    Attributes:
        rows: expected number of rows of x.
        dtype: dtype of the activations.
    """

    rows: int
    dtype: torch.dtype

    def make(
        self, weight: Float[Tensor, "outer inner"], bias: Float[Tensor, "outer"] | None, activation: Activation | None = None
    ) -> PackedLinear:
        return pack_linear(weight, bias, activation, self.rows)
