"""Twelve languages: which one a text is in, what is found, who reads what."""

import re
import unicodedata
from pathlib import Path

import pytest

from dptune.detection import features
from dptune.detection.engine import build_engine
from dptune.detection.languages import recognizer, spaced, unspaced, values
from dptune.detection.languages.identify import (
    ENGLISH,
    UNDETERMINED,
    language_of,
    languages_of,
    parts_of,
)
from dptune.detection.languages.recognizer import LanguageRecognizer
from dptune.detection.languages.routing import ForLanguages, languages_read
from dptune.detection.languages.tables import LANGUAGES, plain
from dptune.detection.languages.values import rules_of
from dptune.detection.recognizer import Tier
from dptune.detection.settings import UnknownLanguage
from dptune.text import Span
from tests.support.growth import grows_in_proportion
from tests.support.marked_sentences import coverage, read_marked

TABLES = Path(__file__).parent / "languages"
_REACHED = {
    "fourth": (44, 45, 41, 44, 43, 43, 42, 41, 39, 42, 44, 40),
    "seventh": (112, 101, 103, 105, 101, 95, 104, 104, 93, 109, 104, 97),
}
FRESH = [
    (table, code, hits)
    for table, reached in _REACHED.items()
    for code, hits in zip(LANGUAGES, reached, strict=True)
]
"""Values found in tables that nothing was mended after: no goal, a floor."""
SCRIPTS = {
    "Latin": "José Müller Łukasz Ångström",
    "Greek": "Γιώργος Παπαδόπουλος",
    "Cyrillic": "Наталья Йорданова",
    "Hebrew": "דָּוִד כֹּהֵן",
    "Arabic": "مُحَمَّد العُتَيْبِي",
    "Devanagari": "प्रिया शर्मा ज़ैनब",
    "Bengali": "রবীন্দ্রনাথ ঠাকুর",
    "Tamil": "கார்த்திகேயன்",
    "Telugu": "వెంకటేశ్వర రావు",
    "Thai": "สมศรี ใจดี",
    "Khmer": "សុខា វណ្ណៈ ច័ន្ទ",
    "Burmese": "အောင်ဆန်းစုကြည်",
    "Han": "王小明 欧阳雪",
    "kana": "やまだたろう スズキ がぎぐ",
    "Hangul": "김민수 이영희",
}
CARRIERS = ("{}", "My name is {} and I live in London.", "Call {} about it, please.")
UNREAD = {
    "sv": "Jag har inte fått min beställning ännu och undrar när den kommer fram.",
    "fi": "En ole vielä saanut tilaustani ja haluaisin tietää milloin se saapuu.",
    "ru": "Я до сих пор не получил свой заказ и хочу знать, когда он придёт.",
    "th": "ฉันยังไม่ได้รับสินค้าที่สั่งซื้อและอยากทราบว่าจะมาถึงเมื่อไร",
    "ta": "எனது ஆர்டர் இன்னும் வரவில்லை, அது எப்போது வரும் என்று தெரிய வேண்டும்.",
    "ko": "아직 주문한 상품을 받지 못했습니다. 언제 도착하는지 알고 싶습니다.",
}


@pytest.fixture(scope="module")
def engine():
    return build_engine(tier=Tier.LOW_ENTITY)


def marked(engine, text):
    return {i for s in engine.detect([text])[0] for i in range(s.start, s.end)}


@pytest.mark.parametrize("table", ["first", "second", "third", "fifth"])
@pytest.mark.parametrize("code", LANGUAGES)
def test_values_of_a_language_are_found_and_other_letters_stay(engine, code, table):
    rows = read_marked(TABLES / table / f"{code}.txt")
    hit, values, masked, others = coverage(rows, engine.detect([t for t, _ in rows]))
    assert values >= 40
    assert hit >= 0.9 * values
    assert masked <= 0.15 * others


