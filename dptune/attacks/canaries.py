"""Canaries: random secrets whose rank under a model says what it memorised.

A canary is a record of its own, such as `my access code is 417302`, or a line at the
end of somebody's record. Planted ones join the training data, each copy in a privacy
unit of its own; held-out ones follow the same law and never do, so they are the
control.
"""

import hashlib
import json
import random
import secrets
import string
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dptune.conversation import RESERVED, Role, Turn, join_turns
from dptune.errors import ConfigError

Setting = Literal["as_detected", "missed", "not_missed", "partly_missed"]
Placement = Literal["own_record", "appended"]

FIRST_NEW_TOKEN = 0xE000
"""Symbols of new-token canaries are private-use characters, which no text holds."""

PLACEHOLDER = "{secret}"
_OPENING = "Please tell me."
_ALPHABETS = {
    "digits": string.digits,
    "alphanumeric": string.digits + string.ascii_uppercase,
}


PRESETS: dict[str, dict[str, object]] = {
    "jft": {
        "template": "My ID is {secret}",
        "num_planted": 1,
        "insertions": 10,
        "fixed": ("341752",),
    },
    "jft_once": {
        "template": "My ID is {secret}",
        "num_planted": 1,
        "insertions": 1,
        "fixed": ("341752",),
    },
    "jft_ten": {"template": "My ID is {secret}", "num_planted": 10, "insertions": 1},
    "rldp": {
        "template": "secret_id={secret}",
        "alphabet": "alphanumeric",
        "length": 10,
        "num_planted": 10,
        "placement": "appended",
    },
}
"""Canaries of papers: JFT (section 6.4 and appendix A.5), RLDP (section 2.1)."""


