from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specbench_tasks import load_file
from specbench_tasks._files import parse

from specbench import registry
from specbench.errors import TaskError


def write(folder: Path, text: str | bytes, name: str = "mine.jsonl") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_turns_rows_keep_order_and_every_field(tmp_path: Path) -> None:
    rows = lines(
        {"turns": ["a", "b"], "id": "x", "domain": "math", "system": "be brief", "reference": {"answer": "4"}},
        {"turns": ["c"], "category": "code", "reference": ["five"]},
        {"turns": ["d"], "id": 7, "system": None},
    )
    task = load_file(write(tmp_path, rows), domain="other")
    assert (task.name, task.domain, task.left_out) == ("mine", "mixed", 0)
    first, second, third = task.prompts()
    assert (first.id, first.task, first.domain) == ("x", "mine", "math")
    assert (first.turns, first.system) == (("a", "b"), "be brief")
    assert first.reference == {"answer": "4"}
    assert (second.id, second.domain, second.reference) == ("row-2", "code", {"reference": ["five"]})
    assert (third.id, third.domain, third.system) == ("7", "other", None)


def test_spec_bench_questions_fall_into_the_official_groups(tmp_path: Path) -> None:
    categories = ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"]
    categories += ["translation", "summarization", "qa", "math_reasoning", "rag"]
    rows = [{"question_id": 81 + i, "category": c, "turns": [c]} for i, c in enumerate(categories)]
    prompts = load_file(write(tmp_path, lines(*rows))).prompts()
    groups = ["mt_bench"] * 8 + ["translation", "summarization", "qa", "math_reasoning", "rag"]
    assert [p.domain for p in prompts] == groups
    assert [p.reference["category"] for p in prompts] == categories
    assert prompts[0].id == "81"


def test_category_outside_a_question_file_is_the_domain(tmp_path: Path) -> None:
    task = load_file(write(tmp_path, lines({"turns": ["x"], "category": "writing"})))
    assert task.domain == task.prompts()[0].domain == "writing"


def test_sharegpt_takes_the_human_turns_and_counts_what_it_cannot_run(tmp_path: Path) -> None:
    rows = lines(
        {
            "id": "a",
            "conversations": [
                {"from": "system", "value": "you are kind"},
                {"from": "human", "value": "hello"},
                {"from": "gpt", "value": "hi"},
                {"from": "human", "value": "bye"},
            ],
        },
        {"id": "b", "conversations": [{"from": "gpt", "value": "..."}]},
        {"id": "c", "conversations": []},
        {"id": "d", "conversations": [{"from": "human", "value": ""}, {"from": "gpt", "value": "?"}]},
    )
    with pytest.warns(UserWarning, match="left out 3 conversation"):
        task = load_file(write(tmp_path, rows))
    (prompt,) = task.prompts()
    assert (prompt.turns, prompt.system, task.left_out) == (("hello", "bye"), "you are kind", 3)


def test_sharegpt_as_one_json_array_and_chat_messages(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "conversations": [{"from": "human", "value": "one"}]},
        {"id": "b", "messages": [{"role": "user", "content": "two"}, {"role": "assistant", "content": "3"}]},
    ]
    task = load_file(write(tmp_path, json.dumps(rows, indent=2), name="share.json"))
    assert [p.turns for p in task.prompts()] == [("one",), ("two",)]
    assert task.version == load_file(write(tmp_path, lines(*rows))).version


def test_single_field_rows(tmp_path: Path) -> None:
    rows = lines({"prompt": "p"}, {"question": "q"}, {"instruction": "i"}, {"instruction": "i", "input": "text"})
    turns = [p.turns for p in load_file(write(tmp_path, rows)).prompts()]
    assert turns == [("p",), ("q",), ("i",), ("i\n\nInput:\ntext",)]


def test_blank_lines_byte_order_mark_windows_line_ends_and_line_separators(tmp_path: Path) -> None:
    body = '\r\n{"turns": ["caf\u00e9 \u2028 next"]}\r\n\n  \n{"turns": ["b"]}'
    task = load_file(write(tmp_path, b"\xef\xbb\xbf" + body.encode("utf-8")))
    assert [p.turns[0] for p in task.prompts()] == ["café \u2028 next", "b"]
    assert [p.id for p in task.prompts()] == ["row-1", "row-2"]


