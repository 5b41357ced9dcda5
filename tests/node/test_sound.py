"""Files to samples: what is heard of them, where long ones are cut, which are refused."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from kvdist.errors import InvalidRequest
from kvdist.node.sound import MAX_WINDOWS, windows
from kvdist.sched.audio import AudioWindow

RATE = 16000
WINDOW = AudioWindow(sample_rate=RATE, num_samples=RATE, num_tokens=50)

Samples = npt.NDArray[np.float32]


def tone(seconds: float, rate: int = RATE, pitch: float = 440) -> Samples:
    times = np.arange(int(seconds * rate)) / rate
    return (np.sin(2 * np.pi * pitch * times) / 2).astype(np.float32)


def written(samples: Any, rate: int = RATE, form: str = "WAV", kind: str = "FLOAT") -> io.BytesIO:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=form, subtype=kind)
    file.seek(0)
    return file


def heard(file: io.BytesIO) -> list[Samples]:
    return [np.frombuffer(one, "<f4") for one in windows(file, WINDOW)]


def test_samples_of_the_right_rate_stay_as_they_are() -> None:
    samples = tone(0.5)
    (found,) = heard(written(samples))
    assert np.array_equal(found, samples)


def test_a_whole_window_is_one() -> None:
    (found,) = heard(written(tone(1)))
    assert len(found) == RATE


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
@pytest.mark.parametrize(
    ("form", "kind"), [("WAV", "PCM_16"), ("FLAC", "PCM_24"), ("OGG", "VORBIS")]
)
def test_other_rates_and_formats(rate: int, form: str, kind: str) -> None:
    (found,) = heard(written(tone(0.9, rate), rate, form, kind))
    assert abs(len(found) - 0.9 * RATE) <= 2
    middle = slice(RATE // 10, RATE // 2)
    assert np.abs(found[middle] - tone(1)[middle]).max() < 0.05


def test_channels_become_one() -> None:
    left, right = tone(0.5), tone(0.5, pitch=700)
    (found,) = heard(written(np.stack((left, right), 1)))
    assert np.allclose(found, (left + right) / 2, atol=1e-6)


def test_long_sound_is_cut_where_it_is_quiet() -> None:
    samples = tone(2.5)
    pause = slice(RATE - 480, RATE - 160)
    samples[pause] = 0
    found = heard(written(samples))
    assert pause.start <= len(found[0]) <= pause.stop
    assert np.array_equal(np.concatenate(found), samples)
    assert all(0 < len(part) <= RATE for part in found) and len(found) == 3


def test_too_long_sound() -> None:
    assert len(heard(written(tone(0.95 * MAX_WINDOWS)))) <= MAX_WINDOWS
    with pytest.raises(InvalidRequest, match="at most 60 seconds"):
        windows(written(tone(MAX_WINDOWS + 1)), WINDOW)


@pytest.mark.parametrize(
    "content",
    [b"", b"RIFF", b"no sound" * 1000, written(tone(0)).getvalue()],
    ids=["nothing", "a beginning", "something else", "no samples"],
)
def test_files_without_sound(content: bytes) -> None:
    with pytest.raises(InvalidRequest):
        windows(io.BytesIO(content), WINDOW)


def test_a_file_that_is_cut_off() -> None:
    content = written(tone(0.8), kind="PCM_16").getvalue()
    (found,) = heard(io.BytesIO(content[: len(content) // 2]))
    assert 0 < len(found) < 0.41 * RATE


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_samples_that_are_no_sound(value: float) -> None:
    samples = tone(0.5)
    samples[99] = value
    with pytest.raises(InvalidRequest, match="no sound"):
        windows(written(samples), WINDOW)


@pytest.mark.parametrize(("channels", "rate"), [(9, RATE), (1, 600), (1, 500_000)])
def test_files_beyond_all_measure(channels: int, rate: int) -> None:
    with pytest.raises(InvalidRequest, match="are heard"):
        windows(written(np.zeros((100, channels), np.float32), rate), WINDOW)
