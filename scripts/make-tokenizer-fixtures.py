"""Makes internal/text/tokenizer/testdata/sources: small tokenizers, and what libraries answer.

Everything is trained on the text below, so all of it is ours. (Where counts tie, what tokenizers
trains differs from run to run.) Each folder is laid out as a model's
repository is, with cases.jsonl beside it: for texts.jsonl line by line, `ids` (without special
tokens), `ends` (the special tokens before and after them), `decoded` (absent if it is the text) and
`skipped` (without special tokens, absent if it is the same). A case that the library cannot take
is null: text that is no UTF-8, which of all only SentencePiece has, and for mistral-common text
with special tokens.

    python3 -m venv /tmp/venv
    /tmp/venv/bin/pip install sentencepiece==0.2.3 tiktoken==0.14.0 mistral-common==1.13.1 \
        tokenizers==0.23.3 transformers==5.24.0 protobuf==7.36.2
    /tmp/venv/bin/python scripts/make-tokenizer-fixtures.py [--out DIR] [--random N]

--random N adds twice as many texts put together at random, and has nmt_nfkc in the place of rules
of our own, for a comparison that is not committed:
EAGLERAY_TOKENIZER_CASES=DIR go test ./internal/text/tokenizer -run TestSources.
"""

import argparse
import base64
import json
import random
import shutil
from pathlib import Path

import sentencepiece
import tiktoken
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from sentencepiece import sentencepiece_model_pb2
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    BertTokenizer,
    PreTrainedTokenizerFast,
    T5Tokenizer,
    XLMRobertaTokenizer,
)

SOURCES = Path("internal/text/tokenizer/testdata/sources")

# Sentences of our own in ten scripts and more.
SENTENCES = [
    "The ray glides over the sand, and the small fish do not see it coming.",
    "Un rayon de soleil traverse l'eau, très clair près du récif où l'été dure.",
    "Der Rochen schläft tagsüber im Sand; größere Fische stören ihn nicht, außer nachts.",
    "Орляк плывёт над песком, и маленькие рыбы его не замечают.",
    "Το σαλάχι γλιστρά πάνω από την άμμο και τα μικρά ψάρια δεν το βλέπουν.",
    "الشعاع يسبح فوق الرمال والأسماك الصغيرة لا تراه قادمًا.",
    "הטריגון שט מעל החול והדגים הקטנים אינם רואים אותו.",
    "छोटी मछलियाँ रेत के ऊपर तैरती हुई किरण को नहीं देखतीं।",
    "ปลากระเบนว่ายอยู่เหนือทราย ปลาตัวเล็กมองไม่เห็นมัน",
    "老鹰魟在沙子上面游动，小鱼看不见它来了。",
    "エイは砂の上をすべるように泳ぎ、小さな魚は気づきません。",
    "가오리가 모래 위를 미끄러지듯 헤엄치고 작은 물고기는 보지 못한다.",
    "აფრა ნელა მიცურავს ქვიშის თავზე და პატარა თევზები ვერ ხედავენ.",
    "Cá đuối lướt trên cát, những con cá nhỏ không nhìn thấy nó đang đến.",
    "for (int i = 0; i < 10; i++) { sum += values[i]; }\n\treturn sum;\n",
    'def glide(depth: float) -> str:\n    return f"{depth:.2f} m"  # metres\n',
    "It's 12345.67 m, we've said; they'll say 3/4 or 50%. DON'T PANIC!",
    "camelCaseNames and HTTPServer2Go in snake_case_words, e.g. XMLHttpRequest",
]

