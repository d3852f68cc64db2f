"""Audio data: WAV files of all formats, errors of malformed ones, spectrograms against their formula, and SpecAugmentConfig."""

import math
import random
import re
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.waves import wav
from transom.errors import DataError
from transom.tasks.audio.loader import read_sounds, spec_augment, synthesize_split
from transom.tasks.audio.schema import SpecAugmentConfig, SpectrogramTransformerConfig
from transom.tasks.audio.spectrogram import log_mel_spectrogram, mel_filter_bank
from transom.tasks.audio.synthetic import CLASSES, SPLIT_RESIDUES, sample_parameters, synthesize
from transom.tasks.audio.wav import center_crop_or_pad, decode_wav, list_sounds, read_file, resample

CONFIG = SpectrogramTransformerConfig(image_size=16, sample_rate=4000, n_fft=128, seconds=0.512)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_every_width_is_read(width: int, channels: int) -> None:
    draws = np.random.default_rng(1).uniform(-1, 1, 100 * channels)
    draws[:2] = -1.0, 0.0
    found = decode_wav(wav(draws, width, channels), "x", 4000, 100)
    expected = torch.from_numpy(draws.reshape(100, channels).mean(1)).float()
    assert torch.allclose(found, expected, atol=1.01 * 2.0 ** (1 - 8 * width) + 1e-6)


def floats(numbers: np.ndarray, bits: int, extensible: bool = False) -> bytes:
    """Write mono floats with a plain or extensible header and an unknown chunk of odd length."""
    kind = struct.pack("<HHIIHH", 0xFFFE if extensible else 3, 1, 4000, 4000 * bits // 8, bits // 8, bits)
    kind += struct.pack("<HHIH", 22, bits, 4, 3) + bytes(14) if extensible else b""
    data = numbers.astype(f"<f{bits // 8}").tobytes()
    parts = [(b"fmt ", kind), (b"odd ", b"xyz"), (b"data", data)]
    body = b"".join(name + struct.pack("<I", len(part)) + part + b"\0" * (len(part) % 2) for name, part in parts)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("extensible", [False, True])
def test_floats_are_read_and_louder_ones_scaled_down(bits: int, extensible: bool) -> None:
    x = np.linspace(-0.5, 0.5, 100)
    assert torch.allclose(decode_wav(floats(x, bits, extensible), "x", 4000, 100), torch.from_numpy(x).float())
    assert decode_wav(floats(8 * x, bits, extensible), "x", 4000, 100).abs().max() == 1.0
    huge = np.full(100, np.finfo(f"f{bits // 8}").max)
    assert (decode_wav(floats(huge, bits), "x", 4000, 100) == 1).all()


def test_pcm_of_an_extensible_header_is_read() -> None:
    whole = wav(np.linspace(-0.5, 0.5, 50), 3)
    extended = struct.pack("<H", 0xFFFE) + whole[22:36] + struct.pack("<HHIH", 22, 24, 4, 1) + bytes(14)
    data = whole[:16] + struct.pack("<I", len(extended)) + extended + whole[36:]
    assert torch.equal(decode_wav(data, "x", 4000, 50), decode_wav(whole, "x", 4000, 50))


@pytest.mark.parametrize(("old", "new"), [(44100, 16000), (8000, 16000), (16000, 16000), (11025, 48000)])
def test_resampling_keeps_a_sine(old: int, new: int) -> None:
    t_old, t_new = (torch.arange(rate // 5, dtype=torch.float64) / rate for rate in (old, new))
    wave_of = lambda t: torch.sin(2 * math.pi * 440 * t + 0.3)  # noqa: E731  # 88 whole cycles
    assert torch.allclose(resample(wave_of(t_old), old, new), wave_of(t_new), atol=1e-9)


def test_resampling_drops_what_the_rate_cannot_hold() -> None:
    t = torch.arange(1600, dtype=torch.float64) / 16000
    assert resample(torch.sin(2 * math.pi * 7000 * t), 16000, 8000).abs().max() < 1e-9


def test_the_middle_is_read_and_short_sounds_are_padded_at_both_ends() -> None:
    assert center_crop_or_pad(torch.arange(7.0), 3).tolist() == [2, 3, 4] and center_crop_or_pad(torch.ones(2), 5).tolist() == [
        0,
        1,
        1,
        0,
        0,
    ]
    x = np.zeros(1000)
    x[500] = 0.5
    assert decode_wav(wav(x, 2), "x", 4000, 101)[51 - 1 : 52].max() == pytest.approx(0.5, abs=1e-3)


def patched(data: bytes, at: int, form: str, value: int) -> bytes:
    """Replace a number in a header."""
    size = struct.calcsize(form)
    return data[:at] + struct.pack(form, value) + data[at + size :]


GOOD = wav(np.zeros(50), 2)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "expected a WAV file, found no RIFF/WAVE header"),
        (b"not a sound, certainly", "found no RIFF/WAVE header"),
        (GOOD[:11], "found no RIFF/WAVE header"),
        (GOOD[:20], "found a truncated header"),
        (GOOD[:40], "found a truncated header"),
        (GOOD[:-10], "expected 50 samples as in its header, found 45: the file is truncated"),
        (patched(GOOD, 20, "<H", 85), "expected 8 to 32-bit PCM or 32 or 64-bit float, found format 85 with 16 bits"),
        (patched(GOOD, 20, "<H", 0xFFFE), "found format 65534 with 16 bits"),
        (patched(GOOD, 34, "<H", 64), "found format 1 with 64 bits"),
        (patched(GOOD, 34, "<H", 0), "found format 1 with 0 bits"),
        (patched(GOOD, 22, "<H", 0), "expected mono or stereo, found 0 channels"),
        (patched(GOOD, 22, "<H", 7), "expected mono or stereo, found 7 channels"),
        (patched(GOOD, 24, "<I", 2**32 - 1), "expected a sampling rate of 1,000 to 768,000 Hz, found 4,294,967,295"),
        (patched(GOOD, 24, "<I", 0), "Hz, found 0"),
        (patched(GOOD, 40, "<I", 2**32 - 2), "expected 2,147,483,647 samples as in its header, found 50: the file is truncated"),
        (patched(GOOD, 16, "<I", 2**32 - 1), "found a truncated header"),
        (floats(np.array([0.0, np.nan]), 32), "expected finite samples, found NaN or infinity"),
        (floats(np.array([0.0, np.inf]), 64), "found NaN or infinity"),
        (wav(np.zeros(0), 2), "found a file without samples"),
    ],
)
def test_bad_files_are_refused_in_a_sentence(data: bytes, why: str) -> None:
    with pytest.raises(DataError, match=why) as raised:
        decode_wav(data, "a.wav", 4000, 100)
    assert str(raised.value).startswith("a.wav: ") and "\n" not in str(raised.value)


