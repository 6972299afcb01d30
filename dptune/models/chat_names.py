"""Copies of tokenizers whose control tokens have names that nobody can spell."""

import json
import re
from typing import Any, Final

from tokenizers import Tokenizer

from dptune.text import MASK

_BLANKS: Final = " \u2581\u0120"
PRIVATE: Final = re.compile("[\ue000-\uf8ff]")


def is_control(content: str, *, is_special: bool) -> bool:
    """Whether an added token is more than blanks or one character of a canary."""
    is_symbol = bool(PRIVATE.fullmatch(content)) and not is_special
    return bool(content.replace("\u2581", " ").strip()) and not is_symbol


def pieces_of(content: dict[str, Any]) -> list[str]:
    """What the model of a tokenizer takes for one word, without blanks around it."""
    vocabulary = content["model"].get("vocab") or ()
    names = vocabulary if isinstance(vocabulary, dict) else (k for k, _ in vocabulary)
    return [str(name).strip(_BLANKS) for name in names]


def with_names(content: dict[str, Any], names: dict[str, str]) -> Tokenizer:
    """Copy a tokenizer whose control tokens have other names, in the same places.

    Entries of the vocabulary have them too, or text could still spell them where a
    model looks words up whole; merges that lead to one go.
    """
    model = content["model"]
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(k, k): v for k, v in vocabulary.items()}
    elif isinstance(vocabulary, list):
        model["vocab"] = [[names.get(k, k), score] for k, score in vocabulary]
    if merges := model.get("merges"):
        pairs = (m if isinstance(m, list) else m.split(" ", 1) for m in merges)
        model["merges"] = [p for p in pairs if not {*p, "".join(p)} & names.keys()]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    for token in content["added_tokens"]:
        if token["content"] == MASK:  # or it takes blanks that the template wrote
            token |= {"lstrip": False, "rstrip": False}
        if token["content"] in names:
            token |= {"content": names[token["content"]], "normalized": False}
    return Tokenizer.from_str(json.dumps(content))
