"""YAML that people write, which must say one thing."""

import itertools
import re
from typing import Any

import yaml

from dptune.errors import ConfigError

_MERGE = "tag:yaml.org,2002:merge"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_OTHER_BASE = re.compile(r"[-+]?0[0-9_bx][0-9a-fA-F_]*|.*:.*")
"""What PyYAML takes for a number of base 2, 8, 16 or 60."""
_MOST = 100_000
"""Values that aliases may repeat: nine lines can say a billion."""


class _OneMeaningLoader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML without what plain YAML takes for something else, and says no word."""

    def get_single_node(self) -> yaml.Node | None:
        """Read the document, unless nobody could hold what it unfolds to."""
        node = super().get_single_node()
        sizes: dict[int, int] = {}
        if node is not None and _unfolded(node, sizes) > _MOST + len(sizes):
            message = f"must not repeat more than {_MOST:,} values by aliases."
            raise ConfigError.at(_line(node), message, "Write out what is meant.")
        return node


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
        ConfigError: a key is given twice, a number to another base than ten, or aliases
            repeat too much.
        yaml.YAMLError: it is no YAML.
    """
    try:
        return yaml.load(text, Loader=_OneMeaningLoader)  # noqa: S506 - a SafeLoader
    except (ValueError, RecursionError):  # a day that is none, or lists in lists
        raise yaml.YAMLError("must hold values that can be read.") from None


def _unfolded(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Count the values of a node; what holds itself has no end."""
    if id(node) not in sizes:
        sizes[id(node)] = 10 * _MOST
        pairs = isinstance(node, yaml.MappingNode)
        inside = itertools.chain(*node.value) if pairs else node.value
        below = () if isinstance(node, yaml.ScalarNode) else inside
        sizes[id(node)] = 1 + sum(_unfolded(one, sizes) for one in below)
    return sizes[id(node)]


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
