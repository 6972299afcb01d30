"""Words that the text around them cannot judge: other scripts, decomposed letters.

In English text every word in another script is an unknown word, and so is one whose
letters carry marks of their own unless English knows its composed form. Marks join
the letters before them, so that no word is cut into pieces.
"""

import re
import unicodedata
from collections.abc import Iterator

from dptune.detection import words as w
from dptune.detection.languages.values import Found

_OTHER = (
    "\u0370-\u037d\u037f-\u0386\u0388-\u0559\u0561-\u0588\u0591-\u05bd\u05bf\u05c1-\u05c2"
    "\u05c4-\u05c5\u05c7-\u05f4\u0610-\u061a\u0620-\u0669\u066e-\u06d3\u06d5-\u06ff"
    "\u0710-\u0963\u0966-\u0e2e\u0e30-\u0e3a\u0e40-\u0e4e\u0e50-\u0f03\u0f18-\u0f33"
    "\u0f35-\u0f39\u0f3e-\u1049\u1050-\u1360\u1369-\u169a\u16a0-\u16ea\u1700-\u17d3"
    "\u17d7\u17dc-\u17ff\u1810-\u1dff\u1f00-\u1fff\u2c00-\u2dff\u3005-\u3007\u3031-\u3035"
    "\u3041-\u30fa\u30fc-\ua4cf\ua4d0-\ua4fd\ua500-\ua60c\ua610-\ua672\ua674-\ua67d"
    "\ua67f-\ua6f1\ua720-\ua873\ua880-\ua8cd\ua8d0-\ua8f7\ua8fb-\uabea\uabec-\ud7ff"
    "\uf900-\ufd3d\ufd50-\ufdff\ufe70-\ufefc\uff66-\uffdc"
    "\U00010000-\U000100ff\U00010280-\U0001bfff\U00020000-\U0003ffff"
)
_MARKS = "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20f0\ufe20-\ufe2f"
_RUN = re.compile(
    f"[{_OTHER}][{_OTHER}{_MARKS}\u200c\u200d]*"
    f"(?:[ '’.\u00b7-]{{1,2}}[{_OTHER}][{_OTHER}{_MARKS}\u200c\u200d]*)*"
)
_HAS_OTHER = re.compile(f"[{_OTHER}]")
_HAS_MARK = re.compile(f"[{_MARKS}]")
_LATIN_RUN = re.compile(f"(?:[^\\W\\d_]|[{_MARKS}])+")


def find_foreign_words(text: str) -> Iterator[Found]:
    """Yield runs of words in scripts other than Latin, and unknown marked words.

    Args:
        text: as it is, of a part whose language is written in Latin letters or open.
    """
    if text.isascii():
        return
    if _HAS_OTHER.search(text):
        for match in _RUN.finditer(text):
            if any(map(str.isalpha, match.group())):
                yield *match.span(), "UNKNOWN", 0.5
    if _HAS_MARK.search(text):
        for match in _LATIN_RUN.finditer(text):
            word = match.group()
            if _HAS_MARK.search(word) and any(map(str.isalpha, word)):
                composed = unicodedata.normalize("NFC", word).lower()
                if not w.reading_of(composed) & w.LEXICAL:
                    yield *match.span(), "UNKNOWN", 0.5
