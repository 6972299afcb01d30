"""YAML that people write, which must say one thing."""

import re
from typing import Any

import yaml

from dptune.errors import ConfigError

_MERGE = "tag:yaml.org,2002:merge"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_OTHER_BASE = re.compile(r"[-+]?0[0-9_bx][0-9a-fA-F_]*|.*:.*")
"""What PyYAML takes for a number of base 2, 8, 16 or 60."""


class _OneMeaningLoader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML without what plain YAML takes for something else, and says no word."""


def parse_yaml(text: str) -> Any:  # noqa: ANN401 - any YAML
    """Read YAML, refusing what it silently takes for something else.

    Of a key given twice the last value wins, `010` is 8, and `1:30` is 90.

    >>> parse_yaml("max_epsilon: 1.0e+1")
    {'max_epsilon': 10.0}
    >>> parse_yaml("max_epsilon: 010")
    Traceback (most recent call last):
    dptune.errors.ConfigError: line 1: must be a number in decimal digits, got 010. \
Put text into quotes.

    Raises:
        ConfigError: a key is given twice, or a number to another base than ten.
        yaml.YAMLError: it is no YAML.
    """
    try:
        return yaml.load(text, Loader=_OneMeaningLoader)  # noqa: S506 - a SafeLoader
    except (ValueError, RecursionError):  # a day that is none, or lists in lists
        raise yaml.YAMLError("must hold values that can be read.") from None


def _unique_mapping(loader: _OneMeaningLoader, node: yaml.MappingNode) -> Any:  # noqa: ANN401 - any YAML
    """Read a mapping whose keys differ."""
    plain = [key for key, _ in node.value if key.tag != _MERGE]
    keys = [loader.construct_object(key) for key in plain]
    twice = sorted({str(key) for key in keys if keys.count(key) > 1})
    if twice:
        message = f"must give each key once, got {', '.join(twice)} twice."
        raise ConfigError.at(_line(node), message, "Delete one of them.")
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


def _decimal(loader: _OneMeaningLoader, node: yaml.ScalarNode) -> int | float:
    """Read a number as whoever wrote it does."""
    if _OTHER_BASE.fullmatch(node.value):
        message = f"must be a number in decimal digits, got {node.value[:40]}."
        raise ConfigError.at(_line(node), message, "Put text into quotes.")
    number: int | float = yaml.SafeLoader.yaml_constructors[node.tag](loader, node)
    return number


def _line(node: yaml.Node) -> str:
    """Say where a node stands."""
    return f"line {node.start_mark.line + 1}"


_OneMeaningLoader.add_constructor(
    yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping
)
for _tag in _NUMBERS:
    _OneMeaningLoader.add_constructor(_tag, _decimal)
