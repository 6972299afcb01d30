"""The rule type of the pattern recognizer, and the rules for structured data.

Every expression is bounded: no quantifier is nested in an unbounded one, and each
attempt ends after a fixed number of characters, so that no text makes it slow. Rules
run on lower-cased text; `cased` rules run on the text as it is.
"""

import re
from dataclasses import dataclass

from dptune.detection.patterns import validators as v


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One pattern.

    Args:
        entity_type: type of the spans it makes.
        pattern: regular expression; the group `value`, if any, is the span.
        citation: the standard or law that defines the form.
        confidence: 1.0 only with a checksum or an exact form.
        refine: narrows or refuses a candidate.
        cased: run on the original text, not on the lower-cased one.
        needs: one of these strings must occur in the lower-cased text.
        gate: must match somewhere in the text that the rule runs on; cheaper than
            `pattern`, which is not tried otherwise.
        needs_digit: every match holds a digit.
        min_digits: digits that one number must hold, with at most five signs between
            any two, for the rule to be tried.
        anchors: every match holds one of these words, which the rule is tried around.
        reach: characters that a match may have before its first and after its last
            digit or anchor; only such neighborhoods are searched where `needs_digit`
            is set or `anchors` are.
    """

    entity_type: str
    pattern: re.Pattern[str]
    citation: str
    confidence: float
    refine: v.Refiner | None = None
    cased: bool = False
    needs: tuple[str, ...] = ()
    gate: re.Pattern[str] | None = None
    needs_digit: bool = False
    min_digits: int = 1
    anchors: frozenset[str] = frozenset()
    reach: int = 80


_TLD = (
    "com|org|net|edu|gov|mil|int|io|co|info|biz|name|ai|app|dev|me|tv|xyz|online|site|"
    "shop|store|uk|de|fr|ru|cn|nl|eu|us|ca|au|ch|at|be|br|cy|cz|dk|es|fi|gr|hu|ie|il|i"
    "n|is|it|jp|kr|mx|no|nz|pl|pt|ro|se|sg|si|sk|tr|ua|uy|za"
)
_SIGN = re.compile(r"[\w.+%'&]\s{0,2}@\s{0,2}[\w\[]")
_HOST = r"(?:[\w-]{1,63}\.){1,6}"

_SAID_OF_IT = (
    "required|wrong|incorrect|correct|invalid|valid|expired|expiring|too|not|the|an?|my"
    "|your|weak|strong|reset|changed|updated|stored|saved|safe|secure|never|always|now"
    "|still|encrypted|hashed|here|missing|empty|blank|sent|protected|unknown|default|set"
    "|being|been|going|only|also|asked|accepted|rejected|locked|compromised|leaked|stolen"
    "|lost|forgotten|needed|used|written|working|fine|ok|okay|good|bad|long|short|secret"
    "|visible|hidden|case|at|on|in|to|for|from|by|with|different|new|old|so|very|what|as"
    "|about|just|one|what"
)

NETWORK_RULES = (
    Rule(
        entity_type="EMAIL",
        pattern=re.compile(
            rf"[\w.+%'&-]{{1,64}}(?:@|\s{{1,2}}@\s{{0,2}}|@\s{{1,2}})"
            rf"(?:{_HOST}[a-z]{{2,24}}\b|\[[\d.:a-f]{{7,39}}\])"
        ),
        citation="RFC 5321, 4.5.3.1; RFC 5322, 3.4.1",
        confidence=1.0,
        needs=("@",),
        gate=_SIGN,
    ),
    Rule(
        entity_type="EMAIL",
        pattern=re.compile(
            r"(?<![\w.+-])(?!(?:me|us|him|her|you|them|it|is|be|mail|e-?mail|contact"
            r"|reach"
            r"|found) at )"
            r"[\w+-]{1,64}(?:(?:\.|\s?[(\[{](?:dot|underscore)[)\]}]\s?"
            r"|\s(?:dot|underscore|dash|hyphen|minus|plus)\s)[\w+-]{1,64}){0,3}"
            r"\s{0,2}(?:[(\[{<]\s?(?:at|@)\s?[)\]}>]|\bat\b)\s{0,2}[\w-]{1,63}"
            r"(?:(?:\s{0,2}[(\[{]\s?(?:dot|\.)\s?[)\]}]\s{0,2}|\sdot\s|\.)[\w-]{2,24})"
            r"{1,3}\b"
        ),
        citation="RFC 5322, 3.4.1, spelled out",
        confidence=0.9,
        refine=v.refine_spelled_email,
        gate=re.compile(r"at ?[)\]}>]|[(\[{<] ?@|\bdot\b|\bat [\w-]{1,63}\.[a-z]{2}"),
    ),
    Rule(
        entity_type="EMAIL",
        pattern=re.compile(
            r"[\w+-]{1,64}(?:\s?\.\s?[\w+-]{1,64}){0,3}\s{0,2}@\s{0,2}[\w-]{1,63}"
            r"(?:\s?\.\s?[\w-]{2,63}){0,3}(?:\s\.\s?[a-z]{2,24}\b|\.\n[a-z]{2,24}\b"
            r"|\s?\.\s?(?:com|org|net|edu|gov|mil|io|co|uk|de|fr|eu|ca|au)\b)"
        ),
        citation="RFC 5322, 3.4.1, with blanks around its signs",
        confidence=0.9,
        refine=v.refine_spaced_email,
        needs=("@",),
        gate=_SIGN,
    ),
    Rule(
        entity_type="EMAIL",
        pattern=re.compile(
            r"(?<![\w.@+-])[a-z][\w.+-]{1,63}@[a-z][\w-]{1,62}\b(?![.@]\w)"
        ),
        citation="RFC 5321, 2.3.5, a mailbox on a host without a domain",
        confidence=0.8,
        needs=("@",),
        gate=re.compile(r"\w@[a-z]"),
    ),
    Rule(
        entity_type="URL",
        pattern=re.compile(
            r"(?:\b(?:https?|ftps?|sftp|ssh|file|git)://|\bwww\.)[^\s<>\"')\]]{2,2000}"
        ),
        citation="RFC 3986, 3",
        confidence=0.95,
        needs=("://", "www."),
    ),
    Rule(
        entity_type="URL",
        pattern=re.compile(
            rf"\b{_HOST}(?:{_TLD})\b(?![.@]\w)(?::\d{{2,5}})?"
            r"(?:/[^\s<>\"')\]]{0,500})?"
        ),
        citation="RFC 1123, 2.1; RFC 3986, 3.2",
        confidence=0.85,
        gate=re.compile(rf"\.(?:{_TLD})\b"),
    ),
    Rule(
        entity_type="IP",
        pattern=re.compile(
            r"(?<![\w.])\d{1,3}(?P<dot>\.|\s?[\[({]\s?(?:\.|dot)\s?[\])}]\s?| \. "
            r"|\.\s|\s\.| dot )(?:\d{1,3}(?:(?P=dot)|\.\s?)){2}\d{1,3}"
            r"(?:/\d{1,2})?(?!\w|\.\d)"
        ),
        citation="RFC 791, 3.2; GDPR recital 30",
        confidence=0.95,
        refine=v.refine_ip,
        gate=re.compile(r"\d(?:\s?[\[({]?\s?(?:\.|dot)[\s\])}]{0,2}\d{1,3}){3}"),
        needs_digit=True,
    ),
    Rule(
        entity_type="IP",
        pattern=re.compile(
            r"(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}(?:[0-9a-f]{1,4}"
            r"|(?:\d{1,3}\.){3}\d{1,3})?"
            r"(?:%\w{1,15})?(?:/\d{1,3})?(?![\w:])"
        ),
        citation="RFC 4291, 2.2; GDPR recital 30",
        confidence=0.95,
        refine=v.refine_ip,
        needs=(":",),
    ),
    Rule(
        entity_type="MAC",
        pattern=re.compile(
            r"\b(?:(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}|(?:[0-9a-f]{4}\.){2}[0-9a-f]{4})\b"
        ),
        citation="IEEE 802, EUI-48",
        confidence=0.95,
        needs_digit=True,
        min_digits=1,
        gate=re.compile(r"[:-][0-9a-f]{2}[:-]|\.[0-9a-f]{4}\."),
    ),
    Rule(
        entity_type="UUID",
        pattern=re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"),
        citation="RFC 9562, 4",
        confidence=0.95,
        needs=("-",),
    ),
    Rule(
        entity_type="SECRET",
        pattern=re.compile(
            r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[\w-]{35}\b"
            r"|\b(?:sk|pk|rk|gh[opsur]|github_pat|xox[abprs]|hf|glpat|npm|pypi|dop_v1)"
            r"[-_][\w-]{16,255}|\beyJ[\w-]{10,2000}\.[\w-]{10,2000}\.[\w-]{0,500}"
            r"|\b[0-9a-f]{32,128}\b|\bya29\.[\w-]{20,255}"
            r"|\bSG\.[\w-]{16,64}\.[\w-]{16,64}"
            r"|\bBearer [\w.~+/-]{16,2000}=?|://[^\s/:@]{1,64}:(?P<value>[^\s/@]{3,128"
            r"})@"
            r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[^-]{0,20000}"
            r"(?:-----END[^-]{0,40}-----)?"
        ),
        citation="RFC 7468, 10; RFC 7519, 3; token formats of the issuers",
        confidence=0.95,
        cased=True,
        gate=re.compile(r"(?<!\S)\S{16}|://|BEGIN"),
    ),
    Rule(
        entity_type="SECRET",
        pattern=re.compile(
            r"\b(?:password|passwd|pwd|passphrase|api[ _-]?key|secret(?: key)?"
            r"|access key|auth token|token)"
            r"(?:\s{0,2}[:=]\s{0,3}|\s(?:is|was)\s(?:now\s)?)['\"]?"
            r"(?P<value>[^\s'\"]{4,128})"
        ),
        citation="NIST SP 800-63B, 5.1.1",
        confidence=0.9,
        refine=v.refine_labelled_secret,
        needs=("pass", "pwd", "key", "secret", "token"),
    ),
    Rule(
        entity_type="SECRET",
        pattern=re.compile(
            r"\b(?:my|his|her|our|their|your) (?:[a-z-]{2,12} )?(?:pw|pwd|password"
            r"|passwd|passcode|passphrase) (?:is|was) (?:now |still )?"
            rf"(?P<value>(?!(?:{_SAID_OF_IT})\b)[^\s,;]{{3,64}})"
            r"|\b(?:secret|security) answer(?: is| was|:|=)\s(?P<value_answer>\w{3,64})"
        ),
        citation="NIST SP 800-63B, 5.1.1, plain words",
        confidence=0.8,
        needs=("pw", "pass", "answer"),
    ),
    Rule(
        entity_type="USERNAME",
        pattern=re.compile(r"(?<![\w@./])@[a-z_]\w{1,30}\b"),
        citation="GDPR recital 30, online identifiers",
        confidence=0.8,
        needs=("@",),
    ),
    Rule(
        entity_type="USERNAME",
        pattern=re.compile(
            r"\b(?:user[ -]?name|user[ -]?id|login|screen name|handle|userid)"
            r"(?:\s{0,2}[:=]\s{0,3}|\s(?:is|was)\s)['\"]?(?P<value>[\w][\w.@+-]{2,63})"
        ),
        citation="GDPR recital 30, online identifiers",
        confidence=0.9,
        refine=v.refine_labelled_username,
        needs=("user", "login", "name", "handle"),
    ),
    Rule(
        entity_type="USERNAME",
        pattern=re.compile(
            r"(?<![\w@.+-])(?![a-z]{3,}(?:19|20)\d\d\b)[a-z](?:[a-z]"
            r"|[._](?=[a-z])){1,40}"
            r"\d{2,8}(?![\w@])"
        ),
        citation="GDPR recital 30, online identifiers",
        confidence=0.65,
        refine=v.refine_username,
        needs_digit=True,
        min_digits=2,
        gate=re.compile(r"\d(?<=[a-z]\d)\d"),
    ),
)

FINANCIAL_RULES = (
    Rule(
        entity_type="IBAN",
        pattern=re.compile(
            rf"\b(?=[a-z]{{2}}\s?\d\d)(?:{v.IBAN_COUNTRIES})\s?\d{{2}}(?:[\s./_-]{{0,"
            rf"3}}[a-z0-9]){{11,30}}"
        ),
        citation="ISO 13616-1",
        confidence=1.0,
        refine=v.refine_iban,
        needs_digit=True,
    ),
    Rule(
        entity_type="CREDIT_CARD",
        pattern=re.compile(r"(?<![\w.+])\d(?:[\s./_-]{0,3}\d){11,30}(?!\w)"),
        citation="ISO/IEC 7812-1, annex B",
        confidence=1.0,
        refine=v.refine_card,
        needs_digit=True,
        min_digits=12,
    ),
    Rule(
        entity_type="SSN",
        pattern=re.compile(
            r"(?<![\w-])\d{3}(?:\s?(?P<s>[-./_])\s?\d{2}\s?(?P=s)\s?"
            r"|\s{1,2}\d{2}\s{1,2})\d{4}(?![\w-])"
        ),
        citation="SSA POMS RM 10201.030; 45 CFR 164.514(b)(2)(i)(G)",
        confidence=0.95,
        refine=v.refine_ssn,
        needs_digit=True,
        min_digits=9,
    ),
    Rule(
        entity_type="SSN",
        pattern=re.compile(
            r"\b(?:ssn|social(?: security)?(?: (?:number|no\.?|#))?)\b[^\n\d]{0,24}"
            r"(?P<value>\d{3}[-\s./]{0,3}\d{2}[-\s./]{0,3}\d{4})\b"
        ),
        citation="SSA POMS RM 10201.030; 45 CFR 164.514(b)(2)(i)(G)",
        confidence=0.95,
        needs=("ssn", "social"),
    ),
)

PHONE_RULES = (
    Rule(
        entity_type="PHONE",
        pattern=re.compile(
            r"(?<![\w.+])(?:\+|(?<!-)00)\d{1,3}\)?(?:[\s.\-/]{0,3}\(?\d{1,14}\)?){1,7}"
            r"(?:\s?(?:x|ext\.?)\s?\d{1,6})?(?!\w)"
        ),
        citation="ITU-T E.164, 6.2; E.123",
        confidence=0.9,
        refine=v.refine_phone,
        needs=("+", "00"),
    ),
    Rule(
        entity_type="PHONE",
        pattern=re.compile(
            r"(?<![\w.])(?:1[ .-])?(?:\(?\d{3}\)[\s.-]{0,3}|\d{3}[\s.\-/]{1,3})"
            r"\d{3}[\s./-]{0,3}\d{4}(?:\s?(?:x|ext\.?)\s?\d{1,6})?(?!\w)"
        ),
        citation="ITU-T E.123; North American Numbering Plan",
        confidence=0.9,
        refine=v.refine_phone,
        needs_digit=True,
        min_digits=7,
    ),
    Rule(
        entity_type="PHONE",
        pattern=re.compile(
            r"(?<![\w.,$£€¥/-])(?:\(\d{1,5}\)[ -]?|0\d{2,5}/"
            r"|\d{2,5}(?:[ -]|\.(?=\d{2,4}\.\d)))"
            r"\d{2,8}(?:[ .-]\d{2,4}){0,4}(?:\s?(?:x|ext\.?)\s?\d{1,6})?"
            r"(?![\w/]|[.,]\d)"
        ),
        citation="ITU-T E.123, 2, national notation",
        confidence=0.7,
        refine=v.refine_phone,
        needs_digit=True,
        min_digits=7,
    ),
    Rule(
        entity_type="PHONE",
        pattern=re.compile(
            r"\b(?:phone|mobile|cell|tel|telephone|fax|desk|call|text|whatsapp"
            r"|office)\b"
            r"[^\d\n]{0,20}(?P<value>\(?\+?\d[\d\s.()/-]{5,24}\d)(?!\w)"
        ),
        citation="ITU-T E.123, 2",
        confidence=0.9,
        refine=v.refine_phone,
        needs_digit=True,
        min_digits=7,
    ),
)

_NUMBER_WORD = r"(?:\s?(?:ids?|numbers?|nos?\.?|num|nr\.?|#|codes?))?"
_VALUE = (
    r"(?:\s(?:is|was|are|of))?[:=#\s\"'(]{1,5}"
    r"(?P<value>(?=[\w/-]{0,30}\d)[\w][\w/-]{2,30})(?![\w@]|[.,]\d)"
)


def _labelled(entity_type: str, labels: str, citation: str) -> Rule:
    """Make a rule for a value with a digit after one of the labels."""
    words = labels.split("|")
    return Rule(
        entity_type=entity_type,
        pattern=re.compile(rf"\b(?:{labels}){_NUMBER_WORD}{_VALUE}"),
        citation=citation,
        confidence=0.9,
        needs=tuple(word.split("[")[0].split("(")[0] for word in words),
        needs_digit=True,
    )


IDENTIFIER_RULES = (
    _labelled(
        "ORDER_ID",
        "order|invoice|ticket|case|tracking|confirmation|reference|ref|booking|reserva"
        "tion|purchase|shipment|receipt|claim|incident",
        "45 CFR 164.514(b)(2)(i)(R)",
    ),
    _labelled(
        "ACCOUNT_ID",
        "account|acct|member|membership|customer|policy|client|subscriber|employee|stu"
        "dent|routing|loyalty",
        "45 CFR 164.514(b)(2)(i)(I), (J)",
    ),
    _labelled("MRN", "mrn|medical record|patient|chart", "45 CFR 164.514(b)(2)(i)(H)"),
    _labelled(
        "LICENSE",
        "licen[cs]e(?: plate)?|driver'?s licen[cs]e|plate|permit",
        "45 CFR 164.514(b)(2)(i)(K), (L)",
    ),
    _labelled("PASSPORT", "passport", "45 CFR 164.514(b)(2)(i)(K); GDPR art. 87"),
    _labelled("DEVICE_ID", "imei|serial|device|imsi", "45 CFR 164.514(b)(2)(i)(M)"),
    _labelled("VEHICLE_ID", "vin|vehicle", "45 CFR 164.514(b)(2)(i)(L); ISO 3779"),
    Rule(
        entity_type="ID",
        pattern=re.compile(
            r"\b(?:id|pin|code|otp|passcode|cvv|cvc|digits|verification|extension)\b"
            r"[^\d\n]{0,12}(?P<value>\d{3,8})(?![\w%]|[.,]\d)"
        ),
        citation="45 CFR 164.514(b)(2)(i)(R)",
        confidence=0.85,
        needs_digit=True,
    ),
    Rule(
        entity_type="ID",
        pattern=re.compile(
            r"(?<![\d$£€¥])(?<![$£€¥] )(?<!\d\.)\d{6,8}(?![\d%])"
            r"|(?<!\d)(?<!\d\.)\d{9,40}(?![\d%])"
            r"|(?<![\w.$£€¥-])\d{5}(?![\w%]|[.,:/]\d|-\d)"
        ),
        citation="45 CFR 164.514(b)(2)(i)(R)",
        confidence=0.6,
        refine=v.refine_digit_run,
        needs_digit=True,
        min_digits=5,
    ),
    Rule(
        entity_type="ID",
        pattern=re.compile(
            rf"\b(?:{v.IBAN_COUNTRIES})\d\d(?:[ -]?[a-z0-9]{{4}}){{2,7}}"
            r"(?:[ -]?[a-z0-9]{1,3})?\b"
            r"|(?<![\w.+-])\d{4}(?:[ -]\d{4}){2}[ -]\d{1,7}(?![\w-])"
            r"|(?<![\w.+-])\d{4}[ -]\d{6}[ -]\d{4,5}(?![\w-])"
            r"|(?<![\w.-])\d{3}-\d\d-\d{4}(?![\w-])"
        ),
        citation="45 CFR 164.514(b)(2)(i)(R), the form of an IBAN, card or SSN only",
        confidence=0.92,
        refine=v.refine_shape,
        needs_digit=True,
        min_digits=8,
    ),
    Rule(
        entity_type="ID",
        pattern=re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)"),
        citation="45 CFR 164.514(b)(2)(i)(R), the form of RFC 791 only",
        confidence=0.75,
        refine=v.refine_shape,
        needs_digit=True,
        min_digits=7,
    ),
    Rule(
        entity_type="ID",
        pattern=re.compile(r"#\d{3,20}\b|(?<=\b(?:no|nr)[. ])\d{4,20}\b"),
        citation="45 CFR 164.514(b)(2)(i)(R)",
        confidence=0.7,
        needs=("#", "no", "nr"),
        needs_digit=True,
    ),
    Rule(
        entity_type="ID",
        pattern=re.compile(r"(?<![\w.,$£€¥-])\d{2,14}(?:-\d{2,14}){1,5}(?![\w]|-\w)"),
        citation="45 CFR 164.514(b)(2)(i)(R)",
        confidence=0.6,
        refine=v.refine_digit_groups,
        needs_digit=True,
        min_digits=7,
    ),
    Rule(
        entity_type="ID",
        pattern=re.compile(
            r"(?<![\w@.-])(?<!\d,)(?=[A-Za-z0-9-]{0,40}?\d)(?=[\d-]{0,40}?[A-Za-z])"
            r"[A-Za-z0-9]{1,40}(?:-[A-Za-z0-9]{1,20}){0,5}(?![\w@]|-\w)"
        ),
        citation="45 CFR 164.514(b)(2)(i)(R)",
        confidence=0.6,
        refine=v.refine_mixed_code,
        cased=True,
        needs_digit=True,
        min_digits=1,
        gate=re.compile(r"\d(?:(?<=[A-Za-z]\d)|(?<=[A-Za-z]-\d)|(?=-?[A-Za-z]))"),
    ),
)

STRUCTURED_RULES = NETWORK_RULES + FINANCIAL_RULES + PHONE_RULES + IDENTIFIER_RULES
