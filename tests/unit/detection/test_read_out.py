"""Numbers and addresses of mail that are read out, in the languages with tables."""

import pytest

from dptune.detection.engine import build_engine
from dptune.detection.languages import recognizer, values
from dptune.detection.recognizer import Tier

ENGINE = build_engine(tier=Tier.LOW_ENTITY)

NUMBERS = {
    "de": ("meine nummer ist ", "null drei null, fünf fünf zwei acht eins"),
    "fr": ("mon numéro est le ", "zéro six douze quarante-deux zéro sept vingt-et-un"),
    "es": ("mi número es el ", "nueve uno dos cero cuatro cuatro treinta y ocho"),
    "it": ("il mio numero è ", "tre due otto zero quattro sei sei uno"),
    "nl": ("mijn nummer is ", "nul zes twee vier vier negen acht een"),
    "pt": ("o meu número é ", "nove um meia zero dois dois oito quatro"),
    "pl": ("mój numer to ", "pięć zero dwa sto czternaście dwieście dziewięć"),
    "tr": ("benim numaram ", "sıfır beş yüz kırk iki üç yüz on yedi"),
    "ar": ("رقم هاتفي هو ", "صفر خمسة تسعة أربعة اثنين واحد"),
    "hi": ("मेरा फ़ोन नंबर ", "नौ आठ शून्य एक पाँच छह दो"),
    "ja": ("電話番号は", "ぜろはちぜろのよんいちにごのろくななさんはち"),
}
MAIL = {
    "de": ("meine adresse ist ", "eva punkt kranz at beispiel punkt de"),
    "fr": ("mon adresse est ", "l tiret morin arobase exemple point fr"),
    "es": ("mi correo es ", "eva guion bajo paz arroba ejemplo punto com punto mx"),
    "it": ("la mia mail è ", "ugo punto neri chiocciola esempio punto it"),
    "nl": ("mijn mail is ", "jo punt de punt wit apenstaartje voor beeld punt nl"),
    "pt": ("o meu email é ", "rui ponto sá arroba exemplo ponto pt"),
    "pl": ("mój adres to ", "ewa kropka lis małpa przyklad kropka pl"),
    "tr": ("mail adresim şöyle ", "can nokta su et ornek nokta com"),
    "hi": ("मेरा ईमेल ", "riya डॉट sen ऐट example डॉट in"),
}
NOBODYS = [
    "wir zählen eins zwei drei vier fünf sechs und dann geht es los",
    "und jetzt zurück neun acht sieben sechs fünf vier bis zum start",
    "ich habe drei oder vier äpfel und acht birnen gekauft",
    "ganaron dos cero y tres uno en los últimos partidos",
    "la somme est de deux cent cinquante-trois euros, dit la voisine",
    "le point de vue est un point important de la discussion",
    "wynik meczu był dwa zero, potem trzy jeden i koniec",
    "これにくしのごとくならべてください",
    "wir zählen dann zwei, vier, sechs, acht, und noch einmal von vorn",
    "im binärsystem schreibt man dafür eins null eins eins null null eins",
    "la respuesta correcta es uno, tres, cinco, siete, nueve y nada más",
    "las páginas son estas de aquí, no una sola: 8 3 0 2 y luego 5 4 9 6 7",
    "acht acht acht acht sagte der alte mann und lachte dabei",
    "das ist der punkt und der klammeraffe steht punkt drei",
    "llevo dos arroba de papas y punto final",
]


def left(text, value):
    """Return what is left of a value that ends a text, without blanks and signs."""
    marked = {i for s in ENGINE.detect([text])[0] for i in range(s.start, s.end)}
    places = range(len(text) - len(value), len(text))
    return [text[i] for i in places if text[i].isalnum() and i not in marked]


@pytest.mark.parametrize("code", NUMBERS)
def test_number_that_is_read_out_is_masked_as_a_whole(code):
    before, value = NUMBERS[code]
    assert left(before + value, value) == []


@pytest.mark.parametrize("code", MAIL)
def test_address_of_mail_that_is_read_out_is_masked_as_a_whole(code):
    before, value = MAIL[code]
    assert left(before + value, value) == []


@pytest.mark.parametrize("value", [MAIL[c][1] for c in MAIL if c != "hi"])
def test_address_of_mail_alone_is_masked_whatever_its_language(value):
    assert left(value, value) == []


@pytest.mark.parametrize("text", NOBODYS)
def test_counts_scores_and_amounts_are_no_numbers_of_anybody(text):
    found = ENGINE.detect([text])[0]
    assert not {s.entity_type for s in found} & {"ID", "EMAIL"}


def test_twin_that_takes_counting_for_a_number_marks_it(monkeypatch):
    monkeypatch.setattr(values._Rule, "is_counting", lambda _rule, _value: False)
    found = [ENGINE.detect([text])[0] for text in NOBODYS[:2]]
    assert all(any(s.entity_type == "ID" for s in spans) for spans in found)


def test_twin_that_reads_no_short_texts_misses_what_is_read_out(monkeypatch):
    monkeypatch.setattr(recognizer, "_read_out", lambda _text: iter(()))
    assert any(left(value, value) for _, value in MAIL.values())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Paz y Marta viven aquí desde hace años.", "Paz"),
        ("Gioia e Marco sono partiti ieri sera.", "Gioia"),
        ("Kalina i Marek pojechali razem nad morze.", "Kalina"),
    ],
)
def test_name_that_is_a_word_is_told_by_the_name_it_is_joined_to(text, name):
    marked = {i for s in ENGINE.detect([text])[0] for i in range(s.start, s.end)}
    assert marked >= set(range(len(name)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Der Hausarzt schreibt an Dr. med. dent. Quast", "Quast"),
        ("Das Gutachten ist von Prof. Dr. rer. nat. Ulmen", "Ulmen"),
        ("Der Schlüssel liegt noch immer hier bei Hr. Zschoche", "Zschoche"),
        ("El correo llegó el lun, 8 abr 2024", "lun, 8 abr 2024"),
        ("Le message est arrivé mar. 5 mars 2024", "mar. 5 mars 2024"),
        ("Achternaam: De Wit\nVoorletters: M.C.J.", "M.C.J."),
        ("Ich komme nicht rein, mein Nutzername ist waldfee_77", "waldfee_77"),
        ("Je ne peux pas entrer, mon pseudo est lapin_bleu7", "lapin_bleu7"),
        ("Não consigo entrar, o meu utilizador é lua_cheia8", "lua_cheia8"),
        ("Nie działa, moja nazwa użytkownika to kot_w_butach3", "kot_w_butach3"),
    ],
)
def test_degrees_short_weekdays_and_initials_leave_nothing_of_a_value(text, value):
    assert left(text, value) == []


@pytest.mark.parametrize(
    "text",
    [
        "エラー：タイムアウトしました。",
        "タイトルとタイプを入力してください。",
        "Für den Teig 300 g Mehl und 150 ml Milch verrühren.",
    ],
)
def test_parts_of_words_and_weights_are_no_places(text):
    assert not ENGINE.detect([text])[0]