# What the texts of cases are made of beside sentences.
# fmt: off
PARTS = [
    "", " ", "  ", "   ", "\n", "\r\n", "\n\n  ", "\t", "a", " a", "a ", "  two  spaces  ",
    "\u3000", "👩‍👩‍👧‍👦", "🏳️‍🌈 ok", "👍🏽👍", "❤️", "e\u0301\u0327", "ﬁne ﬂow", "Ａｂｃ１２３", "①②③ ½",
    "\u0000", "\u0007bell\u001b[0m", "\u200b\u200d\ufeff", "\ufffd", "a\u00adb", "\u00a0", "\u2028",
    "İstanbul ÀÉÎ", "ΌΔΟΣ ς", "Ǆǅǆ", "ſ's 'S 'RE", "ᾼ", "한글 각", "《引用》", "𠮷野家 𝔘𝔫𝔦",
    "१२३ ٣٤٥", "▁", "▁▁a▁b", "a▁ b", "<s>", "</s>", "<unk>", "[MASK]", "[CLS] a [SEP]", "<0x0A>",
    "<sep>", "a<sep>b", "<sep><sep> c", "<|im_start|>", "<|im_start|>user\nhi<|im_end|>\n",
    "<extra_id_0>", "<mask>", "x<mask> y", " <mask> y", "1234567890 12 345", "//\r\n/\n", "...\n/",
    "don't", "DON'T", "we'LL've", " 's", "ABCdef", "abcDEF", "aBcDe", "中文English混合", "〇々x",
    "a" * 40, "word" * 12,
]
# fmt: on
# Characters that patterns and rules tell apart, for texts put together at random.
CHARS = (
    "aAbBzZßǅʰᾼ中々〇⺀가אاक्षिไ\u0301\u0327''sSſtTdDmlLrReEvV  \t\n\r\u00a0\u3000\u0085/!.,-_=▁"
    "0123½①٣éÉàﬁ…Ａ👍🏽👩\u200d❤\ufe0f🇩🇪\u00ad\u0000\u1100\u1161\u11a8"
)
INVALID = [b"\xff", b"a\xe4\xbdb", b"\xe4\xbd\xa0\xc3", b"\xed\xa0\x80", b"\xc0\xaf \xf0\x9f\x98x"]

# Rules in the form of nmt_nfkc, but few: that map alone has 240 kB.
RULES = {
    "\u3000": " ", "\u00a0": " ", "\t": " ", "\n": " ", "\r": " ", "\u200b": " ", "\ufeff": " ",
    "\u2028": " ", "\u0007": "", "\u001b": "", "\u00ad": "", "ﬁ": "fi", "ﬂ": "fl", "½": "1⁄2",
    "e\u0301": "é", "E\u0301": "É", "\u0435\u0308": "ё", "ᾼ": "ΑΙ", "Ǆ": "DŽ", "…": "...",
    "\u1100\u1161\u11a8": "각", "e\u0301\u0327": "ȩ́",
}  # fmt: skip
RULES.update({chr(c): chr(c - 0xFEE0) for c in range(0xFF01, 0xFF5F)})
RULES.update({chr(0x2460 + i): str(i + 1) for i in range(20)})

full_rules = False  # nmt_nfkc instead of RULES

SPECIAL = dict(lstrip=False, rstrip=False, normalized=False, single_word=False, special=True)


def corpus():
    rng = random.Random(7)
    lines = []
    for _ in range(40):
        for s in SENTENCES:
            words = s.split(" ")
            at = rng.randrange(len(words))
            lines.append(" ".join(words[at:] + words[:at]))
    return lines


def texts(count):
    """The texts of cases: str, or bytes that are no UTF-8."""
    rng = random.Random(11)
    plain = SENTENCES + PARTS
    made = []
    for _ in range(count):
        parts = rng.choices(PARTS * 2 + SENTENCES, k=rng.randint(2, 5))
        made.append(rng.choice(["", " ", "", "\n"]).join(p[: rng.randint(1, 30)] for p in parts))
        made.append("".join(rng.choices(CHARS, k=rng.randint(1, 20))))
    return plain + INVALID + made


def write_json(path, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text + "\n", encoding="utf-8")