@pytest.mark.parametrize(("table", "code", "reached"), FRESH)
def test_share_of_values_found_in_sentences_that_nothing_was_mended_after(
    engine, table, code, reached
):
    rows = read_marked(TABLES / table / f"{code}.txt")
    hit, values, masked, others = coverage(rows, engine.detect([t for t, _ in rows]))
    assert values >= 40
    assert hit >= reached
    assert masked <= 0.15 * others


@pytest.mark.parametrize(
    ("code", "part", "nothing"),
    [
        ("ar", (spaced, "likeness"), lambda word, code: -(10**6)),
        ("hi", (spaced, "likeness"), lambda word, code: -(10**6)),
        ("zh", (unspaced, "find_segmented_names"), lambda text, code: iter(())),
        ("ja", (unspaced, "find_segmented_names"), lambda text, code: iter(())),
    ],
)
def test_twin_that_knows_names_of_lists_alone_misses_more(
    engine, monkeypatch, code, part, nothing
):
    rows = read_marked(TABLES / "seventh" / f"{code}.txt")
    texts = [text for text, _ in rows]
    hits, values, _, _ = coverage(rows, engine.detect(texts))
    monkeypatch.setattr(*part, nothing)
    assert coverage(rows, engine.detect(texts))[0] <= hits - 0.02 * values


def kinds(engine, text):
    return {text[s.start : s.end]: s.entity_type for s in engine.detect([text])[0]}


@pytest.mark.parametrize(
    ("text", "value", "kind"),
    [
        ("Meine Oma wird im Sommer achtzig.", None, None),
        ("Meine Oma ist achtzig.", "achtzig", "AGE"),
        ("Er wurde zu fünf Jahren Haft verurteilt.", None, None),
        ("Wir treffen uns am zwölften Januar.", "zwölften Januar", "DATE"),
        ("Elle a trente-deux ans et elle habite ici.", "trente-deux ans", "AGE"),
        ("La peine est de cinq ans de prison.", None, None),
        ("Nos vemos el martes 14 en la oficina.", "martes 14", "DATE"),
        ("Mi abuela cumple noventa.", "noventa", "AGE"),
        ("Ci vediamo il ventidue maggio 2021.", "ventidue maggio 2021", "DATE"),
        ("Mijn opa wordt morgen negentig.", "negentig", "AGE"),
        ("O meu pai faz sessenta e dois.", "sessenta e dois", "AGE"),
        ("Córka kończy jedenaście lat.", "jedenaście lat", "AGE"),
        ("Babam altmış iki yaşında.", "altmış iki", "AGE"),
        ("Mein Wagen hat das Kennzeichen HH-KV 482.", "HH-KV 482", "LICENSE"),
        ("मेरी दादी की उम्र बासठ साल है।", "बासठ साल", "AGE"),
        ("वह यहाँ पाँच साल से है।", None, None),
    ],
)
def test_value_in_words_is_found_and_a_duration_is_not(engine, text, value, kind):
    found = kinds(engine, text)
    if value is None:
        assert not {"AGE", "DATE"} & set(found.values())
    else:
        assert found.get(value) == kind


