"""What counts as a secret, and that nothing else does."""

from __future__ import annotations

import json

import pytest

from storage.redact import redact


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("hf_token: abc", "hf_token: REDACTED", id="yaml"),
        pytest.param("private_key: |\n  abc\n  def\nk: 1", "private_key: REDACTED\nk: 1", id="yaml block"),
        pytest.param("secrets: [abc, def]", "secrets: REDACTED", id="yaml list"),
        pytest.param('{"apiKey":"zz","k":3}', '{"apiKey":"REDACTED","k":3}', id="json, camel case"),
        pytest.param('{"api_key": "a\\"b", "k": 3}', '{"api_key": "REDACTED", "k": 3}', id="json with an escaped quote"),
        pytest.param('{"password": 123}', '{"password": "REDACTED"}', id="a number that is a password stays json"),
        pytest.param('{"a": "{\\"hf_token\\": \\"b\\"}"}', '{"a": "{\\"hf_token\\": \\"REDACTED\\"}"}', id="json in json"),
        pytest.param("{'db_password': 'x'}", "{'db_password': 'REDACTED'}", id="python repr"),
        pytest.param("HF_TOKEN=abc next", "HF_TOKEN=REDACTED next", id="environment"),
        pytest.param("--api-key abc --k 3", "--api-key REDACTED --k 3", id="option with a space"),
        pytest.param("--hf-token=abc", "--hf-token=REDACTED", id="option with an equals sign"),
        pytest.param('["--api-key", "abc"]', '["--api-key", "REDACTED"]', id="argv as json"),
        pytest.param("Authorization: Bearer abcdefgh", "Authorization: REDACTED", id="authorization header"),
        pytest.param('{"authorization": "Basic abc="}', '{"authorization": "REDACTED"}', id="authorization in json"),
        pytest.param("sent bearer abcdefgh12", "sent bearer REDACTED", id="bearer in prose"),
        pytest.param("X-Api-Key: abc", "X-Api-Key: REDACTED", id="key header"),
        pytest.param("https://me:pw@host/x", "https://me:REDACTED@host/x", id="password in a url"),
        pytest.param("https://me:p@ssw0rd@host", "https://me:REDACTED@host", id="password with an at sign in a url"),
        pytest.param("hf_token: 1234567890", "hf_token: REDACTED", id="a token of digits only"),
        pytest.param("DB_PWD=hunter2secret", "DB_PWD=REDACTED", id="pwd"),
        pytest.param("pass: hunter2x", "pass: REDACTED", id="pass"),
        pytest.param("auth: abcdefghij", "auth: REDACTED", id="auth"),
        pytest.param("postgres://me:pw@host", "postgres://me:REDACTED@host", id="password in a database url"),
        pytest.param("https://x.org/?token=abcd&k=2", "https://x.org/?token=REDACTED&k=2", id="query of a url"),
        pytest.param("got hf_abcdefghijklmnop", "got REDACTED", id="a hub token by its shape"),
        pytest.param("AKIAABCDEFGHIJKLMNOP", "REDACTED", id="a cloud key by its shape"),
        pytest.param("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "REDACTED", id="pem"),
    ],
)
def test_a_secret_is_hidden_and_hiding_twice_changes_nothing(text: str, expected: str) -> None:
    assert redact(text) == expected
    assert redact(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("output_tokens: 5, tokens: 123, max_tokens=32, n_tokens=12345678", id="counts of tokens"),
        pytest.param("token_count: 123456789, 12.5 tokens/s", id="a count and a rate"),
        pytest.param("eos_token: <|im_end|>", id="a word of the vocabulary"),
        pytest.param("PWD=/home/me", id="the working directory"),
        pytest.param('{"max_tokens": 12, "tokens": [1, 2]}', id="lists of tokens"),
        pytest.param('{"eos_token": "</s>", "tokenizer": "x"}', id="vocabulary"),
        pytest.param('{"eos_token_id": 2, "token_ids": [1]}', id="token ids"),
        pytest.param("monkey: see", id="a word that only ends like one"),
        pytest.param("the key of the map", id="prose"),
        pytest.param("unexpected token: got x", id="a parser's complaint"),
        pytest.param("missing key: draft.k", id="a config's complaint"),
        pytest.param("KeyError: 'model'", id="an exception"),
        pytest.param("hf_token: ${oc.env:HF_TOKEN}", id="a reference to the environment"),
        pytest.param('{"hf_token": null, "api_key": ""}', id="nothing to hide"),
        pytest.param("git@github.com:me/x.git", id="a user in an address"),
        pytest.param('{"k": 3, "draft.k": 8}', id="the draft length"),
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_a_redacted_config_is_still_json() -> None:
    config = {
        "argv": ["--api-key", 'a"b'],
        "env": {"HF_TOKEN": "x", "N": 1},
        "password": 5,
        "nested": json.dumps({"token": 'q"w'}),
    }

    hidden = json.loads(redact(json.dumps(config)))

    assert hidden["argv"] == ["--api-key", "REDACTED"]
    assert hidden["env"] == {"HF_TOKEN": "REDACTED", "N": 1}
    assert hidden["password"] == "REDACTED"
    assert json.loads(hidden["nested"]) == {"token": "REDACTED"}
