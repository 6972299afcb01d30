"""Any token classification model of `transformers`, from a local folder.

Long texts are read in windows that overlap; of a token that two windows see, the one
counts in whose middle it stands. Offsets are those of the fast tokenizer, without the
blanks that byte-level tokenizers put in front of words.

Only safetensors are read, no code of the folder runs, and nothing is downloaded.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dptune.detection.recognizer import (
    Tier,
    code_digest,
    digest_of_files,
    entity_types,
    fingerprint_of,
)
from dptune.detection.settings import LEAST_WINDOW, TokenClassifierSettings
from dptune.errors import ConfigError, DependencyError, Problem
from dptune.text import Span

NAME: Final = "token_classifier"
_PICKLED: Final = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_PATH: Final = "detection.token_classifier"
_PREFIXED: Final = re.compile(r"([BIESLUM])-(.+)", re.DOTALL)
_UNDERSCORED: Final = re.compile(r"([BIESLUM])_(.+)", re.DOTALL)
_BEGINS: Final = frozenset("BSU")
_ENDS: Final = frozenset("ESLU")
_WINDOWS_AT_ONCE: Final = 16

Floats = npt.NDArray[np.float32]


class TokenClassifierRecognizer:
    """Marks what a token classification model calls personal data.

    Args:
        settings: which model, and how it is read.
        tier: types of other tiers are left out; types that no tier knows are kept.

    Raises:
        ConfigError: with everything that is wrong with folder and labels.
    """

    name = NAME

    def __init__(self, settings: TokenClassifierSettings, *, tier: Tier) -> None:
        self._settings = settings
        self._folder = Path(settings.model)
        self._labels = _read_labels(self._folder, settings.labels)
        self._kept = _kept_types(self._labels, tier)
        self._loaded: tuple[Any, Any, int] | None = None
        self.fingerprint = fingerprint_of(
            (
                self.name,
                tier,
                settings.model_dump_json(exclude={"model"}),
                *(metadata.version(name) for name in ("transformers", "torch")),
                code_digest(NAME),
                _file().read_text("utf8"),
                digest_of_files(self._folder),
            )
        )

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the spans of each text."""
        size = self._settings.batch_size
        return [
            spans
            for first in range(0, len(texts), size)
            for spans in self._spans_of(texts[first : first + size])
        ]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the loaded model behind when a worker process gets a copy."""
        return {**self.__dict__, "_loaded": None}

    def _spans_of(self, texts: Sequence[str]) -> list[list[Span]]:
        """Compute some texts together."""
        if self._loaded is None:
            self._loaded = _load(self._folder, self._settings)
        model, tokenizer, window = self._loaded
        overlap = min(self._settings.overlap, (window - LEAST_WINDOW // 2) // 2)
        coded = tokenizer(
            list(texts),
            truncation=True,
            max_length=window,
            stride=overlap,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
        )
        scores = _scores(model, tokenizer, coded)
        by_text: list[list[int]] = [[] for _ in texts]
        for row, text in enumerate(coded["overflow_to_sample_mapping"]):
            by_text[text].append(row)
        return [
            self._decode(text, *_joined(rows, coded, scores, overlap))
            for text, rows in zip(texts, by_text, strict=True)
        ]

    def _decode(
        self, text: str, offsets: Sequence[tuple[int, int]], scores: Floats
    ) -> list[Span]:
        """Turn probabilities, shape (tokens, labels), into spans."""
        spans: list[Span] = []
        open_kind = ""  # of the span before, while another token may go on it
        for place, row in zip(offsets, scores, strict=True):
            kind, prefix, confidence = self._read(row)
            start, end = _trimmed(text, *place)
            if start == end:
                continue
            if not kind:
                open_kind = ""
                continue
            last = spans[-1] if spans else None
            touches = last and last.end == start and last.entity_type == kind
            if last and (touches or (kind == open_kind and prefix not in _BEGINS)):
                spans.pop()
                start, confidence = last.start, max(last.confidence, confidence)
            spans.append(
                Span(
                    start=start,
                    end=end,
                    entity_type=kind,
                    recognizer=NAME,
                    confidence=min(1.0, confidence),
                )
            )
            open_kind = "" if prefix in _ENDS else kind
        return spans

    def _read(self, row: Floats) -> tuple[str, str, float]:
        """Return type, prefix and probability of one token; no type if it is none."""
        totals: dict[str, float] = {}
        for (prefix, kind), share in zip(self._labels, row, strict=True):
            del prefix
            if kind in self._kept:
                totals[kind] = totals.get(kind, 0.0) + float(share)
        confidence = sum(totals.values())
        if not totals or confidence < self._settings.threshold:
            return "", "", 0.0
        kind = max(totals, key=lambda name: totals[name])
        shares = [
            (float(share), prefix)
            for (prefix, named), share in zip(self._labels, row, strict=True)
            if named == kind
        ]
        return kind, max(shares)[1], confidence


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Leave out blanks that a tokenizer counts as part of a word."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def _joined(
    rows: Sequence[int],
    coded: Mapping[str, Any],
    scores: Sequence[Floats],
    overlap: int,
) -> tuple[list[tuple[int, int]], Floats]:
    """Join the windows of one text; a token counts where it stands most inside."""
    offsets: list[tuple[int, int]] = []
    parts: list[Floats] = []
    for number, row in enumerate(rows):
        real = [i for i, s in enumerate(coded["special_tokens_mask"][row]) if not s]
        first = overlap // 2 if number else 0
        last = len(real)
        if number + 1 < len(rows):
            last -= overlap - overlap // 2
        offsets += [tuple(coded["offset_mapping"][row][i]) for i in real[first:last]]
        parts.append(scores[row][real[first:last]])
    return offsets, np.concatenate(parts)


def _scores(model: Any, tokenizer: Any, coded: Mapping[str, Any]) -> list[Floats]:  # noqa: ANN401
    """Compute probabilities of each window, shape (tokens, labels).

    Windows of one text are computed together in its own order, so that what stands
    beside a window follows from its text.
    """
    import torch  # noqa: PLC0415  # slow to import

    names = [n for n in tokenizer.model_input_names if n in coded]
    found: list[Floats] = []
    total = len(coded["input_ids"])
    for first in range(0, total, _WINDOWS_AT_ONCE):
        rows = range(first, min(first + _WINDOWS_AT_ONCE, total))
        batch = tokenizer.pad(
            {name: [coded[name][row] for row in rows] for name in names},
            padding=True,
            return_tensors="pt",
        )
        with torch.inference_mode():
            logits = model(**batch).logits.float()
        shares = torch.softmax(logits, dim=-1).numpy()
        found += [
            shares[i, -len(coded["input_ids"][row]) :]
            if tokenizer.padding_side == "left"
            else shares[i, : len(coded["input_ids"][row])]
            for i, row in enumerate(rows)
        ]
    return found


def _load(folder: Path, settings: TokenClassifierSettings) -> tuple[Any, Any, int]:
    """Load model and tokenizer; return them with the size of a window.

    Raises:
        ConfigError: weights are missing, or the tokenizer is no fast one.
    """
    import torch  # noqa: PLC0415  # slow to import
    from transformers import (  # noqa: PLC0415
        AutoModelForTokenClassification,
        AutoTokenizer,
    )
    from transformers.utils import logging as hf_logging  # noqa: PLC0415

    was_shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        model, report = AutoModelForTokenClassification.from_pretrained(
            folder,
            use_safetensors=True,
            output_loading_info=True,
            dtype=torch.float32,
            **local,
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True, **local)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        kind = type(error).__name__
        message = f"must hold a model that transformers can load, but got {kind}."
        raise ConfigError.at(f"{_PATH}.model", message) from None
    finally:
        if was_shown:
            hf_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    problems = []
    if report["missing_keys"]:
        count = len(report["missing_keys"])
        message = f"must hold every weight of a token classifier, but lacks {count}."
        problems.append(Problem(path=f"{_PATH}.model", message=message))
    if not tokenizer.is_fast:
        message = "must have a fast tokenizer (tokenizer.json): others know no offsets."
        problems.append(Problem(path=f"{_PATH}.model", message=message))
    if problems:
        raise ConfigError(problems)
    return model.eval(), tokenizer, _window(model.config, tokenizer, settings.window)


def _window(config: Any, tokenizer: Any, wanted: int) -> int:  # noqa: ANN401
    """Return how many tokens, special ones included, the model can read at once."""
    limits = [wanted, tokenizer.model_max_length]
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        # RoBERTa and its kin count positions from behind the padding token.
        shifts = config.model_type in {"roberta", "xlm-roberta", "camembert", "mpnet"}
        limits.append(positions - (config.pad_token_id + 1 if shifts else 0))
    return int(min(limits))


def _read_labels(
    folder: Path, mapping: Mapping[str, str | None]
) -> tuple[tuple[str, str], ...]:
    """Return prefix and type of each label of a model, an empty type for outside.

    Raises:
        ConfigError: with everything that is wrong.
        DependencyError: there is no such folder.
    """
    problems = _folder_problems(folder)
    names = [] if problems else _label_names(folder)
    parted = [_parted(name, names) for name in names]
    bare = {name for _, name in parted}
    numbered = sorted(
        n for n in bare if re.fullmatch(r"LABEL_\d+", n) and n not in mapping
    )
    unknown = sorted(set(mapping) - bare) if names else []
    if unknown:
        message = f"must name labels of the model, got {', '.join(unknown)}."
        step = f"It has {', '.join(sorted(bare))}."
        problems.append(
            Problem(path=f"{_PATH}.labels", message=message, next_step=step)
        )
    if numbered:
        message = f"must say what {', '.join(numbered)} mean: the model does not."
        problems.append(Problem(path=f"{_PATH}.labels", message=message))
    known = _known_labels()
    labels = []
    for prefix, name in parted:
        plain = re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_") or "UNKNOWN"
        own = plain if plain[0].isalpha() else f"T_{plain}"
        chosen = mapping[name] if name in mapping else known.get(plain, own)
        labels.append((prefix, chosen or ""))
    if names and not any(kind for _, kind in labels):
        message = "must name a type for some label of the model, got none."
        problems.append(Problem(path=f"{_PATH}.labels", message=message))
    if problems:
        raise ConfigError(problems)
    return tuple(labels)


def _folder_problems(folder: Path) -> list[Problem]:
    """Say what is missing in a folder, or must not be there."""
    if not folder.is_dir():
        raise DependencyError(
            f"detection.token_classifier.model must be a local folder, got "
            f"{folder.name}, which is not there. Unpack the model there; nothing is "
            "downloaded."
        )
    problems = []
    for pattern, what in (
        ("config.json", "config.json"),
        ("*.safetensors", "weights as safetensors"),
        ("tokenizer.json", "tokenizer.json, the fast tokenizer"),
    ):
        if not any(folder.glob(pattern)):
            message = f"must hold {what}, but does not."
            problems.append(Problem(path=f"{_PATH}.model", message=message))
    pickled = [path.name for kind in _PICKLED for path in folder.glob(kind)]
    if pickled and not any(folder.glob("*.safetensors")):
        problems.append(
            Problem(
                path=f"{_PATH}.model",
                message=f"must not be pickled, got {', '.join(sorted(pickled))}.",
                next_step="Convert the weights to safetensors where you trust them.",
            )
        )
    return problems


def _label_names(folder: Path) -> list[str]:
    """Read the labels of a model in the order of its outputs.

    Raises:
        ConfigError: its configuration is none.
    """
    try:
        config = json.loads((folder / "config.json").read_text("utf8"))
        names = {int(k): str(v) for k, v in config.get("id2label", {}).items()}
    except (OSError, ValueError, AttributeError):
        names = {}
    if not names or sorted(names) != list(range(len(names))):
        message = "must say in config.json which labels it has (id2label)."
        raise ConfigError.at(f"{_PATH}.model", message)
    return [names[i] for i in range(len(names))]


def _parted(name: str, names: Sequence[str]) -> tuple[str, str]:
    """Split `B-PER` into prefix and name; a plain label has no prefix.

    An underscore parts only where every label but the outside has such a prefix, so
    that `E_MAIL` stays whole.
    """
    if match := _PREFIXED.fullmatch(name):
        return match[1], match[2]
    others = [other for other in names if other.upper() not in _outside()]
    if all(map(_UNDERSCORED.fullmatch, others)) and (m := _UNDERSCORED.fullmatch(name)):
        return m[1], m[2]
    return "", name


def _kept_types(labels: Sequence[tuple[str, str]], tier: Tier) -> frozenset[str]:
    """Return the types that count: those of the tier, and those that no tier knows."""
    every = entity_types(Tier.HIGH_ENTITY)
    kinds = {kind for _, kind in labels if kind}
    return frozenset(k for k in kinds if k in entity_types(tier) or k not in every)


def _file() -> Any:  # noqa: ANN401
    return resources.files("dptune.detection").joinpath("label_types.json")


@lru_cache(maxsize=1)
def _known_labels() -> Mapping[str, str]:
    """Return the type of usual labels, empty for those that mean outside."""
    content = json.loads(_file().read_text("utf8"))
    types = {name: kind for kind, names in content["types"].items() for name in names}
    return types | dict.fromkeys(content["outside"], "")


@lru_cache(maxsize=1)
def _outside() -> frozenset[str]:
    return frozenset(name for name, kind in _known_labels().items() if not kind)
