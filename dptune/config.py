"""The schema of the YAML files under `configs/`, and one loader for all of them.

Every room of the library owns the settings of its own part; this module composes them.
A file that cannot be used raises one `ConfigError` with every problem in it: path,
constraint, value, next step. Nothing is created before a file has passed.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from dptune.attacks.canaries import CanarySpec
from dptune.data.source import DataSource
from dptune.detection.recognizer import Tier
from dptune.errors import ConfigError, Problem
from dptune.gates.policy import GatePolicy
from dptune.models.source import HubSource, ModelSource, PathSource
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit
from dptune.recipes import Recipe
from dptune.redaction.operators import Operator


class _Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False
    )


class SplitSettings(_Settings):
    """Shares of the units that are kept from training, where files do not say."""

    validation: float = Field(default=0.1, ge=0, lt=0.5)
    test: float = Field(default=0.1, gt=0, lt=0.5)


class DataSettings(_Settings):
    """What is trained on, and what counts as one person's share of it.

    Args:
        near_duplicate_threshold: Jaccard similarity from which records are counted as
            near duplicates; they are dropped only with `drop_near_duplicates`.
        corpus_is_public: the corpus holds no personal data, so that a detector that
            finds nothing is no reason to stop.
        seed: public; decides the splits.
    """

    source: DataSource
    privacy_unit: PrivacyUnit
    splits: SplitSettings = SplitSettings()
    max_records: int | None = Field(default=None, ge=10)
    min_records: int = Field(default=100, ge=10)
    max_characters: int = Field(default=100_000, ge=10)
    drop_exact_duplicates: bool = True
    near_duplicate_threshold: float | None = Field(default=0.85, gt=0, le=1)
    drop_near_duplicates: bool = False
    allow_content_hash_ids: bool = False
    corpus_is_public: bool = False
    seed: int = Field(default=0, ge=0)


class DetectionSettings(_Settings):
    """Which recognizers mark personal data, and how widely."""

    tier: Tier = Tier.LOW_ENTITY
    recognizers: tuple[Literal["patterns", "lexicon", "spacy"], ...] = Field(
        default=("patterns", "lexicon"), min_length=1
    )
    spacy_pipeline: str | None = None
    missing_rate: float | None = Field(default=None, ge=0, le=1)
    missing_rate_upper: float | None = Field(default=None, ge=0, le=1)
    missing_rate_source: str = ""
    num_processes: int = Field(default=1, ge=1, le=64)

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        if ("spacy" in self.recognizers) != (self.spacy_pipeline is not None):
            raise ValueError(
                "spacy_pipeline must be set exactly when recognizers lists 'spacy'"
            )
        if (self.missing_rate is None) != (self.missing_rate_upper is None):
            raise ValueError(
                "missing_rate and missing_rate_upper must be set together: an estimate "
                "without its upper confidence bound is not evidence"
            )
        return self


class RedactionSettings(_Settings):
    """What replaces a marked span."""

    operator: Operator = Operator.MASK


class ModelSettings(_Settings):
    """Where the weights come from and how long a sequence may be."""

    source: ModelSource
    max_tokens: int = Field(ge=8, le=131_072)
    max_sequences_per_unit: int = Field(default=8, ge=1, le=4096)
    pretraining: "PretrainingSettings | None" = None

    def describe(self: Self) -> str:
        """Name the base model in one line, without machine paths."""
        match self.source:
            case HubSource():
                return f"{self.source.id}, revision {self.source.revision}"
            case PathSource():
                return f"directory {self.source.path}"
        public = "public text" if self.pretraining else "random weights"
        return f"GPT-2 architecture of {self.source.num_layers} layers, {public}"

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        if self.source.kind != "architecture":
            if self.pretraining is not None:
                raise ValueError(
                    "pretraining must be left out unless source.kind is architecture: "
                    "finished weights are not trained again on public text"
                )
        elif self.max_tokens > self.source.max_tokens:
            raise ValueError(
                f"max_tokens must be at most source.max_tokens "
                f"({self.source.max_tokens}), got {self.max_tokens}"
            )
        return self


class PretrainingSettings(_Settings):
    """Training from scratch on public text, done once and cached."""

    source: DataSource
    epochs: float = Field(gt=0, le=1000)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0, le=1)


class PrivacySettings(_Settings):
    """What is promised. There are no defaults: a default is a claim nobody made.

    Args:
        notion, relation: what the target speaks of.
        target_epsilon: null when every noisy stage of the recipe gives its noise.
        target_delta: must be below 1 / number of units.
    """

    notion: Notion
    relation: NeighboringRelation
    target_epsilon: float | None = Field(gt=0, le=1000)
    target_delta: float = Field(gt=0, lt=1)

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        replace = NeighboringRelation.REPLACE_ONE
        if self.notion is not Notion.RECORD and self.relation is not replace:
            raise ValueError(
                f"relation must be replace_one for the {self.notion} notion, because "
                "its neighbors differ by replacement (METHODS: notions)"
            )
        return self


class AttackSettings(_Settings):
    """How the trained model is attacked."""

    num_members: int = Field(default=1000, ge=50)
    num_bootstrap: int = Field(default=1000, ge=100)
    max_candidates: int = Field(default=10_000_000, ge=100)


class PerformanceSettings(_Settings):
    """What changes speed and memory, and can never change the guarantee."""

    physical_batch_size: int = Field(default=32, ge=1)
    evaluation_batch_size: int = Field(default=64, ge=1)
    block_size: int = Field(default=20, ge=1)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "bfloat16"] = "float32"


class RegistrySettings(_Settings):
    """The name under which versions are registered in MLflow and ZenML."""

    model_name: str = Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,80}$")


class TrainConfig(_Settings):
    """One training run, from raw text to a gate decision.

    Args:
        seed: fixes every draw, noise included. Only for tests: a claim made with a
            known seed is worth nothing, and the card says so. Leave it null.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,60}$")
    seed: int | None = Field(default=None, ge=0)
    data: DataSettings
    canaries: CanarySpec
    detection: DetectionSettings = DetectionSettings()
    redaction: RedactionSettings = RedactionSettings()
    model: ModelSettings
    recipe: Recipe
    privacy: PrivacySettings
    attack: AttackSettings = AttackSettings()
    gate: GatePolicy
    registry: RegistrySettings
    performance: PerformanceSettings = PerformanceSettings()

    def missing_rate_source(self: Self) -> str:
        """Say where the detector's missing rate comes from."""
        if self.data.source.kind == "synthetic":
            return "gold spans of the generator, every record"
        return self.detection.missing_rate_source

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        rows = self.performance.physical_batch_size
        if self.model.max_sequences_per_unit > rows:
            raise ValueError(
                "performance.physical_batch_size must be at least "
                f"model.max_sequences_per_unit ({self.model.max_sequences_per_unit}), "
                f"got {rows}: a unit is never split over two passes"
            )
        return self


