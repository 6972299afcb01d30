r"""Tokens of conversations: the tokenizer's own template, and text that stays text.

```
<|im_start|> user \n  Hi <|im_end|> \n <|im_start|> assistant \n  Hello <|im_end|> \n
   marker      marker  text  marker           marker               text    marker
   loss                                                            ****** **********
```

The template is rendered once with placeholders for contents, which tells what it writes
itself, and once as it is; the two must agree, or the conversation is refused. Special
tokens are then renamed, in what the template wrote and in a copy of the tokenizer, to
names that no content can spell: what somebody typed is text, whatever it looks like,
and everything else is split and merged as in the template's own rendering. The option
`split_special_tokens` of transformers would not do: it leaves tokens that were added
without being special, such as `<think>`, and it stays set on the tokenizer.

A turn that is trained on has a loss on its content and on all that the model has to
write itself: what the template puts between its generation prompt and the content, and
the first special token behind the content, which ends the turn; and those right behind
it up to the end-of-sequence token, where one stands there. So it is with calls.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

import numpy as np
from jinja2.exceptions import TemplateError
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from dptune.conversation import Turn, turns_of
from dptune.errors import ModelError
from dptune.models.chat_dates import asks_for_today, without_today
from dptune.models.chat_layout import (
    Canvas,
    Kept,
    Rendered,
    behind_prompt,
    kept_contents,
    num_alike,
    reached,
    touched,
)
from dptune.models.chat_messages import (
    HOLES,
    Form,
    Message,
    Shape,
    all_written,
    check_declared,
    declared_in,
    fill_declared,
    fill_objects,
    form_of_calls,
    given_messages,
    messages_to_write,
    placed_parts,
    shape_of,
    text_hole,
    value_hole,
    value_of,
)
from dptune.models.chat_names import PRIVATE, is_control, pieces_of, with_names
from dptune.text import MASK

_Ints = NDArray[np.int32]
_Bools = NDArray[np.bool_]

_OPEN, _CLOSE = "\ufdd4", "\ufdd5"
_NAME = re.compile(f"{_OPEN}[0-9]+{_CLOSE}")
_LOOKS_LIKE_MARKER = re.compile(r"[<\[]\W*\w[^<>\[\]]*[>\]]")
_BYTES: Final = ByteLevel(add_prefix_space=False, use_regex=False)
_MOST_PARTS: Final = 1024

_TWO_TURNS = (
    "the tokenizer must keep turns apart, but reads the end of one and the start of "
    "another as one token: its chat template writes nothing between them. Choose "
    "another model."
)
_SPELT = (
    "the chat template must write markers that the tokenizer added as tokens, but "
    "writes a word of its vocabulary, or its token for what it does not know: whoever "
    "types such a thing would write a marker. Choose another model, or add its markers "
    "to the tokenizer."
)
_NO_TEMPLATE = (
    "the tokenizer must have a chat template for conversations, got none. Choose a "
    "model that was made for chats (its name often ends in Instruct), or train on "
    "text_column."
)
_OTHER_TOKENS = (
    "the tokenizer must read a conversation alike whether or not contents could spell "
    "its special tokens, but does not: its normalizer changes what stands beside them. "
    "Choose another model."
)
_CRASHES = (
    *(ValueError, TypeError, KeyError, IndexError, AttributeError),
    *(OverflowError, RecursionError, ZeroDivisionError),
)


@dataclass(frozen=True, kw_only=True)
class ChatTokens:
    """Tokens of a conversation, all of them.

    Args:
        ids: of the tokens.
        spans: code points of the conversation's text that each covers, (0, 0) for what
            the template wrote.
        learnt: which have a loss.
        owners: number of the turn that each is of, as its content or its end; or -1.
    """

    ids: _Ints = field(repr=False)  # (tokens,)
    spans: _Ints = field(repr=False)  # (tokens, 2)
    learnt: _Bools = field(repr=False)  # (tokens,)
    owners: _Ints = field(repr=False)  # (tokens,)


_KIND: Final = "dptune_trained_on"


def note_training(tokenizer: PreTrainedTokenizerFast, *, on_chats: bool) -> None:
    """Write into a tokenizer's settings what its model was trained on last.

    They are stored, and counted in the model's digest, with adapters too. A template
    tells nothing: plain text is trained on models for chats as well.
    """
    tokenizer.init_kwargs.pop(_KIND, None)
    if on_chats:
        tokenizer.init_kwargs[_KIND] = "conversations"


def answers_chats(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Tell whether a model was trained on conversations, by its tokenizer."""
    trained_on = tokenizer.init_kwargs.get(_KIND)
    return trained_on == "conversations" and bool(tokenizer.chat_template)


