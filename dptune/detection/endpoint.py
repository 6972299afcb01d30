"""An OpenAI-compatible endpoint: how it is configured, and how it is asked for JSON.

Ollama, vLLM and hosted services speak it. What comes back is never trusted here:
whoever asks reads the answer, and only answers that could be read are kept.
"""

import importlib.metadata
import re
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field

from dptune.detection.recognizer import fingerprint_of
from dptune.errors import ConfigError, DependencyError
from dptune.settings import Settings

EntityType = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{0,40}$")]
Description = Annotated[str, Field(pattern=r"^[^\n\r]{1,200}$")]
AnswerT = TypeVar("AnswerT")

KEY_VARIABLE: Final = "DPTUNE_LLM_KEY"
_NO_KEY: Final = "none"
NOT_AS_ASKED: Final = "an answer that is not as asked"


class EndpointSettings(Settings):
    """Whom to ask, as it stands in a configuration.

    Args:
        base_url: such as `http://localhost:11434/v1`; never with a password in it.
        model: name of the model there.
        api_key: name of the environment variable that holds the key; a local server
            needs none. Other variables than these cannot be named, so that no
            configuration sends another secret away.
        timeout_s: seconds per attempt.
        max_retries: further attempts after a lost connection, a time-out or a 5xx.
    """

    base_url: str = Field(pattern=r"^https?://[^\s@?#]+$", max_length=500)
    model: str = Field(min_length=1, max_length=200)
    api_key: str = Field(
        default=KEY_VARIABLE, pattern=rf"^{KEY_VARIABLE}(_[A-Z0-9]{{1,40}})?$"
    )
    timeout_s: float = Field(default=30.0, gt=0, le=600)
    max_retries: int = Field(default=2, ge=0, le=10)


class LlmSettings(EndpointSettings):
    """The endpoint of the recognizer `llm`, which sees what the others did not mark.

    Args:
        max_characters: of whole sentences per request.
    """

    max_characters: int = Field(default=1000, ge=1, le=20_000)


class JudgeSettings(EndpointSettings):
    """Whom to ask how sensitive types of personal data are.

    Args:
        may_lower: an answer may also make a type less sensitive than the built-in
            table does. No answer ever does, whatever went wrong.
        descriptions: public words on types of your own recognizers, which are asked
            about too: name and words are sent as they stand here.
    """

    may_lower: bool = False
    descriptions: dict[EntityType, Description] = Field(
        default_factory=dict, max_length=100
    )


@dataclass(frozen=True, kw_only=True)
class LlmAccess:
    """What a project brings to ask language models.

    Args:
        keys: of endpoints, by the name of the variable that holds them.
        cache_file: SQLite file for valid answers. Those of the recognizer quote text:
            keep it where the corpus may be. None keeps nothing.
    """

    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    cache_file: Path | None = None

    def key(self, name: str = KEY_VARIABLE) -> str:
        """Return a key; a word that local servers take where there is none."""
        return self.keys.get(name) or _NO_KEY


NO_ACCESS: Final = LlmAccess()
"""No key and no memory: enough for local servers."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An OpenAI-compatible endpoint and how patiently to ask it.

    Args:
        base_url: such as `http://localhost:11434/v1`.
        model: name of the model there.
        api_key: hidden from `repr`; local servers take any.
        timeout_s: seconds per attempt.
        max_retries: further attempts after a lost connection, a time-out, status 408,
            409, 429 or 5xx, with the waits of the `openai` client.
        max_characters: characters of whole sentences per request.
        cache_file: SQLite file that keeps valid answers by the digest of the request.
            Answers quote text: keep it where the corpus may be.
    """

    base_url: str
    model: str
    api_key: str = field(default=_NO_KEY, repr=False)
    timeout_s: float = 30.0
    max_retries: int = 2
    max_characters: int = 1000
    cache_file: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what no request could use."""
        if not self.timeout_s > 0 or self.max_characters < 1 or self.max_retries < 0:
            raise ConfigError(
                "timeout_s and max_characters must be > 0 and max_retries >= 0, got "
                f"{self.timeout_s}, {self.max_characters}, {self.max_retries}. "
                "Keep the defaults."
            )


def endpoint_of(
    settings: EndpointSettings, access: LlmAccess, *, path: str
) -> Endpoint:
    """Turn settings into an endpoint.

    Args:
        settings: whom to ask.
        access: holds the key that the settings name.
        path: where the settings stand, for the message.

    Raises:
        ConfigError: the settings name a variable of their own, which is not set.
    """
    key = access.key(settings.api_key)
    if key == _NO_KEY and settings.api_key != KEY_VARIABLE:
        message = f"must name a variable that is set, got {settings.api_key}."
        step = "Set it in the environment, from a secret."
        raise ConfigError.at(f"{path}.api_key", message, step)
    more = settings.model_dump(include={"max_characters"})
    return Endpoint(
        base_url=settings.base_url,
        model=settings.model,
        api_key=key,
        timeout_s=settings.timeout_s,
        max_retries=settings.max_retries,
        cache_file=access.cache_file,
        **more,
    )


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What came back: the text of a whole answer, or why there is none.

    Args:
        text: empty if anything went wrong.
        failure: the kind of what went wrong, never what was said.
    """

    text: str = field(default="", repr=False)
    failure: str = ""