ModelSettings.model_rebuild()

SettingsT = TypeVar("SettingsT", bound=BaseModel)


class _UniqueKeyLoader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML that refuses a key given twice, which plain YAML lets the last one win."""


_MERGE = "tag:yaml.org,2002:merge"


def _unique_mapping(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    plain = [key for key, _ in node.value if key.tag != _MERGE]
    keys = [loader.construct_object(key) for key in plain]
    twice = sorted({str(key) for key in keys if keys.count(key) > 1})
    if twice:
        raise ConfigError(
            [
                Problem(
                    path=f"line {node.start_mark.line + 1}",
                    message=f"must give each key once, got {', '.join(twice)} twice.",
                    next_step="Delete one of them.",
                )
            ]
        )
    loader.flatten_mapping(node)
    mapping: dict[Any, Any] = loader.construct_mapping(node, deep=True)
    return mapping


_UniqueKeyLoader.add_constructor(
    yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping
)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML mapping.

    Raises:
        ConfigError: the file is absent, no UTF-8, no YAML, or no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
        value = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 - a SafeLoader
    except (FileNotFoundError, IsADirectoryError):
        raise _file_error(
            path, "must be an existing file.", "Run `python run.py configs`."
        ) from None
    except UnicodeDecodeError:
        raise _file_error(path, "must be UTF-8.", "Save it as UTF-8.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" near line {mark.line + 1}" if mark else ""
        raise _file_error(
            path, f"must be valid YAML, but is not{where}.", "Check indentation."
        ) from None
    if not isinstance(value, dict):
        raise _file_error(
            path, "must hold a mapping of keys to values.", "Start from an example."
        )
    return value


def apply_overrides(
    values: Mapping[str, Any], overrides: Sequence[str]
) -> dict[str, Any]:
    """Return `values` with `a.b.c=yaml value` assignments made.

    Raises:
        ConfigError: an override has no `=`, or goes through a value that is no mapping.
    """
    result: dict[str, Any] = dict(values)
    problems = []
    for override in overrides:
        path, equals, raw = override.partition("=")
        if not equals or not path.strip():
            problems.append(
                Problem(
                    path=f"--set {path}",
                    message="must be key=value.",
                    next_step="For example --set privacy.target_epsilon=4.",
                )
            )
            continue
        try:
            _assign(result, path.strip().split("."), yaml.safe_load(raw))
        except (TypeError, yaml.YAMLError):
            problems.append(
                Problem(
                    path=f"--set {path}",
                    message="must name a key inside a mapping and give a YAML value.",
                )
            )
    if problems:
        raise ConfigError(problems)
    return result


def _assign(values: dict[str, Any], keys: Sequence[str], value: object) -> None:
    """Set a nested key, copying every mapping on the way."""
    head, *rest = keys
    if not rest:
        values[head] = value
        return
    child = values.get(head)
    if child is not None and not isinstance(child, dict):
        raise TypeError(head)
    values[head] = dict(child or {})
    _assign(values[head], rest, value)


def load_train_config(
    path: Path, *, configs: Path, overrides: Sequence[str] = ()
) -> TrainConfig:
    """Read a training configuration, its recipe and its gate policy.

    `recipe` and `gate` may be names of files under `configs/recipes` and
    `configs/gates`, or mappings. `stages.<recipe>.<stage>` changes settings of a
    stage when that recipe is chosen, so that one file can compare recipes.

    Args:
        path: the file under `configs/train`.
        configs: the folder that holds `recipes/` and `gates/`.
        overrides: `key=value` strings from the command line.

    Raises:
        ConfigError: with every problem of all files at once.
    """
    values = apply_overrides(read_yaml(path), overrides)
    stages = values.pop("stages", {})
    for key, folder in (("recipe", "recipes"), ("gate", "gates")):
        if isinstance(values.get(key), str):
            values[key] = read_yaml(_named(configs / folder, values[key], key))
    known = sorted(file.stem for file in (configs / "recipes").glob("*.yaml"))
    problems = _override_stages(values, stages, known)
    return validate(TrainConfig, values, problems=problems)


def _named(folder: Path, name: str, key: str) -> Path:
    """Return the file of a name, or list the names there are."""
    known = sorted(file.stem for file in folder.glob("*.yaml"))
    if name not in known:
        raise ConfigError(
            [
                Problem(
                    path=key,
                    message=f"must be one of {', '.join(known) or 'none'}, got "
                    f"{name!r}.",
                    next_step=f"Or write the {key} as a mapping in place.",
                )
            ]
        )
    return folder / f"{name}.yaml"


def _override_stages(
    values: dict[str, Any], stages: object, known: Sequence[str]
) -> list[Problem]:
    """Merge `stages.<recipe>.<stage>` into the chosen recipe; name what it lacks."""
    recipe = values.get("recipe")
    if not stages or not isinstance(recipe, dict):
        return []
    if not isinstance(stages, dict):
        return [Problem(path="stages", message="must map recipe names to stages.")]
    strange = [name for name in stages if name not in {*known, recipe.get("name")}]
    problems = [
        Problem(
            path=f"stages.{name}",
            message=f"must be the name of a recipe, one of {', '.join(known)}.",
        )
        for name in strange
    ]
    listed = [dict(s) for s in recipe.get("stages", []) if isinstance(s, dict)]
    by_name = {s.get("name"): s for s in listed}
    chosen = stages.get(recipe.get("name")) or {}
    for name, changes in chosen.items() if isinstance(chosen, dict) else ():
        if name in by_name and isinstance(changes, dict):
            _merge(by_name[name], changes)
        else:
            problems.append(
                Problem(
                    path=f"stages.{recipe.get('name')}.{name}",
                    message="must be a mapping of settings of a stage of the recipe, "
                    f"one of {', '.join(map(str, by_name))}.",
                )
            )
    values["recipe"] = {**recipe, "stages": listed}
    return problems


def _merge(into: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Merge nested mappings; anything else replaces."""
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            into[key] = dict(into[key])
            _merge(into[key], value)
        else:
            into[key] = value


