from __future__ import annotations

from dataclasses import replace

import pytest
from support_models import CHAT_TEMPLATE, END, NO_SYSTEM_TEMPLATE, THINKING_TEMPLATE, tiny_tokenizer

from specbench.errors import CapacityError, ConfigError, TaskError
from specbench.prompting import Limits, PromptSet, Renderer, digest, request_number
from specbench.types import Prompt, Sampling

TWO = Prompt("a", "chat", "dialogue", ("Hello there", "And again"))
ONE = Prompt("b", "math", "math", ("1+1?",))
LIMITS = Limits(
    max_new_tokens=8, max_context=200, ignore_eos=False, stop_ids=frozenset({END}), sampling=Sampling(), seed=0
)


def prompt_set(*prompts: Prompt, template: str | None = CHAT_TEMPLATE, thinking: str = "default", version: str = "1"):
    renderer = Renderer(tiny_tokenizer(chat_template=template), thinking=thinking)
    return PromptSet(prompts, renderer, tasks=(("chat", version),))


def text(prompts: PromptSet, ids) -> str:
    return prompts.renderer.tokenizer.decode(list(ids))


def test_first_turn_goes_through_the_template():
    prompts = prompt_set(TWO)
    request = prompts.request(TWO, (), limits=LIMITS)
    assert text(prompts, request.prompt_ids) == "<|user|>Hello there<|end|><|assistant|>"
    assert (request.id, request.task, request.domain) == ("chat/a/0", "chat", "dialogue")


def test_second_turn_holds_the_first_answer_without_its_stop_token():
    prompts = prompt_set(TWO)
    answer = (*prompts.renderer.tokenizer("Hi!").input_ids, END)
    request = prompts.request(TWO, [answer], limits=LIMITS)
    assert text(prompts, request.prompt_ids) == (
        "<|user|>Hello there<|end|><|assistant|>Hi!<|end|><|user|>And again<|end|><|assistant|>"
    )


def test_system_text_leads_and_moves_into_the_user_turn_where_the_template_refuses_it():
    with_system = replace(ONE, system="Be brief.")
    prompts = prompt_set(with_system)
    assert text(prompts, prompts.first_ids["math", "b"]).startswith("<|system|>Be brief.<|end|><|user|>1+1?")
    prompts = prompt_set(with_system, template=NO_SYSTEM_TEMPLATE)
    assert text(prompts, prompts.first_ids["math", "b"]).startswith("<|user|>Be brief.\n\n1+1?<|end|>")
    assert len(prompts.renderer.notes) == 1


def test_template_that_refuses_the_prompt_itself_is_a_task_error():
    with pytest.raises(TaskError, match="prompt 'b' of task 'math'"):
        prompt_set(ONE, template="{{ raise_exception('no') }}")


def test_tokenizer_without_a_template_renders_plainly_and_says_so_once():
    prompts = prompt_set(TWO, ONE, template=None)
    assert text(prompts, prompts.first_ids["chat", "a"]) == "Hello there"
    second = prompts.request(TWO, [tuple(prompts.renderer.tokenizer("Hi!").input_ids)], limits=LIMITS)
    assert text(prompts, second.prompt_ids) == "Hello there\n\nHi!\n\nAnd again"
    assert [n for n in prompts.renderer.notes if "no chat template" in n] == prompts.renderer.notes


def test_thinking_switch_changes_the_rendering():
    """Recipe T13: different hashes with a template that knows the switch, an error with one that ignores it."""
    hashes = {
        thinking: prompt_set(ONE, template=THINKING_TEMPLATE, thinking=thinking).rendering_hash(template_sha256="t")
        for thinking in ("default", "on", "off")
    }
    assert len(set(hashes.values())) == 3
    on = prompt_set(ONE, template=THINKING_TEMPLATE, thinking="on")
    off = prompt_set(ONE, template=THINKING_TEMPLATE, thinking="off")
    assert on.first_ids != off.first_ids
    for template in (CHAT_TEMPLATE, None):
        for thinking in ("on", "off"):
            with pytest.raises(ConfigError, match="ignores the switch"):
                prompt_set(ONE, template=template, thinking=thinking)