def test_damaged_files_raise_nothing_else() -> None:
    chosen, whole = random.Random(1), wav(np.zeros(40), 3, 2)
    for _ in range(2000):
        data = bytearray(whole[: chosen.randint(0, len(whole))] if chosen.random() < 0.3 else whole)
        for _ in range(chosen.randint(1, 4) if data else 0):
            data[chosen.randrange(min(len(data), 48))] = chosen.randrange(256)
        with suppress(DataError):
            assert decode_wav(bytes(data), "x", 4000, 100).shape == (100,)


def test_folders_are_listed_and_mistakes_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a folder of sounds as CLASS/NAME\.wav, found nothing there"):
        list_sounds(tmp_path / "none")
    with pytest.raises(DataError, match="found none"):
        list_sounds(tmp_path)
    for name in ("b/2.WAV", "a/1.wav", "a/notes.txt", ".hidden/3.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(GOOD)
    assert list_sounds(tmp_path) == (["a/1.wav", "b/2.WAV"], 1)
    sounds = read_sounds(tmp_path, CONFIG)
    assert (sounds.labels, sounds.n_ignored, len(set(sounds.digests))) == (["a", "b"], 1, 1)
    assert sounds.load([1]).shape == (1, 1, 16, 16) and not sounds.load([0]).any(), "silence is 0"
    (tmp_path / "c").symlink_to(tmp_path / "a")
    (tmp_path / "c" / "again").symlink_to(tmp_path)
    (tmp_path / "b" / "folder.wav").mkdir()
    assert list_sounds(tmp_path) == (["a/1.wav", "b/2.WAV", "c/1.wav"], 2), "a linked class is one; links in it are not followed"
    (tmp_path / "a" / "lost.wav").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"found 2 of 5 that cannot: a/lost\.wav, c/lost\.wav \(No such file"):
        read_sounds(tmp_path, CONFIG)
    (tmp_path / "loose.wav").write_bytes(GOOD)
    with pytest.raises(DataError, match=r"found loose\.wav outside of such a folder"):
        list_sounds(tmp_path)
    with pytest.raises(DataError, match="No such file"):
        read_file(tmp_path / "gone.wav")


