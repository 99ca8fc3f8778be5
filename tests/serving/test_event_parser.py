"""Server-sent events: the same events however their bytes are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specbench.serving.stream import EventParser

TEXTS = st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), min_size=1), max_size=6)


@given(TEXTS, st.sampled_from(["\n", "\r\n"]), st.data())
def test_events_do_not_depend_on_where_their_bytes_are_cut(texts, end, data):
    stream = "".join(f": comment{end}id: 7{end}data: {text}{end}{end}" for text in texts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    parser, found = EventParser(), []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)]):
        found += parser.feed(stream[start:stop])
    assert found == texts
    assert not parser.unfinished


def test_an_event_of_several_lines_is_one_and_a_half_one_is_none():
    parser = EventParser()
    assert parser.feed(b"data: {\ndata: }\n\ndata:x\rdata: y\r\r") == ["{\n}", "x\ny"]
    assert parser.feed(b"data: cut") == []
    assert parser.unfinished
    assert EventParser().feed(b"\xffdata: a\n\ndata: b\n\n") == ["b"]  # what is no UTF-8 spoils its line alone
