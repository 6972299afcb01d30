"""What becomes of records that repeat another one."""

from enum import StrEnum

from dptune.privacy import PrivacyUnit


class Duplicates(StrEnum):
    """What becomes of records that repeat another one.

    * `AUTO`: `EXACT` where the lemma of `dptune.data.deduplication` holds, else
      `WITHIN_UNITS`.
    * `KEEP`: all stay; where rows of a table were written out as text, equal rows are
      different people.
    * `WITHIN_UNITS`: a unit's copies of its own texts go.
    * `EXACT`: copies go, whoever owns them.
    * `NEAR`: near ones as well; templated dialogues are near duplicates by nature.
    """

    AUTO = "auto"
    KEEP = "keep"
    WITHIN_UNITS = "drop_within_units"
    EXACT = "drop_exact"
    NEAR = "drop_near"

    def resolved(self, *, privacy_unit: PrivacyUnit, has_labels: bool) -> "Duplicates":
        """Say what `AUTO` stands for; both arguments are public."""
        if self is not Duplicates.AUTO:
            return self
        if privacy_unit is PrivacyUnit.RECORD and not has_labels:
            return Duplicates.EXACT
        return Duplicates.WITHIN_UNITS

    def is_free(self, *, privacy_unit: PrivacyUnit, has_labels: bool) -> bool:
        """Whether claims hold for the data as they were before anything was dropped."""
        known = self.resolved(privacy_unit=privacy_unit, has_labels=has_labels)
        if known is Duplicates.EXACT:
            return privacy_unit is PrivacyUnit.RECORD and not has_labels
        return known is not Duplicates.NEAR
