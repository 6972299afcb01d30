"""What a script says about privacy, beside the arguments that it has already."""

import math
from dataclasses import dataclass, field
from typing import Final, Literal, TypeGuard

from dptune.data.public_units import round_units
from dptune.errors import ConfigError, Problem
from dptune.privacy import NeighboringRelation, PrivacyUnit, Purpose

_RELATIONS: Final = tuple(relation.value for relation in NeighboringRelation)
_UNITS: Final = tuple(unit.value for unit in PrivacyUnit)


@dataclass(frozen=True, kw_only=True)
class PrivacyArguments:
    """The privacy of a script's training.

    What a script has said before is not said again: the expected batch is
    `per_device_train_batch_size * gradient_accumulation_steps` units, of which
    `per_device_train_batch_size` rows are in memory at once, and steps, optimizer,
    schedule, logging and checkpoints are those of its `TrainingArguments`. These have a
    `max_grad_norm` and a `seed` too, so that one parser cannot read both classes.

    Args:
        target_delta: in (0, 1 / number of units).
        max_grad_norm: C, the L2 bound of one unit's gradient; above 0.
        target_epsilon: what the whole training may spend; noise is found for it.
        noise_multiplier: noise stddev / C, in place of `target_epsilon`.
        relation: which data sets are neighbors: `add_or_remove_one` or `replace_one`.
        privacy_unit: what one neighbor changes: `record` is one row of the training
            data set, and all rows that say the same, of which one is trained on;
            `document` and `user` need `unit_column`.
        unit_column: column that names the owner of each row; the model never sees it.
        max_rows_per_unit: rows that a unit keeps, its first ones.
        num_units: public number of units, to two digits, in place of the exact one,
            which a claim would have to take as public.
        max_tokens: public length that no row exceeds; needed in bfloat16, for fixed
            shapes, and for the `public` normalizer.
        fixed_shapes: pad every batch to `max_tokens`. None does for large models, where
            the length of one record would move others by rounding, if that is given.
        loss_normalizer: what a row's summed loss is divided by: `record` is the number
            of its own targets, `public` is `max_tokens`.
        block_size: steps that are charged together.
        evaluation_is_public: the evaluation set holds nothing private, so that a model
            may be chosen, or training stopped, by what is measured on it.
        reports_stay_inside: what trackers named in `report_to` keep stays inside the
            trust boundary: they get the training loss, which is private.
        rows_are_single_units: each row was made from one unit alone, although all, or
            nearly all, have one length, which is what packing leaves.
        seed: known randomness, for tests: nothing is guaranteed then.

    Raises:
        ConfigError: values are out of range or contradict each other; all at once.

    >>> asked = PrivacyArguments(target_epsilon=8, target_delta=1e-5, max_grad_norm=1.0)
    >>> asked.relation, asked.privacy_unit
    ('add_or_remove_one', 'record')
    """

    target_delta: float
    max_grad_norm: float
    target_epsilon: float | None = None
    noise_multiplier: float | None = None
    relation: str = NeighboringRelation.ADD_OR_REMOVE_ONE.value
    privacy_unit: str = PrivacyUnit.RECORD.value
    unit_column: str | None = None
    max_rows_per_unit: int = 1
    num_units: int | None = None
    max_tokens: int | None = None
    fixed_shapes: bool | None = None
    loss_normalizer: Literal["record", "public"] = "record"
    block_size: int = 20
    evaluation_is_public: bool = False
    reports_stay_inside: bool = False
    rows_are_single_units: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check every value, and what contradicts another; report all at once."""
        problems = [
            Problem(path=f"privacy.{name}", message=f"must be {span}, got {value!r}.")
            for name, span, value, is_valid in self._checks()
            if not is_valid
        ]
        problems += [
            Problem(path=f"privacy.{name}", message=message, next_step=next_step)
            for name, message, next_step, is_wrong in self._contradictions()
            if is_wrong
        ]
        if problems:
            raise ConfigError(problems)

    def _checks(self) -> list[tuple[str, str, object, bool]]:
        """Return name, range, value, and whether it is in range."""
        counts = ("max_rows_per_unit", "num_units", "max_tokens", "block_size")
        amounts = ("target_epsilon", "noise_multiplier", "max_grad_norm")
        switches = (
            "evaluation_is_public",
            "reports_stay_inside",
            "rows_are_single_units",
        )
        choices: dict[str, tuple[str, tuple[str, ...]]] = {
            "relation": (self.relation, _RELATIONS),
            "privacy_unit": (self.privacy_unit, _UNITS),
            "loss_normalizer": (self.loss_normalizer, ("record", "public")),
        }
        delta, column, seed = self.target_delta, self.unit_column, self.seed
        shapes = self.fixed_shapes
        is_choice = shapes is None or isinstance(shapes, bool)
        is_name = column is None or (isinstance(column, str) and column != "")
        is_seed = seed is None or _is_count(seed + 1 if type(seed) is int else seed)
        return [
            ("target_delta", "in (0, 1)", delta, _is_between(delta, 1)),
            *(
                (n, "a whole number, at least 1", v, self._may_lack(n) or _is_count(v))
                for n in counts
                for v in (getattr(self, n),)
            ),
            *(
                (n, "in (0, inf)", v, self._may_lack(n) or _is_between(v, math.inf))
                for n in amounts
                for v in (getattr(self, n),)
            ),
            *(
                (n, " or ".join(all_), v, isinstance(v, str) and v in all_)
                for n, (v, all_) in choices.items()
            ),
            *(
                (n, "true or false", v, isinstance(v, bool))
                for n in switches
                for v in (getattr(self, n),)
            ),
            ("unit_column", "the name of a column", column, is_name),
            ("fixed_shapes", "true, false or None", shapes, is_choice),
            ("seed", "a whole number, at least 0", seed, is_seed),
        ]

    def _may_lack(self, name: str) -> bool:
        """Whether an argument is left out, and may be."""
        optional = {"num_units", "max_tokens", "target_epsilon", "noise_multiplier"}
        return name in optional and getattr(self, name) is None

    def _contradictions(self) -> list[tuple[str, str, str, bool]]:
        """Return name, rule, way out, and whether the rule is broken."""
        owned = self.privacy_unit != PrivacyUnit.RECORD.value
        number = self.num_units if _is_count(self.num_units) else 1
        return [
            (
                "num_units",
                f"must have two significant digits, got {number}: more tell who joins.",
                f"Say {round_units(number)}.",
                number != round_units(number),
            ),
            (
                "target_epsilon",
                "must be set exactly where noise_multiplier is not.",
                "Keep one of the two.",
                (self.target_epsilon is None) == (self.noise_multiplier is None),
            ),
            (
                "unit_column",
                (
                    f"must be set exactly where privacy_unit is not record, got "
                    f"privacy_unit={self.privacy_unit}."
                ),
                "Name the column of owners and say what they are: document or user.",
                (self.unit_column is not None) != owned,
            ),
            (
                "max_rows_per_unit",
                "must be 1 where every row is a unit of its own.",
                "Name the column of owners in unit_column.",
                not owned and self.max_rows_per_unit != 1,
            ),
            (
                "max_tokens",
                "must be set where fixed_shapes is true.",
                "Take the length that rows are cut to.",
                self.fixed_shapes is True and self.max_tokens is None,
            ),
            (
                "max_tokens",
                "must be set where loss_normalizer is public.",
                "Take the length that rows are cut to.",
                self.loss_normalizer == "public" and self.max_tokens is None,
            ),
        ]


def _is_count(value: object) -> TypeGuard[int]:
    """Whether a value is a number of things."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_between(value: object, end: float) -> bool:
    """Whether a value is a number above 0 and below `end`; YAML reads 1e-5 as text."""
    if isinstance(value, bool):  # 1 to Python
        return False
    return isinstance(value, int | float) and 0 < value < end


