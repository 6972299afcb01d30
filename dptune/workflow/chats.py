"""Conversations and their canaries, as the tokenizer's template writes them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dptune.attacks.canaries import PLACEHOLDER, CanarySet, CanarySpec
from dptune.config import TrainConfig
from dptune.conversation import CALL, TOOLS, Turn, join_turns, turns_of
from dptune.data.records import Corpus
from dptune.data.source import learnt_roles
from dptune.declarations import emptied
from dptune.errors import ConfigError, ModelError
from dptune.models.source import ArchitectureSource
from dptune.redaction.operators import Operator
from dptune.results import CorpusReport

if TYPE_CHECKING:  # a preflight of plain text does without
    from transformers import PreTrainedTokenizerFast

    from dptune.models.chat import ChatFormat


@dataclass(frozen=True, kw_only=True)
class WrittenCanaries:
    """Canaries as a model reads them, for attacks that know of texts alone.

    Args:
        canaries: with what the tokenizer's template makes of a conversation for their
            template. Only for ranking: reports quote the set that was planted.
        tokenizer: that reads the rendering, under other names for special tokens.
        bos: token that opens a record; None where the rendering holds it, if any.
        stops: tokens that end an answer; none are those of plain text.
    """

    canaries: CanarySet
    tokenizer: "PreTrainedTokenizerFast"
    bos: int | None
    stops: tuple[int, ...] = ()


def written_canaries(
    canaries: CanarySet, tokenizer: "PreTrainedTokenizerFast"
) -> WrittenCanaries:
    """Write canaries as training does: plain ones as they are.

    Raises:
        ModelError: the tokenizer's template cannot write them.
    """
    spec = canaries.spec
    if spec.role is None:
        bos = tokenizer.bos_token_id
        return WrittenCanaries(
            canaries=canaries,
            tokenizer=tokenizer,
            bos=bos if isinstance(bos, int) else None,
        )
    from dptune.models.chat import ChatFormat  # noqa: PLC0415 - transformers

    chat = ChatFormat.of(tokenizer)
    text = _written_text(spec, chat)
    written = spec.model_copy(update={"template": text, "role": None, "opening": None})
    return WrittenCanaries(
        canaries=canaries.model_copy(update={"spec": written}),
        tokenizer=chat.plain,
        bos=None,
        stops=chat.stops,
    )


def _written_text(spec: CanarySpec, chat: "ChatFormat") -> str:
    """What a tokenizer's template makes of a canary, with a place for the secret."""
    start = len(spec.prefix)
    rendered = chat.render(spec.record(spec.secret_at(0)))
    own = (rendered.places >= start) & (rendered.places < start + spec.length)
    first, last = np.flatnonzero(own)[[0, -1]]
    if PLACEHOLDER in rendered.text[:first] + rendered.text[last + 1 :]:
        raise ModelError(
            f"the chat template must not write {PLACEHOLDER}, which is where a canary "
            "stands. Choose another model, or edit its template."
        )
    return f"{rendered.text[:first]}{PLACEHOLDER}{rendered.text[last + 1 :]}"


def _emptied(text: str) -> str:
    """Return a conversation that redaction left no content of, refused in mid-run."""

    def left(turn: Turn) -> str:
        if turn.role == TOOLS:
            return emptied(turn.content)
        return '{"name": "f", "arguments": {}}' if turn.role == CALL else ""

    return join_turns(Turn(role=t.role, content=left(t)) for t in turns_of(text))


def unread_keys(report: CorpusReport) -> tuple[str, ...]:
    """Say what messages have beside their contents, which no model sees."""
    if not report.unread:
        return ()
    found = ", ".join(f"{key} ({number:,})" for key, number in report.unread.items())
    warning = (
        "of messages, role, content and tool_calls are read, and nothing else: "
        f"{found}. What should be learnt belongs into content"
        ", and a column of tools into data.source.tools_column."
    )
    return (warning,)


def check_chats(
    corpus: Corpus, config: TrainConfig, *, data_root: Path
) -> tuple[str, ...]:
    """Let the model's template write every conversation, and a canary, before a run.

    Args:
        corpus: as it was read; nothing is checked of plain text.
        config: of the run.
        data_root: folder that relative paths start from.

    Returns:
        A warning if `max_tokens` leaves nothing to learn of some of the training split.

    Raises:
        ModelError: with every kind of conversation that the template does not write.
        ConfigError: `max_tokens` leaves nothing to learn of any.
        DependencyError: the model is not there.
    """
    source, spec = config.model.source, config.canaries
    if not learnt_roles(config.data.source) or isinstance(source, ArchitectureSource):
        return ()
    from datasets import Dataset  # noqa: PLC0415 - see above

    from dptune.models.chat import ChatFormat  # noqa: PLC0415
    from dptune.models.chat_checks import check_conversations  # noqa: PLC0415
    from dptune.models.folder import folder_of  # noqa: PLC0415
    from dptune.models.loading import load_tokenizer  # noqa: PLC0415

    tokenizer = load_tokenizer(folder_of(source, data_root=data_root))
    rows = dict(zip(corpus.dataset["id"], corpus.dataset["text"], strict=True))
    if spec.role is not None:
        _written_text(spec, ChatFormat.of(tokenizer))
        rows["canaries.role"] = spec.record(spec.secret_at(0))
    if Operator.DELETE in config.redaction.used and config.recipe.uses_redacted_view:
        emptied = {_emptied(text): name for name, text in rows.items()}
        rows |= {f"{name}, emptied": text for text, name in emptied.items()}
    unlearnt = check_conversations(
        Dataset.from_dict({"id": list(rows), "text": list(rows.values())}),
        tokenizer,
        max_tokens=config.model.max_tokens,
    )
    splits = zip(corpus.dataset["id"], corpus.dataset["split"], strict=True)
    trained = {name for name, split in splits if split == "train"}
    return _nothing_learnt(len(trained.intersection(unlearnt)), of=len(trained))


def _nothing_learnt(number: int, *, of: int) -> tuple[str, ...]:
    """Say of how many conversations nothing is learnt; refuse if it is all of them."""
    if not number:
        return ()
    if number == of:
        raise ConfigError(
            "model.max_tokens must leave something to learn, but cuts every turn of "
            "train_on off all conversations. Raise it, or shorten what stands before."
        )
    warning = (
        f"model.max_tokens leaves nothing to learn of {number:,} of {of:,} "
        "conversations of the training split: turns of train_on come behind it."
    )
    return (warning,)
