"""What a model's makers suggest for sampling, where a request says nothing.

Owns:   which fields of generation_config.json count.
Knows nothing of: requests.
Source: vLLM's `--generation-config` and `ModelConfig.get_diff_sampling_param` (vllm/config,
        0.32). As there, `do_sample` is left unread: temperature 0 is how a client asks for none.
"""

from dataclasses import dataclass, fields
from pathlib import Path

from kvdist.errors import ConfigError, InvalidRequest
from kvdist.node.tokenizer import read_settings
from kvdist.sched.sampling import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """OpenAI's own, if nobody says otherwise."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def from_folder(cls, folder: Path) -> "SamplingDefaults":
        """Those of the model in `folder`. Raises: ConfigError for what can't be."""
        path = folder / "generation_config.json"
        told = read_settings(path)
        found = {f.name: told[f.name] for f in fields(cls) if told.get(f.name) is not None}
        if found.get("top_k") == -1:
            found["top_k"] = 0  # vLLM's way to say all
        try:
            Sampling(**found)
        except InvalidRequest as error:
            raise ConfigError(
                f"{path}: {error}; mend it, or leave it unread with --generation-config vllm"
            ) from error
        return cls(**found)