GOOD = '{"turns": ["fine"]}\n\n'
BAD_LINES = {
    "not json": ("{turns: 1}", "not JSON"),
    "cut off": ('{"turns": ["a"', "not JSON"),
    "two objects": ('{"turns": ["a"]} {"turns": ["b"]}', "follows the JSON value"),
    "a number": ("5", "5 is not an object"),
    "an array": ('["a"]', '["a"] is not an object'),
    "no prompt": ('{"text": "a"}', 'no prompt in the row (fields: "text")'),
    "empty object": ("{}", "no prompt in the row (fields: none)"),
    "turns a string": ('{"turns": "a"}', '"turns" is "a"; expected a non-empty list of strings'),
    "turns empty": ('{"turns": []}', '"turns" is []'),
    "turn a number": ('{"turns": ["a", 3]}', "turn 2 is 3; expected a non-empty string"),
    "turn blank": ('{"turns": [" "]}', 'turn 1 is " "'),
    "turn null": ('{"turns": [null]}', "turn 1 is null"),
    "prompt a list": ('{"prompt": ["a"]}', '"prompt" is ["a"]'),
    "half a surrogate": ('{"turns": ["\\ud83d"]}', "half of a surrogate pair"),
    "id true": ('{"turns": ["a"], "id": true}', '"id" is true'),
    "id taken": ('{"turns": ["a"], "id": "row-1"}', 'id "row-1" was already on line 1'),
    "domain a number": ('{"turns": ["a"], "domain": 4}', '"domain" is 4'),
    "system a list": ('{"turns": ["a"], "system": []}', '"system" is []'),
    "conversations an object": ('{"conversations": {"a": 1}}', '"conversations" is {"a": 1}'),
    "message a string": ('{"conversations": ["hi"]}', 'message 1 is "hi"'),
    "stranger": ('{"conversations": [{"from": "cat", "value": "a"}]}', 'message 1 is from "cat"'),
    "speaker a list": ('{"conversations": [{"from": [], "value": "a"}]}', "message 1 is from []"),
    "human says 5": ('{"conversations": [{"from": "human", "value": 5}]}', "message 1 is 5"),
    "long number": ('{"turns": ' + "9" * 5000 + "}", "too many digits"),
    "deep nesting": ("[" * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize("case", sorted(BAD_LINES))
def test_malformed_line_is_named_with_file_and_line(tmp_path: Path, case: str) -> None:
    line, seen = BAD_LINES[case]
    path = write(tmp_path, GOOD + line + "\n" + GOOD)
    with pytest.raises(TaskError) as caught:
        load_file(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:3: ")
    assert seen in message
    assert "; expected " in message
    assert "\n" not in message
    assert len(message) < len(str(path)) + 250


def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.encode() + b'{"turns": ["caf\xe9"]}\n')
    with pytest.raises(TaskError, match=r":3: byte 0xe9 is not UTF-8; expected a text file in UTF-8"):
        load_file(path)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('[\n{"turns": ["a"]}\n{"turns": ["b"]}]', ":3: an item of the JSON array does not end"),
        ('[\n{"turns": ["a"]},\n]', ":3: not JSON"),
        ('[\n{"turns": ["a"]},\n{"turns": 1}]', ':3: "turns" is 1'),
        ('[\n{"turns": ["a"]}\n]\n{"turns": ["b"]}', ":3: "),
        ('[{"turns": ["a"]}', ":1: an item of the JSON array does not end"),
        ("[]", ":1: the file holds no rows"),
    ],
)
def test_malformed_array_is_named_with_its_line(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(TaskError) as caught:
        load_file(write(tmp_path, text))
    assert where in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n\n  \n", "\ufeff"])
def test_empty_file_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(TaskError, match=r":1: the file holds no rows; expected one JSON object a line"):
        load_file(write(tmp_path, text))


def test_missing_file_and_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="does not exist"):
        load_file(tmp_path / "nowhere.jsonl")
    with pytest.raises(TaskError, match="is a folder"):
        load_file(tmp_path)
    with pytest.raises(TaskError, match="cannot be read"):
        load_file("nul\0byte.jsonl")


