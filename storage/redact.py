"""Owns what counts as a secret, and its removal from text. Does not own which text is written, or where.

It errs on the side of removal: a name that *ends* in a secret word (`hf_token`, `apiKey`, `--api-key`, `DB_PASSWORD`) hides
its value, whether the text is JSON (also inside JSON), YAML, a header, an environment or a command line. `tokens`,
`token_ids`, `tokenizer`, `eos_token` and plain counts stay.
"""

from __future__ import annotations

import re

HIDDEN = "REDACTED"  # a plain word: valid inside JSON, YAML, a URL and Markdown

_ALWAYS = {"secret", "secrets", "password", "passwords", "passwd", "passphrase", "credential", "credentials"}
_SECRET_WORDS = _ALWAYS | {"token", "key", "apikey", "signature", "sig", "cookie", "pass", "pwd", "auth"}
_FOLDERS = {"pwd", "oldpwd"}  # also the names of the working directory
_NOT_A_SECRET_TOKEN = {
    "eos",
    "bos",
    "pad",
    "unk",
    "mask",
    "sep",
    "cls",
    "stop",
    "special",
    "image",
    "per",
    "next",
    "first",
    "last",
}
_PLAIN_VALUE = re.compile(r"""(?!\d{8})[\d.+\-eE]*|null|None|true|false|True|False|\$.*""", re.DOTALL)

_ENDS = "token|key|secrets?|passwords?|passwd|passphrase|credentials?|signature|sig|cookie|pass|pwd|auth"
_NAME = rf"(?P<name>(?<![A-Za-z0-9])[A-Za-z0-9_.\-]*(?:{_ENDS}))"
_BETWEEN = r"""(?P<between>\\*["']?[ \t]*[:=][ \t]*|\\*["'],\s*(?=\\*["'])|[ \t]+)"""
_VALUE = r"""(?P<value>[|>][+\-]?\n(?:[ \t]+\S.*(?:\n|$))+"""  # a block of YAML
_VALUE += r"""|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"""
_VALUE += r"""|(?P<escaped>\\+["']).*?(?<!\\)(?P=escaped)"""  # quoted inside a quoted text: JSON in JSON
_VALUE += r"""|\[[^\[\]]*\]|\{[^{}]*\}|[^\s,;&"'\\\[\]{})(]+)"""
_NAMED = re.compile(_NAME + _BETWEEN + _VALUE, re.IGNORECASE)

_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    (re.compile(r"\b([a-z][a-z0-9+.\-]*://[^\s/:@\"']*):[^\s/?#\"']+@", re.IGNORECASE), rf"\1:{HIDDEN}@"),
    (re.compile(r"\b(https?://)[^\s/:@\"']{12,}@", re.IGNORECASE), rf"\1{HIDDEN}@"),
    (re.compile(r"""(authorization\\*["']?\s*[:=,]\s*\\*["']?)(?:[a-z]+\s+)?[^\s"'\\,]+""", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=\-]{8,}", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (
        re.compile(r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|nvapi-|xox[abprs]-|AKIA|ASIA|AIza)[A-Za-z0-9_\-]{12,}"),
        HIDDEN,
    ),
    (re.compile(r"\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*"), HIDDEN),
)
"""What gives itself away by its shape, and what to put in its place."""


def redact(text: str) -> str:
    """The text with every secret replaced by `REDACTED`; applying it twice changes nothing more."""
    for shape, replacement in _SHAPES:
        text = shape.sub(replacement, text)
    return _NAMED.sub(_hide_named, text)


def _hide_named(found: re.Match[str]) -> str:
    name, between, value = found["name"], found["between"], found["value"]
    if _is_prose(found) or not _is_secret(_words(name)) or (_words(name)[-1] in _FOLDERS and value.startswith("/")):
        return found[0]
    name_quote = re.match(r"""\\*["']|""", between)
    value_quote = re.match(r"""\\*["']|""", value)
    assert name_quote
    assert value_quote
    inner = value[value_quote.end() : len(value) - value_quote.end()]
    if not inner or (_words(name)[-1] not in _ALWAYS and _PLAIN_VALUE.fullmatch(inner)):
        return found[0]
    quote = value_quote[0] or name_quote[0]  # a bare value in JSON must stay JSON
    return f"{name}{between}{quote}{HIDDEN}{quote}" + ("\n" if value.endswith("\n") else "")


def _is_prose(found: re.Match[str]) -> bool:
    """`the key of x`, `unexpected token: got x`: a space follows only an option, and no sentence goes before a bare word."""
    is_option = found["name"].startswith("-")
    if not found["between"].strip(" \t"):
        return not is_option
    line = found.string[: found.start()].rpartition("\n")[2]
    is_word = "=" not in found["between"] and _words(found["name"])[1:] == []
    return is_word and line.endswith(" ") and line.rstrip()[-1:].isalnum()


def _is_secret(words: list[str]) -> bool:
    is_vocabulary = words[-1] == "token" and words[-2:-1] and words[-2] in _NOT_A_SECRET_TOKEN
    return words[-1] in _SECRET_WORDS and not is_vocabulary


def _words(name: str) -> list[str]:
    """`hf_token` → hf, token; `apiKey` → api, key; `X-Api-Key` → x, api, key; `monkey` stays one word."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return [word.lower() for word in re.split(r"[_.\-]+", spaced) if word] or [""]