def test_twin_without_number_words_misses_ages_and_days(monkeypatch):
    def wordless(pattern, _language):
        return re.sub(r"\{[NOD]\}", "(?!)", pattern)

    monkeypatch.setattr(values, "_in_words", wordless)
    values._rules.cache_clear()
    text = "Meine Oma ist achtzig."
    assert "achtzig" not in kinds(build_engine(tier=Tier.LOW_ENTITY), text)
    values._rules.cache_clear()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("छेटवाल ने दरवाज़ा खोला और बाहर चला गया।", ["छेटवाल"]),
        ("अदालत ने फ़ैसला सुनाया और सबको भेज दिया।", []),
        ("حضر أبو قصورة الاجتماع يوم أمس في البيت.", ["أبو قصورة"]),
        ("Der Zeuge P. Grabowski schweigt dazu.", ["P. Grabowski"]),
        ("小田原さんは五歳です。", ["小田原"]),
    ],
)
def test_person_of_no_list_is_found_by_what_stands_beside(engine, text, names):
    found = [value for value, kind in kinds(engine, text).items() if kind == "PERSON"]
    assert found == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Frag bitte Frau Roth. Regen fällt heute keiner mehr.", ["Roth"]),
        ("Je cherche Mme Kim. Bruno est parti hier soir.", ["Kim", "Bruno"]),
        ("Hablé con la señora Gil. Llueve mucho en la calle.", ["Gil"]),
        ("Ho visto il signor Pio. Piove molto da ieri sera.", ["Pio"]),
        ("Spreek met mevrouw Bos. Regen is er vandaag niet.", ["Bos"]),
        ("Wir danken Herrn Dr. Kim für alles.", ["Dr. Kim"]),
    ],
)
def test_name_ends_with_its_sentence_however_short_it_is(engine, text, names):
    found = [value for value, kind in kinds(engine, text).items() if kind == "PERSON"]
    assert found == names


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_letters_of_names_in_other_scripts_are_covered(engine, script, form):
    letters = covered = 0
    for name in (*SCRIPTS[script].split(), SCRIPTS[script]):
        written = unicodedata.normalize(form, name)
        for carrier in CARRIERS:
            text = carrier.format(written)
            start, found = text.index(written), marked(engine, text)
            own = [
                start + i
                for i, c in enumerate(written)
                if unicodedata.category(c)[0] in "LM"
            ]
            letters += len(own)
            covered += sum(i in found for i in own)
    assert covered >= 0.98 * letters


def test_twin_that_cuts_words_at_marks_leaves_letters(engine, monkeypatch):
    monkeypatch.setattr(recognizer, "find_foreign_words", lambda _: iter(()))
    monkeypatch.setattr(features, "TOKEN", re.compile(r"[^\W\d_]+|[^\w\s]"))
    name = SCRIPTS["Hebrew"]
    assert not set(range(len(name))) - {name.index(" ")} <= marked(engine, name)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Where is my order?", "en"),
        ("Wo bleibt meine Bestellung?", "de"),
        ("Où est ma commande ?", "fr"),
        ("¿Dónde está mi pedido?", "es"),
        ("Dov'è il mio ordine?", "it"),
        ("Waar blijft mijn bestelling?", "nl"),
        ("Onde está a minha encomenda?", "pt"),
        ("Gdzie jest moje zamówienie?", "pl"),
        ("Siparişim nerede kaldı, bir bilginiz var mı?", "tr"),
        ("我的订单在哪里？", "zh"),
        ("注文した商品はどこですか。", "ja"),
        ("أين هو الطلب الخاص بي؟", "ar"),
        ("मेरा ऑर्डर कहाँ है?", "hi"),
        ("Anna Lindqvist", UNDETERMINED),
        ("प्रिया शर्मा", UNDETERMINED),
        ("王小明", UNDETERMINED),
        ("がぎぐ", UNDETERMINED),
        ("4711; 0815", UNDETERMINED),
        ("", UNDETERMINED),
        *((text, code) for code, text in UNREAD.items()),
    ],
)
def test_language_of_a_text(text, language):
    assert language_of(text) == language


@pytest.mark.parametrize(
    "text",
    [
        "no no no, de la Cruz said in vain",
        "C'est la vie, as they say here, and so it goes.",
        "id,dur,proto,service,state,spkts\n1,0.12,tcp,http,FIN,4",
        "Maha Cazares\n\nChiclana de la Frontera\nSpain",
        "Her name is María José de la Fuente, and she lives in São Paulo.",
    ],
)
def test_english_with_foreign_words_stays_with_english(text):
    assert language_of(text) in {ENGLISH, UNDETERMINED}


def test_parts_of_a_mixed_text_cover_it_and_know_their_language():
    text = (
        "The bill is paid and I am happy. Ich habe es nicht gesehen. Thank you for it."
    )
    parts = parts_of(text)
    assert [part.language for part in parts] == ["en", "de", "en"]
    assert [p.start for p in parts] == [0, *(p.end for p in parts[:-1])]
    assert parts[-1].end == len(text)


