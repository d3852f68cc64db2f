"""Sites that a trace did not record, by running a block again on its recorded input.

A trace of the residual streams alone is small. Every other site of a block follows from the stream that enters it.
"""

from typing import Any, cast

from torch import Tensor

from transom.inspection.activations import Activations, NotRecordedError, stack_input
from transom.layers.context import StackContext
from transom.layers.observe import ActivationRecorder
from transom.models.base import LanguageModel
from transom.models.vision import VisionTransformer


def rerun_sites(a: Activations, address: str) -> dict[str, Tensor]:
    """Return the sites of the block that owns ``address``, or the input of the final norm of a stack.

    Raises:
        NotRecordedError: the site belongs to no block, the stream before the block was not recorded, or the stream is not enough: in blocks
            with a depth router, and in stacks with value residuals.
    """
    stack, _, rest = address.partition(".blocks.")
    if not rest and address.endswith(".norm.x"):
        owner = address.removesuffix(".norm.x")
        if not hasattr(a.module(owner), "blocks"):  # an embedding
            return {address: a[f"{owner}.sum"]}
        blocks = a.module(owner).blocks
        if blocks[-1].depth is not None:  # its stream holds the selected tokens only
            raise _not_recorded(address)
        return {address: _recorded(a, f"{owner}.blocks.{len(blocks) - 1}.resid_post")}
    if not rest:
        raise _not_recorded(address)
    number = int(rest.partition(".")[0])
    block = a.module(f"{stack}.blocks.{number}")
    if block.depth is not None or a.module(stack).value_residuals:
        raise NotRecordedError(f"expected a site that follows from the residual stream, found {address!r}; name it in the trace")
    before = f"{stack}.blocks.{number - 1}.resid_post"
    x = a.recorded.get(f"{stack}.blocks.{number}.resid_pre")
    if x is None:
        x = _recorded(a, before) if number else stack_input(a, stack)
    recorder = ActivationRecorder([f"{stack}.blocks.{number}.*"])
    memory = a["encoder.out"] if block.cross is not None else None
    block(x, _context(a, stack, recorder).for_block(number), memory, None)
    return recorder.activations


def _recorded(a: Activations, address: str) -> Tensor:
    """Return a recorded site.

    Raises:
        NotRecordedError: it was not recorded.
    """
    if address not in a.recorded:
        raise _not_recorded(address)
    return a.recorded[address]


def _not_recorded(address: str) -> NotRecordedError:
    """Return the error that asks for a site."""
    return NotRecordedError(f"expected a recorded site, found {address!r}; name it in the trace")


def _context(a: Activations, stack: str, recorder: ActivationRecorder) -> StackContext:
    """Return the context of a pass through a stack."""
    model, batch = cast(Any, a.model), a.batch
    ctx: StackContext
    if hasattr(model, "source_context") and stack == "encoder":
        ctx = model.source_context(batch.source, recorder)
    elif hasattr(model, "source_context"):
        ctx = model.target_context(batch.decoder_input, batch.source.segments, recorder)
    elif isinstance(model, VisionTransformer):
        ctx = model.context(batch.pixels, recorder)
    else:
        ctx = model.context(batch.decoder_input if isinstance(model, LanguageModel) else batch.source, recorder)
    return ctx