class CanarySpec(BaseModel):
    """The law that canaries are drawn from, and how they are planted.

    In a configuration, `preset` names an entry of `PRESETS` whose values every other
    key overrides; papers plant no controls, so `num_held_out` is still to be given.

    Args:
        template: text of one canary record with `{secret}` exactly once.
        alphabet: `digits` (10 symbols), `alphanumeric` (0-9, A-Z: 36 symbols), or
            `new_tokens`: private-use characters that join tokenizer and model, one
            token each, before any training. Nothing else moves their embeddings, so
            that they show the most that a run can leak (Panda et al. 2025).
        num_symbols: how many new tokens; exactly for `new_tokens`.
        length: symbols of a secret.
        placement: `own_record`, or `appended` to the text of a record of another
            unit for each copy, drawn by the set's nonce.
        fixed: secrets that are planted as they are, for replication only: they are not
            random, so that no test of a leak may take them for it.
        num_planted: canaries that join the training data.
        num_held_out: controls of the same law that do not.
        insertions: copies of each planted canary, each in a unit of its own, so that a
            record guarantee for one canary is the group guarantee of that size.
        setting: `as_detected` leaves the detector's spans, `missed` takes the secrets'
            spans away, `not_missed` forces them, `partly_missed` forces those of the
            first canaries and takes away those of the others (JFT, appendix A.5).
        role: who says it, in a conversation of its own; only for conversations.
        opening: what a user says before, so that templates take the conversation; there
            is one for every role but user and system.
        recall: share of the planted canaries that are found; exactly for
            `partly_missed`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    template: str = "my access code is {secret}"
    alphabet: Literal["digits", "alphanumeric", "new_tokens"] = "digits"
    num_symbols: int | None = Field(default=None, ge=2, le=6400)
    length: int = Field(default=6, ge=1, le=32)
    num_planted: int = Field(ge=0)
    num_held_out: int = Field(ge=0)
    insertions: int = Field(default=1, ge=1)
    setting: Setting = "as_detected"
    recall: float | None = Field(default=None, ge=0, le=1)
    placement: Placement = "own_record"
    fixed: tuple[str, ...] = ()
    role: Role | None = Field(default=None, exclude_if=lambda role: role is None)
    opening: str | None = Field(
        default=None, min_length=1, exclude_if=lambda text: text is None
    )

    @model_validator(mode="before")
    @classmethod
    def _expand(cls: type[Self], values: object) -> object:
        """Start from a preset, if one is named."""
        if not isinstance(values, dict) or "preset" not in values:
            return values
        rest = {key: value for key, value in values.items() if key != "preset"}
        name = values["preset"]
        if name not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}.")
        return {**PRESETS[name], **rest}

    @field_validator("template")
    @classmethod
    def _check_template(cls: type[Self], template: str) -> str:
        """The secret must have exactly one place."""
        if template.count(PLACEHOLDER) != 1:
            raise ValueError(f"template must hold {PLACEHOLDER} exactly once.")
        return template

    @model_validator(mode="after")
    def _check_size(self: Self) -> Self:
        """All canaries must be distinct, so the space must be large enough."""
        if (self.num_symbols is not None) != (self.alphabet == "new_tokens"):
            raise ValueError("num_symbols must be set exactly for alphabet new_tokens.")
        if (self.recall is not None) != (self.setting == "partly_missed"):
            raise ValueError("recall must be set exactly for setting partly_missed.")
        if self.num_planted + self.num_held_out > self.space_size:
            raise ValueError(
                "num_planted + num_held_out must be at most the number of candidates, "
                f"got {self.num_planted + self.num_held_out} of {self.space_size}."
            )
        if self.fixed and len(set(self.fixed)) != self.num_planted:
            raise ValueError("fixed must hold num_planted distinct secrets, or none.")
        if not all(self._is_candidate(secret) for secret in self.fixed):
            raise ValueError("fixed must hold candidates of this spec.")
        return self

    @model_validator(mode="after")
    def _check_role(self: Self) -> Self:
        """A canary of a role is a conversation of its own, written as others are."""
        if self.role is not None and self.placement == "appended":
            raise ValueError("placement must be own_record for canaries of a role.")
        if self.opening is not None and self.role in {None, "user", "system"}:
            raise ValueError("opening must be set only for roles that answer a user.")
        opening = self.opening or ""
        if self.role and (
            RESERVED.search(self.template + opening) or PLACEHOLDER in opening
        ):
            raise ValueError("template and opening must hold text, and one secret.")
        return self

    def _is_candidate(self: Self, secret: str) -> bool:
        """Whether a text is one of the candidates."""
        return len(secret) == self.length and set(secret) <= set(self.symbols)

    @property
    def symbols(self: Self) -> str:
        """The symbols a secret is made of, in candidate order."""
        if self.num_symbols is not None:
            return "".join(chr(FIRST_NEW_TOKEN + i) for i in range(self.num_symbols))
        return _ALPHABETS[self.alphabet]

    @property
    def num_new_units(self: Self) -> int:
        """Privacy units that planting adds: none where hosts are units already."""
        return self.num_planted * self.insertions * (self.placement == "own_record")

    def is_marked(self: Self, number: int) -> bool | None:
        """Whether the setting marks a planted canary; None where the detector does."""
        if self.setting == "as_detected":
            return None
        if self.recall is not None:
            return number < round(self.recall * self.num_planted)
        return self.setting == "not_missed"

    @property
    def space_size(self: Self) -> int:
        """The number |R| of candidates."""
        return int(len(self.symbols) ** self.length)

    @property
    def text(self: Self) -> str:
        """Text of a record with a place for the secret; the template, or a chat."""
        if self.role is None:
            return self.template
        canary = Turn(role=self.role, content=self.template, trained=True)
        if self.role in {"user", "system"}:
            return join_turns([canary])
        asked = Turn(role="user", content=self.opening or _OPENING)
        return join_turns([asked, canary])

    @property
    def prefix(self: Self) -> str:
        """Text before the secret."""
        return self.text.split(PLACEHOLDER)[0]

    @property
    def suffix(self: Self) -> str:
        """Text after the secret."""
        return self.text.split(PLACEHOLDER)[1]

    def record(self: Self, secret: str) -> str:
        """The whole text of one canary record."""
        return self.text.replace(PLACEHOLDER, secret)

    def secret_at(self: Self, index: int) -> str:
        """The candidate at `index` in `[0, space_size)`, in lexicographic order."""
        base = len(self.symbols)
        out = []
        for _ in range(self.length):
            index, digit = divmod(index, base)
            out.append(self.symbols[digit])
        return "".join(reversed(out))

    def index_of(self: Self, secret: str) -> int:
        """Inverse of `secret_at`.

        Raises:
            ConfigError: the secret is not one of the candidates.
        """
        if not self._is_candidate(secret):
            raise ConfigError(
                "secret must be a candidate of its canary spec. Draw canaries with "
                "draw_canaries, or load the set together with its own spec."
            )
        index = 0
        for symbol in secret:
            index = index * len(self.symbols) + self.symbols.index(symbol)
        return index


class CanarySet(BaseModel):
    """Drawn canaries. Restricted: its JSON holds the secrets, its `repr` does not.

    Args:
        spec: the law they were drawn from.
        planted: secrets that join the training data.
        held_out: control secrets.
        nonce: random text that keeps `digest` from being guessed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    restricted: ClassVar[bool] = True

    schema_version: int = 1
    spec: CanarySpec
    planted: tuple[str, ...] = Field(repr=False)
    held_out: tuple[str, ...] = Field(repr=False)
    nonce: str = Field(repr=False)

    @model_validator(mode="after")
    def _check_secrets(self: Self) -> Self:
        """Secrets are distinct, of the spec's law, and as many as it says."""
        drawn = self.planted + self.held_out
        if len(set(drawn)) != len(drawn):
            raise ValueError("planted and held_out must all be distinct.")
        counts = (len(self.planted), len(self.held_out))
        if counts != (self.spec.num_planted, self.spec.num_held_out):
            raise ValueError(f"the spec plans other counts than {counts}.")
        for secret in drawn:
            self.spec.index_of(secret)
        return self

    @property
    def digest(self: Self) -> str:
        """Commitment to spec and secrets, safe to print on a report."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    @property
    def num_expected(self: Self) -> int:
        """Canary records that a training view must hold."""
        return len(self.planted) * self.spec.insertions


def draw_canaries(spec: CanarySpec, *, seed: int | None = None) -> CanarySet:
    """Draw distinct canaries uniformly from the spec's candidates.

    Args:
        spec: the law and the counts.
        seed: only for tests; None draws from the operating system's secure source.

    Returns:
        Planted and held-out canaries, all distinct.

    >>> spec = CanarySpec(template="my code is {secret}", num_planted=2, num_held_out=1)
    >>> canaries = draw_canaries(spec)
    >>> len(canaries.planted), len(canaries.held_out), spec.space_size
    (2, 1, 1000000)
    >>> canaries.planted[0] in repr(canaries)
    False

    Privacy:
        The result is restricted: whoever knows a secret can find it in a model.
    """
    source = secrets.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311 - seeded only in tests
    total = spec.num_planted + spec.num_held_out
    indices = _distinct_indices(spec, total, source, taken=spec.fixed)
    drawn = [*spec.fixed, *map(spec.secret_at, indices)]
    return CanarySet(
        spec=spec,
        planted=tuple(drawn[: spec.num_planted]),
        held_out=tuple(drawn[spec.num_planted :]),
        nonce=f"{source.getrandbits(128):032x}",
    )


def _distinct_indices(
    spec: CanarySpec, count: int, source: random.Random, *, taken: tuple[str, ...]
) -> list[int]:
    """Distinct uniform candidate indices; `range` cannot sample above 2^63."""
    known = dict.fromkeys(map(spec.index_of, taken))
    if 4 * count >= spec.space_size:
        left = [i for i in range(spec.space_size) if i not in known]
        return source.sample(left, count - len(known))
    found = dict(known)
    while len(found) < count:
        found[source.randrange(spec.space_size)] = None
    return list(found)[len(known) :]


def canary_ids(canaries: CanarySet) -> dict[str, str]:
    """Row id `canary-<i>-<copy>` of every planted copy, with its secret."""
    return {
        f"canary-{i}-{copy}": secret
        for i, secret in enumerate(canaries.planted)
        for copy in range(canaries.spec.insertions)
    }