def test_short_texts_count_with_the_language_of_most():
    texts = [
        "Ich habe das nicht gesehen.",
        "4711",
        "Wo ist meine Rechnung?",
        "Where is it?",
    ]
    assert languages_of(texts) == ["de", "de", "de", "en"]


def test_lexicon_does_not_judge_a_language_that_has_rules(engine):
    text = "Ich möchte meine Bestellung leider stornieren."
    assert not marked(engine, text)


def test_twin_without_routing_masks_the_language_away():
    twin = build_engine(tier=Tier.LOW_ENTITY, recognizers=("patterns", "lexicon"))
    text = "Ich möchte meine Bestellung leider stornieren."
    assert len(marked(twin, text)) > len(text) / 2


def test_contextual_tiers_keep_the_lexicon_on_every_language():
    engine = build_engine(tier=Tier.LOW_CONTEXTUAL)
    assert marked(engine, "Ich möchte meine Bestellung leider stornieren.")


class Reader:
    name = "lexicon"
    fingerprint = "0"

    def __init__(self):
        self.read = []

    def recognize(self, texts):
        self.read += texts
        return [[Span(start=0, end=1, entity_type="PERSON")] for _ in texts]


def test_recognizer_is_given_its_own_parts_with_blanks_for_the_rest():
    reader = Reader()
    text = "The bill is paid and I am happy. Ich habe es nicht gesehen."
    ForLanguages(reader, others=frozenset(["de"])).recognize([text])
    ForLanguages(reader, only="de").recognize([text])
    english, german = reader.read
    assert len(english) == len(german) == len(text)
    assert english.strip() == "The bill is paid and I am happy."
    assert german.strip() == "Ich habe es nicht gesehen."


def test_routing_changes_the_fingerprint():
    inner = Reader()
    routed = {
        inner.fingerprint,
        ForLanguages(inner, only="de").fingerprint,
        ForLanguages(inner, others=frozenset(["de"])).fingerprint,
        ForLanguages(inner, unread=True).fingerprint,
    }
    assert len(routed) == 4


@pytest.mark.parametrize(("code", "text"), UNREAD.items())
def test_text_that_nobody_reads_is_masked_or_kept_as_said(code, text):
    def engine(how):
        return build_engine(tier=Tier.LOW_ENTITY, unknown_language=how)

    assert language_of(text) == code
    assert marked(engine(UnknownLanguage.MASK), text) == set(range(len(text)))
    assert not marked(engine(UnknownLanguage.KEEP), text)


def test_languages_read_follow_from_the_recognizers():
    assert languages_read(("patterns", "lexicon")) == {"en"}
    assert languages_read(("languages",)) == {"en", *LANGUAGES}
    named = languages_read(
        ("spacy",),
        spacy_pipeline="models/fr_core_news_sm",
        spacy_pipelines={"sv": "x"},
        declared=("fi",),
    )
    assert named == {"en", "fr", "sv", "fi"}


@pytest.mark.parametrize(
    ("code", "valid", "broken"),
    [
        ("de", "65 929 970 489", "65 929 970 488"),
        ("nl", "111222333", "111222334"),
        ("pt", "123 456 789", "123 456 780"),
        ("pl", "44051401359", "44051401358"),
        ("pl", "526-104-08-28", "526-104-08-27"),
        ("tr", "10000000146", "10000000145"),
        ("zh", "11010519491231002X", "110105194912310021"),
        ("ja", "1234 5678 9018", "1234 5678 9017"),
        ("fr", "732 829 320", "732 829 321"),
    ],
)
def test_national_number_needs_its_checksum(code, valid, broken):
    found = LanguageRecognizer(tier=Tier.LOW_ENTITY)
    from dptune.detection.languages.values import is_valid  # noqa: PLC0415

    def holds(text):
        return any(
            is_valid(rule, text)
            for pattern, rule in rules_of(code)
            if {"check", "weights"} & rule.keys() and pattern.fullmatch(text)
        )

    assert found.name == "languages"
    assert holds(valid)
    assert not holds(broken)


