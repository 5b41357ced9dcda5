"""What clients may ask, field by field: OpenAI's requests, with vLLM's further fields.

Owns:   the names, types and limits of the fields.
Knows nothing of: tokens, engines, HTTP.
Source: OpenAI's API, and vLLM's fields beyond it (vllm/entrypoints/openai, 0.32).

A field that nobody knows is left unread, as both do; one that is known and asks for what this node
can't do is refused.
"""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, Json, model_validator

from kvdist.cache.extra_keys import MAX_KEY_BYTES
from kvdist.errors import InvalidRequest
from kvdist.node.defaults import SamplingDefaults
from kvdist.sched.sampling import Sampling
from kvdist.sched.sequence import SamplingParams

#: Sequences of one request, over all its prompts.
MAX_CHOICES: Final = 128
_MAX_STOPS: Final = 16

_Text = Annotated[str, Field(max_length=1 << 24)]
_Stop = Annotated[str, Field(min_length=1, max_length=256)]
_Token = Annotated[int, Field(ge=0, lt=1 << 32)]
_Choices = Annotated[int, Field(ge=1, le=MAX_CHOICES)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class StreamOptions(_Strict):
    """Whether a stream tells its usage: in a last chunk, and in every chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Generation(_Strict):
    """What both kinds of completions have. `None` is as good as nothing said."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    n: _Choices | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: _Stop | Annotated[list[_Stop], Field(max_length=_MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[_Token], Field(max_length=_MAX_STOPS)] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_KEY_BYTES)] | None = None
    priority: int = 0
    #: For another node, or from one; see `kvdist.connector.params`.
    kv_transfer_params: dict[str, Any] | None = None

    # Known, and not to be had here.
    logit_bias: dict[str, float] | None = None
    prompt_logprobs: int | None = None
    min_tokens: int | None = None
    structured_outputs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _is_to_be_had(self) -> Self:
        for name in ("logit_bias", "prompt_logprobs", "structured_outputs"):
            if getattr(self, name):
                raise ValueError(f"{name} is not supported")
        may_end_early = not self.ignore_eos or self.stop or self.stop_token_ids
        if self.min_tokens and may_end_early:
            raise ValueError("min_tokens is not supported but with ignore_eos, and without stops")
        if self.stream_options and not self.stream:
            raise ValueError("stream_options is for streams alone")
        return self

    @property
    def stop_strings(self) -> list[str]:
        """All of them."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def params(
        self,
        max_new_tokens: int,
        eos_token_ids: frozenset[int],
        num_logprobs: int | None,
        defaults: SamplingDefaults,
    ) -> SamplingParams:
        """As the scheduler and the sampler want it. Raises: InvalidRequest."""
        stops = frozenset(self.stop_token_ids or ()) | (
            frozenset() if self.ignore_eos else eos_token_ids
        )
        return SamplingParams(
            n=self.n or 1,
            max_new_tokens=max_new_tokens,
            stop_token_ids=stops,
            sampling=Sampling(
                temperature=_or(self.temperature, defaults.temperature),
                top_p=_or(self.top_p, defaults.top_p),
                top_k=defaults.top_k if self.top_k is None else max(self.top_k, 0),
                min_p=_or(self.min_p, defaults.min_p),
                seed=self.seed,
                repetition_penalty=_or(self.repetition_penalty, defaults.repetition_penalty),
                presence_penalty=_or(self.presence_penalty, 0.0),
                frequency_penalty=_or(self.frequency_penalty, 0.0),
                num_logprobs=num_logprobs,
            ),
        )


class ReleaseRequest(_Strict):
    """`POST /v1/kv/release`."""

    kv_transfer_params: dict[str, Any]


class CompletionRequest(Generation):
    """`POST /v1/completions`."""

    prompt: (
        _Text
        | Annotated[list[_Text], Field(min_length=1, max_length=MAX_CHOICES)]
        | Annotated[list[_Token], Field(min_length=1)]
        | Annotated[
            list[Annotated[list[_Token], Field(min_length=1)]],
            Field(min_length=1, max_length=MAX_CHOICES),
        ]
    )
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    add_special_tokens: bool = True

    # Known, and not to be had here.
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    @model_validator(mode="after")
    def _is_to_be_had_here(self) -> Self:
        if self.echo or self.suffix:
            raise ValueError("echo and suffix are not supported")
        if self.best_of not in (None, self.n or 1):
            raise ValueError("best_of other than n is not supported")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or more prompts, each as text or as tokens. Raises: InvalidRequest."""
        prompt = self.prompt
        if isinstance(prompt, list) and not isinstance(prompt[0], int):
            prompts: list[Any] = prompt
        else:
            prompts = [prompt]
        if len(prompts) * (self.n or 1) > MAX_CHOICES:
            raise InvalidRequest(f"more than {MAX_CHOICES} choices")
        return prompts


class TextPart(_Strict):
    """A part of a message; other kinds than text aren't to be had here."""

    type: Literal["text"]
    text: _Text


class ChatMessage(BaseModel):
    """One message; further fields are the chat template's."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: _Text | list[TextPart] | None = None

    def plain(self) -> dict[str, Any]:
        """As chat templates want it: content is text."""
        content = self.content
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        return {**self.model_dump(exclude_none=True), "content": content or ""}


class ResponseFormat(_Strict):
    """Free text is all that is to be had here."""

    type: Literal["text"]


class ChatCompletionRequest(Generation):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None

    # Known, and not to be had here.
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    audio: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _is_to_be_had_here(self) -> Self:
        for name in ("tools", "functions", "audio"):
            if getattr(self, name):
                raise ValueError(f"{name} is not supported")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs")
        return self


class TranscriptionRequest(BaseModel):
    """The fields of `POST /v1/audio/transcriptions` beside the file; a form has texts only."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    language: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    prompt: _Text | None = None
    response_format: Literal["json", "text"] = "json"
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=1)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    #: As JSON.
    kv_transfer_params: Json[dict[str, Any]] | None = None

    # Known, and not to be had here.
    timestamp_granularities: str | None = Field(None, alias="timestamp_granularities[]")
    include: str | None = Field(None, alias="include[]")

    @model_validator(mode="after")
    def _is_to_be_had(self) -> Self:
        for name in ("timestamp_granularities", "include"):
            if getattr(self, name):
                raise ValueError(f"{name} is not supported")
        return self

    def params(self, max_new_tokens: int, eos_token_ids: frozenset[int]) -> SamplingParams:
        """As the scheduler and the sampler want it. Raises: InvalidRequest."""
        return SamplingParams(
            max_new_tokens=max_new_tokens,
            stop_token_ids=eos_token_ids,
            sampling=Sampling(temperature=self.temperature, top_p=self.top_p, seed=self.seed),
        )


class TokenizeRequest(_Strict):
    """`POST /tokenize`: of a prompt, or of a conversation."""

    model: str | None = None
    prompt: _Text | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("either prompt or messages")
        return self


class DetokenizeRequest(_Strict):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[_Token]


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)