class Chat:
    """Asks one kind of question, for JSON under a schema.

    Args:
        endpoint: whom to ask.
        prompt: what is asked of every message.
        name: of the answer.
        schema: of the answer; all its fields are required.

    Raises:
        DependencyError: the package `openai` is not installed.
    """

    def __init__(
        self, endpoint: Endpoint, *, prompt: str, name: str, schema: Mapping[str, Any]
    ) -> None:
        require_client()
        self._endpoint = endpoint
        self._prompt = prompt
        self._schema = {"name": name, "strict": True, "schema": dict(schema)}
        self._client: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the connection behind when a worker process gets a copy."""
        return {**self.__dict__, "_client": None}

    def answer(
        self, message: str, read: Callable[[str], AnswerT | None]
    ) -> tuple[AnswerT | None, str]:
        """Answer from the cache, or ask; only what could be read is kept.

        Args:
            message: what is sent, beside the prompt.
            read: checks an answer; None if anything is wrong with it.

        Returns:
            what was read, or None and the kind of failure.
        """
        endpoint = self._endpoint
        key = fingerprint_of((endpoint.base_url, endpoint.model, self._prompt, message))
        with closing(_open(endpoint.cache_file)) as cache:
            row = cache.execute("SELECT answer FROM answers WHERE key = ?", (key,))
            stored = row.fetchone()
            kept = read(stored[0]) if stored else None
            if kept is not None:
                return kept, ""
            reply = self.ask(message)
            found = None if reply.failure else read(reply.text)
            if found is None:
                return None, reply.failure or NOT_AS_ASKED
            with cache:
                cache.execute(
                    "INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, reply.text)
                )
            return found, ""

    def ask(self, message: str) -> Reply:
        """Ask once (the client retries)."""
        import openai  # noqa: PLC0415  # an extra, slow to import

        if self._client is None:
            self._client = openai.OpenAI(
                base_url=self._endpoint.base_url,
                api_key=self._endpoint.api_key,
                timeout=self._endpoint.timeout_s,
                max_retries=self._endpoint.max_retries,
            )
        try:
            reply = self._client.chat.completions.create(
                model=self._endpoint.model,
                temperature=0,
                seed=0,
                messages=[
                    {"role": "system", "content": self._prompt},
                    {"role": "user", "content": message},
                ],
                response_format={"type": "json_schema", "json_schema": self._schema},
            )
            choice = reply.choices[0]
            if choice.finish_reason != "stop":
                return Reply(failure="an answer that was cut off")
            return Reply(text=choice.message.content or "")
        except openai.APIStatusError as error:
            return Reply(failure=f"status {error.status_code}")
        except openai.APITimeoutError:
            return Reply(failure="no answer in time")
        except openai.APIConnectionError:
            return Reply(failure="no connection")
        except (openai.OpenAIError, ValueError, LookupError, AttributeError, TypeError):
            return Reply(failure="an answer that cannot be read")


def unfenced(written: str) -> str:
    """Take away the code fence that models like to put around JSON."""
    return re.sub(r"^```(?:json)?\s*|\s*```$", "", written.strip())


def require_client() -> None:
    """Refuse to go on without the package that talks to endpoints.

    Raises:
        DependencyError: it is not installed; the message has the command.
    """
    try:
        importlib.metadata.version("openai")
    except importlib.metadata.PackageNotFoundError as error:
        raise DependencyError(
            "asking a language model needs the package openai, which is not installed. "
            "Run `pip install openai==3.54.0`."
        ) from error


def _open(file: Path | None) -> sqlite3.Connection:
    """Open the answers that are kept, for their owner alone."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        file.chmod(0o600)
    connection = sqlite3.connect(":memory:" if file is None else file)
    connection.execute(
        "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT)"
    )
    return connection