def write_cases(folder, cases, everything):
    with open(folder / "cases.jsonl", "w", encoding="utf-8") as f:
        for case, text in zip(cases, everything):
            if case and case["decoded"] == text:
                del case["decoded"]
            f.write(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n")


def case_of(ids, special, decoded, skipped):
    case = {"ids": ids, "decoded": decoded}
    if special != ids:
        at = next(i for i in range(len(special)) if special[i : i + len(ids)] == ids)
        case["ends"] = [special[:at], special[at + len(ids) :]]
    if skipped != decoded:
        case["skipped"] = skipped
    return case


def transformers_cases(tok, everything):
    def one(text):
        if isinstance(text, bytes):
            return None
        ids = tok.encode(text, add_special_tokens=False)
        return case_of(
            ids,
            tok.encode(text),
            tok.decode(ids, clean_up_tokenization_spaces=False),
            tok.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
        )

    return [one(t) for t in everything]


# SentencePiece


def train_sentencepiece(path, **options):
    rules = path.with_suffix(".tsv")
    ruled = options.pop("rules", False)
    if ruled and full_rules:
        options["normalization_rule_name"] = "nmt_nfkc"
    elif ruled:
        rules.write_text(
            "".join(
                f"{' '.join(f'{ord(c):X}' for c in a)}\t{' '.join(f'{ord(c):X}' for c in b)}\n"
                for a, b in RULES.items()
            )
        )
        options["normalization_rule_tsv"] = str(rules)
    else:
        options["normalization_rule_name"] = "identity"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()),
        model_prefix=str(path.with_suffix("")),
        minloglevel=2,
        num_threads=1,
        hard_vocab_limit=False,
        **options,
    )
    path.with_suffix(".vocab").unlink()
    rules.unlink(missing_ok=True)
    # The rules as they were written are not read again, and are larger than the rest.
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(path.read_bytes())
    proto.normalizer_spec.ClearField("normalization_rule_tsv")
    path.write_bytes(proto.SerializeToString())
    return proto


class Sentences:
    """Encodes as SentencePiece does between tokens that it never finds in a text itself.

    That is what transformers' classes without a backend of their own do: a part after such a token
    has no space of its own in front, unless the class is `legacy`.
    """

    def __init__(self, path, added, bos, eos, legacy):
        self.proto = sentencepiece_model_pb2.ModelProto()
        self.proto.ParseFromString(path.read_bytes())
        self.sp = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
        self.proto.normalizer_spec.add_dummy_prefix &= legacy
        self.inner = sentencepiece.SentencePieceProcessor(
            model_proto=self.proto.SerializeToString()
        )
        self.added = {}
        for i, p in enumerate(self.proto.pieces):
            if p.type in (2, 3):
                self.added[p.piece] = i
        self.added.update(added)
        self.names = {i: t for t, i in self.added.items()}
        self.bos, self.eos = bos, eos

    def encode(self, text):
        ids = []
        done = 0
        data = text if isinstance(text, bytes) else text.encode()

        def part(end):
            if done < end:
                sp = self.inner if done else self.sp
                ids.extend(sp.encode(data[done:end]))

        at = 0
        while at < len(data):
            here = [t for t in self.added if data.startswith(t.encode(), at)]
            found = max(here, key=len, default="")
            if found:
                part(at)
                ids.append(self.added[found])
                at += len(found.encode())
                done = at
            else:
                at += 1
        part(len(data))
        return ids

    def decode(self, ids, skip):
        """As transformers does: the bytes of a run are text only if all of them are."""
        out, run = "", b""

        def end():
            nonlocal out, run
            try:
                out += run.decode()
            except UnicodeDecodeError:
                out += "\ufffd" * len(run)
            run = b""

        for i in ids:
            if i in self.names:
                if not skip:
                    end()
                    out += self.names[i]
                continue
            p = self.proto.pieces[i]
            if p.type == 6:
                run += bytes([int(p.piece[3:5], 16)])
                continue
            end()
            out += p.piece.replace("▁", " ")
        end()
        if self.sp.encode("a", out_type=str)[0].startswith("▁") and out.startswith(" "):
            out = out[1:]
        return out

    def cases(self, everything):
        def one(text):
            ids = self.encode(text)
            return case_of(
                ids,
                self.bos + ids + self.eos,
                self.decode(ids, False),
                self.decode(ids, True),
            )

        return [one(t) for t in everything]


