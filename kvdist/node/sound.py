"""From an audio file to what a model hears: one channel, its rate, windows of its length.

Owns:   the limits on files.
Knows nothing of: HTTP, models; what is said.
Units:  samples of one channel, float32; a window is as in `sched.audio`.
Source: libsndfile reads the file, soxr changes its rate. That longer sound is cut where it is
        quietest, near the end of each window, is how vLLM does it, too.

A file is read piece by piece, so that memory is bounded by the limit on its length, whatever its
head says.
"""

from collections.abc import Iterator
from operator import mul
from typing import IO, Any, Final

import soundfile
import soxr

from kvdist.errors import InvalidRequest
from kvdist.sched.audio import BYTES_PER_SAMPLE, AudioWindow

#: Longest sound of one request, in windows.
MAX_WINDOWS: Final = 64
_MAX_CHANNELS: Final = 8
_RATES: Final = range(1000, 400_001)
#: Louder is no sound; and what is no number would spoil blocks for others.
_LOUDEST: Final = 1000.0
#: Samples of each channel that are read at a time.
_PIECE: Final = 1 << 16
#: A window may end so much earlier, as a part of it.
_EARLIER: Final = 1 / 20
#: Lengths whose loudness is compared, as parts of a second.
_MOMENT: Final = 1 / 50


def windows(file: IO[bytes], window: AudioWindow) -> list[bytes]:
    """What is in `file`, as samples; more than one window if it is longer than that.

    Raises: InvalidRequest that says what is wrong with it.
    """
    most = MAX_WINDOWS * _shortest(window) // window.sample_rate
    samples = bytearray()
    found: list[bytes] = []
    for piece in _pieces(file, window.sample_rate):
        samples += piece
        while len(samples) > window.num_samples * BYTES_PER_SAMPLE:
            if len(found) == MAX_WINDOWS - 1:
                raise InvalidRequest(f"the sound is too long: at most {most} seconds are heard")
            end = _quietest(samples, window) * BYTES_PER_SAMPLE
            found.append(bytes(samples[:end]))
            del samples[:end]
    if samples:
        found.append(bytes(samples))
    if not found:
        raise InvalidRequest("there is no sound in the file")
    return found


def _pieces(file: IO[bytes], rate: int) -> Iterator[bytes]:
    """Its samples at `rate`. Raises: InvalidRequest."""
    try:
        with soundfile.SoundFile(file) as sound:
            if sound.channels > _MAX_CHANNELS or sound.samplerate not in _RATES:
                raise InvalidRequest(
                    f"{sound.channels} channels at {sound.samplerate} Hz: at most {_MAX_CHANNELS} "
                    f"channels, and {_RATES[0]} to {_RATES[-1]} Hz, are heard"
                )
            resampler = soxr.ResampleStream(sound.samplerate, rate, 1, dtype="float32")
            last = False
            while not last:
                piece = sound.read(_PIECE, dtype="float32", always_2d=True)
                last = not len(piece)
                yield _checked(resampler.resample_chunk(piece.mean(axis=1), last=last))
    except soundfile.SoundFileError as error:
        raise InvalidRequest(f"the file is no audio that can be read: {error}") from error


def _checked(samples: Any) -> bytes:
    """Raises: InvalidRequest if they are no numbers, or beyond all measure."""
    if len(samples) and not -_LOUDEST <= samples.min() <= samples.max() <= _LOUDEST:
        raise InvalidRequest("the file has samples that are no sound")
    data: bytes = samples.astype("<f4").tobytes()
    return data


def _shortest(window: AudioWindow) -> int:
    return window.num_samples - int(window.num_samples * _EARLIER)


def _quietest(samples: bytearray, window: AudioWindow) -> int:
    """Where to end a window of `samples`: in the quietest moment of its last part."""
    first = _shortest(window)
    with memoryview(samples) as raw, raw.cast("f") as heard:
        part = heard[first : window.num_samples].tolist()
    length = int(window.sample_rate * _MOMENT)
    moments = range(0, len(part) - length + 1, length)
    quietest = min(moments, key=lambda at: sum(map(mul, *2 * (part[at : at + length],))), default=0)
    return first + quietest + length // 2
