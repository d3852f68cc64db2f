"""Wire format of protocol buffers: a reader of fields that allocates no more than the message holds.

Source: "Encoding" in the protocol buffers documentation. A message is a sequence of fields. Each has a tag, which is the varint
``field number * 8 + wire type``, and a value whose form the wire type decides.
"""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types: variable-length integer, 8 bytes, a length and that many bytes, 4 bytes."""

_FIXED = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT_BYTES = 10

Field = tuple[int, int, int | memoryview]
"""Field number, wire type, and the value: an integer for a varint, otherwise the bytes."""


def fields(message: memoryview) -> Iterator[Field]:
    """Yield the fields of a message in order.

    Args:
        message: bytes of the message.

    Raises:
        ValueError: the message is truncated, a varint is longer than 10 bytes, or a wire type is unknown. The message of the error is a
            noun phrase with the position in bytes.
    """
    at = 0
    while at < len(message):
        start = at
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if not 1 <= number < 2**29:
            raise ValueError(f"the field number {number} at byte {start:,}")
        if wire == VARINT:
            value, at = _varint(message, at)
            yield number, wire, value
            continue
        if wire == BYTES:
            length, at = _varint(message, at)
        elif wire in _FIXED:
            length = _FIXED[wire]
        else:
            raise ValueError(f"the wire type {wire} at byte {start:,}")
        if length > len(message) - at:
            raise ValueError(f"a field of {length:,} bytes at byte {start:,}, where only {len(message) - at:,} follow")
        yield number, wire, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the unsigned 64-bit integer that starts at a position, and the position after it."""
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if at + index >= len(message):
            raise ValueError(f"a truncated integer at byte {at:,}")
        byte = message[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & (2**64 - 1), at + index + 1
    raise ValueError(f"an integer of more than {_MAX_VARINT_BYTES} bytes at byte {at:,}")


def signed(value: int) -> int:
    """Return the signed 64-bit integer of a varint, which holds its two's complement.

    >>> signed(2**64 - 1), signed(5)
    (-1, 5)
    """
    return value - 2**64 if value >= 2**63 else value
