"""Records of structured text with lower-case names, in forms that people exchange.

Names come from Faker, so that no list of the library was written for them. In a
template `{f}` is a given name, `{l}` a family name, `{c}` a town, `{d}` a birth date;
only these are values.
"""

import random
import re

from faker import Faker

TEMPLATES = {
    "json": [
        '{{"first_name": "{f}", "last_name": "{l}", "city": "{c}"}}',
        '{{"id": 7, "customer": {{"name": "{f} {l}", "town": "{c}"}}, "dob": "{d}"}}',
        '[{{"fullName":"{f} {l}","on":true}},{{"fullName":"{f} {l}","on":false}}]',
        "{{'employee': {{'given_name': '{f}', 'surname': '{l}'}}, 'salary_band': 3}}",
        '{{"patient":"{f} {l}","birthplace":"{c}","notes":"none"}}',
        '{{\\"firstName\\":\\"{f}\\",\\"lastName\\":\\"{l}\\"}}',
        '{{"passenger": {{"first": "{f}", "last": "{l}"}}, "seat": "12a"}}',
        '{{"billing": {{"account_holder": "{f} {l}", "billing_city": "{c}"}}}}',
    ],
    "csv with header": [
        "id,name,city\n1,{f} {l},{c}\n2,{f} {l},{c}\n3,{f} {l},{c}",
        "first_name;last_name;town;dob\n{f};{l};{c};{d}\n{f};{l};{c};{d}",
        "Employee\tDepartment\tCity\n{f} {l}\tsales\t{c}\n{f} {l}\tsupport\t{c}",
        '"customer","email","birthplace"\n"{f} {l}","x7@example.org","{c}"',
        "| patient | ward | town |\n|---|---|---|\n| {f} {l} | 3 | {c} |",
        "surname, forename, postcode, state\n{l}, {f}, 04109, ok\n{l}, {f}, 10115, ok",
    ],
    "csv without header": [
        "7,{f} {l},{c}\n8,{f} {l},{c}\n9,{f} {l},{c}",
        "100234,{f},{l},34,{c}\n100235,{f},{l},51,{c}",
        "{f} {l};{d};{c};member",
        "{l},{f},{d},{c},active\n{l},{f},{d},{c},inactive",
    ],
    "xml": [
        "<user><name>{f} {l}</name><city>{c}</city></user>",
        "<person id='7'><firstName>{f}</firstName><lastName>{l}</lastName></person>",
        '<contact name="{f} {l}" town="{c}" type="work"/>',
        "<ns:Patient><ns:Surname>{l}</ns:Surname><ns:GivenName>{f}</ns:GivenName></ns:Patient>",
        "<author>{f} {l}</author>\n<birthplace>{c}</birthplace>",
    ],
    "key and value": [
        "name: {f} {l}\ncity: {c}\ndob: {d}",
        "First name: {f}\nLast name: {l}\nTown: {c}",
        "Patient: {f} {l}, DOB: {d}, City: {c}",
        "full_name={f} {l}; city={c}; plan=basic",
        "first_name={f} last_name={l} city={c} status=ok",
        "From: {f} {l}\nTo: {f} {l}\nSubject: the plan",
        "- name: {f} {l}\n  birthplace: {c}\n  role: editor",
        "Emergency contact: {f} {l}\nPlace of birth: {c}",
        "GET /find?first_name={f}&last_name={l}&city={c}&page=2",
        "/book?passenger={f}+{l}&from_city={c}",
    ],
    "chat": [
        "[10:32] {f}: are you there\n[10:33] {f}: yes, just back",
        "<{f}> are you there\n<{f}> yes, just back",
        "{f} {l} (10:32 AM): are you there",
        "2024-03-04 10:32:11 {f} {l}: are you there",
        "12/03/24, 10:32 - {f} {l}: are you there",
        "10:32 - {f}: done\n10:40 - {f}: thanks",
    ],
    "log": [
        "10:32:11 INFO login user={f} result=ok",
        'audit: user "{f} {l}" changed the plan',
        "sshd[311]: Accepted password for {f} from 10.0.0.4 port 22",
        "open C:\\Users\\{f}\\notes.txt failed",
        "author: {f} {l}, reviewer: {f} {l}",
    ],
}


def draw_records(seed: int, rounds: int) -> dict[str, list[tuple[str, list[range]]]]:
    """Draw records of each form; a record is a text and the places of its values."""
    faker = Faker("en_US")
    faker.seed_instance(seed)
    choose = random.Random(seed)  # noqa: S311  # test data
    return {
        form: [
            _fill(template, faker, choose)
            for _ in range(rounds)
            for template in templates
        ]
        for form, templates in TEMPLATES.items()
    }


def _fill(
    template: str, faker: Faker, choose: random.Random
) -> tuple[str, list[range]]:
    """Put values into a template, and note where they stand."""
    text, values = "", []
    for part in re.split(r"(\{[flcd]\}|\{\{|\}\})", template):
        value = _value(part, faker, choose)
        if value is not None:
            values.append(range(len(text), len(text) + len(value)))
        text += part[:1] if part in ("{{", "}}") else part if value is None else value
    return text, values


def _value(part: str, faker: Faker, choose: random.Random) -> str | None:
    """Draw a value in lower case for a place in a template."""
    if part == "{f}":
        return faker.first_name().lower()
    if part == "{l}":
        return faker.last_name().lower()
    if part == "{c}":
        return faker.city().lower()
    if part == "{d}":
        born = faker.date_of_birth(minimum_age=18)
        return born.strftime(
            choose.choice(["%Y-%m-%d", "%d/%m/%Y", "%d %b %Y"])
        ).lower()
    return None
