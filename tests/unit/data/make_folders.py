# SPDX-License-Identifier: MIT
"""The folders of tests/unit/data/transformers, as save_pretrained writes them; from the root of the source, once with
transformers 4.57 and once with 5.23:  python3 tests/unit/data/make_folders.py tests/unit/data/transformers/v4"""
import json, os, shutil, sys, tempfile
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
out = sys.argv[1]
corpus = [json.loads(l)["text"] for l in open("assets/kjv_validation.jsonl")][:12]
version = transformers.__version__
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
def bytelevel(regex, specials, vocab=320):
    t = Tokenizer(models.BPE())
    if regex:
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=vocab, special_tokens=[],
                                                      initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                                      show_progress=False))
    t.add_special_tokens(specials)
    return t
made = {}
t = bytelevel(LLAMA3, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False),
                                        processors.TemplateProcessing(single="<|begin_of_text|> $A",
                                                                      pair="<|begin_of_text|> $A <|begin_of_text|> $B",
                                                                      special_tokens=[("<|begin_of_text|>",
                                                                          t.token_to_id("<|begin_of_text|>"))])])
f = transformers.PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>")
f.chat_template = "{% for m in messages %}{{ bos_token }}{{ m['role'] }}: {{ m['content'] }}<|eot_id|>{% endfor %}\n"
made["llama3"] = f
t = bytelevel(QWEN, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
t.normalizer = normalizers.NFC()
t.post_processor = processors.ByteLevel(trim_offsets=False)
raw = tempfile.mkdtemp()
def slow(cls, t, **kw):
    state = json.loads(t.to_str())["model"]
    vocab = dict(state["vocab"])
    merges = [m if isinstance(m, str) else " ".join(m) for m in state["merges"]]
    json.dump(vocab, open(raw + "/vocab.json", "w"), ensure_ascii=False)
    open(raw + "/merges.txt", "w").write("#version: 0.2\n" + "\n".join(merges) + "\n")
    if version.startswith("4"):
        return cls(vocab_file=raw + "/vocab.json", merges_file=raw + "/merges.txt", **kw)
    return cls(vocab=vocab, merges=[tuple(m.split(" ")) for m in merges], **kw)
made["qwen3"] = slow(transformers.Qwen2TokenizerFast, t, eos_token="<|im_end|>", pad_token="<|endoftext|>",
                     unk_token="<|endoftext|>")
made["qwen3"].chat_template = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
                               "{{ m['content'] }}<|im_end|>\n{% endfor %}\n")
made["gpt2"] = slow(transformers.GPT2TokenizerFast, bytelevel(None, ["<|endoftext|>"]))
t = bytelevel(LLAMA3, ["<s>", "</s>", "[INST]", "[/INST]"])
made["mistral_nemo"] = transformers.PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<s>", eos_token="</s>",
                                                            unk_token="<unk>")
texts = ["In the beginning God created the heaven and the earth.", " It's 12345\n\n\tnaïve  x", "日本 🙂 <|im_end|>"]
for name, f in made.items():
    folder = f"{out}/{name}"
    f.save_pretrained(folder)
    json.dump([{"text": x, "ids": f(x, add_special_tokens=False)["input_ids"]} for x in texts],
              open(folder + "/golden.json", "w"))
shutil.rmtree(raw)
# SentencePiece's kind: a model of it, which is converted as Llama 2's (legacy) and as Mistral 7B's is
import sentencepiece
sentences = [l[:4000] for t in corpus for l in t.split("\n")] + ["naïve café  x = 1"] * 20
raw = tempfile.mkdtemp()
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(sentences), model_prefix=raw + "/tokenizer", vocab_size=480, model_type="bpe",
    byte_fallback=True,
    character_coverage=0.9995, split_digits=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
    num_threads=1)
json.dump({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
           "add_bos_token": True, "add_eos_token": False}, open(raw + "/tokenizer_config.json", "w"))
texts = ["", " ", "  two  spaces ", "In the beginning God created the heaven and the earth.", "line\n\n line\t\r\n",
         "naïve café",
         "日本 🙂 e\u0301 \u00a0x", "a</s> b<s>  c<unk>d<s>e", "▁▁x <0x0A>", "x\x00y", "12345 " * 20]
for name, legacy in (("llama2", True), ("mistral7b", False)):
    f = transformers.AutoTokenizer.from_pretrained(raw, legacy=legacy)
    if name == "mistral7b": # one added token that is found in normalised text, and one that is not
        f.add_tokens(["[INST]"])
        f.add_special_tokens({"additional_special_tokens": ["<|call|>"]} if version.startswith("4")
                             else {"extra_special_tokens": ["<|call|>"]})
    folder = f"{out}/{name}"
    f.save_pretrained(folder)
    if os.path.exists(folder + "/tokenizer.model"):
        os.remove(folder + "/tokenizer.model")
    t = Tokenizer.from_file(folder + "/tokenizer.json")
    cases = []
    for x in texts + ["[INST] a [INST]<|call|> b"]:
        ids = t.encode(x, add_special_tokens=False).ids
        cases.append({"text": x, "ids": ids, "decoded": t.decode(ids, skip_special_tokens=False)})
    half = [t.token_to_id(b) for b in ("<0xF0>", "<0x9F>", "<0x41>", "▁the", "<0xE6>", "<0x97>", "<0xA5>", "<s>",
                                       "<0x0A>")]
    cases.append({"ids": half, "decoded": t.decode(half, skip_special_tokens=False)})
    json.dump(cases, open(folder + "/golden.json", "w"))
shutil.rmtree(raw)
