"""Read a configuration file: YAML, overrides, recipe and policy by name.

A file that cannot be used raises one `ConfigError` with every problem in it: path,
constraint, value, next step. Nothing is created before a file has passed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dptune.config import TrainConfig
from dptune.errors import ConfigError, Problem
from dptune.gates.policy import GatePolicy
from dptune.recipes import Recipe
from dptune.yamls import parse_yaml

SettingsT = TypeVar("SettingsT", bound=BaseModel)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML mapping.

    Raises:
        ConfigError: the file is absent, no UTF-8, no YAML of one meaning, or no
            mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
        value = parse_yaml(text)
    except (FileNotFoundError, IsADirectoryError):
        raise _file_error(
            path, "must be an existing file.", "Run `dptune configs`."
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
            _assign(result, path.strip().split("."), parse_yaml(raw))
        except ConfigError as error:
            where = f"--set {path}"
            problems += [replace(one, path=where) for one in error.problems]
        except yaml.YAMLError:
            problems.append(
                Problem(path=f"--set {path}", message="must give a YAML value.")
            )
        except TypeError as error:
            problems.append(
                Problem(
                    path=f"--set {path}",
                    message=f"goes through {error}, which holds one value, no mapping.",
                    next_step=f"Set all of {error}; where it names a file of configs, "
                    "write that file's fields in its place, or name a copy.",
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
    return train_config_of(apply_overrides(read_yaml(path), overrides), configs=configs)


def train_config_of(values: Mapping[str, Any], *, configs: Path) -> TrainConfig:
    """Build a training configuration from what a file of `configs/train` holds.

    Args:
        values: nested plain values; see `load_train_config`.
        configs: the folder that holds `recipes/` and `gates/`.

    Raises:
        ConfigError: with every problem at once.
    """
    values = dict(values)
    stages = values.pop("stages", {})
    unknown: list[Problem] = []
    for key, folder in (("recipe", "recipes"), ("gate", "gates")):
        if isinstance(values.get(key), str):
            try:
                values[key] = read_yaml(named_file(configs / folder, values[key], key))
            except ConfigError as error:  # told with all the rest
                unknown += error.problems
                values.pop(key)
    problems = [*unknown, *_override_stages(values, stages, configs / "recipes")]
    config = validate(TrainConfig, values, problems=problems)
    _refuse_borrowed_name(config.gate, configs / "gates", key="gate.name")
    return config


def load_policy(name: str, *, configs: Path, key: str) -> GatePolicy:
    """Read a gate policy by its name under `gates/`, or by the path of a YAML file.

    Args:
        name: or path.
        configs: the folder that holds `gates/`.
        key: what to call it in an error.

    Raises:
        ConfigError: there is no such file, it is no policy, or it has the name of
            another.
    """
    folder = configs / "gates"
    policy = validate(GatePolicy, read_yaml(named_or_given_file(folder, name, key)))
    _refuse_borrowed_name(policy, folder, key=key)
    return policy


def _refuse_borrowed_name(policy: GatePolicy, folder: Path, *, key: str) -> None:
    """Refuse a policy that calls itself as one of a folder does, but is another.

    Raises:
        ConfigError: names both digests.
    """
    file = folder / f"{policy.name}.yaml"
    if not file.is_file():
        return
    known = validate(GatePolicy, read_yaml(file))
    if known.digest != policy.digest:
        raise ConfigError(
            [
                Problem(
                    path=key,
                    message="must not be the name of a policy that comes with the "
                    f"program and says something else, got {policy.reference.title}, "
                    f"where {known.reference.title} is known.",
                    next_step="Give it a name of its own.",
                )
            ]
        )


def named_or_given_file(folder: Path, name: str, key: str) -> Path:
    """Return the file of a name in a folder, or of the path of a YAML file.

    Raises:
        ConfigError: there is no such file; lists the names there are.
    """
    path = Path(name) if name.endswith(".yaml") else folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
        message = f"must be one of {known} or a YAML file, got {name!r}."
        raise ConfigError([Problem(path=key, message=message)])
    return path


def named_file(folder: Path, name: str, key: str) -> Path:
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
    values: dict[str, Any], stages: object, folder: Path
) -> list[Problem]:
    """Merge `stages.<recipe>.<stage>` into the chosen recipe; name what it lacks.

    Changes of other recipes are tried on them: a mistake there is found today.
    """
    recipe = values.get("recipe")
    if not stages or not isinstance(recipe, dict):
        return []
    if not isinstance(stages, dict):
        return [Problem(path="stages", message="must map recipe names to stages.")]
    known = sorted(file.stem for file in folder.glob("*.yaml"))
    name = recipe.get("name")
    problems = [
        Problem(
            path=f"stages.{other}",
            message=f"must be the name of a recipe, one of {', '.join(known)}.",
        )
        for other in stages
        if other not in {*known, name}
    ]
    for other in known:
        if other in stages and other != name:
            problems += _problems_of_changes(folder / f"{other}.yaml", stages[other])
    values["recipe"], found = _with_changes(recipe, stages.get(name))
    return problems + found


def _problems_of_changes(file: Path, changes: object) -> list[Problem]:
    """Try changes on a recipe that is not chosen."""
    recipe, problems = _with_changes(read_yaml(file), changes)
    try:
        validate(Recipe, recipe)
    except ConfigError as error:
        names = [str(stage.get("name")) for stage in recipe["stages"]]
        problems += [
            Problem(
                path=f"stages.{file.stem}.{_with_name(problem.path, names)}",
                message=problem.message,
                next_step=problem.next_step,
            )
            for problem in error.problems
            if problem.path != "stages"  # says that stages are broken, which follow
        ]
    return problems


def _with_name(path: str, names: Sequence[str]) -> str:
    """Turn `stages.0.noise` into the stage's name and `noise`."""
    match = re.fullmatch(r"stages\.(\d+)(\..*)?", path)
    return f"{names[int(match[1])]}{match[2] or ''}" if match else path