def test_all_damaged_sounds_are_told_at_once_or_skipped(tmp_path: Path) -> None:
    for name, content in (("a/1.wav", GOOD), ("a/2.wav", GOOD[:-10]), ("b/3.wav", b"no sound"), ("b/4.wav", GOOD)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    why = r"2 of 4 .*: a/2\.wav \(a truncated file\), b/3\.wav \(no RIFF/WAVE header\)"
    with pytest.raises(DataError, match=f"expected sounds that can be read, found {why}; repair or remove them, or skip them with --skip-"):
        read_sounds(tmp_path, CONFIG, skip_damaged=False)
    found = read_sounds(tmp_path, CONFIG, skip_damaged=True)
    assert (found.names, found.labels, len(found.digests)) == (["a/1.wav", "b/4.wav"], ["a", "b"], 2)
    assert found.load([0, 1]).shape == (2, 1, 16, 16) and re.match(why, found.notes[0])
    (tmp_path / "b" / "4.wav").write_bytes(b"")
    with pytest.raises(DataError, match="found none of 'b'"):
        read_sounds(tmp_path, CONFIG, skip_damaged=True)


def test_the_spectrogram_is_its_formula() -> None:
    """Reference implementation with explicit sums over Python numbers."""
    rate, n_fft, size, samples = 4000, 64, 8, 128
    torch.manual_seed(1)
    x = torch.randn(samples, dtype=torch.float64).float()
    edges = [700 * (10 ** (2595 * math.log10(1 + rate / 2 / 700) * m / (size + 1) / 2595) - 1) for m in range(size + 2)]
    power = [[0.0] * size for _ in range(size)]
    for frame in range(size):
        for f in range(n_fft // 2 + 1):
            total = 0j
            for n in range(n_fft):
                place = n + frame * (samples // size) - n_fft // 2
                value = float(x[place]) if 0 <= place < samples else 0.0
                angle = -2 * math.pi * f * n / n_fft
                total += (0.5 - 0.5 * math.cos(2 * math.pi * n / n_fft)) * value * complex(math.cos(angle), math.sin(angle))
            hertz = f * rate / n_fft
            for m in range(size):
                below = 1 + (hertz - edges[m + 1]) / max(edges[m + 1] - edges[m], rate / n_fft)
                above = 1 + (edges[m + 1] - hertz) / max(edges[m + 2] - edges[m + 1], rate / n_fft)
                power[m][frame] += max(0.0, min(below, above)) * abs(total) ** 2
    loudest = max(map(max, power))
    expected = torch.tensor([[255 * (1 + max(-8.0, math.log10(p / loudest)) / 8) for p in row] for row in power])
    found = log_mel_spectrogram(x, rate, n_fft, size)
    assert found.shape == (1, size, size) and (found[0] - expected).abs().max() < 0.51


def test_a_tone_is_loudest_in_its_band_and_loudness_does_not_count() -> None:
    t = torch.arange(2048) / 4000
    x = torch.sin(2 * math.pi * 1000 * t)
    found = log_mel_spectrogram(x, 4000, 128, 16)
    assert (found[0, :, 1:-1].argmax(0) == mel_filter_bank(4000, 128, 16)[:, 32].argmax()).all() and found.max() == 255
    assert torch.equal(found, log_mel_spectrogram(0.25 * x, 4000, 128, 16))


def test_spec_augment_goes_by_seed_epoch_and_sample() -> None:
    masking = SpecAugmentConfig(n_freq_masks=1, freq_mask_param=4, n_time_masks=2, time_mask_param=3)
    x = torch.rand(6, 1, 16, 16)
    found = spec_augment(x, masking, 1, 0, range(6))
    assert torch.equal(found[4:5], spec_augment(x[4:5], masking, 1, 0, [4])), "whatever else is in the batch"
    assert not torch.equal(found, spec_augment(x, masking, 1, 1, range(6))) and not torch.equal(
        found, spec_augment(x, masking, 2, 0, range(6))
    )
    for before, after in zip(x, found, strict=True):
        hidden = (before != after)[0]
        bands, times = hidden.all(1), hidden.all(0)
        assert bands.sum() <= 4 and times.sum() <= 6 and torch.equal(hidden, bands[:, None] | times[None])
        assert (after[0][hidden] == before.mean()).all()
    everything = SpecAugmentConfig(n_freq_masks=1, freq_mask_param=99, n_time_masks=1, time_mask_param=99)
    assert spec_augment(x, everything, 1, 0, range(6)).shape == x.shape
    nothing = SpecAugmentConfig(n_freq_masks=0, freq_mask_param=4, n_time_masks=0, time_mask_param=3)
    assert torch.equal(spec_augment(x, nothing, 1, 0, range(6)), x)


@pytest.mark.long
def test_no_speaker_and_no_pitch_is_in_two_parts() -> None:
    drawn = {part: [sample_parameters(part, i, 1, 32) for i in range(400)] for part in SPLIT_RESIDUES}
    for field in ("scale", "pitch"):
        found = [{getattr(each, field) for each in drawn[part]} for part in SPLIT_RESIDUES]
        assert all(len(each) >= 12 for each in found) and not any(found[i] & found[j] for i, j in ((0, 1), (0, 2), (1, 2)))
    noises = {tuple(each.noise.tolist()) for part in SPLIT_RESIDUES for each in drawn[part]}
    assert len(noises) == 1200 and max(map(max, noises)) <= 1, "nor any noise"


@pytest.mark.parametrize("label", CLASSES)
def test_sounds_are_a_pure_function_of_seed_part_and_number(label: str) -> None:
    x = synthesize(label, "train", 7, 1, 8000, 1024)
    assert torch.equal(x, synthesize(label, "train", 7, 1, 8000, 1024)) and 0.04 < x.abs().max() < 0.91
    assert not torch.equal(x, synthesize(label, "train", 8, 1, 8000, 1024)) and not torch.equal(
        x, synthesize(label, "test", 7, 1, 8000, 1024)
    )


def test_synthesized_parts_have_all_classes() -> None:
    sounds = synthesize_split("valid", 18, 1, CONFIG)
    assert (
        sounds.labels == [*CLASSES, *CLASSES]
        and len(set(sounds.digests)) == 18
        and sounds.describe_sample(0) == "synthesized sounds, valid, tone/valid-0"
    )