def sentencepiece_fixtures(out, everything):
    def bpe(name, config, legacy, bos, **options):
        folder = out / name
        folder.mkdir()
        path = folder / "tokenizer.model"
        proto = train_sentencepiece(
            path,
            model_type="bpe",
            character_coverage=0.98,
            user_defined_symbols=["<sep>", "▁▁", "ABC"],
            **options,
        )
        extra = {"<|im_start|>": len(proto.pieces), "<|im_end|>": len(proto.pieces) + 1}
        config["added_tokens_decoder"] = {
            str(i): dict(content=t, **SPECIAL) for t, i in extra.items()
        }
        write_json(folder / "tokenizer_config.json", config)
        write_cases(folder, Sentences(path, extra, bos, [], legacy).cases(everything), everything)

    bpe(
        "sp-llama",
        {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": True},
        False,
        [1],
        vocab_size=600,
        byte_fallback=True,
        remove_extra_whitespaces=False,
    )
    bpe(
        "sp-legacy",
        {"tokenizer_class": "LlamaTokenizer", "legacy": True, "add_bos_token": False},
        True,
        [],
        vocab_size=400,
        rules=True,
    )
    bpe(
        "sp-gemma",
        {"tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>", "add_bos_token": True},
        False,
        [2],
        vocab_size=600,
        byte_fallback=True,
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        eos_piece="<eos>",
        bos_piece="<bos>",
        split_digits=True,
    )
    for name, fallback in (("sp-unigram", False), ("sp-unigram-bytes", True)):
        folder = out / name
        folder.mkdir()
        path = folder / "tokenizer.model"
        train_sentencepiece(
            path,
            model_type="unigram",
            vocab_size=600,
            character_coverage=0.98,
            user_defined_symbols=["<sep>", "ABC"],
            byte_fallback=fallback,
            rules=not fallback,
        )
        write_json(
            folder / "tokenizer_config.json",
            {"tokenizer_class": "PreTrainedTokenizerFast", "add_eos_token": True},
        )
        write_cases(folder, Sentences(path, {}, [], [2], False).cases(everything), everything)


def unigram_fixtures(out, everything):
    """The classes that number pieces in their own way, and Unigram in tokenizer.json."""
    made = [("t5", T5Tokenizer, "spiece.model"), ("xlm-r", XLMRobertaTokenizer, None)]
    for name, cls, file in made:
        folder = out / name
        folder.mkdir()
        path = folder / (file or "sentencepiece.bpe.model")
        options = {}
        if name == "t5":
            options = dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1, pad_piece="<pad>")
        train_sentencepiece(
            path,
            model_type="unigram",
            vocab_size=420,
            character_coverage=0.98,
            rules=True,
            **options,
        )
        config = {"tokenizer_class": cls.__name__}
        if name == "t5":
            config["extra_ids"] = 4
        write_json(folder / "tokenizer_config.json", config)
        tok = cls.from_pretrained(folder)
        write_cases(folder, transformers_cases(tok, everything), everything)
        if name == "xlm-r":
            saved = out / "xlm-r-json"
            saved.mkdir()
            tok.backend_tokenizer.save(str(saved / "tokenizer.json"), pretty=False)
            shutil.copy(folder / "cases.jsonl", saved)
    # Hugging Face's own Unigram with byte fallback.
    folder = out / "unigram-bytes-json"
    folder.mkdir()
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString((out / "sp-unigram-bytes" / "tokenizer.model").read_bytes())
    tok = Tokenizer(
        models.Unigram([(p.piece, p.score) for p in proto.pieces], unk_id=0, byte_fallback=True)
    )
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tok.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tok.add_special_tokens(["<s>", "</s>"])
    tok.save(str(folder / "tokenizer.json"), pretty=False)
    tok = PreTrainedTokenizerFast(tokenizer_object=tok)
    write_cases(folder, transformers_cases(tok, everything), everything)


# BERT


