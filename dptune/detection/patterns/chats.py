"""Who speaks in a chat, and whose a folder, a session or an action of a log is."""

import re
from collections.abc import Iterator

from dptune.detection import words as w
from dptune.detection.patterns.field_kinds import (
    NAMES,
    NO_SPEAKER,
    SERVICE,
    Value,
    looks_like_name,
)

_OF_LOG = (
    *("/home/", "sers/", "sers\\", "uid=", "user ", "User ", "ogin", "assword"),
    *("ccount ", "ember ", "publickey", "session", "uthenti", "ccess", "ermission"),
)


def chat_values(text: str) -> Iterator[Value]:
    """Yield names of speakers and of accounts; they may overlap.

    Args:
        text: the plain form of a text, with its capitals.
    """
    if any(sign in text for sign in _OF_LOG):
        yield from _logins(text)
    yield from _speakers(text)


_CLOCK = (
    r"[\[(]?(?:\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}[ T,]{1,2})?\d{1,2}:\d\d(?::\d\d)?("
    r"?:[.,]\d{1,6})?(?:z|\s?[ap]\.?m\.?)?[\])]?"
)
_WHO = r"[^\W\d][\w.'’-]{0,24}(?: [^\W\d][\w.'’-]{0,24}){0,2}"
_TURN = re.compile(
    rf"(?m)^[ \t>*-]{{0,4}}(?:(?P<clock>{_CLOCK})[ \t]{{0,3}}(?:[-–—|~] ?)?)?"
    rf"(?:<(?P<irc>[@+~&%]?{_WHO})>(?=[ \t])|[*@~\[(]{{0,2}}(?P<who>{_WHO})[*\])]{{0,"
    rf"2}}(?P<later> ?[\[(]?{_CLOCK})?[ \t]?:\*{{0,2}}(?=\s|$)"
    rf"|(?P<alone>{_WHO})[ \t]{{1,4}}(?:[-–—|·] ?)?{_CLOCK}[ \t]{{0,2}}$)",
    re.IGNORECASE,
)
_JOINED = re.compile(
    rf"(?i)(?:(?m:^)|\]|\*|\d|-->|<--)[ \t*>-]{{0,4}}(?P<who>{_WHO}?) (?:has "
    rf"|was )?(?:joined|left|quit|entered|is typing|is now known as|invited|removed"
    rf"|kicked|set the topic|changed the)"
)


def _speakers(text: str) -> Iterator[Value]:
    """Read who speaks in a chat."""
    if ":" in text or ">" in text:
        for match in _TURN.finditer(text):
            group = next(g for g in ("irc", "who", "alone") if match[g] is not None)
            name = match[group].strip(" @+~&%")
            first = name.lower().split()[0]
            has_clock = match["clock"] or match["later"] or group == "alone"
            if first in NO_SPEAKER or (group == "irc" and f"</{first}" in text.lower()):
                continue
            if (
                group == "irc"
                or (has_clock and not _is_prose(name))
                or _is_speaker(name)
            ):
                yield match.start(group), match.end(group), "PERSON"
    if (
        " joined" in text
        or " left" in text
        or " quit" in text
        or "typing" in text
        or "removed" in text
        or "kicked" in text
    ):
        for match in _JOINED.finditer(text):
            if looks_like_name(match["who"]) or (
                len(match["who"].split()) == 1
                and not w.reading_of(match["who"].lower()) & (w.CLOSED | w.KNOWN)
            ):
                yield match.start("who"), match.end("who"), "PERSON"


def _is_speaker(name: str) -> bool:
    """Tell whether the word before a colon is a name that the lexicon knows."""
    words = name.split()
    readings = [w.reading_of(word.lower().rstrip(".")) for word in words]
    is_even = words[0][0].isupper() == words[-1][0].isupper()
    has_name = any(reading & NAMES for reading in readings)
    return has_name and is_even and looks_like_name(name)


_LOGIN = re.compile(
    r"(?i)(?:/home/|[/\\]users[/\\])(?P<folder>[a-z][\w.@-]{1,40})"
    r"|\buid=\d{1,9}\((?P<uid>[a-z][\w.@-]{1,40})\)"
    r"|\b(?:password|passwd|publickey|keyboard-interactive(?:/pam)?|session (?:opened"
    r"|closed)"
    r"|log-?(?:in|on)(?: failed)?|sign-?in|authentication (?:failure|failed)"
    r"|access denied"
    r"|access granted|permission denied|account locked|token (?:issued|revoked)) "
    r"(?:for|by|to) (?:invalid |illegal )?(?:user |account |member )?"
    r"(?P<quote>['\"]?)(?P<login>[a-z][\w.@-]{1,40})"
    r"|\b(?:user|member|account|by) (?P<mark>['\"])(?P<quoted>[^'\"\n]{2,40})(?P=mark)"
    r"|\b(?:user|member|account) (?P<plain>[a-z][\w.@-]{1,40}) (?=(?:has |was "
    r"|is )?(?:logged|log(?:s)? (?:in|out)"
    r"|signed|connected|disconnected|authenticated|joined|left|created|deleted|updated"
    r"|changed"
    r"|uploaded|downloaded|not found|added|removed|locked|banned|invited|registered)\b)"
)


def _logins(text: str) -> Iterator[Value]:
    """Read whose a folder, a session or an action of a log is."""
    for match in _LOGIN.finditer(text):
        group = next(
            g
            for g in ("folder", "uid", "login", "quoted", "plain")
            if match[g] is not None
        )
        name = match[group].lower()
        reading = w.reading_of(name)
        is_told = group in {"folder", "uid", "quoted"} or bool(match["quote"])
        is_word = reading & w.KNOWN and not reading & NAMES
        if name not in SERVICE and not reading & w.CLOSED and (is_told or not is_word):
            yield *match.span(group), "USERNAME"


def _is_prose(name: str) -> bool:
    """Tell whether words of a closed class stand before a colon."""
    words = name.lower().split()
    return len(words) > 1 and any(w.reading_of(word) & w.CLOSED for word in words)
