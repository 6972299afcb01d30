"""Checks that every page must pass."""

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link"}
ADDRESS = re.compile(r"""(?i)(?:href|src|action|data|poster|srcset)\s*=\s*["']?(?!#)""")


class Outline(HTMLParser):
    """Reads a page: nesting, ids, headings, text, attributes that point outside."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.stack, self.tags, self.ids, self.outside = [], [], [], []
        self.words, self.faults = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name.startswith("on"):
                self.faults.append(f"handler {name}")
            points = name in {"href", "src", "xlink:href", "action", "srcset"}
            if points and not (value or "").startswith("#"):
                self.outside.append(value)
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag):
        if not self.stack or self.stack.pop() != tag:
            self.faults.append(f"closing {tag}")

    def handle_data(self, data):
        if self.stack and self.stack[-1] not in {"style", "title"}:
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


def outline(page):
    found = Outline()
    found.feed(page)
    found.close()
    return found


def check_page(page):
    """Well formed, self-contained, without script; returns what it read."""
    found = outline(page)
    assert found.faults == []
    assert found.stack == []
    assert page.startswith("<!DOCTYPE html>")
    assert found.tags.count("h1") == 1
    assert found.tags.count("title") >= 1
    assert not {"script", "iframe", "link", "img", "object"} & set(found.tags)
    assert found.outside == []
    assert len(set(found.ids)) == len(found.ids)
    style = re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL)
    assert style
    assert not any(re.search(r"@import|url\((?!#)", css) for css in style)
    assert "None" not in found.text
    assert "nan" not in found.text.split()
    return found