def bert_fixtures(out, everything):
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.train_from_iterator(
        corpus(),
        trainers.WordPieceTrainer(
            vocab_size=420,
            limit_alphabet=250,
            show_progress=False,
            special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        ),
    )
    ids = tok.get_vocab()
    tok.decoder = decoders.WordPiece()
    tok.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(t, ids[t]) for t in ("[CLS]", "[SEP]")],
    )
    folder = out / "bert-json"
    folder.mkdir()
    tok.save(str(folder / "tokenizer.json"), pretty=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=tok)
    write_cases(folder, transformers_cases(fast, everything), everything)
    vocab = "".join(t + "\n" for t, _ in sorted(ids.items(), key=lambda x: x[1]))
    made = {
        "bert-uncased": {"tokenizer_class": "BertTokenizer", "do_lower_case": True},
        "bert-cased": {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": False,
            "strip_accents": True,
            "tokenize_chinese_chars": False,
        },
    }
    for name, config in made.items():
        folder = out / name
        folder.mkdir()
        (folder / "vocab.txt").write_text(vocab, encoding="utf-8")
        write_json(folder / "tokenizer_config.json", config)
        tok = BertTokenizer.from_pretrained(folder)
        write_cases(folder, transformers_cases(tok, everything), everything)


# tiktoken


