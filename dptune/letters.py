"""Groups of letters and marks, by their code points."""


def is_accent(mark: str) -> bool:
    """Whether a mark may be left out: Latin accents, Hebrew and Arabic vowel points."""
    code = ord(mark)
    return (
        0x300 <= code <= 0x36F
        or 0x591 <= code <= 0x5C7
        or 0x610 <= code <= 0x61A
        or 0x64B <= code <= 0x65F
        or code == 0x670
        or 0xFE00 <= code <= 0xFE0F
    )


def is_unspaced(character: str) -> bool:
    """Whether a script has no blanks: Han, kana, Thai, Lao, Khmer, Burmese."""
    code = ord(character)
    return (
        0x0E00 <= code <= 0x0EFF
        or 0x1000 <= code <= 0x109F
        or 0x1780 <= code <= 0x17FF
        or 0x3040 <= code <= 0x30FF
        or 0x3400 <= code <= 0x9FFF
        or 0xF900 <= code <= 0xFAFF
        or 0x20000 <= code <= 0x3FFFF
    )
