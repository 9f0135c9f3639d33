"""Owns how the server of `dialect_server` reads each engine's command line and words its pages and events. Owns no traffic.

The fields are those of SGLang 0.5.23 (http_server.py, tokenizer_manager.py), TensorRT-LLM main (openai_server.py,
postprocess_handlers.py, metrics/collector.py) and llama.cpp b11434 (server-context.cpp, server-task.cpp).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

DONE = b"[DONE]"


def flags_of(argv: list[str]) -> dict[str, Any]:
    """--a-b VALUE → {"a_b": VALUE}; a flag without a value is True."""
    found: dict[str, Any] = {}
    for word, following in zip(argv, [*argv[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word[2:].replace("-", "_")] = True if following.startswith("--") else following
    return found


def exposition(prefix: str, values: Mapping[str, float], labels: str = "") -> bytes:
    return "".join(
        f"# TYPE {prefix}{name} counter\n{prefix}{name}{labels} {value}\n" for name, value in values.items()
    ).encode()


def logprob(token: int) -> float:
    return -token / 100


class Voice:
    """What all have: a port, a batch, k, a key that they ask for ("" = none), and what needs none."""

    key = ""
    public: tuple[str, ...] = ("/health",)
    generate = ""
    port = 0
    batch = 1
    k = 0


class SGLang(Voice):
    public = ("/health", "/metrics")
    generate = "/generate"

    def __init__(self, argv: list[str]) -> None:
        flags = flags_of(argv)
        told = yaml.safe_load(Path(flags["config"]).read_text())
        self.flags, self.name, self.key = flags, told["served-model-name"], told["api-key"]
        self.port, self.batch = int(flags["port"]), int(flags["max_running_requests"])
        self.algorithm = {"NEXTN": "EAGLE"}.get(flags.get("speculative_algorithm"), flags.get("speculative_algorithm"))
        self.window = self.window_of(flags)
        self.k = (self.window or 1) - 1

    @staticmethod
    def window_of(flags: Mapping[str, Any]) -> int | None:
        if "speculative_dspark_block_size" in flags:
            return int(flags["speculative_dspark_block_size"]) + 1
        if flags.get("speculative_eagle_topk") == "1":
            return int(flags["speculative_num_steps"]) + 1
        return int(flags["speculative_num_draft_tokens"]) if "speculative_num_draft_tokens" in flags else None

    def asked(self, body: Mapping[str, Any]) -> dict[str, Any]:
        sampling = body["sampling_params"]
        json.loads(sampling.get("json_schema", "{}"))
        return {"prompt": body["input_ids"], "limit": sampling["max_new_tokens"], "ignore_eos": sampling["ignore_eos"]}

    def events(self, item: Any, new: list[int], seen: int, body: Mapping[str, Any], *, is_last: bool) -> Iterator[Any]:
        ids = new if "incremental_streaming_output" in self.flags else item.ids[:seen]
        reason = {"length": {"type": "length", "length": seen}, "stop": {"type": "stop", "matched": 2}}
        meta = {
            "id": "r",
            "finish_reason": reason[item.finish] if is_last else None,
            "prompt_tokens": len(item.prompt),
            "completion_tokens": seen,
            "cached_tokens": 0,
        }
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = [[logprob(token), token, None] for token in ids]
        if is_last and len(item.steps) > 1 and self.k:
            meta |= self.acceptance(item)
        yield {"text": "x" * len(ids), "output_ids": ids, "meta_info": meta}
        if is_last:
            yield DONE

    def acceptance(self, item: Any) -> dict[str, Any]:
        accepted = [accepted for _, accepted in item.steps[1:]]
        return {
            "spec_verify_ct": len(accepted),
            "spec_num_correct_drafts": sum(accepted),
            "spec_num_proposed_drafts": len(accepted) * self.k,
            "spec_accept_rate": sum(accepted) / (len(accepted) * self.k),
            "spec_accept_length": len(item.ids) / len(accepted),
            "spec_correct_drafts_histogram": [accepted.count(i) for i in range(max(accepted) + 1)],
        }

    def page(self, method: str, path: str, counted: Mapping[str, float], *, busy: bool) -> tuple[int, Any]:
        if path == "/flush_cache":
            return (400, b"Flush cache failed.\n") if busy else (200, b"Cache flushed.\n")
        if path == "/metrics":
            names = {"spec_verify_calls_total": "drafts", "generation_tokens_total": "output_tokens"}
            values = {name: counted[told] for name, told in names.items()}
            return 200, exposition("sglang:", values, f'{{model_name="{self.name}",tp_rank="0"}}')
        pages = {"/health": {}, "/model_info": {"served_model_name": self.name}, "/server_info": self.server_info()}
        return (200, pages[path]) if path in pages else (404, {"detail": "Not Found"})

    def server_info(self) -> dict[str, Any]:
        environment = {name: value for name, value in os.environ.items() if name.startswith("SGLANG_")}
        state = {"memory_usage": {"weight": 0.5, "kvcache": 0.25, "token_capacity": 4096}, "env_vars": environment}
        return {
            "model_path": self.flags["model_path"],
            "served_model_name": self.name,
            "api_key": self.key,
            "speculative_algorithm": self.algorithm,
            "speculative_num_draft_tokens": self.window,
            # SGLang switches it off with a warning for others
            "speculative_adaptive": "speculative_adaptive" in self.flags and self.algorithm in ("EAGLE", "EAGLE3"),
            "internal_states": [state],
            "version": "0.5.23",
        }


class Trtllm(Voice):
    generate = "/v1/completions"

    def __init__(self, argv: list[str]) -> None:
        flags = flags_of(argv)
        self.options = yaml.safe_load(Path(flags["config"]).read_text())
        self.name, self.port = flags["served_model_name"], int(flags["port"])
        self.batch = self.options["max_batch_size"]
        self.speculation = self.options.get("speculative_config") or {}
        self.k = self.speculation.get("max_draft_len", 0)

    def asked(self, body: Mapping[str, Any]) -> dict[str, Any]:
        assert body["detokenize"] is False, "ids are told only without text"
        assert isinstance(body.get("response_format", {}).get("schema", {}), dict)
        return {"prompt": body["prompt"], "limit": body["max_tokens"], "ignore_eos": body["ignore_eos"]}

    def events(self, item: Any, new: list[int], seen: int, body: Mapping[str, Any], *, is_last: bool) -> Iterator[Any]:
        logprobs = {"token_logprobs": [logprob(token) for token in new], "tokens": ["x"] * len(new)}
        choice = {
            "index": 0,
            "text": "",
            "token_ids": new,
            "logprobs": logprobs if body.get("logprobs") else None,
            "finish_reason": item.finish if is_last else None,
            "stop_reason": None,
            "avg_decoded_tokens_per_iter": seen / len(item.steps),
        }
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": self.name}
        yield {**head, "choices": [choice], "usage": None}
        if is_last:
            yield {**head, "choices": [], "usage": {"prompt_tokens": len(item.prompt), "completion_tokens": seen}}
            yield DONE

    def page(self, method: str, path: str, counted: Mapping[str, float], *, busy: bool) -> tuple[int, Any]:
        models = {"object": "list", "data": [{"id": self.name, "object": "model"}]}
        pages = {"/health": {}, "/version": {"version": "1.3.0"}, "/v1/models": models}
        if path == "/prometheus/metrics":
            return 200, self.metrics(counted)
        return (200, pages[path]) if path in pages else (404, {"detail": "Not Found"})

    def metrics(self, counted: Mapping[str, float]) -> bytes:
        labels = f'engine_type="pytorch",model_name="{self.name}"'
        reuse = f'enable_block_reuse="{self.options["kv_cache_config"]["enable_block_reuse"]}"'
        infos = f"trtllm_kv_cache_config_info{{{labels},{reuse}}} 1.0\n"
        values = {"generation_tokens_total": counted["output_tokens"], "kv_cache_max_blocks": 128.0}
        values |= {"prompt_tokens_total": counted["prompt_tokens"], "kv_cache_tokens_per_block": 32.0}
        if self.speculation:
            told = f'spec_enabled="true",spec_method="{self.speculation["decoding_type"]}",spec_num_tokens="{self.k}"'
            infos += f"trtllm_speculative_config_info{{{labels},{told}}} 1.0\n"
            values["spec_decode_num_draft_tokens_total"] = counted["draft_tokens"]
            values["spec_decode_num_accepted_tokens_total"] = counted["accepted_tokens"]
        return infos.encode() + exposition("trtllm_", values, f"{{{labels}}}")


class Llama(Voice):
    generate = "/completion"

    def __init__(self, argv: list[str]) -> None:
        flags = flags_of(argv)
        self.flags, self.name, self.key = flags, os.environ["LLAMA_ARG_ALIAS"], os.environ["LLAMA_API_KEY"]
        self.port, self.batch = int(flags["port"]), int(flags["parallel"])
        self.k = int(flags.get("spec_draft_n_max") or flags.get("spec_ngram_simple_size_m") or 0)

    def asked(self, body: Mapping[str, Any]) -> dict[str, Any]:
        assert isinstance(body.get("json_schema", {}), dict)
        return {"prompt": body["prompt"], "limit": body["n_predict"], "ignore_eos": body["ignore_eos"]}

    def events(self, item: Any, new: list[int], seen: int, body: Mapping[str, Any], *, is_last: bool) -> Iterator[Any]:
        """One a token; the counters move with the first token of a step, and a drafted token has no probability."""
        steps = item.steps[: self.steps_told(item, seen)]
        drafted, accepted = (sum(column) for column in zip(*steps, strict=True))
        timings = {"predicted_n": seen, **({"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {})}
        for token in new:
            event = {"index": 0, "content": "x", "tokens": [token], "stop": False, "id_slot": 0, "timings": timings}
            if body.get("n_probs") and not steps[-1][0]:
                event["completion_probabilities"] = [{"id": token, "logprob": logprob(token), "top_logprobs": []}]
            yield event
        if is_last:
            yield {**self.whole(item), "tokens": [], "timings": timings}

    @staticmethod
    def steps_told(item: Any, seen: int) -> int:
        told = count = 0
        while told < seen:
            told += item.steps[count][1] + 1
            count += 1
        return count

    def whole(self, item: Any) -> dict[str, Any]:
        stop = {"length": "limit", "stop": "eos"}[item.finish]
        settings = {"speculative.types": self.flags["spec_type"], "seed": 0}
        return {
            "index": 0,
            "content": "",
            "tokens": item.ids,
            "stop": True,
            "stop_type": stop,
            "generation_settings": settings,
        }

    def page(self, method: str, path: str, counted: Mapping[str, float], *, busy: bool) -> tuple[int, Any]:
        if path.startswith("/slots/"):
            return (200, {"id_slot": 0, "n_erased": 1}) if "slot_save_path" in self.flags else (501, {})
        if path == "/metrics":
            return 200, self.metrics(counted)
        models = {"data": [{"id": self.name, "meta": {"size": 1000, "n_params": 10}}]}
        props = {"model_alias": self.name, "total_slots": self.batch, "build_info": "b11434-abcdef0"}
        props["default_generation_settings"] = {"n_ctx": int(self.flags["ctx_size"]) // self.batch}
        pages = {"/health": {"status": "ok"}, "/props": props, "/v1/models": models}
        return (200, pages[path]) if path in pages else (404, {"error": {"code": 404}})

    def metrics(self, counted: Mapping[str, float]) -> bytes:
        names = {"drafts": "drafts", "draft_tokens": "draft_tokens", "accepted_tokens": "accepted_tokens"}
        values = {f"spec_decode_num_{name}_total": counted[told] for name, told in names.items()}
        values["tokens_predicted_total"] = counted["output_tokens"]
        per_position = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
        told = [f'{per_position}{{position="{i}"}} {counted[f"accepted_at_{i}"]}\n' for i in range(self.k)]
        return exposition("llamacpp:", values) + ("".join(told) if counted["drafts"] else "").encode()


VOICES = {"sglang": SGLang, "tensorrt_llm": Trtllm, "llama_cpp": Llama}
