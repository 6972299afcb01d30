"""The review page is closed in itself, whatever the sentences hold."""

import base64
import hashlib
import re

import pytest

from dptune.reports.pages.detector import review_page
from dptune.review.sample import Excerpt, Mark, SampledSentence
from dptune.review.store import SampleRecord

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & <!--"


@pytest.fixture
def page():
    sentence = SampledSentence(
        id="0" * 32,
        row=0,
        start=0,
        end=len(EVIL),
        num_words=4,
        marks=(Mark(start=0, end=9, entity_type="PERSON"),),
    )
    record = SampleRecord(
        id="0" * 16,
        config="<b>evil</b>",
        data={},
        corpus="c",
        detector="d",
        tier="low_entity",
        recognizers=("patterns",),
        sizes={"flagged": 1, "unflagged": 0},
        sentences=(sentence,),
        created="2026-01-01T00:00:00+00:00",
    )
    excerpt = Excerpt(sentence=sentence, text=EVIL, before=EVIL, after=EVIL)
    return review_page(record, [excerpt])


def test_text_cannot_leave_its_element(page):
    assert "<img" not in page
    assert "alert(1)</script>" not in page
    assert len(re.findall("<script", page)) == 2
    assert "<b>evil" not in page


def test_policy_allows_its_own_script_and_style_and_nothing_else(page):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    policy = policy.replace("&#39;", "'").replace("&#43;", "+")
    assert policy.startswith("default-src 'none'")
    for word in ("unsafe", "http", "*"):
        assert word not in policy
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)[0]
    style = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)[0]
    for source in (script, style):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"sha256-{digest}" in policy


def test_page_asks_nobody_and_keeps_nothing(page):
    for word in (
        "localStorage",
        "sessionStorage",
        "indexedDB",
        "document.cookie",
        "fetch(",
        "XMLHttpRequest",
        "sendBeacon",
        "WebSocket",
        "innerHTML",
        "eval(",
        "http://",
        "https://",
    ):
        assert word not in page
    assert 'class="restricted"' in page