def validate(
    schema: type[SettingsT],
    values: Mapping[str, Any],
    *,
    problems: Sequence[Problem] = (),
) -> SettingsT:
    """Build `schema` from plain values, or raise one `ConfigError` with all of it."""
    found = list(problems)
    try:
        result = schema.model_validate(values)
    except ValidationError as error:
        found += [_problem(e, schema, values) for e in error.errors(include_url=False)]
    except ConfigError as error:
        found += error.problems
    if found:
        raise ConfigError(found)
    return result


_SUBJECT = re.compile(r"^\w+ should ")
_TAG_ERRORS = ("union_tag_invalid", "union_tag_not_found")


def _problem(
    error: ErrorDetails, schema: type[BaseModel], values: Mapping[str, Any]
) -> Problem:
    """Turn one pydantic error into path, constraint, value and next step."""
    path = ".".join(_keys(error["loc"], values)) or schema.__name__
    kind = error["type"]
    if kind == "extra_forbidden":
        return Problem(
            path=path,
            message="must not be set: no such key.",
            next_step=_suggest(str(error["loc"][-1]), schema),
        )
    if kind == "missing":
        return Problem(
            path=path, message="must be set.", next_step="It has no default."
        )
    if kind in _TAG_ERRORS:
        return _tag_problem(path, error)
    if kind == "invalid_key":
        return Problem(path=path, message="must not be set: keys are words.")
    message = _SUBJECT.sub("", error["msg"].removeprefix("Value error, "))
    if kind != "value_error":
        message = f"must {message}"
        value = error.get("input")
        if isinstance(value, str | int | float | bool) or value is None:
            message += f", got {value!r}"
    return Problem(path=path, message=f"{message.rstrip('.')}.")


