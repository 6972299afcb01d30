"""`transformers.Trainer`, privately: change the import, add one argument.

```python
from dptune.integrations.transformers import DPTrainer as Trainer, PrivacyArguments

trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=train_dataset,
    privacy=PrivacyArguments(target_epsilon=8, target_delta=1e-5, max_grad_norm=1.0),
)
trainer.train()
```
"""

from transformers import Trainer

from dptune.integrations.arguments import PrivacyArguments, ScriptBudget
from dptune.integrations.private_training import PrivateTraining

__all__ = ["DPTrainer", "PrivacyArguments", "ScriptBudget"]


class DPTrainer(PrivateTraining, Trainer):  # type: ignore[misc]
    """A `transformers.Trainer` that trains privately.

    See `PrivateTraining` for what is guaranteed, and docs/SCRIPTS.md for what of a
    script stays and what is refused.
    """