@dataclass(frozen=True, kw_only=True)
class ScriptBudget:
    """The budget of a data set that a script's training is charged to.

    Args:
        url: of the budget store; made if it is absent.
        data_set: whose budget it is.
        key: secret of 16 to 64 bytes that names units in the store, the same for every
            run on the data set.
        required: refuse where nothing was granted.
        purpose, sweep: training, or a trial of the named sweep.

    Raises:
        ConfigError: something is not what it must be; all at once.
    """

    url: str = field(repr=False)
    data_set: str
    key: bytes = field(repr=False)
    required: bool = True
    purpose: Purpose = Purpose.TRAINING
    sweep: str = ""

    def __post_init__(self) -> None:
        """Check what a store would trip over."""
        is_key = isinstance(self.key, bytes)
        is_tuning = self.purpose == Purpose.TUNING
        kinds = {name: type(value).__name__ for name, value in vars(self).items()}
        checks = {
            "url": (isinstance(self.url, str) and bool(self.url), "the url of a store"),
            "data_set": (
                isinstance(self.data_set, str) and bool(self.data_set),
                f"a name, got {(self.data_set and kinds['data_set']) or 'none'}",
            ),
            "key": (
                is_key and 16 <= len(self.key) <= 64,
                "16 to 64 bytes, got "
                + (f"{len(self.key)}" if is_key else kinds["key"]),
            ),
            "required": (isinstance(self.required, bool), "true or false"),
            "purpose": (self.purpose in list(Purpose), " or ".join(Purpose)),
            "sweep": (
                isinstance(self.sweep, str) and bool(self.sweep) == is_tuning,
                "named exactly where purpose is tuning",
            ),
        }
        problems = [
            Problem(path=f"budget.{name}", message=f"must be {wanted}.")
            for name, (holds, wanted) in checks.items()
            if not holds
        ]
        if problems:
            raise ConfigError(problems)
