"""Rules for devices and hosts that are called by a name."""

import re

from dptune.detection.patterns.rules import Rule
from dptune.detection.patterns.validators import Range
from dptune.detection.words import word_set

_HIPAA = "45 CFR 164.514(b)(2)(i)"
_DEVICE = (
    r"(?:mac ?book(?:-?(?:pro|air))?|imac|mac-?mini|mac|iphone|ipad|ipod|laptop"
    r"|desktop|pc|notebook"
    r"|workstation|phone|tablet|thinkpad|surface|galaxy|pixel|chromebook|mbp|mba|nas"
    r"|printer|echo|kindle|macbookpro|macbookair)"
)
_NO_NAME = (
    r"(?:re|ex|un|all|self|over|mid|pay|cd|my|your|the|our|a|an|this|that|test|dev"
    r"|prod|new|old|home|work|office|gaming"
    r"|dell|hp|lenovo|acer|asus"
    r"|sony|apple|samsung|google|microsoft|smart|mobile|cell|tele|head|micro|power"
    r"|book|lap|default|local|remote"
    r"|mini|multi|non|pre|hand|in|on|by|per|to|usb|e|i|type|tag|back|front|night|stop"
    r"|dog|death|fit|data|base|sub"
    r"|inkjet|laser|3d|photo|label|touch|windows|linux|android|x86|arm|ibm|all-in-one"
    r"|two-in-one|convertible|rugged)"
)
_NOBODY = word_set(
    "it that what there here who let he she everyone someone anyone company team today "
    "user customer client child kid student mother father teacher boss woman man"
)
_NO_HOST = re.compile(
    r"(?:win|mac|pc|ws|nb)-[a-z]{1,12}(?:-[a-z]+)?|\w+-(?:based|sized|class|only|first"
    r"|like|grade|style|ready|friendly|free|quality|side|top|bound|optimi[sz]ed"
    r"|specific"
    r"|compatible|related|powered|supported|wide|less)"
)


def _refine_host(text: str, start: int, end: int) -> Range | None:
    """Refuse words that are no part of a host: `it's mac`, `a win-win`."""
    value = text[start:end]
    is_word = value in _NOBODY or _NO_HOST.fullmatch(value) is not None
    return None if is_word else (start, end)


HOST_RULES = (
    Rule(
        entity_type="DEVICE_ID",
        pattern=re.compile(
            rf"(?<![\w.-])(?!{_NO_NAME}(?:'s)?-)[a-z][a-z0-9_]{{1,20}}(?:[.-][a-z0-9]"
            rf"{{1,20}}){{0,2}}?(?:'?s)?-{_DEVICE}(?:-?\d{{1,4}})?(?:\.(?:local|lan"
            rf"|home|internal|corp|localdomain))?(?![\w-])"
            rf"|(?<![\w.-])(?:desktop|laptop|pc|mac|macbook|ipad|iphone|ws|workstation"
            rf"|nb|win|mbp)-(?!{_NO_NAME}\b|{_DEVICE}\b)[a-z0-9][\w]{{2,20}}(?:-[a-z0-"
            rf"9]{{1,15}})?(?![\w-])"
            rf"|(?<![\w.-])(?!localhost)[a-z][\w-]{{1,40}}(?:\.[\w-]{{1,40}}){{0,3}}\."
            rf"(?:local|lan|internal|corp|localdomain|intranet|home\.arpa)(?![\w-])"
            rf"|\b(?P<value>[a-z]{{2,20}})[’']s (?={_DEVICE}\b)"
        ),
        citation=f"{_HIPAA}(M); RFC 1123; RFC 6762",
        confidence=0.8,
        refine=_refine_host,
        anchors=word_set(
            "mac macbook macbookpro macbookair pro air imac mini iphone ipad ipod "
            "watch "
            "laptop desktop pc notebook workstation phone tablet thinkpad surface "
            "galaxy "
            "pixel chromebook mbp mba nas printer echo kindle ws nb win local lan "
            "internal "
            "corp localdomain intranet home"
        ),
        gate=re.compile(r"[a-z0-9]-[a-z0-9]|[’']s |\.[ilchn]"),
    ),
)