def _with_changes(
    recipe: Mapping[str, Any], changes: object
) -> tuple[dict[str, Any], list[Problem]]:
    """Return a recipe with changes of its stages, and what they do not fit."""
    listed = [dict(s) for s in recipe.get("stages", []) if isinstance(s, dict)]
    by_name = {s.get("name"): s for s in listed}
    problems = []
    for name, change in changes.items() if isinstance(changes, dict) else ():
        if name in by_name and isinstance(change, dict):
            merge(by_name[name], change)
        else:
            problems.append(
                Problem(
                    path=f"stages.{recipe.get('name')}.{name}",
                    message="must be a mapping of settings of a stage of the recipe, "
                    f"one of {', '.join(map(str, by_name))}.",
                )
            )
    return {**recipe, "stages": listed}, problems


def merge(into: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Merge nested mappings, copying those that change; anything else replaces."""
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            into[key] = dict(into[key])
            merge(into[key], value)
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
    told = {problem.path for problem in problems}
    try:
        result = schema.model_validate(values)
    except ValidationError as error:
        errors = _without_followers(error.errors(include_url=False), values)
        made = [_problem(e, schema, values) for e in errors]
        found += [problem for problem in made if problem.path not in told]
    except ConfigError as error:
        found += error.problems
    if found:
        raise ConfigError(found)
    return result


_SUBJECT = re.compile(r"^\w+ should ")
_MAY_BE_SECRET = re.compile(r"(^|\.)secrets?\.|://[^/\s]*@")
_TAG_ERRORS = ("union_tag_invalid", "union_tag_not_found")
_SHAPES = {  # of a file, where pydantic speaks of Python
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a mapping"),
    **dict.fromkeys(("tuple_type", "list_type", "frozen_set_type"), "a list"),
    "path_type": "a path",
}


def _without_followers(
    errors: Sequence[ErrorDetails], values: Mapping[str, Any]
) -> list[ErrorDetails]:
    """Leave out what follows from other errors there.

    That a list lacks the item that is wrong, and what other kinds of a value would say.
    """
    paths = [tuple(_keys(error["loc"], values)) for error in errors]

    def follows(number: int) -> bool:
        here, kind = paths[number], errors[number]["type"]
        if kind == "too_short":
            return any(path[: len(here)] == here != path for path in paths)
        return kind.endswith("_type") and any(
            path[: len(here)] == here
            and (path != here or not errors[other]["type"].endswith("_type"))
            for other, path in enumerate(paths)
        )

    return [error for number, error in enumerate(errors) if not follows(number)]


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
            next_step=_suggest(path.split("."), schema),
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
    if kind in _SHAPES:
        message = f"be {_SHAPES[kind]}"
    if kind != "value_error":
        message = f"must {message}"
        message += _got(path, error.get("input"))
    return Problem(path=path, message=f"{message.rstrip('.')}.")


def _got(path: str, value: object) -> str:
    """Quote a plain value, but none that stands where a secret is referred to."""
    if _MAY_BE_SECRET.search(f"{path}. {value}"):
        return ", got something that may be a secret and is not shown"
    is_plain = isinstance(value, str | int | float | bool | None)
    return f", got {value!r}" if is_plain else ""


def _keys(location: Sequence[str | int], values: Mapping[str, Any]) -> list[str]:
    """Name the keys of the file on the way; pydantic adds the kind of a source."""
    keys = []
    here: Any = values
    for part in location:
        if _names_kind(part, here):
            continue
        keys.append(str(part))
        if isinstance(here, Mapping):
            here = here.get(part)
        elif isinstance(here, list | tuple) and isinstance(part, int):
            here = here[part]
    return keys


def _names_kind(part: str | int, here: object) -> bool:
    """Whether a part of a location is a kind of value and no key of the file."""
    if here is None or isinstance(part, int):
        return False
    if not isinstance(here, Mapping):
        return True
    is_class = not part.isidentifier() or part[0].isupper()
    return part not in here and (is_class or here.get("kind") == part)


def _tag_problem(path: str, error: ErrorDetails) -> Problem:
    """Name the kinds there are, where `kind` is absent or none of them."""
    context = error.get("ctx", {})
    key = str(context.get("discriminator", "'kind'")).strip("'")
    if error["type"] == "union_tag_not_found":
        return Problem(path=f"{path}.{key}", message="must be set.")
    message = f"must be one of {context.get('expected_tags')}, got {context.get('tag')}"
    return Problem(path=f"{path}.{key}", message=f"{message}.")


def _suggest(keys: Sequence[str], schema: type[BaseModel]) -> str:
    """Name the closest key beside a wrong one, or anywhere, if one is close."""
    import difflib  # noqa: PLC0415 - only on the way to an error

    *folder, wrong = (key for key in keys if not key.isdecimal())
    known = _all_paths(schema, (), ()) - {(*folder, wrong)}  # of another kind
    beside = {path[-1] for path in known if path[:-1] == tuple(folder)}
    if close := difflib.get_close_matches(wrong, sorted(beside), n=1):
        return f"Did you mean {close[0]!r}?"
    close = difflib.get_close_matches(wrong, sorted({path[-1] for path in known}), n=1)
    if not close:
        return "Delete it."

    def nearness(path: tuple[str, ...]) -> tuple[int, int]:
        return len({*path} & {*folder}), -len(path)

    path = max((p for p in sorted(known) if p[-1] == close[0]), key=nearness)
    return f"Did you mean {'.'.join(path)!r}?"


def _all_paths(
    schema: type[BaseModel], folder: tuple[str, ...], above: tuple[type[BaseModel], ...]
) -> set[tuple[str, ...]]:
    """Collect where every field of a schema stands, and of the schemas inside it."""
    if schema in above:
        return set()
    paths = {(*folder, name) for name in schema.model_fields}
    for name, field in schema.model_fields.items():
        for inner in _models_in(field.annotation):
            paths |= _all_paths(inner, (*folder, name), (*above, schema))
    return paths


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