def _keys(location: Sequence[str | int], values: Mapping[str, Any]) -> list[str]:
    """Name the keys of the file on the way; pydantic adds the kind of a source."""
    keys = []
    here: Any = values
    for part in location:
        inside = isinstance(here, Mapping)
        if inside and part not in here and here.get("kind") == part:
            continue
        keys.append(str(part))
        if inside:
            here = here.get(part)
        elif isinstance(here, list | tuple) and isinstance(part, int):
            here = here[part]
    return keys


def _tag_problem(path: str, error: ErrorDetails) -> Problem:
    """Name the kinds there are, where `kind` is absent or none of them."""
    context = error.get("ctx", {})
    key = str(context.get("discriminator", "'kind'")).strip("'")
    if error["type"] == "union_tag_not_found":
        return Problem(path=f"{path}.{key}", message="must be set.")
    message = f"must be one of {context.get('expected_tags')}, got {context.get('tag')}"
    return Problem(path=f"{path}.{key}", message=f"{message}.")


def _suggest(key: str, schema: type[BaseModel]) -> str:
    """Name the closest key anywhere in the schema, if one is close."""
    import difflib  # noqa: PLC0415 - only on the way to an error

    names = sorted(_all_keys(schema, set()))
    close = difflib.get_close_matches(key, names, n=1)
    return f"Did you mean {close[0]!r}?" if close else "Delete it."


def _all_keys(schema: type[BaseModel], seen: set[type[BaseModel]]) -> set[str]:
    """Collect field names of a schema and the schemas inside it."""
    if schema in seen:
        return set()
    seen.add(schema)
    names = set(schema.model_fields)
    for field in schema.model_fields.values():
        for inner in _models_in(field.annotation):
            names |= _all_keys(inner, seen)
    return names


def _models_in(annotation: object) -> list[type[BaseModel]]:
    """List the pydantic models that an annotation mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [
        model
        for argument in getattr(annotation, "__args__", ())
        for model in _models_in(argument)
    ]


def _file_error(path: Path, message: str, next_step: str) -> ConfigError:
    """Build the error of one file."""
    return ConfigError([Problem(path=str(path), message=message, next_step=next_step)])
