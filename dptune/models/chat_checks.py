"""Conversations that a chat template does not write, told all at once."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from dptune.conversation import is_conversation
from dptune.errors import ModelError, id_suffix
from dptune.models.chat import ChatFormat

_MOST_NAMED = 5


class RefusedChats:
    """Conversations that the template does not write, by what is wrong with them."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}
        self._counts: Counter[str] = Counter()

    @contextmanager
    def collecting(self, record: str) -> Iterator[None]:
        """Remember what is wrong with a record instead of raising it."""
        try:
            yield
        except ModelError as error:
            message = str(error)
            self._counts[message] += 1
            if len(known := self._names.setdefault(message, [])) < _MOST_NAMED:
                known.append(record)

    def raise_if_any(self) -> None:
        """Raise one error with every fault and some of the records that have it."""
        named, lines = self._counts.most_common(_MOST_NAMED), []
        for message, count in named:
            names = self._names[message]
            more = f" and {count - len(names):,} more" if count > len(names) else ""
            lines.append(f"record {', '.join(names)}{more}: {message}")
        if rest := self._counts.total() - sum(count for _, count in named):
            lines.append(f"and {rest:,} records more, for other orders of roles.")
        if lines:
            raise ModelError("\n".join(lines))


def check_conversations(
    dataset: Dataset, tokenizer: PreTrainedTokenizerFast, *, max_tokens: int
) -> list[str]:
    """Refuse conversations that the tokenizer's template does not write.

    Args:
        dataset: columns `id` and `text`; plain texts pass.
        tokenizer: the model's.
        max_tokens: longest row.

    Returns:
        Ids of conversations of which `max_tokens` leaves nothing to learn.

    Raises:
        ModelError: with every fault, and some of the records that have it.
    """
    refused, unlearnt = RefusedChats(), []
    pairs = zip(dataset["id"], dataset["text"], strict=True)
    for number, (one, text) in enumerate(pairs, start=1):
        if is_conversation(text):
            template = ChatFormat.of(tokenizer)
            with refused.collecting(f"{number}{id_suffix(one)}"):
                if not template.encode(text).learnt[1:max_tokens].any():
                    unlearnt.append(one)
    refused.raise_if_any()
    return unlearnt
