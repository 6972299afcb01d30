"""Which language every record of a corpus is in, read part by part."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import datasets
import numpy as np
from numpy.typing import NDArray

from dptune.conversation import said_in_turns
from dptune.detection.languages.identify import ENGLISH, UNDETERMINED, language_of
from dptune.parts import each_part, values_of


@dataclass(frozen=True, kw_only=True)
class Languages:
    """The language of each record, private like the records.

    Args:
        names: of languages, in the order in which they first appear.
        numbers: for each record the place of its language in `names`.
    """

    names: tuple[str, ...]
    numbers: NDArray[np.int16] = field(repr=False)

    @classmethod
    def of(
        cls,
        dataset: datasets.Dataset,
        *,
        num_processes: int = 1,
        on_progress: Callable[[int], None] | None = None,
    ) -> "Languages":
        """Read the language of each record; that of short ones is undetermined.

        Args:
            dataset: with the column `text`.
            num_processes: side by side.
            on_progress: called now and then with the number of records read so far.
        """
        places: dict[str, int] = {}

        def read(rows: range, tell: Callable[[int], None]) -> list[str]:
            texts = values_of(dataset.select(rows), "text")
            found = [language_of(said_in_turns(text)) for text in texts]
            tell(len(rows))
            return found

        numbers = [
            np.array([places.setdefault(c, len(places)) for c in codes], np.int16)
            for codes in each_part(
                read, len(dataset), num_processes=num_processes, on_progress=on_progress
            )
        ]
        joined = np.concatenate([np.empty(0, np.int16), *numbers])
        return cls(names=tuple(places), numbers=joined)

    def settled(self) -> "Languages":
        """Return the same where a record that is too short to tell counts with most."""
        sizes = Counter({c: n for c, n in self.counts() if c != UNDETERMINED})
        most = max(sizes, key=lambda code: (sizes[code], code), default=ENGLISH)
        named = [most if name == UNDETERMINED else name for name in self.names]
        names = tuple(dict.fromkeys(named))
        new = np.array([names.index(name) for name in named], np.int16)
        return Languages(names=names, numbers=new[self.numbers])

    def counts(self) -> list[tuple[str, int]]:
        """Count the records of each language, most first."""
        numbers = np.bincount(self.numbers, minlength=len(self.names)).tolist()
        found = zip(self.names, numbers, strict=True)
        return sorted(found, key=lambda pair: -pair[1])

    def sums(self, values: Any) -> list[int]:  # noqa: ANN401 - numpy takes many kinds
        """Sum a whole number of each record by language, in the order of `names`."""
        totals = np.zeros(len(self.names), np.int64)
        np.add.at(totals, self.numbers, values)
        return totals.tolist()