def test_plain_text_maps_every_place_back():
    text = unicodedata.normalize("NFD", "Zoë é\u200bx")
    view, origin = plain(text)
    assert view == "Zoë éx"
    assert origin[-1] == len(text)
    assert origin == sorted(origin)


def test_english_costs_no_search_for_foreign_words(monkeypatch):
    def never(_):
        raise AssertionError

    monkeypatch.setattr(recognizer, "find_foreign_words", never)
    monkeypatch.setattr(recognizer, "find_foreign_words", never)
    found = LanguageRecognizer(tier=Tier.LOW_ENTITY).recognize(
        ["This is what we have been told by the people of the town."]
    )
    assert found == [[]]


@pytest.mark.parametrize("code", LANGUAGES)
def test_time_grows_with_length_alone(code):
    rows = read_marked(TABLES / "first" / f"{code}.txt")
    whole = " ".join(text for text, _ in rows)
    found = LanguageRecognizer(tier=Tier.LOW_ENTITY)

    def recognize(times):
        parts_of.cache_clear()
        found.recognize([whole * times])

    assert grows_in_proportion(recognize, 2, times=4, slack=3)


@pytest.mark.parametrize(
    "line",
    [
        "Le patient est suivi par Mme ⟦Bérengère L'Hostis⟧ depuis hier.",
        "Le patient, M. ⟦Abdoulaye N'Diaye⟧, a été vu en consultation.",
        "Le dossier de ⟦Armand d'Estrées⟧ est clos depuis hier soir.",
        "Nous avons vu hier madame ⟦N'Diaye⟧ et son mari.",
        "Il signor ⟦Ermenegildo Dall'Aglio⟧ ha tamponato una vettura ferma.",
        "La polizza è intestata a ⟦Rocco Dell'Orto⟧, che abita qui da noi.",
        "Die Klägerin wohnt in der ⟦Straße des 17. Juni 135⟧, der Beklagte nicht.",
        "Zij is verhuisd en wonende ⟦Achter de Kerk 135⟧.",
        "El demandado vive en el ⟦Jr. Los Olivos 452⟧, según nos dijo ayer.",
        "Zustellung an das Haus ⟦Am Alten Markt 3, Hinterhaus, 06618 Naumburg⟧.",
        "⟦Yolotl⟧ dice que no irá mañana al colegio porque está enferma.",
        "⟦Rose⟧ a dit que le repas était prêt et que tout le monde pouvait venir.",
        "⟦Socorro⟧ disse que não vai à escola amanhã porque está doente.",
    ],
)
def test_names_and_houses_are_masked_whole(engine, line):
    before, value, after = re.split("[⟦⟧]", line)
    found = marked(engine, before + value + after)
    wanted = {len(before) + i for i, c in enumerate(value) if c.isalnum()}
    assert wanted <= found


@pytest.mark.parametrize(
    "text",
    [
        "Er wohnt seit Mai 2010 mit seinem Bruder und dessen Katze zusammen.",
        "Man sagt, dass der Winter dieses Jahr sehr kalt werden soll.",
        "Niemand fragt, warum der Zug schon wieder zu spät gekommen ist.",
        "Elle dit que le repas est prêt et que tout le monde peut venir.",
        "Nadie dijo que la reunión se había aplazado hasta la próxima semana.",
        "Iemand zei dat de vergadering is uitgesteld tot volgende week.",
    ],
)
def test_who_is_nobody_and_how_long_stays(engine, text):
    assert len(marked(engine, text)) <= len("Mai 2010")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("قال <mask> إن <mask> تركت <mask> زوجها <mask>.", "ar"),
        ("Paciente <mask>, nascida a <DATE>, reside em <mask>.", "pt"),
        ("नमस्ते <PERSON_1>, मेरा नंबर <PHONE> है।", "hi"),
    ],
)
def test_what_redaction_wrote_is_a_word_of_no_language(text, code):
    assert {part.language for part in parts_of(text)} == {code}
