"""Where a model comes from: the schema of `model:`.

Free of torch and transformers, so that reading a configuration stays fast.
"""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from dptune.settings import Settings

Task = Literal["causal_lm", "sequence_classification"]
"""What a model is trained to do."""

BYTE_VOCAB_SIZE = 258
"""Smallest vocabulary of a trained tokenizer: 256 bytes and two special tokens."""

TEXT_SUFFIXES = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz")
"""Files that a tokenizer can be trained on; `.jsonl` needs a `text` field."""


def _relative(path: str) -> str:
    """Refuse absolute paths and paths that climb out of the data root."""
    for flavor in (PurePosixPath(path), PureWindowsPath(path)):
        if flavor.is_absolute() or flavor.drive or ".." in flavor.parts:
            raise ValueError(
                "must be a path inside the data root, without '..' or a leading '/'"
            )
    return path


def _text_file(path: str) -> str:
    """Refuse files that are not plain text or JSON lines."""
    if not path.endswith(TEXT_SUFFIXES):
        raise ValueError(f"must end with one of {', '.join(TEXT_SUFFIXES)}")
    return _relative(path)


RelativePath = Annotated[
    str, Field(min_length=1, max_length=1024), AfterValidator(_relative)
]
TextFile = Annotated[
    str, Field(min_length=5, max_length=1024), AfterValidator(_text_file)
]


class _Source(BaseModel):
    """Base of the sources: frozen and closed."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class HubSource(_Source):
    """A repository of the Hugging Face hub, safetensors only, never remote code.

    Args:
        id: `name` or `owner/name`.
        revision: branch, tag or, to repeat a run exactly, the full commit hash.
    """

    kind: Literal["hub"]
    id: str = Field(
        max_length=193,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?$",
    )
    revision: str = Field(
        default="main", max_length=255, pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]*$"
    )


class PathSource(_Source):
    """A directory in the Hugging Face layout.

    Args:
        path: relative to the data root that the caller gives.
    """

    kind: Literal["path"]
    path: RelativePath


class PackageSource(_Source):
    """A directory of an installed Python package, which is not imported.

    Args:
        package: its import name, without dots.
        path: the directory inside it, in the Hugging Face layout.
    """

    kind: Literal["package"]
    package: str = Field(max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    path: RelativePath = "model"


class TrainedTokenizer(_Source):
    """A byte-level tokenizer trained on the spot.

    A tokenizer is part of the released model and its training has no privacy
    guarantee: name public text only.

    Args:
        public_text: text files relative to the data root; none gives a pure byte
            tokenizer, which has seen no text at all.
    """

    kind: Literal["trained"]
    public_text: tuple[TextFile, ...] = ()


TokenizerSource = Annotated[
    HubSource | PathSource | TrainedTokenizer, Field(discriminator="kind")
]


class ArchitectureSource(_Source):
    """A small GPT-2 with fresh random weights.

    Args:
        num_layers: transformer blocks, in [1, 48].
        num_heads: attention heads, in [1, 64]; divides `hidden_size`.
        hidden_size: width, in [8, 4096].
        max_tokens: longest record in tokens, in [8, 8192].
        vocab_size: size asked of a trained tokenizer, special tokens included, in
            [258, 262144]; must be left out where the tokenizer is taken from elsewhere.
        tokenizer: trained on public text, or taken from a directory or the hub.
        seed: of the initial weights, which are public.
    """

    kind: Literal["architecture"]
    num_layers: int = Field(ge=1, le=48)
    num_heads: int = Field(ge=1, le=64)
    hidden_size: int = Field(ge=8, le=4096)
    max_tokens: int = Field(ge=8, le=8192)
    vocab_size: int | None = Field(default=None, ge=BYTE_VOCAB_SIZE, le=262_144)
    tokenizer: TokenizerSource
    seed: int = Field(default=0, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Check the fields against each other."""
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size must be a multiple of num_heads={self.num_heads}, "
                f"got hidden_size={self.hidden_size}. "
                f"Use {-(-self.hidden_size // self.num_heads) * self.num_heads}."
            )
        trained = isinstance(self.tokenizer, TrainedTokenizer)
        if trained and self.vocab_size is None:
            raise ValueError(
                "vocab_size must be given with a trained tokenizer, got none. "
                "Common choices are 2048 to 8192."
            )
        if not trained and self.vocab_size is not None:
            raise ValueError(
                "vocab_size must be left out with a tokenizer that exists already, "
                f"got vocab_size={self.vocab_size}. Its own size is used."
            )
        return self


ModelSource = Annotated[
    HubSource | PathSource | PackageSource | ArchitectureSource,
    Field(discriminator="kind"),
]
"""Tagged union on `kind`: `hub`, `path`, `package` or `architecture`."""


def reads_files(source: ModelSource) -> bool:
    """Whether a model follows from files that may change under the same name."""
    if isinstance(source, ArchitectureSource):
        tokenizer = source.tokenizer
        if isinstance(tokenizer, TrainedTokenizer):
            return bool(tokenizer.public_text)
        return isinstance(tokenizer, PathSource)
    return isinstance(source, PathSource | PackageSource)


class Base(Settings):
    """How the weights of a base model are held under adapters, which are float32.

    Stages that train all weights, and weights that are sharded, are float32 anyway.

    Args:
        dtype: `stored` keeps the type of the files; what is computed is the same, since
            layers write their weights out in the precision of `performance.dtype`.
        quantization: bits of a weight, 8 (block-wise) or 4 (NF4); null for none. Needs
            the extra `quantization`. It changes the model, and the same for everyone.
        merged: of the model that a stage leaves, whose adapters are merged: `float32`
            computes what was trained, `stored` takes the room of the base.
    """

    dtype: Literal["stored", "float32"] = "stored"
    quantization: Literal[4, 8] | None = None
    merged: Literal["float32", "stored"] = "float32"


@dataclass(frozen=True, kw_only=True)
class ModelBundle:
    """A directory of safetensors weights, configuration and tokenizer.

    Args:
        path: the directory; never changed after it was made.
        digest: SHA-256 over weights, configuration and tokenizer.
    """

    path: Path
    digest: str
