"""Identifiers drawn at random, written in the ways people write them, and near misses.

Checksums are computed here, independently of the library, so that a wrong check there
cannot agree with itself.
"""

import random
from collections.abc import Callable

NBSP, THIN, ZERO_WIDTH = "\u00a0", "\u2009", "\u200b"
HYPHENS = ("-", "\u2010", "\u2011", "\u2013", "\u2212")
FRAMES = (
    "{}",
    "it is {}.",
    "my friend said {} yesterday",
    "USR: {}\nSYS: ok",
    "({})",
    "Please use {}, thanks!",
    "one\n{}\ntwo",
    "Value:\t{}",
    "“{}”",
)
_FULL_WIDTH = str.maketrans({chr(c): chr(c + 0xFEE0) for c in range(0x21, 0x7F)})
_ARABIC = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")
_BOLD = str.maketrans("0123456789", "𝟎𝟏𝟐𝟑𝟒𝟓𝟔𝟕𝟖𝟗")


class Values:
    """Draws values of each structured type, perturbed, and near misses."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311  # test data

    def digits(self, count: int) -> str:
        """Draw digits."""
        return "".join(self.random.choices("0123456789", k=count))

    def frame(self, value: str) -> tuple[str, int]:
        """Put a value into a sentence; return it and where the value starts."""
        frame = self.random.choice(FRAMES)
        return frame.replace("{}", value), frame.index("{}")

    def email(self) -> str:
        """Draw an address and a way to write it."""
        names = ["ann.lee", "zoe_w", "b.ng+x", "jan.de.vries", "info", "kim-park"]
        hosts = ["example.org", "mail.example.com", "uni-x.example.edu", "acme.co.uk"]
        name = self.random.choice(names) + self.digits(self.random.randint(0, 3))
        host = self.random.choice(hosts)
        plain = f"{name}@{host}"
        return self.pick(
            lambda: plain,
            plain.upper,
            lambda: f"<{plain}>",
            lambda: f"mailto:{plain}",
            lambda: f"{name} @ {host}",
            lambda: f"{name}@ {host}",
            lambda: f"{name} (at) {host.replace('.', ' (dot) ')}",
            lambda: f"{name}[at]{host.replace('.', '[dot]')}",
            lambda: f"{name} at {host.replace('.', ' dot ')}",
            lambda: f"{name} @ {host.replace('.', ' . ')}",
            lambda: f"{name}@\n{host}",
            lambda: f"{name}\n@{host}",
            lambda: plain.translate(_FULL_WIDTH),
            lambda: plain.replace("@", "＠"),
            lambda: plain.replace("@", ZERO_WIDTH + "@" + ZERO_WIDTH),
        )

    def luhn(self, prefix: str, length: int) -> str:
        """Complete a prefix to a number with a valid Luhn digit."""
        body = prefix + self.digits(length - len(prefix) - 1)
        total = 0
        for position, digit in enumerate(reversed(body)):
            double = int(digit) * (2 - position % 2)
            total += double - 9 * (double > 9)
        return body + str(-total % 10)

    def card(self) -> str:
        """Draw a card number of one of five issuers and a way to write it."""
        prefix, groups = self.random.choice(
            [
                ("4", (4, 4, 4, 4)),
                ("5" + self.random.choice("12345"), (4, 4, 4, 4)),
                ("6011", (4, 4, 4, 4)),
                ("3" + self.random.choice("47"), (4, 6, 5)),
                ("36", (4, 6, 4)),
            ]
        )
        digits = self.luhn(prefix, sum(groups))
        return self.separated(self.split(digits, groups), glued=True)

    def iban(self) -> str:
        """Draw an IBAN of seven countries and a way to write it."""
        country, length, head = self.random.choice(
            [
                ("DE", 22, ""),
                ("GB", 22, "NWBK"),
                ("FR", 27, ""),
                ("NL", 18, "ABNA"),
                ("ES", 24, ""),
                ("CH", 21, ""),
                ("PL", 28, ""),
            ]
        )
        account = head + self.digits(length - 4 - len(head))
        number = "".join(str(int(c, 36)) for c in f"{account}{country}00")
        plain = f"{country}{98 - int(number) % 97:02d}{account}"
        if self.random.random() < 0.15:
            return plain.lower()
        groups = [plain[i : i + 4] for i in range(0, len(plain), 4)]
        return self.separated(groups, glued=True)

    def ssn(self) -> str:
        """Draw a number that the SSA may issue and a way to write it."""
        area = self.random.choice([*range(1, 666), *range(667, 900)])
        group, serial = self.random.randint(1, 99), self.random.randint(1, 9999)
        parts = [f"{area:03d}", f"{group:02d}", f"{serial:04d}"]
        if self.random.random() < 0.1:
            return "SSN " + "".join(parts)
        return self.separated(parts, glued=False)

    def ip(self) -> str:
        """Draw an IPv4 or IPv6 address and a way to write it."""
        if self.random.random() < 0.3:
            full = ":".join(f"{self.random.randint(0, 65535):x}" for _ in range(8))
            short = f"2001:db8::{self.random.randint(16, 65535):x}:{self.digits(3)}"
            return self.random.choice([full, full.upper(), short, f"[{short}]"])
        parts = [str(self.random.randint(1, 254)) for _ in range(4)]
        plain = ".".join(parts)
        return self.pick(
            lambda: plain,
            lambda: f"{plain}:8080",
            lambda: f"{plain}/24",
            lambda: "[.]".join(parts),
            lambda: " . ".join(parts),
            lambda: "(dot)".join(parts),
            lambda: plain.translate(_FULL_WIDTH),
            lambda: plain.translate(_BOLD),
            lambda: plain.replace(".", ZERO_WIDTH + "."),
            lambda: ".\n".join([".".join(parts[:2]), ".".join(parts[2:])]),
        )

    def phone(self) -> str:
        """Draw a phone number and a way to write it."""
        area, middle = self.random.randint(201, 989), self.random.randint(201, 989)
        last = self.digits(4)
        parts = [str(area), str(middle), last]
        return self.pick(
            lambda: f"({area}) {middle}-{last}",
            lambda: f"({area}){middle}-{last}",
            lambda: f"+1 {area} {middle} {last}",
            lambda: f"+1-{area}-{middle}-{last}",
            lambda: f"1-{area}-{middle}-{last}",
            lambda: f"+44 20 {self.digits(4)} {self.digits(4)}",
            lambda: f"0044 20 {self.digits(4)} {self.digits(4)}",
            lambda: f"+49 (0)30 {self.digits(7)}",
            lambda: f"+33 6 {self.digits(2)} {self.digits(2)} {self.digits(2)} 17",
            lambda: f"{area}-{middle}-{last} x{self.digits(3)}",
            lambda: f"({area})\n{middle}-{last}",
            lambda: self.separated(parts, glued=True),
            lambda: self.separated(parts, glued=True),
            lambda: self.separated(parts, glued=True),
        )

    def pick(self, *makers: Callable[[], str]) -> str:
        """Write a value in one of several ways."""
        return self.random.choice(makers)()

    @staticmethod
    def split(digits: str, groups: tuple[int, ...]) -> list[str]:
        """Cut digits into groups."""
        parts = []
        for size in groups:
            parts.append(digits[:size])
            digits = digits[size:]
        return parts

    def separated(self, parts: list[str], *, glued: bool) -> str:
        """Join the groups of a number in one of many ways."""
        hyphen = self.random.choice(HYPHENS)
        ways = [" ", "-", ".", hyphen, NBSP, THIN, "  ", f" {hyphen} ", "\n", "-\n"]
        ways += ["", ZERO_WIDTH] if glued else []
        way = self.random.choice(ways)
        if way in {"\n", "-\n"}:  # the line ends once, within the number
            cut = self.random.randrange(1, len(parts))
            other = "-" if way == "-\n" else " "
            head, tail = other.join(parts[:cut]), other.join(parts[cut:])
            return head + way + tail
        joined = way.join(parts)
        draw = self.random.random()
        if draw < 0.08:
            return joined.translate(_FULL_WIDTH)
        return joined.translate(_ARABIC if draw < 0.12 else {})

    def true_values(self) -> dict[str, str]:
        """Draw one value of each type."""
        return {
            "EMAIL": self.email(),
            "CREDIT_CARD": self.card(),
            "IBAN": self.iban(),
            "SSN": self.ssn(),
            "IP": self.ip(),
            "PHONE": self.phone(),
        }

    def invalid_values(self) -> dict[str, str]:
        """Draw values with a wrong checksum or of a range never issued.

        They may be some other number (an order id), never what they imitate.
        """
        card = self.luhn("4", 16)
        wrong = card[:-1] + str((int(card[-1]) + self.random.randint(1, 9)) % 10)
        grouped = " ".join(self.split(wrong, (4, 4, 4, 4)))
        account = f"NWBK{self.digits(14)}"
        number = int("".join(str(int(c, 36)) for c in f"{account}GB00"))
        check = (98 - number % 97 + self.random.randint(1, 90)) % 97 + 2
        is_right = (number + check) % 97 == 1
        area = self.random.choice(["000", "666"])
        return {
            "CREDIT_CARD": self.random.choice([wrong, grouped]),
            "IBAN": f"GB{(check + 1) % 97 if is_right else check:02d}{account}",
            "SSN": f"{area}-{self.random.randint(10, 99)}-{self.digits(3)}1",
            "IP": f"{self.random.randint(256, 999)}.{self.random.randint(1, 9)}.1.1",
        }

    def isbn13(self) -> str:
        """Draw a valid ISBN-13 in its five groups or bare."""
        body = "978" + self.digits(9)
        total = sum(int(d) * (3 if i % 2 else 1) for i, d in enumerate(body))
        digits = body + str(-total % 10)
        parts = self.split(digits, (3, 1, 3, 5, 1))
        return self.random.choice(["-".join(parts), digits, " ".join(parts)])

    def isbn10(self) -> str:
        """Draw a valid ISBN-10 in its four groups."""
        body = self.digits(9)
        rest = -sum((10 - i) * int(d) for i, d in enumerate(body)) % 11
        parts = self.split(body, (1, 3, 5))
        return "-".join([*parts, "X" if rest == 10 else str(rest)])

    def public_values(self) -> dict[str, str]:
        """Draw numbers that identify nobody, in which nothing may be found."""
        one = self.random.randint
        cents = f"{one(0, 99):02d}"
        version = f"{one(1, 20)}.{one(0, 40)}.{one(0, 300)}"
        return {
            "version": self.pick(
                lambda: f"v{version}",
                lambda: f"version {version}",
                lambda: f"version {version}.{one(0, 300)}",
                lambda: f"Python {version}",
                lambda: f"release {version}-rc{one(1, 9)}",
                lambda: f"firmware {one(1, 9)}.{one(0, 9)}.{one(0, 9)}.{one(0, 9)}",
            ),
            "isbn": self.pick(
                lambda: f"ISBN {self.isbn13()}",
                lambda: f"ISBN: {self.isbn13()}",
                self.isbn13,
                lambda: f"ISBN-10 {self.isbn10()}",
                self.isbn10,
            ),
            "price": self.pick(
                lambda: f"${one(1, 9999)}.{cents}",
                lambda: f"${one(1, 99)},{self.digits(3)}.{cents}",
                lambda: f"€ {one(10, 9999)}",
                lambda: f"{one(1, 999)}.{cents}",
                lambda: f"USD {one(10000, 999999)}",
                lambda: f"{one(10000, 999999)} dollars",
                lambda: f"£{one(100000, 999999)}",
                lambda: f"{one(1, 9)}.{self.digits(3)},{cents} €",
            ),
        }