class ChatFormat:
    """How one tokenizer writes conversations.

    Args:
        tokenizer: fast, with a chat template, which transformers renders in a sandbox:
            no code of it is run.

    Raises:
        ModelError: it has no template, or one that does not do for training.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        if not tokenizer.chat_template:
            raise ModelError(_NO_TEMPLATE)
        try:
            template = str(tokenizer.get_chat_template())
        except ValueError as error:  # several, and none is the usual one
            raise ModelError(_NO_TEMPLATE) from error
        self.template = without_today(template)
        if asks_for_today(self.template):
            raise ModelError(
                "the chat template must ask for today's date by strftime_now with a "
                "format in quotes, where another day can be put in, or no two runs see "
                "the same text. Choose another model, or write a date into the "
                "template."
            )
        # No reference to the tokenizer, or `of` would keep each as long as the process.
        self._special: dict[str, Any] = dict(tokenizer.special_tokens_map)
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        content |= {"post_processor": None, "truncation": None, "padding": None}
        self._original = Tokenizer.from_str(json.dumps(content))
        masks = [t for t in content["added_tokens"] if t["content"] == MASK]
        self._strips = tuple(any(t[s] for t in masks) for s in ("lstrip", "rstrip"))
        self._names = {
            token["content"]: f"{_OPEN}{token['id']}{_CLOSE}"
            for token in content["added_tokens"]
            if is_control(token["content"], is_special=token["special"])
        }
        self._eos = self._names.get(str(self._special.get("eos_token")))
        self._to_eos = re.compile(f"(?:{_NAME.pattern})*?{self._eos or '(?!)'}")
        known = {token["content"]: token["id"] for token in content["added_tokens"]}
        model = content["model"]  # its unknown token is one that any text may give
        unknown = {model.get("unk_id"), known.get(model.get("unk_token"))}
        self._control_ids = {known[name] for name in self._names} - unknown
        self._unknown = [name for name in self._names if known[name] in unknown]
        longest_first = sorted(self._names, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self.renamed: Tokenizer = with_names(content, self._names)
        words = (piece for piece in pieces_of(content) if piece not in self._names)
        self._spelt = tuple(filter(_LOOKS_LIKE_MARKER.fullmatch, words))
        self._parts: dict[tuple[Shape, str], tuple[list[str], list[int]]] = {}

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> Self:
        """Return the format of a tokenizer, made once as long as it stays the same."""
        key = (len(tokenizer), str(tokenizer.chat_template), tokenizer.mask_token)
        known = _FORMATS.get(tokenizer)
        if known is None or known[0] != key:
            known = (key, cls(tokenizer))
            _FORMATS[tokenizer] = known
        return known[1]  # type: ignore[return-value]

    def encode(self, text: str, *, open_ended: bool = False) -> ChatTokens:
        """Tokens of a conversation, equal to those of the template's own rendering.

        Args:
            text: as `join_turns` writes it.
            open_ended: see `render`.

        Raises:
            ModelError: see `render`; or the tokenizer reads markers as text, or text as
                markers, of which each conversation is searched.
        """
        rendered = self.render(text, open_ended=open_ended)
        encoding = self.renamed.encode(rendered.text, add_special_tokens=False)
        markers = [int(name[1:-1]) for name in _NAME.findall(rendered.text)]
        if [token for token in encoding.ids if token in self._control_ids] != markers:
            raise ModelError(
                "the tokenizer must read each special token that the chat template "
                "writes as one token, and no other text as one, but does not. Choose "
                "another model."
            )
        if rendered.plain is not None:
            own = self._original.encode(rendered.plain, add_special_tokens=False)
            if own.ids != encoding.ids:
                raise ModelError(_OTHER_TOKENS)
        offsets = np.asarray(encoding.offsets, np.int64).reshape(-1, 2)
        owners, last = reached(offsets, rendered.owners >= 0, rendered.owners, none=-1)
        if (owners != last).any():
            raise ModelError(_TWO_TURNS)
        places = rendered.places
        start, end = reached(offsets, places >= 0, places, none=-1)
        return ChatTokens(
            ids=np.asarray(encoding.ids, np.int32),
            spans=np.where(start[:, None] >= 0, np.stack([start, end + 1], axis=1), 0),
            learnt=touched(offsets, rendered.learnt),
            owners=owners,
        )

    @cached_property
    def plain(self) -> PreTrainedTokenizerFast:
        """The renamed tokenizer, for what takes a rendering for any other text."""
        return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=self.renamed,
            eos_token=self._eos,
            clean_up_tokenization_spaces=False,
        )

    def opening(self) -> list[int]:
        """Tokens of a short question up to where the assistant answers."""
        asked = [{"role": "user", "content": "Hello"}]
        text = self._control.sub(self._name_of, self._apply(asked, prompt=True))
        return list(self.renamed.encode(text, add_special_tokens=False).ids)

    @cached_property
    def stops(self) -> tuple[int, ...]:
        """Tokens that end an answer: the template's, and the tokenizer's own."""
        found = {self._eos}
        try:
            literals, _ = self._written((("user", 1, ()), ("assistant", 1, ())))
        except ModelError:  # of other roles
            literals = []
        ends = (_NAME.search(self._renamed(literal)) for literal in literals[-1:])
        found |= {end.group() for end in ends if end}
        return tuple(sorted(int(name[1:-1]) for name in found if name))

    def render(self, text: str, *, open_ended: bool = False) -> Rendered:
        """Write a conversation as its template does.

        Args:
            text: as `join_turns` writes it.
            open_ended: stop behind the last content, which is still to go on.

        Raises:
            ModelError: the template refuses the order of roles, or does not write every
                content once and as it is, but for blanks around it.
        """
        turns = turns_of(text)
        messages = messages_to_write(turns, form=self._form)
        shape, tools = shape_of(messages), declared_in(turns)
        literals, order = self._written(shape, tools)
        parts = [(message, part) for message in messages for part in message.parts]
        said = [part.said() for _, part in parts]
        real = self._real(messages, [one for one, _ in said], tools)
        written = [(parts[number][1].role, said[number][0]) for number in order]
        kept = kept_contents(real, literals, written)
        if kept is None:
            raise ModelError(
                "the chat template must write every content as it is, but drops or "
                f"changes one of a conversation of {_listed(shape)}. Templates do so "
                "with the thinking of earlier turns and with empty messages: take them "
                "out, or choose another model."
            )
        calling = {  # what is written where nothing follows a call
            message.owner: self._written(shape[: number + 1], tools)
            for number, message in enumerate(messages)
            if message.calls
        }
        canvas, placed = Canvas(), placed_parts(parts, order, calling)
        canvas.add(self._renamed(literals[0]))
        for at, (number, part_kept) in enumerate(zip(order, kept, strict=True)):
            (message, part), canvas.owner = placed[at], placed[at][0].owner
            if message.answers and (not at or placed[at - 1][0] is not message):
                before = shape[: messages.index(message)]
                own = self._answer(literals[at], message, before, tools)
                canvas.learn_last(len(own))
            self._add_content(canvas, part, said[number][1], part_kept)
            if open_ended and at == len(order) - 1:
                break
            after = self._renamed(literals[at + 1])
            goes_on = at < len(order) - 1 and placed[at + 1][0] is message
            alone = calling[message.owner][0] if message.calls else ()
            end = len(after) if goes_on else self._end_of(message, after, alone)
            canvas.add(after, num_own=end, is_learnt=message.learnt)
        whole = not open_ended and not any(
            MASK in part.content or self._control.search(one)
            for (_, part), (one, _) in zip(parts, said, strict=True)
        )
        return canvas.rendered(plain=real if whole else None)

    def _real(
        self, messages: Sequence[Message], said: Sequence[str], tools: str
    ) -> str:
        """Render what messages say; arguments that redaction changed, as they are."""
        parts = [part for message in messages for part in message.parts]
        shape = shape_of(messages)
        real = self._apply(
            given_messages(
                shape,
                lambda number: said[number],
                lambda number, kind: value_of(parts[number], number, kind),
            ),
            tools=fill_declared(tools, said),
        )
        return fill_objects(real, lambda number: said[number]) or ""

    def _end_of(self, message: Message, after: str, alone: Sequence[str]) -> int:
        """How much of what stands behind a message ends it, renamed.

        Markers of a call end no turn: where none does that ends one, the last that is
        written before anything answers the call.
        """
        ends = list(_NAME.finditer(after))
        if message.calls:
            stops = [end for end in ends if int(end.group()[1:-1]) in self.stops]
            alike = num_alike(after, self._renamed(alone[-1]))
            ends = stops or [e for e in ends if e.end() <= alike][-1:] or ends
        if ends:
            first = ends[0].end()
            is_eos = ends[0].group() == self._eos
            more = None if is_eos else self._to_eos.match(after, first)
            return more.end() if more else first
        if message.learnt:
            raise ModelError(
                "the chat template must end every turn that is trained on with a "
                f"special token, but one of role {message.role} has none. Where the "
                "next turn begins with it, as GLM's do, let the template write it "
                "behind the last one too: {% if not add_generation_prompt %}"
                "{{ '<|user|>' }}{% endif %}. Else take the role out of train_on, "
                "or choose another model."
            )
        return 0

    def _add_content(
        self, canvas: Canvas, turn: Turn, places: Sequence[int], what: Kept
    ) -> None:
        """Write a content; the mask of redaction is a token, a typed one is text."""
        if not (kept := places[what.first : what.last]):
            return
        copy = partial(canvas.copy, turn, spelt=what.spelt)
        start, end = kept[0] - turn.start, kept[-1] + 1 - turn.start
        name = self._names.get(MASK)
        masks = (
            [match.span() for match in re.finditer(re.escape(MASK), turn.content)]
            if name
            else []
        )
        position = start
        before, behind = self._strips
        for low, high in masks:
            text = turn.content[position:low]
            text = text.rstrip() if before else text
            copy(position, position + len(text))
            canvas.mark(name or "", turn.start + low, turn.start + high, turn.trained)
            rest = turn.content[high:end]
            position = high + (len(rest) - len(rest.lstrip()) if behind else 0)
        copy(position, end)

    def _answer(self, literal: str, message: Message, before: Shape, tools: str) -> str:
        """What of a literal before an answer the model has to write itself, renamed."""
        prompt, written = self._prompt, self._renamed(literal)
        own = behind_prompt(written, prompt, marker=_NAME.match(prompt))
        if own is not None:
            return own
        if message.texts or not before:
            return ""
        literals, _ = self._written(before, tools)
        asked = self._renamed(literals[-1])  # a call opens by a marker
        return written.removeprefix(asked) if written.startswith(asked) else ""

    @cached_property
    def _form(self) -> Form:
        """How the template writes arguments of calls."""
        return form_of_calls(self._apply)

    @cached_property
    def _prompt(self) -> str:
        """What the template writes to make the assistant answer, renamed.

        Often a marker, and where the template ends a conversation, in place of its end.
        """
        asked = [{"role": "user", "content": text_hole(0)}]
        try:
            both = [self._renamed(self._apply(asked, prompt=p)) for p in (False, True)]
        except ModelError:
            return ""
        pairs = enumerate(zip(*both, strict=False))
        apart = next((at for at, (a, b) in pairs if a != b), len(both[0]))
        name = both[1].rfind(_OPEN, 0, apart)
        is_cut = name > both[1].rfind(_CLOSE, 0, apart)
        return both[1][name if is_cut else apart :]

    def _written(self, shape: Shape, tools: str = "") -> tuple[list[str], list[int]]:
        """What the template writes around contents, and the order it puts them in."""
        if (shape, tools) not in self._parts:
            given = given_messages(shape, text_hole, value_hole)
            holes = self._apply(given, tools=tools)
            if tools:
                check_declared(tools, holes, self._apply(given), self._control)
            pieces = HOLES.split(fill_objects(holes, text_hole) or "")
            order = [int(number) for number in pieces[1::2]]
            num_tools = shape[0][1] if tools else 0  # of whose texts some may go
            if not all_written(shape, order, first=num_tools):
                calls = "calls of tools, or " if any(c for *_, c in shape) else ""
                raise ModelError(
                    "the chat template must write every turn once, but drops or "
                    f"repeats {calls}some of {_listed(shape)}. Leave such turns out, "
                    f"{calls and 'write calls into content, '}or choose another model."
                )
            if any(self._can_be_spelt(literal) for literal in pieces[::2]):
                raise ModelError(_SPELT)
            if len(self._parts) >= _MOST_PARTS:
                self._parts.clear()
            self._parts[shape, tools] = (pieces[::2], order)
        return self._parts[shape, tools]

    def _can_be_spelt(self, literal: str) -> bool:
        """Whether a literal holds a marker that anybody could type, as one token."""
        left = self._control.sub("", literal)
        by_bytes = "".join(part for part, _ in _BYTES.pre_tokenize_str(left))
        is_word = any(word in left or word in by_bytes for word in self._spelt)
        is_unknown = any(name in literal for name in self._unknown)
        return is_word or is_unknown or bool(PRIVATE.search(left))

    def _apply(
        self, messages: list[dict[str, Any]], *, tools: str = "", prompt: bool = False
    ) -> str:
        """Render by transformers; what a template raises may quote a message."""
        try:
            texts, _ = render_jinja_template(  # type: ignore[str-unpack]
                [messages],
                tools=json.loads(tools) if tools else None,
                add_generation_prompt=prompt,
                chat_template=self.template,
                **self._special,
            )
            return str(texts[0])
        except (TemplateError, *_CRASHES):
            pass
        raise ModelError(
            "the chat template must take the roles of every conversation, but refuses "
            f"{_listed([(m['role'],) for m in messages])}. Many templates want "
            "user and assistant in turn, no system, or one call at a time: change or "
            "leave out such conversations, or choose another model."
        )

    def _renamed(self, literal: str) -> str:
        """Give special tokens the names that nobody can spell."""
        return self._control.sub(self._name_of, literal)

    def _name_of(self, found: re.Match[str]) -> str:
        return self._names[found.group()]


_FORMATS: WeakKeyDictionary[PreTrainedTokenizerFast, tuple[Any, ChatFormat]] = (
    WeakKeyDictionary()
)


def _listed(shape: Sequence[tuple[Any, ...]]) -> str:
    """Name the roles of a conversation, not all of a long one."""
    shown = ", ".join(role for role, *_ in shape[:8])
    return f"{shown} and {len(shape) - 8} more" if len(shape) > 8 else shown
