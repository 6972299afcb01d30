"""`trl.SFTTrainer`, privately: change the import, add one argument.

```python
from dptune.integrations.trl import DPSFTTrainer as SFTTrainer, PrivacyArguments

trainer = SFTTrainer(
    model=model,
    args=SFTConfig(output_dir="out", packing=False),
    train_dataset=train_dataset,
    privacy=PrivacyArguments(target_epsilon=8, target_delta=1e-5, max_grad_norm=1.0),
)
trainer.train()
```

Needs the extra `trl`.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from dptune.data.collated import preference_problems
from dptune.errors import ConfigError, DependencyError
from dptune.integrations.arguments import PrivacyArguments, ScriptBudget
from dptune.integrations.private_training import PrivateTraining
from dptune.models.chat_dates import without_today

try:
    from trl import SFTTrainer  # type: ignore[attr-defined]
except ImportError as error:
    raise DependencyError(
        "trl must be installed to train by its trainer. Run `pip install dptune[trl]`."
    ) from error

_FORMATTED: Final = 8

__all__ = ["DPSFTTrainer", "PrivacyArguments", "ScriptBudget"]


class DPSFTTrainer(PrivateTraining, SFTTrainer):  # type: ignore[misc]
    """A `trl.SFTTrainer` that trains privately.

    Templates, completions and assistant turns become targets as TRL makes them, one
    record at a time. `max_length` is the public length that no row exceeds. See
    `PrivateTraining` for what is guaranteed, and docs/SCRIPTS.md for what is refused.
    """

    def _prepare_dataset(
        self,
        dataset: Any,  # noqa: ANN401 - those of another library
        processing_class: Any,  # noqa: ANN401
        *rest: Any,  # noqa: ANN401
        **named: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Tokenize as TRL does, with one date every day: a template may write today's.

        Rows of another day would be others, on which no training could be resumed.

        Raises:
            ConfigError: rows compare answers, or are formatted by more than themselves.
        """
        columns = getattr(dataset, "column_names", None) or ()
        if problems := preference_problems("train_dataset", columns):
            raise ConfigError(problems)
        formatting = named.get("formatting_func", next(iter(rest[2:]), None))
        if formatting is not None and "input_ids" not in columns:
            _check_formatting(formatting, dataset)
        own = self.chat_template or getattr(processing_class, "chat_template", None)
        if isinstance(own, str) and (dated := without_today(own)) != own:
            self.chat_template = dated
        return super()._prepare_dataset(dataset, processing_class, *rest, **named)

    def _send_telemetry(self) -> None:
        """Send nothing."""


def _check_formatting(formatting: Callable[[Any], object], rows: Any) -> None:  # noqa: ANN401 - of another library
    """Refuse a function that formats a row otherwise the second time.

    What draws, or remembers rows, puts text of one unit into the row of another, as
    examples before a question that are drawn from the data.

    Raises:
        ConfigError: it does, on the first rows.
    """
    few = list(islice(rows, _FORMATTED))
    before = [formatting(dict(row)) for row in few]
    again = [formatting(dict(row)) for row in reversed(few)]
    if before != again[::-1]:
        raise ConfigError.at(
            "formatting_func",
            "must make the same of a row each time, got another text the second time: "
            "what draws or remembers rows can put one unit into rows of another. Take "
            "examples that are in no row, always the same.",
        )