def test_rendering_hash_moves_with_data_template_version_and_turns():
    base = prompt_set(TWO).rendering_hash(template_sha256="t")
    assert prompt_set(TWO).rendering_hash(template_sha256="t") == base
    assert prompt_set(TWO).rendering_hash(template_sha256="u") != base
    assert prompt_set(TWO, version="2").rendering_hash(template_sha256="t") != base
    assert prompt_set(replace(TWO, turns=("Hello there", "and again"))).rendering_hash(template_sha256="t") != base
    assert prompt_set(TWO, ONE).prompt_set_hash() != prompt_set(ONE, TWO).prompt_set_hash()


def test_no_prompts_no_text_and_double_ids_are_refused():
    with pytest.raises(TaskError, match="no prompts in chat"):
        prompt_set()
    with pytest.raises(TaskError, match="no tokens"):
        prompt_set(replace(ONE, turns=("",)), template=None)
    with pytest.raises(TaskError, match="two prompts with the id 'b'"):
        prompt_set(ONE, ONE)


def test_prompt_beyond_the_context_is_named():
    prompts = prompt_set(ONE, TWO)
    prompts.check_fits(context_limit=15)
    with pytest.raises(CapacityError, match=r"prompt 'a' of task 'chat' .* 14 tokens .* 14"):
        prompts.check_fits(context_limit=14)


def test_request_gets_the_room_left_and_a_later_turn_may_not_fit():
    prompts = prompt_set(TWO)
    tight = replace(LIMITS, max_context=17)
    assert prompts.request(TWO, (), limits=tight).max_new_tokens == 3
    assert prompts.shortened == {"chat/a/0"}
    with pytest.raises(CapacityError, match="turn 2"):
        prompts.request(TWO, [(50, 51, 52)], limits=tight)


def test_context_needed_holds_every_conversation():
    prompts = prompt_set(TWO, ONE)
    need = prompts.context_needed(8)
    answer = tuple(prompts.renderer.tokenizer("eight xx").input_ids)
    last = prompts.request(TWO, [answer], limits=replace(LIMITS, max_context=need))
    assert len(last.prompt_ids) + 8 <= need
    assert last.max_new_tokens == 8


def test_numbers_are_stable_distinct_and_fit_56_bits():
    numbers = {
        request_number(task=task, prompt=prompt, turn=turn)
        for task in ("a", "b") for prompt in ("1", "11") for turn in (0, 1, 11)
    }  # fmt: skip
    assert len(numbers) == 12
    assert all(0 <= number < 2**56 for number in numbers)
    assert request_number(task="gsm8k", prompt="7", turn=0) == request_number(task="gsm8k", prompt="7", turn=0)
    assert digest("ab", "c") != digest("a", "bc")


def test_warmups_are_in_no_task_and_differ_from_each_other():
    made = prompt_set(TWO).warmups(3, limits=LIMITS)
    assert len({request.prompt_ids for request in made}) == 3
    assert len({request.number for request in made}) == 3
    assert all(request.task == "warmup" and request.ignore_eos for request in made)
    (short,) = prompt_set(TWO).warmups(1, limits=replace(LIMITS, max_context=5))
    assert len(short.prompt_ids) + short.max_new_tokens <= 5


def test_output_limits_are_drawn_between_the_shortest_and_the_whole_by_the_seed() -> None:
    limits = replace(LIMITS, max_new_tokens=40, shortest=0.25)
    names = [f"chat/{index}/0" for index in range(400)]
    drawn = [limits.limit_of(name) for name in names]
    assert (min(drawn), max(drawn)) == (10, 40)
    assert 24 < sum(drawn) / len(drawn) < 26
    assert drawn == [limits.limit_of(name) for name in names]
    assert drawn != [replace(limits, seed=1).limit_of(name) for name in names]
    assert {replace(limits, shortest=1.0).limit_of(name) for name in names} == {40}
    prompts = prompt_set(TWO)
    request = prompts.request(TWO, (), limits=limits)
    assert request.max_new_tokens == limits.limit_of(request.id)
    assert not prompts.shortened
