"""Tiny random models as people publish them: folders, shards, GGUF files, wheels, and a hub that serves them."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
TEXTS = ["the cat sat on the mat", "the dog ate the cat food", "a mat for the dog", "2 + 2 = 4"] * 8
HIDDEN, LAYERS, HEADS, KV_HEADS, INNER = 16, 2, 4, 2, 32
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write_tokenizer(folder: Path, *, size: int = 300) -> int:
    """A trained byte-level BPE tokenizer with a chat template; returns the number of its tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXTS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", unk_token="<|endoftext|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return tokenizer.get_vocab_size()


def write_llama(folder: Path, *, seed: int = 0, shard_size: str = "1GB") -> Path:
    """A random Llama of a few thousand weights with a tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    vocab = write_tokenizer(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=64,
    )
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size=shard_size)
    return folder


def write_gguf(path: Path, tokenizer_folder: Path, *, seed: int = 0) -> dict[str, np.ndarray]:
    """A random float32 Llama as GGUF with the folder's tokenizer; returns its tensors by GGUF name."""
    import gguf

    spec = json.loads((tokenizer_folder / "tokenizer.json").read_text())
    vocab = {**spec["model"]["vocab"], **{t["content"]: t["id"] for t in spec["added_tokens"]}}
    special = {t["content"] for t in spec["added_tokens"]}
    tokens = sorted(vocab, key=lambda token: vocab[token])
    merges = [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(vocab["<|im_start|>"])
    writer.add_eos_token_id(vocab["<|im_end|>"])
    writer.add_chat_template(TEMPLATE)
    tensors = _gguf_tensors(len(tokens), seed)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _gguf_tensors(vocab: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    kv = HIDDEN * KV_HEADS // HEADS
    shapes = {"token_embd.weight": (vocab, HIDDEN), "output_norm.weight": (HIDDEN,), "output.weight": (vocab, HIDDEN)}
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (HIDDEN,),
            f"blk.{i}.ffn_norm.weight": (HIDDEN,),
            f"blk.{i}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{i}.attn_k.weight": (kv, HIDDEN),
            f"blk.{i}.attn_v.weight": (kv, HIDDEN),
            f"blk.{i}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{i}.ffn_gate.weight": (INNER, HIDDEN),
            f"blk.{i}.ffn_up.weight": (INNER, HIDDEN),
            f"blk.{i}.ffn_down.weight": (HIDDEN, INNER),
        }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_wheel(folder: Path, name: str, version: str, members: dict[str, bytes]) -> Path:
    """A pure-Python wheel that pip accepts, with ``members`` in it."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = dict(members)
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = []
    for member, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{member},sha256={digest},{len(data)}")
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)
    return path


@contextmanager
def serve_hub(repos: dict[str, Path]) -> Iterator[tuple[str, list[str]]]:
    """A hub on this machine that serves folders as repositories; yields its address and the list of paths asked for."""
    asked: list[str] = []

    class Handler(_HubHandler):
        folders = repos
        log = asked

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _HubHandler(BaseHTTPRequestHandler):
    """The three requests that the hub's client makes: a model's facts, a file's head, a file."""

    folders: dict[str, Path]
    log: list[str]
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        return

    def _answer(self) -> None:
        path = self.path.partition("?")[0].strip("/")
        self.log.append(f"{self.command} /{path}")
        if not path:
            return self._send(200, b"hub")
        repo = next((r for r in self.folders if path.removeprefix("api/models/").startswith(r)), None)
        if repo is None:
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        rest = path.removeprefix("api/models/").removeprefix(repo).strip("/").split("/")
        if path.startswith("api/models/"):
            return self._facts(repo, rest)
        file = self.folders[repo] / "/".join(rest[2:])
        if rest[0] != "resolve" or not file.is_file():
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        data = file.read_bytes()
        return self._send(200, data, {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT})

    def _facts(self, repo: str, rest: list[str]) -> None:
        if "revision" in rest and rest[-1] not in ("main", COMMIT):
            return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        files = sorted(p for p in self.folders[repo].rglob("*") if p.is_file())
        names = [str(p.relative_to(self.folders[repo])) for p in files]
        if "tree" in rest:
            tree = [
                {"type": "file", "path": n, "size": p.stat().st_size, "oid": hashlib.sha1(p.read_bytes()).hexdigest()}
                for n, p in zip(names, files, strict=True)
            ]
            return self._send(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
        siblings = [{"rfilename": n, "size": p.stat().st_size} for n, p in zip(names, files, strict=True)]
        facts = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}
        return self._send(200, json.dumps(facts).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)
