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
    *("/home/", "sers/", "sers\\", "uid=", "user ", "User ", "account ", "member "),
    *("ssword for", "publickey for", "ned for", "sed for", "ogin for", "ogon for"),
    *("ure for", "led for", "ied for", "ked for", "ued for", "ued to", "ted for"),
    *("ogin by", "by '", 'by "'),
)
_OF_ACTION = (
    "ed by ",
    "en by ",
    "nt by ",
    "ed to ",
    "ed in",
    "ed out",
    "user ",
    "(to ",
)
_OF_ROOM = (" joined", " left", " quit", "typing", "removed", "kicked")


def chat_values(text: str) -> Iterator[Value]:
    """Yield names of speakers and of accounts; they may overlap.

    Args:
        text: the plain form of a text, with its capitals.
    """
    if any(sign in text for sign in _OF_LOG):
        yield from _logins(text)
    if any(sign in text for sign in _OF_ACTION):
        yield from _actors(text)
    if "^" in text:
        yield from ((*m.span(), "PERSON") for m in _CARET.finditer(text))
    if ":" in text or ">" in text or "[" in text:
        yield from _speakers(text)
    if any(sign in text for sign in _OF_ROOM):
        yield from _visitors(text)


_CLOCK = (
    r"[\[(]?(?:\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}[ T,]{1,2})?\d{1,2}:\d\d(?::\d\d)?("
    r"?:[.,]\d{1,6})?(?:z|\s?[ap]\.?m\.?)?[\])]?"
)
_WHO = r"[^\W\d][\w.'’-]{0,24}(?: [^\W\d][\w.'’-]{0,24}){0,2}"
_TURN = re.compile(
    rf"(?m)^[ \t>*-]{{0,4}}(?:(?P<clock>{_CLOCK})[ \t]{{0,3}}(?:[-–—|~] ?)?)?"
    rf"(?:<(?P<irc>[@+~&%]?{_WHO})>(?=[ \t])|[*@~\[(]{{0,2}}(?P<who>{_WHO})[*\])]{{0,"
    rf"2}}(?P<later> ?[\[(]?{_CLOCK})?[ \t]?:\*{{0,2}}(?=\s|$)"
    rf"|\[(?P<bracket>{_WHO})\](?=[ \t]\S)|(?P<arrow>{_WHO})>(?=[ \t]\S)"
    rf"|(?P<alone>{_WHO}),?[ \t]{{1,4}}(?:[-–—|·] ?)?{_CLOCK}[ \t]{{0,2}}$)",
    re.IGNORECASE,
)
_JOINED = re.compile(
    rf"(?i)(?:(?m:^)|\]|\*|\d|-->|<--)[ \t*>-]{{0,4}}(?P<who>{_WHO}?) (?:has "
    rf"|was )?(?:joined|left|quit|entered|is typing|is now known as|invited|removed"
    rf"|kicked|set the topic|changed the)"
)


_SAID = re.compile(rf"(?im)^{_CLOCK}[ \t]{{1,3}}(?P<who>[^\W\d][\w'’-]{{1,24}}) (?=\w)")
_CLOSED = re.compile(r"</([^\W\d][\w.'’-]{0,24})")
_GROUPS = ("irc", "who", "bracket", "arrow", "alone")
_CARET = re.compile(
    r"(?i)\b[a-z][a-z'’-]{1,30}\^[a-z][a-z'’-]{1,30}(?:\^[a-z]{1,20})?\b"
)


def _speakers(text: str) -> Iterator[Value]:
    """Read who speaks in a chat."""
    tags = {match[1] for match in _CLOSED.finditer(text.lower())}
    for match in _TURN.finditer(text):
        group = next(group for group in _GROUPS if match[group] is not None)
        name = match[group].strip(" @+~&%")
        first = name.lower().split()[0]
        has_clock = match["clock"] or match["later"] or group == "alone"
        if first in NO_SPEAKER or (group == "irc" and first in tags):
            continue
        is_told = group == "irc" or (has_clock and not _is_prose(name))
        if is_told or _is_speaker(name):
            yield match.start(group), match.end(group), "PERSON"
    for match in _SAID.finditer(text):
        if match["who"].lower() not in NO_SPEAKER and _is_speaker(match["who"]):
            yield match.start("who"), match.end("who"), "PERSON"


def _visitors(text: str) -> Iterator[Value]:
    """Read who comes and goes."""
    for match in _JOINED.finditer(text):
        name = match["who"]
        is_unknown = not w.reading_of(name.lower()) & (w.CLOSED | w.KNOWN)
        if looks_like_name(name) or (is_unknown and len(name.split()) == 1):
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


_DONE = w.word_set(
    "created opened closed updated modified approved reviewed signed submitted "
    "assigned "
    "reported written authored requested uploaded deleted edited posted sent verified "
    "handled issued prepared witnessed filed committed"
)
_ACTION = re.compile(
    rf"(?i)(?:ed|en|nt) (?:by|to) (?P<by>{_WHO})"
    r"| (?:has )?(?:signed|logged) (?P<in>in|out|on|off)\b"
    r"| user (?P<user>[a-z][\w.-]{1,24})|\(to (?P<su>[a-z]\w{1,24})\)"
)
_LAST_WORD = re.compile(r"[^\W\d][\w.'’-]{1,24}\Z")


def _actors(text: str) -> Iterator[Value]:
    """Read who did what a log or a form says was done."""
    for match in _ACTION.finditer(text):
        group = next(g for g in ("by", "in", "user", "su") if match[g] is not None)
        start, end = match.span(group)
        low = max(0, match.start() - 26)
        if group == "by":
            verb = _LAST_WORD.search(text, low, match.start() + 2)
            if verb is None or verb.group().lower() not in _DONE:
                continue
        if group == "in":
            before = _LAST_WORD.search(text, low, match.start())
            start, end = before.span() if before else (start, start)
        name = _leading_name(text[start:end])
        if name:
            yield start, start + len(name), "PERSON"


def _leading_name(text: str) -> str:
    """Return the longest run of first words that is a name the lexicon knows."""
    words = text.split(" ")
    for count in range(len(words), 0, -1):
        name = " ".join(words[:count]).rstrip(".")
        if name and name.lower() not in SERVICE and _is_speaker(name):
            return name
    return ""


def _is_prose(name: str) -> bool:
    """Tell whether words of a closed class stand before a colon."""
    words = name.lower().split()
    return len(words) > 1 and any(w.reading_of(word) & w.CLOSED for word in words)