def test_version_is_a_hash_of_content_not_of_layout(tmp_path: Path) -> None:
    rows = [{"turns": ["a"]}, {"turns": ["b", "c"]}]
    version = load_file(write(tmp_path, lines(*rows))).version
    assert re.fullmatch(r"[0-9a-f]{16}", version)
    assert load_file(write(tmp_path, "\n" + lines(*rows).replace(": ", ":"), name="other.jsonl")).version == version
    changed = [
        [{"turns": ["a"]}, {"turns": ["b", "C"]}],
        [{"turns": ["a"]}, {"turns": ["bc"]}],
        [{"turns": ["b", "c"]}, {"turns": ["a"]}],
        [{"turns": ["a"], "system": "s"}, {"turns": ["b", "c"]}],
        [{"turns": ["a"], "domain": "d"}, {"turns": ["b", "c"]}],
    ]
    versions = {load_file(write(tmp_path, lines(*other))).version for other in changed}
    assert len(versions) == len(changed)
    assert version not in versions


def test_registered_under_file(tmp_path: Path) -> None:
    path = write(tmp_path, lines({"turns": ["a"]}))
    task = registry.load("tasks", "file")(path, domain="chat")
    assert (task.name, task.domain, task.prompts()[0].domain) == ("mine", "chat", "chat")


# ------------------------------------------------------------------------------------------------------- properties

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=6), v, max_size=3))
keys = st.sampled_from(
    ["turns", "id", "question_id", "category", "domain", "system", "reference", "conversations", "messages", "prompt"]
)
speakers = st.sampled_from(["human", "gpt", "", "x"])
messages = st.dictionaries(st.sampled_from(["from", "value", "role"]), speakers | values)
rows = st.dictionaries(keys, values | st.lists(st.text(max_size=5), max_size=3) | st.lists(messages, max_size=3))


def check(data: bytes) -> None:
    """Prompts that can be run, or one TaskError that names a line of the file."""
    message = ""
    try:
        prompts, left_out = parse(data, source="f.jsonl", task="t")
    except TaskError as error:
        message = str(error)
    if message:
        found = re.fullmatch(r"f\.jsonl:(\d+): .+; expected .+", message)
        assert found, message
        assert 1 <= int(found[1]) <= data.count(b"\n") + 1
        return
    assert prompts
    assert left_out >= 0
    assert len({p.id for p in prompts}) == len(prompts)
    for prompt in prompts:
        assert prompt.turns
        assert all(turn.strip() and turn.encode("utf-8") for turn in prompt.turns)


@settings(deadline=None)  # other work may run beside the tests
@given(st.text())
def test_arbitrary_text(text: str) -> None:
    check(text.encode("utf-8", errors="surrogatepass"))


@settings(deadline=None)  # other work may run beside the tests
@given(st.binary())
def test_arbitrary_bytes(data: bytes) -> None:
    check(data)


@settings(deadline=None)  # other work may run beside the tests
@given(st.lists(rows | values, max_size=4), st.sampled_from(["\n", "\n\n", "\r\n", " "]))
def test_arbitrary_json_lines(items: list[object], separator: str) -> None:
    check(separator.join(json.dumps(item) for item in items).encode("utf-8"))


@settings(deadline=None)  # other work may run beside the tests
@given(st.lists(rows, max_size=4), st.integers(0, 200), st.sampled_from(["", "]", ",", "x", '"', "\n"]))
def test_arbitrary_damaged_json_array(items: list[object], cut: int, tail: str) -> None:
    check((json.dumps(items, indent=1)[: -cut or None] + tail).encode("utf-8"))


@settings(deadline=None)  # other work may run beside the tests
@given(st.lists(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=3), min_size=1, max_size=5))
def test_valid_turns_survive_unchanged(conversations: list[list[str]]) -> None:
    data = "\n".join(json.dumps({"turns": turns}, ensure_ascii=False) for turns in conversations).encode("utf-8")
    prompts, _ = parse(data, source="f.jsonl", task="t")
    assert [list(p.turns) for p in prompts] == conversations
