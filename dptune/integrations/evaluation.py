"""What a script may measure its model on: rows that were not trained on.

What is measured on the training data is released without noise, so every way to do it
is closed: `evaluate`, `predict`, and the evaluation sets of a trainer, after training
and before: what a public model makes of private rows is private too.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

import torch
from torch import nn

from dptune.attacks.inference import evaluating
from dptune.data.collated import Names, Rows
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.prechecks import row_problems
from dptune.errors import ConfigError, PrivacyError, Problem
from dptune.integrations.arguments import PrivacyArguments
from dptune.integrations.refusals import seen_rows
from dptune.integrations.rows import UnitRows, name_owners, read_rows, share_seen
from dptune.integrations.script_run import ScriptRun
from dptune.models.frozen import read_only

_MOST_SEEN: Final = 0.1
"""Share of an evaluation set that may happen to repeat rows of the training data."""


class EvaluationApart:
    """What keeps a trainer of transformers from measuring on its training data."""

    args: Any  # what the other bases have
    privacy: PrivacyArguments
    script_run: ScriptRun | None
    model: Any
    train_dataset: Any
    eval_dataset: Any
    data_collator: Any
    _seen: list[tuple[object, float]]
    _read: tuple[object, UnitRows] | None = None

    def evaluate(
        self, eval_dataset: object = None, *rest: object, **named: object
    ) -> dict[str, float]:
        """Evaluate as transformers does, on rows that were not trained on.

        Raises:
            PrivacyError: they were.
        """
        self._refuse_seen(eval_dataset, "eval_dataset")
        found: dict[str, float] = super().evaluate(eval_dataset, *rest, **named)  # type: ignore[misc]
        return found

    def predict(self, test_dataset: object, *rest: object, **named: object) -> object:
        """Predict as transformers does, on rows that were not trained on.

        Raises:
            PrivacyError: they were.
        """
        self._refuse_seen(test_dataset, "test_dataset")
        return super().predict(test_dataset, *rest, **named)  # type: ignore[misc]

    def read_held_out(self, rows: Rows) -> UnitRows:
        """Read rows that were not trained on.

        Where they do not name their owners, each is a unit.

        Raises:
            ConfigError, PrivacyError: they cannot be read, by the model neither, or
                were trained on.
        """
        self._refuse_seen(rows, "others")
        column = self.privacy.unit_column
        found = read_rows(
            rows,
            self._collate,
            unit_column=column if name_owners(rows, column) else None,
            max_rows_per_unit=max(1, len(rows)),
            rows_are_single_units=True,
            names=Names(rows="others"),
        )
        if problems := _unreadable(found.data, self.model, path="others"):
            raise ConfigError(problems)
        return found

    def _collate(self, rows: list[Any]) -> Mapping[str, Any]:
        """Collate as the script does, without columns that the model does not take."""
        self._set_signature_columns_if_needed()  # type: ignore[attr-defined]
        if self.args.remove_unused_columns:
            known = set(self._signature_columns)  # type: ignore[attr-defined]
            rows = [{k: v for k, v in row.items() if k in known} for row in rows]
        elif self.privacy.unit_column is not None:
            hidden = self.privacy.unit_column
            rows = [{k: v for k, v in row.items() if k != hidden} for row in rows]
        batch: Mapping[str, Any] = self.data_collator(rows)
        return batch

    def _seen_problems(self, train: UnitRows) -> list[Problem]:
        """Look for the training data in the evaluation sets."""
        given = self.eval_dataset
        parts = given.values() if isinstance(given, dict) else [given]
        return [
            seen_rows("eval_dataset")
            for part in parts
            if part is not None and self._share_seen(part, train) > _MOST_SEEN
        ]

    def _share_seen(self, rows: Rows, train: UnitRows) -> float:
        """Compare an evaluation set with the training data, once."""
        if rows is self.train_dataset:
            return 1.0
        if not hasattr(rows, "__len__"):
            return 0.0
        known = [share for looked_at, share in self._seen if looked_at is rows]
        if not known:
            known = [share_seen(rows, self._collate, train)]
            self._seen.append((rows, known[0]))
        return known[0]

    def _refuse_seen(self, rows: object, name: str) -> None:
        """Refuse to measure on the training data."""
        if rows is None or isinstance(rows, str):
            given = self.eval_dataset
            rows = given.get(rows) if isinstance(given, dict) else given
        if rows is None or isinstance(rows, dict):
            return  # of a dictionary, each part is asked for by itself
        seen = rows is self.train_dataset
        if not seen and (known := self._private_rows()) is not None:
            seen = self._share_seen(cast("Rows", rows), known) > _MOST_SEEN
        if seen:
            raise PrivacyError(str(seen_rows(name)))

    def _private_rows(self) -> UnitRows | None:
        """Return what training reads, or has read; None where there is nothing."""
        if self.script_run is not None:
            return self.script_run.rows
        given = self.train_dataset
        if given is None:
            return None
        if self._read is None or self._read[0] is not given:
            self._read = (given, self._train_rows())
        return self._read[1]

    def _train_rows(self) -> UnitRows:
        """Read the training data by units.

        Raises:
            ConfigError: everything that is wrong with it.
        """
        return read_rows(
            self.train_dataset,
            self._collate,
            unit_column=self.privacy.unit_column,
            max_rows_per_unit=self.privacy.max_rows_per_unit,
            rows_are_single_units=self.privacy.rows_are_single_units,
        )


def _unreadable(data: UnitDataset, model: nn.Module, *, path: str) -> list[Problem]:
    """Say where a model has no tokens or positions for rows, by one that is made up."""
    problems = row_problems(data, model, path=path)
    longest, held = data.longest_sequence, read_only(model)
    device = next(model.parameters()).device
    row = torch.zeros(1, longest, dtype=torch.long, device=device)
    try:
        with evaluating(held), torch.inference_mode():
            held(input_ids=row, attention_mask=torch.ones_like(row))
    except Exception as error:  # noqa: BLE001 - code of models can raise anything
        message = (
            f"must have rows that the model can compute, got one of {longest} tokens, "
            f"which raised {type(error).__name__}."
        )
        next_step = "Cut them as the rows that were trained on."
        problems.append(Problem(path=path, message=message, next_step=next_step))
    return problems