def train_ranks():
    """Tokens by rank: all bytes, then merges in the order in which they were found."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.train_from_iterator(
        corpus(),
        trainers.BpeTrainer(
            vocab_size=400,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    alphabet = {}
    free = 256
    for b in range(256):
        if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174:
            alphabet[chr(b)] = b
        else:
            alphabet[chr(free)] = b
            free += 1
    tokens = [bytes([b]) for b in range(256)]
    for t, _ in sorted(tok.get_vocab().items(), key=lambda x: x[1]):
        token = bytes(alphabet[c] for c in t)
        if len(token) > 1:
            tokens.append(token)
    spaces = [b"\n ", b"\n  ", b"  ", b"\n\n", b"   "]
    return tokens + [t for t in spaces if t not in tokens]


CASED = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}%s]*[\p{Ll}\p{Lm}\p{Lo}\p{M}%s]+%s"
CAPITAL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}%s]+[\p{Ll}\p{Lm}\p{Lo}\p{M}%s]*%s"
START = r"[^\r\n\p{L}\p{N}]?"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def cased(exclude, suffix, digits, slashes):
    words = [START + p % (exclude, exclude, suffix) for p in (CASED, CAPITAL)]
    return "|".join([*words, digits, r" ?[^\s\p{L}\p{N}]+" + slashes, REST])


CL100K = "|".join([SHORT, START + r"\p{L}+", r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", REST])
QWEN = CL100K.replace("{1,3}", "")
O200K = cased("", SHORT + "?", r"\p{N}{1,3}", r"[\r\n/]*")
TEKKEN = cased("", "", r"\p{N}", r"[\r\n/]*")
KIMI = r"[\p{Han}]+|" + cased(r"&&[^\p{Han}]", SHORT + "?", r"\p{N}{1,3}", r"[\r\n]*")


def tiktoken_fixtures(out, everything):
    from tiktoken_ext import openai_public

    tokens = train_ranks()
    ranks = {t: i for i, t in enumerate(tokens)}
    n = len(tokens)
    openai = ["", "<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"]
    openai_end = {"<|endofprompt|>": n + 20}
    current = read_current_pattern(openai_public)
    llama = {t: n + i for i, t in enumerate(["<|begin_of_text|>", "<|im_start|>", "<|eot_id|>"])}
    kimi = {"[BOS]": n, "[EOS]": n + 1, "<|im_end|>": n + 2, "<|im_start|>": n + 3}
    kimi.update({f"<|reserved_token_{i}|>": i for i in range(n + 4, n + 258)})
    qwen = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + [f"<|extra_{i}|>" for i in range(205)]
    made = [
        ("tt-llama3", "tokenizer.model", CL100K, llama, "PreTrainedTokenizerFast", [n]),
        ("tt-kimi", "tiktoken.model", KIMI, kimi, "TikTokenTokenizer", []),
        ("tt-qwen", "qwen.tiktoken", QWEN, {t: n + i for i, t in enumerate(qwen)}, None, []),
        (
            "tt-cl100k",
            "cl100k_base.tiktoken",
            current,
            {**{t: n + i for i, t in enumerate(openai) if t}, **openai_end},
            None,
            [],
        ),
        (
            "tt-o200k",
            "o200k_base.tiktoken",
            O200K,
            {"<|endoftext|>": n + 1, **openai_end},
            None,
            [],
        ),
    ]
    for name, file, pattern, special, cls, bos in made:
        folder = out / name
        folder.mkdir()
        with open(folder / file, "wb") as f:
            for i, t in enumerate(tokens):
                f.write(base64.b64encode(t) + b" " + str(i).encode() + b"\n")
        if cls:
            decoder = {
                str(i): dict(content=t, **SPECIAL)
                for t, i in special.items()
                if not t.startswith("<|reserved_token")
            }
            write_json(
                folder / "tokenizer_config.json",
                {"tokenizer_class": cls, "added_tokens_decoder": decoder},
            )
        enc = tiktoken.Encoding(
            name=name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special
        )
        by_id = set(special.values())

        def one(text, enc=enc, by_id=by_id, bos=bos):
            if isinstance(text, bytes):
                return None
            ids = enc.encode(text, allowed_special="all")
            kept = [i for i in ids if i not in by_id]
            return case_of(ids, bos + ids, enc.decode(ids), enc.decode(kept))

        write_cases(folder, [one(t) for t in everything], everything)
    tekken_fixtures(out, everything, tokens)


def read_current_pattern(module):
    """The pattern of cl100k_base, without the file of ranks, which would be downloaded."""
    load, module.load_tiktoken_bpe = module.load_tiktoken_bpe, lambda *_, **__: {}
    try:
        return module.cl100k_base()["pat_str"]
    finally:
        module.load_tiktoken_bpe = load


def tekken_fixtures(out, everything, tokens):
    folder = out / "tekken"
    folder.mkdir()
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>", "<|im_start|>"]

    def text_of(token):
        try:
            return token.decode()
        except UnicodeDecodeError:
            return None

    write_json(
        folder / "tekken.json",
        {
            "config": {
                "pattern": TEKKEN,
                "num_vocab_tokens": len(tokens),
                "default_vocab_size": len(tokens) - 2 + 20,
                "default_num_special_tokens": 20,
                "version": "v11",
            },
            "vocab": [
                {
                    "rank": i,
                    "token_bytes": base64.b64encode(t).decode(),
                    "token_str": text_of(t),
                }
                for i, t in enumerate(tokens)
            ],
            "special_tokens": [
                {"rank": i, "token_str": t, "is_control": True} for i, t in enumerate(special)
            ],
        },
    )
    tok = Tekkenizer.from_file(folder / "tekken.json")

    def one(text):
        # mistral-common never finds special tokens in a text; here they are cut out.
        if isinstance(text, bytes) or any(t in text for t in special):
            return None
        ids = tok.encode(text, bos=False, eos=False)
        kept = tok.decode(ids, special_token_policy=SpecialTokenPolicy.KEEP)
        return case_of(ids, tok.encode(text, bos=True, eos=False), kept, tok.decode(ids))

    write_cases(folder, [one(t) for t in everything], everything)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=SOURCES)
    parser.add_argument("--random", type=int, default=0)
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    global full_rules
    full_rules = args.random > 0
    everything = texts(args.random)
    with open(args.out / "texts.jsonl", "w", encoding="utf-8") as f:
        for t in everything:
            value = {"bytes": base64.b64encode(t).decode()} if isinstance(t, bytes) else {"text": t}
            f.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
    sentencepiece_fixtures(args.out, everything)
    unigram_fixtures(args.out, everything)
    bert_fixtures(args.out, everything)
    tiktoken_fixtures(args.out, everything)


if __name__ == "__main__":
    main()
