"""Values with a form, in any of the languages: dates, ages, labels, numbers, addresses.

The forms are one per kind; the words in them come from the tables. Every quantifier is
bounded, so that no text makes a rule slow.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby

from dptune.detection.languages.numbers import is_valid, rules_of
from dptune.detection.languages.tables import CASED, SPACED, UNSPACED, Language, load

Found = tuple[int, int, str, float]
"""Start, end, entity type and confidence."""

_IS = "ist lautet war est es era è is é to jest jako mit der dem هو هي है के का की hat"
_HOUSE = r"\d{1,4}(?:\s?[a-h](?!\w))?(?:\s?[-/]\s?\d{1,4})?"
_CAPITAL = "[A-ZÀ-ÖØ-ÞĀĂĄĆČĐĘĞİŁŃŐŚŞŠŹŻŽ]"
_NUMBER_SIGN = r"(?:n[.ºo°]{0,2}\s?|nr\.?\s?|no\.?:?\s?)?"


def any_of(words: frozenset[str] | list[str]) -> str:
    """Return an alternation, the longest first, which matches nothing if empty.

    Words are grouped by their first character, so that most of a text meets few.
    """
    ordered = sorted(words, key=lambda word: (word[:1], -len(word), word))
    by_first = groupby(ordered, key=lambda word: word[:1])
    grouped = (
        f"{re.escape(first)}(?:{'|'.join(re.escape(word[1:]) for word in group)})"
        for first, group in by_first
    )
    return "|".join(grouped) or r"(?!)"


@lru_cache
def _rules(code: str) -> tuple[tuple[str, re.Pattern[str], float, bool], ...]:
    """Compile the rules of a language: type, pattern, confidence, on original case."""
    language = load(code)
    edge = ("", "") if code in UNSPACED else (r"(?<!\w)", r"(?!\w)")
    age = re.compile(f"{edge[0]}(?:{language.texts['age']}){edge[1]}")
    rules = [("AGE", age, 0.8)]
    fields = list(_fields(language))
    if code in UNSPACED:
        return tuple((*rule, False) for rule in rules + _unspaced(code) + fields)
    rules += fields
    rules += [("DATE", _NUMERIC_DAY, 0.7), ("ACCOUNT_ID", _numbered(code), 0.85)]
    rules.append(("ACCOUNT_ID", _HANDLE, 0.8))
    rules += [("AGE", pattern, 0.8) for pattern in _ages_in_words(language)]
    rules += [("DATE", pattern, 0.9) for pattern in _dates(language)]
    rules += [("ACCOUNT_ID", _labelled(language), 0.9), ("ID", _CASE_NUMBER, 0.8)]
    if code in SPACED:
        rules.append(("ACCOUNT_ID", _LATIN_HANDLE, 0.7))
    if code == "de":
        rules.append(("DATE", _SHORT_DATE, 0.7))
        rules.append(("AGE", re.compile(r"(?<!\w)\d{1,3}\s?j\.(?=[,;)\s]|$)"), 0.7))
    if code == "tr":
        rules += [("PHONE", _TURKISH_PHONE, 0.9), ("ADDRESS", _TURKISH_ADDRESS, 0.8)]
    if code == "pl":
        rules.append(
            ("ACCOUNT_ID", re.compile(r"(?<!\d)\d{2}(?:[ -]?\d{4}){6}(?!\d)"), 0.9)
        )
    found = [(*rule, False) for rule in rules]
    if "plate" in language.texts:
        plate = re.compile(rf"(?<![\w-])(?:{language.texts['plate']})(?![\w-])")
        found.append(("LICENSE", plate, 0.7, True))
    found.append(("ADDRESS", _postal_box(language), 0.85, True))
    if code in CASED:
        found += [("ADDRESS", pattern, 0.85, True) for pattern in _addresses(language)]
    return tuple(found)


def _in_words(pattern: str, language: Language) -> str:
    """Put the number words of a language in the places of `{N}`, `{O}` and `{D}`."""
    numeral = language.texts["numeral"]
    pattern = pattern.replace("{O}", language.texts["ordinal"])
    return pattern.replace("{D}", rf"\d{{1,3}}|{numeral}").replace("{N}", numeral)


def _ages_in_words(language: Language) -> Iterator[re.Pattern[str]]:
    """Yield the ages that a phrase such as `is turning` tells from other numbers."""
    for pattern in language.texts["age_words"].split("\n"):
        yield re.compile(rf"(?<!\w)(?:{_in_words(pattern, language)})(?!\w)")


def _dates(language: Language) -> Iterator[re.Pattern[str]]:
    """Yield day, month and year; a month alone is no date of a person."""
    months = any_of(language.words("months"))
    join = any_of(frozenset(language.texts["month_join"].split()))
    after = r"(?:[.,]?\s{1,2}|\.|,)"
    day = rf"\d{{1,2}}(?:\.|º|°|er|ª)?(?:\s?[-–/]\s?\d{{1,2}}\.?)?\s?(?:(?:{join})\s)?"
    year = rf"(?:(?:{join}|عام|سنة|साल|वर्ष)\s)?(?:\d{{4}}|'?\d\d(?!\w))"
    weekdays = any_of(language.words("weekdays"))
    from_weekday = (
        rf"(?<!\w)(?:(?:{weekdays}),?\s(?:(?:den|dem|le|dia|día|dzień|dnia)\s)?)"
    )
    yield re.compile(
        rf"(?:{from_weekday}|(?<!\w)){day}(?:{months})(?!\w)(?:{after}{year})?"
        rf"|(?<!\w)(?:{months})(?!\w){after}{year}(?!\w)"
        rf"|(?<!\w)(?:{months})\s\d{{1,2}},?\s\d{{4}}(?!\w)"
        r"|(?<![\w.])\d{1,2}\.\s\d{1,2}\.\s?(?:\d{4}|\d\d)(?!\w)"
        rf"|{from_weekday}\d{{1,2}}(?![\w:])|{day}(?:{months})\s(?:{weekdays})(?!\w)"
    )
    spoken = _in_words("{O}", language)
    yield re.compile(
        rf"(?:{from_weekday}|(?<!\w))(?:{spoken})\s(?:(?:{join})\s)?(?:{months})(?!\w)"
        rf"(?:{after}{year}(?:\sroku|\sr\.)?|\s(?:{join})\s(?:{language.texts['numeral']})"
        r"(?!\w))?"
    )


def _fields(language: Language) -> Iterator[tuple[str, re.Pattern[str], float]]:
    """Yield forms: a label, a colon, and what stands behind it."""
    end = "[^\\n:：;；|。।؛]"
    kinds = (
        (
            "ADDRESS",
            "field_address",
            f"{end}{{3,120}}?(?=\\.?\\s*(?:$|[\\n;；|。।؛])|\\.\\s)",
        ),
        (
            "ORG",
            "field_org",
            f"(?:(?![,،，、(（]){end}){{2,60}}?(?=\\.?\\s*(?:$|[\\n;；|。।؛,،，、(（])|\\.\\s)",
        ),
    )
    for kind, name, value in kinds:
        labels = any_of(language.phrases(name))
        yield (
            kind,
            re.compile(
                rf"(?<!\w)(?:{labels})\s?[:：]\s{{0,3}}(?P<value>(?=\S){value})"
            ),
            0.8,
        )
    word = r"[^\W\d_](?:[^\W\d_]|[\u0300-\u036f\u0900-\u0963'’.·・-]){0,24}"
    label = any_of(language.phrases("field_name"))
    yield (
        "PERSON",
        re.compile(
            rf"(?<!\w)(?:{label})\s?[:：]\s{{0,3}}"
            rf"(?P<value>{word}(?:[ \u3000]{word}){{0,3}})"
            r"(?=\.?\s*(?:$|[\n,،，、;；|。।؛(（\[【]|\d|[^\W\d_]{2,15}\s?[:：]))"
        ),
        0.75,
    )


def _postal_box(language: Language) -> re.Pattern[str]:
    """Match a postal box with its number, postcode and town."""
    town = rf"(?:{_CAPITAL}|[\u0620-\u06d3\u0900-\u0963])[^\d\s,.;|।]{{1,30}}"
    postcode = rf"(?:{language.texts['postcode']}|\d{{3,6}})"
    return re.compile(
        rf"(?<!\w)(?:{_BOX})[\s:.]{{0,2}}(?i:n\.?[ºo°]?\s)?\d[\d ]{{0,9}}"
        rf"(?:(?<=\d)[,،]?\s?{postcode}(?:\s{town}(?:[ -]{town})?(?:[,/]\s?{town})?)?"
        rf"|(?<=\d)[,،]\s{town}(?:[ -]{{1,3}}{town})?(?:[,،]?\s(?:CEP\s)?{postcode})?"
        rf"(?!\w))?"
    )


def _numbered(code: str) -> re.Pattern[str]:
    """Match a code with three digits behind any word for a number."""
    return re.compile(
        rf"(?<!\w)(?:{_NUMBER_WORDS[code]}){_NO_NUMBER}[.\s:：#'’(-]{{1,4}}"
        r"(?P<value>(?=(?:[\w/.-]{0,12}?\d){3})\w[\w/.-]{1,24}\w)(?![\w%])(?!,\d)(?!\s?(?:€|%|euro|tl|zł|px|gb|mb|kg))"
    )


def _labelled(language: Language) -> re.Pattern[str]:
    """Match a value with a digit behind its label, a few filling words between."""
    fill = any_of(language.words("label_words") | frozenset(_IS.split()))
    labels = any_of(language.words("labels"))
    return re.compile(
        rf"(?<!\w)(?:{labels})(?!\w)(?:[\s:.#-]{{1,3}}(?:{fill})(?!\w)){{0,4}}"
        r"[\s:.#=\"'(-]{1,5}(?P<value>(?=[\w/.-]{0,30}\d)\w[\w/.-]{1,30}\w)(?!\w)"
    )


def _addresses(language: Language) -> list[re.Pattern[str]]:
    """Streets with a number in the order of the country, and towns with a postcode."""
    town = rf"{_CAPITAL}[\w.'’-]{{1,30}}(?:[ /-]{_CAPITAL}[\w.'’-]{{1,30}}){{0,2}}"
    postcode = language.texts["postcode"]
    tail = rf"(?:,?\s{{1,2}}(?:{postcode})(?:\s{town})?)?"
    town_rule = re.compile(rf"(?<![\w.-])(?:{postcode})\s{town}(?!\w)")
    rules = [town_rule]
    first, last = language.words("street_prefix"), language.words("street_suffix")
    link = r"(?:(?:de la|de las|de los|de|del|della|delle|dei|do|da|dos|das|du|des)\s)?"
    names = (
        rf"(?:{link}(?:d'|l'|d’|l’)?[\w{_CAPITAL[1:-1]}][\w.'’-]{{0,30}}\s?){{1,5}}?"
    )
    if language.texts["address"] == "suffix number":
        rules.append(
            re.compile(
                rf"(?<!\w)(?:{_CAPITAL}[\w.'’-]{{0,30}}[ -]){{0,3}}[\w.'’-]{{0,40}}"
                rf"(?i:{any_of(last)})(?:ndaki|nda|ta|te|da|de)?,?\s?{_TURKISH_NUMBER}"
                rf"(?!\w){tail}"
            )
        )
        if first:
            rules.append(
                re.compile(
                    rf"(?<!\w)(?i:{any_of(first)})\s(?:{_CAPITAL}[\w-]{{1,30}}\s|den\s)"
                    rf"{{1,3}}{_HOUSE}(?!\w){tail}"
                )
            )
    if first and language.code != "de":
        rules.append(
            re.compile(
                rf"(?<!\w)(?i:{any_of(first)})\s{link}(?:d'|l'|d’|l’)?{_CAPITAL}"
                rf"[\w.'’-]{{0,30}}(?:\s{link}{_CAPITAL}[\w.'’-]{{0,30}}){{0,3}}"
            )
        )
    prefix = rf"(?i:{any_of(first)})\s(?:{link}(?=[\"'«]?{_CAPITAL}|\d|d'|l'))"
    if language.texts["address"] == "prefix number":
        rules.append(
            re.compile(
                rf"(?<!\w){prefix}{names},?\s?{_NUMBER_SIGN}{_HOUSE}(?!\w)"
                rf"(?:\s?m\.\s?\d{{1,4}})?{tail}"
            )
        )
    if language.texts["address"] == "number prefix":
        rules.append(
            re.compile(
                rf"(?<![\w.,])\d{{1,4}}(?:\s?(?:bis|ter|quater|[a-d]))?,?\s"
                rf"(?i:{any_of(first)})\s{link}(?:d'|l'|d’|l’)?[\w.'’-]{{1,30}}"
                rf"(?:\s{link}(?:d'|l'|d’|l’)?{_CAPITAL}[\w.'’-]{{0,30}}){{0,3}}{tail}"
            )
        )
    return rules


_NUMERIC_DAY = re.compile(
    r"(?<!\w)(?:am|vom|zum|ab|bis|seit|le|du|au|el|del|al|il|dal|op|van|tot|em|no|dia|día|desde"
    r"|hasta|dnia|od|do|de|w|a|geb\.?|يوم|بتاريخ|في|من|दिनांक|तारीख|ता\.?)\s"
    r"(?P<value>(?:0?[1-9]|[12]\d|3[01])[./-](?:0?[1-9]|1[0-2])(?:[./-]\d{2,4})?)(?![\w/%])(?!,\d)"
)
_NUMBER_WORDS = {
    "de": r"\w{2,24}(?:nr|nummer)\b|kennung|kundenkennung",
    "nl": r"\w{2,24}(?:nr|nummer)\b|kenmerk",
    "tr": r"\w{0,20}\s?(?:numarası|numaram|numaranız|numaralı|kodu|kodum|no|no'su)\b",
    "ar": (
        r"(?:(?:و|ب|ل)?رقم(?:ه|ها|ي|و)?|كود|رمز)"
        r"(?:\s(?!صفحة)[\u0621-\u064a]{2,15}){0,3}"
    ),
    "hi": r"(?:नंबर|नम्बर|नं|संख्या|क्रमांक|आईडी|कोड|सं)",
    "fr": r"(?:numéro|matricule|référence|réf|dossier|n°)(?:\sde\s\w{2,20})?",
    "es": (
        r"(?:número|referencia|ref|expediente|matrícula|código|n\.?º|nº)"
        r"(?:\sde\s\w{2,20})?"
    ),
    "it": (
        r"(?:numero|matricola|riferimento|rif|pratica|codice|targa|n°|nr)"
        r"(?:\s(?:di\s)?\w{2,20})?"
    ),
    "pt": (
        r"(?:número|matrícula|referência|ref|processo|código|n\.?º|nº)"
        r"(?:\sd[eoa]\s\w{2,20})?"
    ),
    "pl": r"(?:numer|nr|sygnatura|sygn|kod)(?:\s\w{2,20}){0,2}",
}
_NO_NUMBER = (
    r"(?<!artikelnummer)(?<!modellnummer)(?<!versionsnummer)(?<!hausnummer)(?<!zimmernummer)"
    r"(?<!artikelnr)(?<!modelnummer)(?<!artikelnummer)(?<!onderdeelnummer)"
)
_HANDLE = re.compile(r"(?<![\w.])[@＠][^\W_][\w.\u3400-\u9fff-]{1,29}(?!\w)")
_LATIN_HANDLE = re.compile(
    r"(?<![\w./@-])[A-Za-z][A-Za-z0-9.]{1,20}_[A-Za-z0-9_.]{1,20}(?![\w(@/])"
)
_BOX = (
    r"(?i:postfach|postbus|boîte postale|b\.?p\.|casella postale|c\.p\.|apartado(?: de "
    r"correos| postal)?|caixa postal|apartado|skrytka pocztowa|skr\. poczt\.|p\.k\."
    r"|posta kutusu|ص\.?\s?ب\.?|صندوق بريد|صندوق البريد|डाक पेटी|पोस्ट बॉक्स)"
)
_EMAIL = re.compile(
    r"[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,4}[A-Za-z]{2,24}"
)
_WEEKDAY = (
    r"(?:\s?[（(]?(?:(?:星期|周|礼拜)[一二三四五六日天]|[月火水木金土日]曜日?)[)）]?"
    r"|[（(][月火水木金土日][)）])?"
)
_MOON_DAY = (
    r"(?:(?:农历|阴历|旧历|旧暦)?(?:[正一二三四五六七八九十冬腊]|十一|十二|上个?|下个?|本)月)?"
    r"(?:初[一二三四五六七八九十]|廿[一二三四五六七八九]?)(?![一二三四年中高个期级])"
    r"|(?:农历|阴历|正月|腊月)[一二三四五六七八九十]{1,4}月?[一二三四五六七八九十]{0,3}"
)
_COURT_NUMBER = re.compile(
    r"[\u3400-\u9fff]{0,8}[（(〔\[]\d{4}[）)〕\]]\s?[\u3400-\u9fff]{0,3}\d{0,6}[\u3400-\u9fff]{1,6}\d{1,7}号"
    r"(?:之[一二三四五六])?"
    r"|(?:令和|平成|昭和)(?:\d{1,2}|元)年[（(][ぁ-んァ-ヶ\u3400-\u9fff]{1,4}[）)]第?\d{1,6}号"
)
_CODE_LABELS = {
    "zh": (
        r"[\u3400-\u9fff]{0,4}(?:编号|号码|单号|案号|学号|学籍号|工号|账号|帐号|账户|卡号|户号|票号"
        r"|证号|尾号|尾数|代码|流水号|凭证|保单号?|档案号?|车架号|序列号|验证码|准考证号?|预约号|预订号"
        r"|确认码|邀请码|登记号|备案号|房号|门诊号|登录名|微信号?|用户名|昵称|支付宝|ＱＱ|QQ号?|护照|ID|id)"
    ),
    "ja": (
        r"[\u3400-\u9fffァ-ヶー]{0,6}(?:番号|ナンバー|コード|No\.?|ID|ＩＤ|アカウント|ユーザー名|記号)"
    ),
}
_NO_CODE = "(?<!型号)(?<!版本号)(?<!货号)(?<!型番)(?<!品番)"
_CARD = re.compile(r"(?<![\d-])\d{4}(?:[ -]?\d{4}){3}(?:[ -]?\d{1,3})?(?![\d-])")
_JAPANESE_ACCOUNT = re.compile(
    r"(?:普通|当座|定期)(?:預金|口座)?[\s:：]{0,2}\d{6,8}(?!\d)"
)
_PHONE = {
    "zh": re.compile(r"(?<!\d)(?:0\d{2,3}-\d{7,8}|1[3-9]\d-?\d{4}-?\d{4})(?!\d)"),
    "ja": re.compile(r"(?<!\d)0\d{1,4}-\d{1,4}-\d{3,4}(?!\d)"),
}
_CASE_NUMBER = re.compile(
    r"(?<!\w)(?:\d{1,3}|[ivx]{1,5})\s[a-zł]{1,4}\s\d{1,6}[/.]\d{2,4}(?!\w)"
)
_SHORT_DATE = re.compile(r"(?<![\w.])[0-3]?\d\.[01]?\d\.(?![\d])")
_TURKISH_NUMBER = (
    rf"\s?(?:(?i:no)\s?[:.]?\s?)?{_HOUSE}"
    r"(?:[,\s]{1,2}(?i:daire|kat|d|k)\s?[:.]?\s?\d{1,3}(?!\w)){0,2}"
)


_TURKISH_PHONE = re.compile(
    r"(?<!\d)(?:\+?90\s?)?0?\s?\(?[2-5]\d{2}\)?[\s-]?\d{3}[\s-]?\d{2}[\s-]?\d{2}(?!\d)"
)
_STREET = (
    r"(?:mah|mahallesi|cad|caddesi|cd|sok|sokak|sokağı|sk|bulvarı|bulv|blv|apt|apartmanı"
    r"|sitesi|sit|blok|meydanı|köyü)(?!\w)\.?"
)
_TURKISH_ADDRESS = re.compile(
    rf"(?<!\w)(?:[\w'’]{{2,20}}\s|\d{{1,4}}\.?\s){{1,2}}{_STREET}"
    rf"(?:[ ,]{{1,2}}(?:[\w'’]{{1,20}}\s|\d{{1,4}}\.?\s){{0,3}}{_STREET}){{0,3}}"
    r"(?:[ ,]{0,2}(?:(?:no|numara|kat|daire|d|k)\s?[:.]?\s?)?\d{1,4}"
    r"(?:[/-]\w{1,4})?){1,4}"
    r"(?:[ ,]{1,2}\d{5})?(?:[ ,]{1,2}[^\W\d_]{3,20}/[^\W\d_]{3,20})?"
)


def _unspaced(code: str) -> list[tuple[str, re.Pattern[str], float]]:
    """Return dates, addresses and labelled values of Chinese and Japanese."""
    language = load(code)
    numeral = "[0-9一二三四五六七八九十〇零○]"
    date = re.compile(
        rf"(?:{language.texts['era']}|{numeral}{{2,4}}\s?年)\s?(?:{numeral}{{1,3}}\s?月"
        rf"\s?(?:{numeral}{{1,3}}\s?[日号]{_WEEKDAY})?)?(?!間|代)|{numeral}{{1,3}}\s?月"
        rf"\s?{numeral}{{1,3}}\s?[日号]{_WEEKDAY}|{_MOON_DAY}"
        rf"|(?:(?:上|下|本|这|每)个?月|来月|今月|先月|翌月|毎月)の?{numeral}{{1,3}}\s?[日号](?!間)"
        rf"|(?<![0-9/.-])(?:[12]\d{{3}}/)?[01]?\d/[0-3]?\d(?![0-9/-])(?!\s?[张个次片人点分])"
        rf"|(?<=[于在到从至]){numeral}{{1,3}}[日号](?![楼线馆码店铺])"
    )
    value = (
        rf"(?:{any_of(language.words('labels'))})(?:为|是|は|が|：|:|\s|号码|号|の){{0,3}}"
        r"[\s:：]{0,3}"
        r"(?P<value>(?=[A-Za-z0-9_./-]{0,30}[0-9])[A-Za-z0-9][A-Za-z0-9_./-]{2,30})"
    )
    address = _japanese_address() if code == "ja" else _chinese_address(language)
    return [
        ("DATE", date, 0.9),
        ("ADDRESS", re.compile(address), 0.85),
        ("ACCOUNT_ID", re.compile(value), 0.9),
        ("LICENSE", re.compile(language.texts["plate"]), 0.9),
        ("EMAIL", _EMAIL, 0.95),
        ("PHONE", _PHONE[code], 0.9),
        ("ACCOUNT_ID", _CARD, 0.8),
        ("ACCOUNT_ID", _JAPANESE_ACCOUNT, 0.9),
        ("ID", _COURT_NUMBER, 0.9),
        ("ACCOUNT_ID", _HANDLE, 0.8),
        ("ACCOUNT_ID", _coded(code), 0.85),
        ("ACCOUNT_ID", _LATIN_HANDLE, 0.7),
    ]


def _coded(code: str) -> re.Pattern[str]:
    """Match a code behind any word that ends in `number`."""
    return re.compile(
        rf"(?:{_CODE_LABELS[code]}){_NO_CODE}(?:是|为|は|が|の|：|:|\s|[(（「]){{0,3}}"
        r"(?P<value>(?=[A-Za-z0-9_./-]{0,30}[0-9])[A-Za-z0-9][A-Za-z0-9_./-]{2,30})"
    )


def _japanese_address() -> str:
    """From the postcode or the prefecture down to the room."""
    han = "[\u3400-\u9fff々ケヶノ之ァ-ヶー]"
    return (
        rf"(?:〒\s?\d{{3}}-?\d{{4}}\s?)?(?:{han}{{2,3}}[都道府県])?\s?{han}{{1,6}}?[市区町村郡]"
        rf"(?:{han}{{1,8}}[市区町村])?{han}{{0,8}}"
        r"(?:\d{1,4}(?:丁目|番地|番|号|の|-|－)?){1,4}"
        rf"(?:[ 　]?{han}{{2,12}}\d{{1,4}}(?:号室|号|階)?)?"
        rf"|{han}{{2,15}}\d{{1,4}}号室|[ァ-ヶー]{{2,8}}[ぁ-ん\u3400-\u9fff]{{0,6}}\d{{2,4}}号(?:室|棟)?"
        r"|[\u3400-\u9fff]{2,3}[都道府県][ぁ-んァ-ヶ\u3400-\u9fff]{1,8}[市区町村]"
        r"|\d{1,4}号室|〒\s?\d{3}-?\d{4}|(?<!\d)\d{3}-\d{4}(?![\d-])"
    )


def _chinese_address(language: Language) -> str:
    """From the province down to the room; the road and a number must be there."""
    han = f"(?:(?![{language.texts['function_chars']}址住])[\u3400-\u9fff])"
    return (
        rf"(?:{han}{{2,8}}?(?:省|自治区|市))?(?:{han}{{1,6}}?(?:市|自治州))?"
        rf"(?:{han}{{1,6}}?(?:区|县|镇|乡|新区|开发区))?"
        rf"{han}{{1,8}}?(?:路|街|大道|巷|胡同|弄|村)"
        rf"(?:{han}{{1,3}}段)?\s?[甲乙丙]?\d{{1,5}}(?:-\d{{1,3}})?\s?(?:号院?|弄)?"
        rf"(?:{han}{{0,8}}?(?:[A-Z]|\d{{1,4}})(?:栋|幢|座|单元|室|楼|号楼|层|号|期)){{0,4}}(?:\d{{3,4}})?"
        r"(?:[，,]?\s?(?:邮编|邮政编码)[:：为是]?\s?\d{6})?"
        rf"|{han}{{2,8}}(?:花园|小区|公寓|家园|新村|大厦|广场|苑|城|府|里|湾|院|庭|居|坊|社区|新城)"
        r"(?:[A-Z]?\d{1,4}|[A-Z])(?:栋|幢|号楼|号院?|座|单元|期|-)"
        r"(?:\d{1,4}(?:单元|室|层|号|楼|-)?){0,4}"
        r"|(?<=住)\d{1,4}(?:号楼?|栋|幢|室|单元)"
        rf"|(?<=[住在])就?{han}{{1,6}}?(?:路|街|巷|胡同|小区|花园|公寓|新村|弄堂|家园|苑)"
    )


_AGE_BESIDE = re.compile(r"(?:[,،、]\s?|\s?[(（])(\d{1,2})(?=[,،、)）])")


def age_beside(text: str, end: int) -> Iterator[Found]:
    """Yield the number that stands behind a name as in `Anna, 43,` and `Anna (43)`."""
    if match := _AGE_BESIDE.match(text, end):
        yield *match.span(1), "AGE", 0.7


def find_values(text: str, lowered: str, code: str) -> Iterator[Found]:
    """Yield the values of a text of one language.

    Args:
        text: in composed characters.
        lowered: the same in lower case, of equal length.
        code: the language.
    """
    for kind, pattern, confidence, on_case in _rules(code):
        source = text if on_case or code in UNSPACED else lowered
        for match in pattern.finditer(source):
            start, end = match.span(match.lastgroup or 0)
            if end > start:
                yield start, end, kind, confidence
    for pattern, rule in rules_of(code):
        for match in pattern.finditer(text):
            if is_valid(rule, match.group()):
                confidence = 0.95 if {"check", "weights"} & rule.keys() else 0.9
                yield *match.span(), "NATIONAL_ID", confidence
