"""What models say after the beginnings of held-out records, with values masked."""

from typing import Self

from dptune.results.base import Report


class Completions(Report):
    """One prompt, and how each model goes on.

    Args:
        prompt: its end, masked.
        base: completion of the model before fine-tuning, masked.
        model: of the model that was trained, masked.
    """

    prompt: str
    base: str
    model: str


class SamplesReport(Report):
    """Completions to look at. They prove nothing, and no gate reads them.

    What the detector marks, what it marked anywhere in the corpus, and secrets of
    canaries are masked; what none of these knows is not.

    Args:
        model_digest: of the model's weights.
        base_model_digest: of the base model's weights.
        decoding: how tokens were drawn, in words.
        completions: empty where none were asked for, or the model writes no text.
    """

    model_digest: str
    base_model_digest: str
    decoding: str = ""
    completions: tuple[Completions, ...] = ()

    def prompts(self: Self) -> tuple[str, ...]:
        """What was completed, by which reports of two models are put side by side."""
        return tuple(one.prompt for one in self.completions)
