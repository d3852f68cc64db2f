"""WAV files for tests, written by Python's own module, which the reader does not use."""

import wave
from collections.abc import Iterable
from io import BytesIO


def wav(numbers: Iterable[float], width: int = 2, channels: int = 1, rate: int = 4000) -> bytes:
    """Write numbers from -1 to 1 as PCM of ``width`` bytes a sample."""
    most = 2 ** (8 * width - 1)
    whole = [min(round(float(x) * most), most - 1) for x in numbers]
    with wave.open(file := BytesIO(), "wb") as opened:
        opened.setparams((channels, width, rate, 0, "NONE", ""))
        opened.writeframes(
            b"".join((x + 128).to_bytes(1, "little") if width == 1 else x.to_bytes(width, "little", signed=True) for x in whole)
        )
    return file.getvalue()
