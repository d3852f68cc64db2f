"""Sounds: WAV files of every width, their mistakes, resampling, log-mel spectrograms, masks and synthesis."""

import math
import struct
import wave
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch

from transom.data.audio.sounds import RATE, SYNTHESIZED, VOWELS, read_sounds, read_spectrum, spectrum_of, synthesize, synthesize_splits
from transom.data.audio.spectrogram import FLOOR, log_mel, mel_filters, spec_augment
from transom.data.audio.wav import fit_length, read_wav, resample
from transom.errors import DataError

SPECTRUM = spectrum_of(8000, 0.2, 8, 256)


def wav(samples: list[list[int]], width: int = 2, rate: int = 8000) -> bytes:
    """Write samples, each a list of channels, as a WAV file."""
    numbers = [number + 128 if width == 1 else number for row in samples for number in row]
    data = b"".join(number.to_bytes(width, "little", signed=width > 1) for number in numbers)
    with wave.open(file := BytesIO(), "wb") as opened:
        opened.setnchannels(len(samples[0]) if samples else 1)
        opened.setsampwidth(width)
        opened.setframerate(rate)
        opened.writeframes(data)
    return file.getvalue()


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_every_width_is_read_exactly_and_stereo_is_averaged(width: int) -> None:
    top = 2 ** (8 * width - 1)
    values = [-top, -1, 0, 1, top // 2]
    x, rate = read_wav(wav([[value] for value in values], width, 11025), "here")
    assert rate == 11025 and torch.equal(x, torch.tensor([value / top for value in values]))
    stereo, _ = read_wav(wav([[top // 2, 0], [-top, -top]], width), "here")
    assert stereo.tolist() == [0.25, -1.0]


def header(data: bytes, offset: int, form: str, value: int) -> bytes:
    """Overwrite a number of a WAV file's header."""
    return data[:offset] + struct.pack(form, value) + data[offset + struct.calcsize(form) :]


GOOD = wav([[number] for number in range(100)])


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "an empty file"),
        (b"ID3 not a sound at all", "another format"),
        (GOOD[:30], "integer PCM"),
        (GOOD[:144], "truncated"),
        (wav([]), "found none"),
        (header(GOOD, 20, "<H", 3), "unknown format: 3"),
        (header(GOOD, 40, "<I", 2**32 - 2), "truncated"),
        (header(GOOD, 24, "<I", 2**32 - 1), "4,294,967,295 Hz"),
        (header(GOOD, 24, "<I", 0), "0 Hz"),
        (header(GOOD, 22, "<H", 0), "channels"),
        (header(GOOD, 22, "<H", 5), "5 channels"),
        (header(GOOD, 34, "<H", 64), "64 bits"),
        (header(GOOD, 34, "<H", 0), "bad sample width"),
    ],
)
def test_a_bad_file_is_one_line_that_says_what_was_found(data: bytes, found: str) -> None:
    with pytest.raises(DataError, match=f"^bad.wav: expected .*{found}") as error:
        read_wav(data, "bad.wav")
    assert "\n" not in str(error.value)


def test_any_damage_is_a_data_error_or_a_sound() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        octets = bytearray(GOOD)
        for place in rng.integers(0, 44, 3):
            octets[place] = rng.integers(256)
        try:
            x, _ = read_wav(bytes(octets), "here")
        except DataError:
            continue
        assert x.isfinite().all() and x.abs().max() <= 1


@pytest.mark.parametrize(("old", "new"), [(44100, 8000), (8000, 16000), (22050, 16000), (16000, 16000)])
def test_a_tone_keeps_its_pitch_and_one_above_the_limit_vanishes(old: int, new: int) -> None:
    def tone(rate: int, pitch: float) -> torch.Tensor:
        n = rate // 2
        return torch.sin(2 * math.pi * pitch * torch.arange(n) / rate) * torch.hann_window(n)

    torch.testing.assert_close(resample(tone(old, 440), old, new), tone(new, 440), atol=2e-3, rtol=0)
    if old > 2 * new:
        assert resample(tone(old, 0.6 * new), old, new).abs().max() < 1e-3


def test_the_middle_is_taken_and_short_sounds_stand_in_silence() -> None:
    x = torch.arange(1.0, 6.0)
    assert fit_length(x, 3).tolist() == [2, 3, 4] and fit_length(x, 5).tolist() == x.tolist()
    assert fit_length(x, 8).tolist() == [0, 1, 2, 3, 4, 5, 0, 0] and len(fit_length(x, 2)) == 2


def test_log_mel_is_its_equation_written_out() -> None:
    n, window, rate, n_mels, n_frames = 90, 16, 1000, 4, 6
    x = torch.randn(n, generator=torch.Generator().manual_seed(1))
    found, hop = log_mel(x, n_mels, n_frames, window, rate), n // n_frames

    def edge(i: int) -> float:
        return float(700 * (10 ** (2595 * math.log10(1 + rate / 2 / 700) * i / (n_mels + 1) / 2595) - 1))

    for m in range(n_mels):
        low, middle, high = edge(m), edge(m + 1), edge(m + 2)
        for t in range(n_frames):
            energy = 0.0
            for k in range(window // 2 + 1):
                f = k * rate / window
                h = (f - low) / (middle - low) if low <= f <= middle else (high - f) / (high - middle) if middle < f <= high else 0.0
                total = 0j
                for i in range(window):
                    place = t * hop + i - window // 2
                    w = 0.5 - 0.5 * math.cos(2 * math.pi * i / window)
                    total += w * (float(x[place]) if 0 <= place < n else 0.0) * np.exp(-2j * math.pi * i * k / window)
                energy += h * abs(total) ** 2
            assert float(found[m, t]) == pytest.approx(math.log(FLOOR + energy), abs=1e-4)
    assert mel_filters(n_mels, window, rate).shape == (n_mels, window // 2 + 1)


def test_masks_are_a_function_of_seed_epoch_and_sample() -> None:
    spectra = torch.randn(3, 1, 20, 30, generator=torch.Generator().manual_seed(1))

    def masked(epoch: int, samples: list[int], seed: int = 1) -> torch.Tensor:
        kept = spectra[[sample - 5 for sample in samples]]
        return spec_augment(kept, masks=1, width=5, fill=9.0, seed=seed, epoch=epoch, samples=samples)

    whole = masked(0, [5, 6, 7])
    assert torch.equal(whole[1:2], masked(0, [6])), "whatever else is in the batch"
    assert not torch.equal(whole, masked(1, [5, 6, 7])) and not torch.equal(whole, masked(0, [5, 6, 7], seed=2))
    changed = whole == 9
    assert changed.any() and torch.equal(whole[~changed], spectra[~changed])
    for one in changed[:, 0]:
        assert one.all(1).sum() <= 5 and one.all(0).sum() <= 5, "rows and columns, at most the width of each"
        assert torch.equal(one, one.all(1)[:, None] | one.all(0)[None])


def test_a_folder_is_read_by_classes_and_mistakes_are_named(tmp_path: Path) -> None:
    for name in ("b/2.wav", "a/1.WAV", "a/notes.txt", ".hidden/3.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(GOOD)
    sounds = read_sounds(tmp_path, SPECTRUM)
    assert sounds.names == ["a/1.WAV", "b/2.wav"] and sounds.labels == ["a", "b"] and sounds.n_ignored == 1
    assert sounds.load([1, 0]).shape == (2, 1, 8, 8) and sounds.digests[0] == sounds.digests[1]
    (tmp_path / "b" / "4.wav").write_bytes(GOOD[:90])
    with pytest.raises(DataError, match=r"b/4.wav: expected 200 bytes of samples, found 46: a truncated file"):
        read_sounds(tmp_path, SPECTRUM)
    (tmp_path / "c.wav").write_bytes(GOOD)
    for folder, message in ((tmp_path, "found c.wav in none"), (tmp_path / "c.wav", "found a file"), (tmp_path / "d", "nothing there")):
        with pytest.raises(DataError, match=message):
            read_sounds(folder, SPECTRUM)
    (tmp_path / "e").mkdir()
    with pytest.raises(DataError, match=r"CLASS/NAME\.wav, found none"):
        read_sounds(tmp_path / "e", SPECTRUM)
    with pytest.raises(DataError, match="cannot be read"):
        read_spectrum(tmp_path / "missing.wav", SPECTRUM)


def test_synthesis_is_deterministic_and_speakers_are_held_out() -> None:
    first, again = (synthesize_splits(70, 14, 14, 1, SPECTRUM) for _ in range(2))
    other = synthesize_splits(70, 14, 14, 2, SPECTRUM)
    speakers = {}
    for name, part in first.parts.items():
        assert part.digests == again.parts[name].digests != other.parts[name].digests and set(part.labels) == set(SYNTHESIZED)
        speakers[name] = {sound.split("speaker ")[1].split(",")[0] for sound in part.names}
    assert not speakers["train"] & speakers["valid"] and not (speakers["train"] | speakers["valid"]) & speakers["test"]


def test_a_vowel_is_loudest_at_its_first_formant() -> None:
    speaker = 0
    spectrum = torch.fft.rfft(synthesize("vowel a", speaker, np.random.default_rng(1))).abs()
    loudest = float(spectrum.argmax()) * 2  # Hz, of half a second
    assert abs(loudest - 0.85 * VOWELS["a"][0]) < 90 / 2 + 2 and RATE == 8000
